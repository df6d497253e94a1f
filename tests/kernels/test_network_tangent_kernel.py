"""`TangentKernel.of_network`: tangent kernels of networks of any framework."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import TangentKernel, posterior, solve
from unlazy.products import matmul

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(9, 3)).astype("float32"), RNG.normal(size=(4, 3)).astype("float32")


def jacobian_of(module, X):
    """(points, outputs, parameters) of an Equinox module, by JAX."""
    arrays, rest = eqx.partition(module, eqx.is_array)
    found = jax.jacrev(lambda a: jax.vmap(eqx.combine(a, rest))(jnp.asarray(X)))(arrays)
    return np.concatenate([np.asarray(leaf).reshape(len(X), 2, -1) for leaf in jax.tree.leaves(found)], 2)


def test_all_and_some_layers_of_a_jax_network():
    module = eqx.nn.MLP(3, 2, 5, 1, activation=jnp.tanh, key=jax.random.key(0))
    J, JZ = jacobian_of(module, X), jacobian_of(module, Z)
    kernel = TangentKernel.of_network(module, X)
    np.testing.assert_allclose(kernel.gram(X, Z), np.einsum("icp,jcp->ij", J, JZ), rtol=1e-4)
    last = TangentKernel.of_network(module, X, layers=["layers[1]"], outputs="mean")
    np.testing.assert_allclose(last.gram(X), np.einsum("icp,jcp->ij", J[:, :, 20:], J[:, :, 20:]) / 2, rtol=1e-4)
    with pytest.raises(ValueError, match="unknown outputs 'sum'"):
        TangentKernel.of_network(module, X, outputs="sum")


def test_a_pytorch_network_in_every_use():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    kernel = TangentKernel.of_network(module, X)
    rows = []
    for x in (*X, *Z):
        out = module(torch.tensor(x)[None])[0]
        grads = [torch.autograd.grad(f, module.parameters(), retain_graph=True) for f in out]
        rows.append(np.stack([np.concatenate([g.numpy().ravel() for g in grad]) for grad in grads]))
    J = np.stack(rows)
    expected = np.einsum("icp,jcp->ij", J, J)
    np.testing.assert_allclose(kernel.gram(X, Z), expected[:9, 9:], rtol=1e-4)
    np.testing.assert_allclose(kernel.diag(X), np.diag(expected)[:9], rtol=1e-4)
    V = RNG.normal(size=(9, 3)).astype("float32")
    np.testing.assert_allclose(matmul(kernel, Z, X, V), expected[9:, :9] @ V, rtol=1e-3, atol=1e-3)
    y = np.asarray(X[:, 0])
    ridge = np.linalg.solve(expected[:9, :9] + 0.5 * np.eye(9), y)
    np.testing.assert_allclose(solve(kernel, X, y, 0.5).predict(Z), expected[9:, :9] @ ridge, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(posterior(kernel, X, y, Z, 0.5).mean, expected[9:, :9] @ ridge, rtol=1e-3, atol=1e-4)
    half = TangentKernel.of_network(module, X, layers=["2"], outputs="mean").gram(X)
    np.testing.assert_allclose(half, np.einsum("icp,jcp->ij", J[:9, :, 24:], J[:9, :, 24:]) / 2, rtol=1e-4)
