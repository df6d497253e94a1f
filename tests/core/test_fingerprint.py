"""core.fingerprint: changing a number, a leaf or a line of a function changes the hash; equal values agree."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import NNGP, LayerKernel, layers
from unlazy.core.fingerprint import fingerprint
from unlazy.kernels.metric import with_metric
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern
from unlazy.theory.infinite_width.architecture import MLP

BIG = np.random.default_rng(0).normal(size=(60, 60))


def changed(entry):
    """A matrix that prints like BIG: NumPy and JAX abbreviate the middle."""
    out = BIG.copy()
    out[30, entry] += 1e-3
    return out


def slope(a):
    return lambda x: a * x


DIFFERENT = [
    1, 1.0, "1", True, None, (1, 2), [1, 2], ((1,), 2), {"a": 1}, {"a": 2}, np.zeros(3), np.zeros(3, np.float32),
    np.zeros((3, 1)), BIG, changed(30), changed(31), jax.random.key(0), jax.random.key(1),
    Gaussian(1.0), Gaussian(1.0 + 1e-9), Laplace(1.0), 2.0 * Gaussian(1.0),
    with_metric(Gaussian(1.0), jnp.asarray(BIG)), with_metric(Gaussian(1.0), jnp.asarray(changed(30))),
    NTK(MLP(2)), NTK(MLP(3)), NTK(MLP(2, activation="erf")),
    jax.nn.relu, jax.nn.gelu, functools.partial(jax.nn.gelu, approximate=False), slope(1.0), slope(2.0),
    lambda x: x + 1, lambda x: x + 2, lambda x: jnp.sin(x), lambda x: jnp.cos(x),
]  # fmt: skip


def test_different_values_differ_and_equal_ones_agree():
    found = [fingerprint(value) for value in DIFFERENT]
    assert len(set(found)) == len(found)
    assert fingerprint(with_metric(Gaussian(1.0), jnp.asarray(BIG))) == fingerprint(
        with_metric(Gaussian(1.0), jnp.asarray(BIG.copy()))
    )
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint(slope(1.0)) == fingerprint(slope(1.0))
    assert fingerprint(1, 2) != fingerprint((1, 2)) and fingerprint("ab", "c") != fingerprint("a", "bc")
    with pytest.raises(ValueError, match="cannot fingerprint"):
        fingerprint(iter([1]))


def test_another_process_finds_the_same_hash():
    code = (
        "from unlazy.core.fingerprint import fingerprint; from unlazy.kernels.networks.infinite_width import NTK;"
        "from unlazy import MLP; import jax; print(fingerprint(NTK(MLP(2)), jax.nn.gelu, {'b', 'a'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(NTK(MLP(2)), jax.nn.gelu, {"a", "b"})


def test_hashes_of_the_first_release():
    """Stores and checkpoints of version 0.1.0 stay valid although the classes moved: computed by that version."""
    branch = layers.residual("relu", layers.Conv(3))
    conv = layers.serial(
        layers.Conv(3), "gelu", layers.AvgPool(2), branch, layers.LayerNorm(), layers.Dropout(0.9),
        layers.GlobalAvgPool(), layers.Dense(),
    )  # fmt: skip
    attention = layers.serial(layers.Dense(), "relu", layers.SelfAttention(), layers.Index(0), layers.Dense())
    graph = layers.serial(layers.Dense(), "relu", layers.Aggregate(), layers.Flatten(), layers.Dense())
    known = [
        (NTK(MLP(3, "erf", 1.3, 0.2)), "4f38a4b1a8179fa4"), (NTK(conv), "42f169329b994b23"),
        (NNGP(attention), "171d56e7fc0fd39e"), (NNGP(graph), "23f39668bd9c5434"),
        (Gaussian(1.0) + 2 * Laplace(2.0), "4109e510e6db3aee"),
        (LayerKernel(MLP(2), (0.0, 0.0, 1.0)), "c80397ab8a43b583"), (Matern(1.3, 2.5), "1e936a9ba1397116"),
    ]  # fmt: skip
    assert [fingerprint(kernel)[:16] for kernel, _ in known] == [digest for _, digest in known]
