"""The tangent-kernel machine against refits without each point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import SmallModel, initial

import unlazy
from unlazy.diagnostics.measures.kernel_machine import RIDGES, KernelMachine, fit_kernel_machine, tangent_gram
from unlazy.diagnostics.measures.kernel_result import CALIBRATED
from unlazy.diagnostics.probes import Probes


def gram(model, X, outputs):
    """JJᵀ averaged over outputs, from whole Jacobians."""
    J = jax.jacrev(lambda p: model.f(p, jnp.asarray(X, model.dtype)))(model.value)
    blocks = [np.asarray(b, np.float64).reshape(len(X), outputs, -1) for b in J.values()]
    return sum(np.einsum("ikp,jkp->ij", B, B) for B in blocks) / outputs


@pytest.mark.slow
def test_gram_equals_that_of_jacobians(x64):
    X = np.random.default_rng(0).normal(size=(9, 3))
    for outputs in (1, 3):
        model = SmallModel(initial(0, 3, 16, outputs), np.float64)
        expected = gram(model, X, outputs)
        probes = Probes(X)
        assert np.allclose(tangent_gram(model, model.value, probes, (9, outputs), 9), expected, rtol=1e-12)
        few = probes.positions(5, 9)
        assert np.allclose(tangent_gram(model, model.value, probes, (5, outputs), 5), expected[np.ix_(few, few)])
        probes.keep_whole()
        assert np.allclose(tangent_gram(model, model.value, probes, (9, outputs), 9), expected, rtol=1e-12)


@pytest.mark.slow
def test_many_outputs_are_averaged_over_random_signs(x64):
    """Combinations differ from the average by products of different outputs, which vanish with width: those of the
    readout are exactly equal, and a hidden layer of 512 leaves some 1/√512."""
    X = np.random.default_rng(0).normal(size=(6, 3))
    model = SmallModel(initial(0, 3, 512, 12), np.float64)
    found, expected = tangent_gram(model, model.value, Probes(X), (6, 12), 6), gram(model, X, 12)
    assert np.linalg.norm(found - expected) < 4 / np.sqrt(512) * np.linalg.norm(expected)


def test_error_equals_refits(x64):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(30, 4))
    y = np.sin(X @ rng.normal(size=(4, 1)))
    model = SmallModel(initial(0, 4, 32, 1), np.float64)
    K = gram(model, X, 1)
    K, labels = K + np.mean(np.diagonal(K)), y - y.mean(0)
    start = np.asarray(model.f(model.value, jnp.asarray(X)))
    if np.var(y - start) < np.var(y):
        labels = y - start - (y - start).mean(0)
    errors = []
    for ridge in RIDGES * np.mean(np.diagonal(gram(model, X, 1))):
        missed = []
        for i in range(30):
            kept = np.arange(30) != i
            alpha = np.linalg.solve(K[np.ix_(kept, kept)] + ridge * np.eye(29), labels[kept])
            missed.append(labels[i] - K[i, kept] @ alpha)
        errors.append(np.sum(np.square(missed)))
    outputs = np.asarray(y + 0.1)
    found = fit_kernel_machine(model, model.value, Probes(X, y), outputs, count=30)
    assert found.error == pytest.approx(min(errors) / np.sum((y - y.mean()) ** 2), rel=1e-6)
    assert found.network_error == pytest.approx(30 * 0.01 / np.sum((y - y.mean()) ** 2), rel=1e-9)


def test_classes_and_more_training_points():
    """Two separated classes: no error, whatever the kernel; and the predicted error falls with more points."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 80)
    X = (rng.normal(size=(80, 3)) + 4 * labels[:, None]).astype(np.float32)
    model = SmallModel(initial(0, 3, 32, 2))
    found = fit_kernel_machine(model, model.value, Probes(X, labels), np.eye(2)[labels], count=80)
    assert found.error == 0 and found.network_error == 0 and found.suffices
    noisy = X[:, :1] * 2 + rng.normal(size=(80, 1))
    model = SmallModel(initial(0, 3, 32, 1))
    monitor = unlazy.watch(model, X, noisy.astype(np.float32))
    more = monitor.compare_with_kernel(training_points=1000)
    assert 0 < more.low < more.predicted < more.error < 1 and more.predicted < more.high
    assert monitor.record.kernel_machine == more


def test_who_does_as_well():
    assert KernelMachine(100, 0.3, 0.2).suffices is False
    assert KernelMachine(100, 0.3, 0.2, 1000, 0.19, 0.1, 0.3).suffices is True
    near, far = (str(KernelMachine(100, 0.3, 0.2, n, 0.19, 0.1, 0.3)) for n in (CALIBRATED * 100, 1000))
    assert "with 400;" in near and "with 1,000 (beyond 400: not calibrated);" in far


def test_targets_are_needed():
    model = SmallModel(initial(0, 3, 8, 2))
    monitor = unlazy.watch(model, np.ones((8, 3), np.float32))
    with pytest.raises(ValueError, match="pass probe_targets"):
        monitor.compare_with_kernel()
    with pytest.raises(ValueError, match="training_points must be a positive integer, got 0"):
        monitor.compare_with_kernel(training_points=0)
