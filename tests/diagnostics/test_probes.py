"""Probe points in every form, losses and labels."""

import collections

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.diagnostics.measures.losses import as_numpy, label_matrix, probe_error, probe_loss, residual_matrix
from unlazy.diagnostics.probes import Probes

X = np.arange(20.0).reshape(10, 2)
Pair = collections.namedtuple("Pair", "ids mask")


@pytest.mark.parametrize(
    "inputs",
    [X, jnp.asarray(X), X.tolist(), (X, X[:, 0]), {"ids": X, "mask": X[:, :1]}, [X, {"deep": X}], Pair(X, X)],
)
def test_subsets_are_nested_and_keep_their_form(inputs):
    probes = Probes(inputs, np.arange(10))
    assert probes.rows == 10
    assert probes.inputs(10) is inputs  # nothing is copied
    few, more = probes.inputs(3), probes.inputs(6)
    if not isinstance(inputs, list):
        assert type(few) is type(inputs)
    first = few
    while not hasattr(first, "shape"):
        first = next(iter(first.values() if isinstance(first, dict) else first))
        more = next(iter(more.values() if isinstance(more, dict) else more))
    assert np.array_equal(first[:, 0], more[:3, 0])
    assert np.array_equal(first[:, 0] / 2, probes.target_array(3))  # targets go with them
    assert np.array_equal(X[probes.positions(3, 10), 0], first[:, 0])
    assert np.array_equal(probes.positions(3, 6), [0, 1, 2])


def test_torch_tensors_are_probes():
    torch = pytest.importorskip("torch")
    probes = Probes({"x": torch.arange(6.0), "flag": True}, torch.arange(6, dtype=torch.int32))
    taken = probes.inputs(4)
    assert isinstance(taken["x"], torch.Tensor) and taken["flag"] is True
    assert np.array_equal(taken["x"].numpy(), probes.target_array(4))
    assert np.array_equal(probes.point(2, 4)["x"].numpy(), taken["x"][2:3].numpy())
    assert as_numpy(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).tolist() == [1, 1]


def test_arrays_of_other_lengths_are_used_whole():
    probes = Probes((X, X[:4]))
    assert probes.rows is None and probes.inputs(2)[0] is X
    with pytest.raises(ValueError, match="one entry per probe point, got 3 for 10 points"):
        Probes(X, np.arange(3))


def test_losses_equal_those_written_out():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(6, 3)), rng.integers(0, 3, 6)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert probe_loss(logits, labels) == pytest.approx(-np.mean(np.log(p[np.arange(6), labels])))
    assert probe_error(logits, labels) == np.mean(logits.argmax(1) != labels)
    hot = np.eye(3)[labels]
    assert np.array_equal(label_matrix(logits, labels), hot)
    assert np.allclose(residual_matrix(logits, labels), hot - p)
    values = rng.normal(size=(6, 3))
    assert probe_loss(logits, values) == pytest.approx(np.mean((logits - values) ** 2))
    expected = np.sum((logits - values) ** 2) / np.sum((values - values.mean(0)) ** 2)
    assert probe_error(logits, values) == pytest.approx(expected)
    assert np.array_equal(residual_matrix(logits, values), values - logits)
    assert probe_loss(logits[:, :1], values[:, 0]) == pytest.approx(np.mean((logits[:, 0] - values[:, 0]) ** 2))


def test_tokens_are_labels_and_ignored_ones_do_not_count():
    """Two points of two tokens with three classes, outputs flattened per point."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 6))
    labels = np.array([[0, -100], [2, 1]])
    flat, kept = logits.reshape(4, 3), [0, 2, 3]
    assert probe_loss(logits, labels) == pytest.approx(probe_loss(flat[kept], np.array([0, 2, 1])))
    assert np.array_equal(label_matrix(logits, labels).reshape(4, 3)[1], np.zeros(3))
    assert np.array_equal(residual_matrix(logits, labels).reshape(4, 3)[1], np.zeros(3))


def test_targets_of_other_kinds_have_no_loss():
    outputs = np.ones((4, 3))
    for targets in (np.ones((4, 2)), np.array(list("abcd"))):
        assert np.isnan(probe_loss(outputs, targets)) and np.isnan(probe_error(outputs, targets))
        assert label_matrix(outputs, targets) is None and residual_matrix(outputs, targets) is None


@pytest.mark.parametrize("inputs", [X[:0], (X[:0], X[:0, 0]), {"ids": X[:0]}])
def test_no_points_are_refused(inputs):
    with pytest.raises(ValueError, match="probe_inputs are empty"):
        Probes(inputs)
