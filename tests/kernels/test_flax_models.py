"""Tangent kernels of flax's models, both of its kinds, where flax is installed: against Jacobians by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.tangent import TangentKernel
from unlazy.networks import tangent_kernel
from unlazy.solvers.solve import solve

linen = pytest.importorskip("flax.linen")
pytestmark = pytest.mark.slow
RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(6, 4, 4, 1)), RNG.normal(size=(3, 4, 4, 1))


class Small(linen.Module):
    """A convolution with biases, a mean over positions, a dense head of two outputs."""

    @linen.compact
    def __call__(self, x):
        x = jnp.tanh(linen.Conv(3, (3, 3), param_dtype=float, bias_init=linen.initializers.normal())(x))
        return linen.Dense(2, param_dtype=float)(x.mean((1, 2)))


def by_hand(apply, variables, X):
    """∂f_c/∂θ of every point from one derivative of everything, flattened: (n, c, parameters)."""
    rows = jax.tree.leaves(jax.jacrev(lambda v: apply(v, jnp.asarray(X)))(variables))
    return np.concatenate([np.asarray(leaf).reshape(*leaf.shape[:2], -1) for leaf in rows], -1)


def test_linen(x64):
    """Sums of some forty products: a hundred roundings. K + ridge is solved with the labels of one output."""
    model = Small()
    variables = model.init(jax.random.key(0), X)
    J, J2 = by_hand(model.apply, variables, X), by_hand(model.apply, variables, Z)
    kernel = TangentKernel(model.apply, variables)
    K = np.einsum("ncp,mcp->nm", J, J2)
    np.testing.assert_allclose(kernel.gram(X, Z), K, rtol=0, atol=1e-13 * np.abs(K).max())
    full = tangent_kernel(model.apply, variables, X, Z, outputs="full")
    np.testing.assert_allclose(full, np.einsum("ncp,mkp->ncmk", J, J2), rtol=0, atol=1e-13 * np.abs(K).max())
    y = RNG.normal(size=len(X))
    alpha = np.linalg.solve(np.einsum("ncp,mcp->nm", J, J) + 0.1 * np.eye(len(X)), y)
    np.testing.assert_allclose(solve(kernel, X, y, ridge=0.1).predict(Z), K.T @ alpha, rtol=1e-6, atol=1e-9)


def test_nnx(x64):
    """A module that holds its parameters is split into them and the rest, which is part of the function."""
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(16, 1, param_dtype=float, rngs=nnx.Rngs(0))
    rest, state = nnx.split(model)

    def apply(state, X):
        return jnp.tanh(nnx.merge(rest, state)(X.reshape(len(X), -1)))[:, 0]

    slope = 1 - np.asarray(apply(state, jnp.asarray(X))) ** 2
    rows = slope[:, None] * np.concatenate([X.reshape(len(X), -1), np.ones((len(X), 1))], 1)
    np.testing.assert_allclose(TangentKernel(apply, state).gram(X), rows @ rows.T, rtol=1e-12)
