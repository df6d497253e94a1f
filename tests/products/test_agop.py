"""Gradients and AGOP against automatic differentiation of the Gram matrix and against closed forms at x = x_i."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import agop, gradient
from unlazy.theory.infinite_width.architecture import MLP

KERNELS = {"gaussian": Gaussian(2.0), "laplace": Laplace(2.0), "ntk": NTK(MLP(2, sigma_b=0.3))}


def problem(n=150, m=40, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    return (jnp.asarray(rng.normal(size=s)) for s in ((n, d), (m, d), (m, c)))


@pytest.mark.slow_cases("gaussian", "laplace")
@pytest.mark.parametrize("name", [pytest.param(k, marks=pytest.mark.slow if k == "ntk" else []) for k in KERNELS])
def test_gradient_away_from_the_centers_is_that_of_autodiff(x64, name):
    kernel = KERNELS[name]
    X, Z, alpha = problem()
    G = gradient(kernel, X, Z, alpha)
    reference = jax.vmap(jax.jacrev(lambda x: (kernel.gram(x[None], Z, accurate=True) @ alpha)[0]))(X)
    # the derivative of an angle loses 1/θ² roundings; these points are at least 0.1 apart: 1e-16·1e2, and sums of 40
    assert np.allclose(G, reference, rtol=0, atol=1e-11)
    M = agop(kernel, X, Z, alpha)
    assert np.allclose(M, np.einsum("ncd,nce->de", reference, reference) / X.shape[0], atol=1e-10)
    assert np.allclose(agop(kernel, X, Z, alpha, memory=20_000), M, atol=1e-12)  # blocks do not matter


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("depth", [1, 3])
def test_self_term_keeps_the_radial_derivative(x64, depth):
    """At x = x_i the bias-free NTK is |x||x_i| g(θ): the kink in θ drops out, ∇ = g(0) x stays (scaled by 1/d)."""
    kernel = NTK(MLP(depth))
    X, _, _ = problem()
    one = jnp.ones(1)
    for x in X[:3]:
        at_itself = gradient(kernel, x[None], x[None], one)[0]
        g = kernel.diag(x[None])[0] / jnp.sum(x * x)
        assert np.allclose(at_itself, g * x, rtol=1e-12)


@pytest.mark.parametrize("kernel", [Laplace(2.0), Gaussian(2.0)])
def test_self_term_of_a_radial_kernel_is_zero(x64, kernel):
    X, _, _ = problem()
    assert np.all(np.abs(gradient(kernel, X[:1], X[:1], jnp.ones(1))) < 1e-14)


@pytest.mark.slow
def test_symmetric_differences_agree_at_a_center(x64):
    """The mean of the one-sided derivatives at a kink is what is kept: (f(x + h) - f(x - h))/2h → ∇f·v."""
    kernel = NTK(MLP(2, sigma_b=0.3))
    _, Z, alpha = problem()
    G = gradient(kernel, Z[:5], Z, alpha)
    h = 1e-4
    for j in range(Z.shape[1]):
        v = h * jnp.eye(Z.shape[1])[j]
        up, down = (kernel.gram(Z[:5] + s * v, Z, accurate=True) @ alpha for s in (1, -1))
        # error: third derivatives, and the kink's curvature across x, both O(h)
        assert np.allclose((up - down) / (2 * h), G[:, :, j], atol=20 * h)


def test_a_kernel_without_a_formula_raises():
    from test_products import Product1

    with pytest.raises(ValueError, match=r"jax\.grad"):
        agop(Product1(), jnp.ones((3, 2)), jnp.ones((3, 2)), jnp.ones(3))
