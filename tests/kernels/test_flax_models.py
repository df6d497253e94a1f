"""Tangent kernels of flax linen and nnx models, if flax is installed: against Jacobians by hand."""

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


class Normalized(linen.Module):
    """Batch normalization by running averages, or by the batch."""

    @linen.compact
    def __call__(self, x, train=False):
        x = linen.Dense(3, param_dtype=float)(x.reshape(len(x), -1))
        return jnp.tanh(linen.BatchNorm(use_running_average=not train, param_dtype=float)(x)).sum(1)


def test_running_averages_are_not_parameters(x64):
    """Sums of some sixty products: a hundred roundings."""
    model = Normalized()
    variables = model.init(jax.random.key(0), X)
    kernel = TangentKernel(model.apply, variables)
    rest = {name: part for name, part in variables.items() if name != "params"}
    rows = jax.jacrev(lambda params: model.apply({"params": params, **rest}, jnp.asarray(X)))(variables["params"])
    J = np.concatenate([np.asarray(leaf).reshape(len(X), -1) for leaf in jax.tree.leaves(rows)], -1)
    K = J @ J.T
    np.testing.assert_allclose(kernel.gram(X), K, rtol=0, atol=1e-13 * np.abs(K).max())

    def trains(variables, X):
        return model.apply(variables, X, train=True, mutable=["batch_stats"])[0]

    with pytest.raises(ValueError, match="depends on the other points"):
        TangentKernel(trains, variables).gram(X)
