"""Averages over neurons against the Jacobian of the finite network that they are [M2]."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.theory.activations.functions import activation
from unlazy.theory.feature_learning import mean_field
from unlazy.theory.infinite_width.architecture import MLP


def test_the_tangent_kernel_is_that_of_the_network(x64):
    """f = σ_w/√N z·φ(w x) + σ_b β with three outputs: Θ summed over them, all parameters. Sums of some 20 products."""
    rng = np.random.default_rng(0)
    network = MLP(1, "erf", sigma_w=(1.2, 1.5), sigma_b=(0.4, 0.7))
    X, phi, N, c = jnp.asarray(rng.normal(size=(4, 2))), activation("erf"), 6, 3
    w, z = jnp.asarray(rng.normal(size=(N, 3))), jnp.asarray(rng.normal(size=(N, c)))
    E = np.c_[1.2 * X / np.sqrt(2), np.full(4, 0.4)]
    np.testing.assert_allclose(mean_field.embed(network, X), E, rtol=1e-15)

    def f(parameters):
        w, z, bias = parameters
        return 1.5 / np.sqrt(N) * phi(E @ w.T) @ z + 0.7 * bias

    rows = [J.reshape(4, c, -1) for J in jax.jacobian(f)((w, z, jnp.zeros(c)))]
    wanted = sum(np.einsum("icp,jcp->ij", J, J) for J in rows)
    found = mean_field.tangent(*mean_field.kernels(w, z, jnp.asarray(E), phi), jnp.asarray(E @ E.T), 1.5, 0.7, c)
    np.testing.assert_allclose(found, wanted, rtol=1e-13)


def test_the_velocity_is_the_gradient_of_the_loss(x64):
    """dθ/dt = γ_0² N times minus the gradient of ½ Σ (f - y)², f = σ/(γ_0 N) Σ z φ(h)."""
    rng = np.random.default_rng(1)
    phi, gamma, sigma = activation("erf"), 0.8, 1.3
    w, z, E, y = (jnp.asarray(rng.normal(size=shape)) for shape in ((5, 3), (5, 2), (4, 3), (4, 2)))

    def f(w, z):
        return mean_field.outputs(w, z, E, phi, sigma / gamma)

    np.testing.assert_allclose(f(w, z), sigma / gamma * np.asarray(phi(E @ w.T)) @ z / 5, rtol=1e-13)
    slopes = jax.grad(lambda w, z: 0.5 * jnp.sum((f(w, z) - y) ** 2), (0, 1))(w, z)
    found = mean_field.velocity(w, z, E, y - f(w, z), phi, gamma * sigma)
    for velocity, slope in zip(found, slopes):
        np.testing.assert_allclose(velocity, -(gamma**2) * 5 * slope, rtol=1e-12, atol=1e-14)
