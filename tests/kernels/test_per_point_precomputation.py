"""Kernels of many pairs use per-point precomputation: the same values for every kernel of the family."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks import infinite_width
from unlazy.kernels.networks.infinite_width import NNGP, NTK, LayerKernel
from unlazy.theory.infinite_width.architecture import MLP

NETWORK = MLP(2, "relu", 1.2, 0.3)
OTHERS = NNGP(NETWORK), LayerKernel(NETWORK, (0.5, 1.0, 2.0), (1.0, 0.0, 3.0))


@pytest.mark.slow_cases("kernel0")
@pytest.mark.parametrize("kernel", [NTK(NETWORK), *(pytest.param(k, marks=pytest.mark.slow) for k in OTHERS)])
def test_block_by_rows(kernel, monkeypatch):
    X, Z = (jnp.asarray(np.random.default_rng(i).normal(size=(4, 3)), jnp.float32) for i in (0, 1))
    plain = kernel.block(*kernel.sides(X, Z))
    monkeypatch.setattr(infinite_width, "MANY_PAIRS", 0)
    sides = kernel.sides(X, Z)
    assert sides[0].rows is not None
    # numbers of order 1 and some tens of float32 roundings
    np.testing.assert_allclose(kernel.block(*sides), plain, rtol=64 * 2.0**-24)
    same = kernel.block(sides[0], sides[0])
    np.testing.assert_allclose(jnp.diagonal(same), kernel.diag(X), rtol=64 * 2.0**-24)
