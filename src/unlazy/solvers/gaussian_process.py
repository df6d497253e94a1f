"""Gaussian processes: prior, posterior, trained ensembles at any time, draws and evidence [K5, K11].

>>> prior(kernel, Z).sample(key, 5)
>>> posterior(kernel, X, y, Z, noise_variance=0.01).std
>>> ensemble(NNGP(network), NTK(network), X, y, Z, times=[1.0, float("inf")]).mean     # (times, m)
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.inputs import Labels, Points, count, float_type, labels
from unlazy.core.linear import dot
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Values, decompose
from unlazy.theory import dynamics
from unlazy.theory import gaussian_process as theory
from unlazy.theory.divided_differences import FLOW, RIDGE


class GaussianProcess(eqx.Module):
    """A Gaussian distribution of function values at m points: mean and full covariance, outputs independent.

    A leading axis, where there is one, is a path of times or noise levels.
    """

    mean: Float[Array, "..."]
    """Shape (*path, m, *outputs)."""
    covariance: Float[Array, "*t m m"]
    """The same for every output."""
    notes: tuple[str, ...] = eqx.field(static=True, default=())

    @property
    def std(self) -> Float[Array, "*t m"]:
        """Standard deviation at every point; variances that rounding made negative count as zero."""
        return jnp.sqrt(jnp.maximum(jnp.diagonal(self.covariance, axis1=-2, axis2=-1), 0))

    def sample(self, key: PRNGKeyArray, draws: int) -> Float[Array, "..."]:
        """Independent draws of the function, shape (draws, *path, m, *outputs), jointly over the points."""
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        path, m = self.covariance.shape[:-2], self.covariance.shape[-1]
        outputs = self.mean.shape[len(path) + 1 :]
        flat = self.covariance.reshape(-1, m, m)
        root = jax.vmap(theory.square_root)(flat).reshape(*path, m, m)
        noise = jax.random.normal(key, (draws, *path, m, max(1, _size(outputs))), self.mean.dtype)
        return self.mean + dot(root, noise).reshape(draws, *path, m, *outputs)


def prior(kernel: Kernel, Z: Points) -> GaussianProcess:
    """f ~ GP(0, K) at Z [K5]: what a wide random network is before training, when K is its NNGP kernel."""
    Z, _ = kernel.read(Z, names=("Z", ""))
    return GaussianProcess(jnp.zeros(count(Z), float_type(Z)), kernel.gram(Z))


def posterior(
    kernel: Kernel,
    X: Points,
    y: Labels,
    Z: Points,
    noise_variance: Values = 0.0,
) -> GaussianProcess:
    """f | y for y = f(X) + noise [K2, K5]: mean K_zX(K + ρI)⁻¹y, covariance K_zz - K_zX(K + ρI)⁻¹K_Xz.

    `noise_variance` ρ may be an array: the whole path costs one eigendecomposition. With K = NNGP this is Bayesian
    inference for the infinitely wide network.
    """
    X, Z = kernel.read(X, Z)
    y = labels(y, count(X))
    spectrum = decompose(kernel, X)
    fit = spectrum.ridge_path(y, noise_variance)
    c = spectrum.function(RIDGE, noise_variance)
    covariance = theory.posterior_covariance(kernel.gram(Z), kernel.gram(Z, X), spectrum.spectrum.eigenvectors, c)
    return GaussianProcess(fit.predict(Z), covariance, spectrum.notes)


def trained_random_features(
    kernel: Kernel,
    X: Points,
    y: Labels,
    Z: Points,
    times: Values = jnp.inf,
) -> GaussianProcess:
    """The distribution at time t of a random-features model, or of a network of which only the head is trained,
    started at θ ~ N(0, I) [K5]. At t = ∞ it is the noiseless posterior."""
    X, Z = kernel.read(X, Z)
    y = labels(y, count(X))
    spectrum = decompose(kernel, X)
    lam, U, _ = spectrum.spectrum
    c = spectrum.function(FLOW, times)
    covariance = dynamics.random_features_covariance(kernel.gram(Z), kernel.gram(Z, X), U, lam, c)
    return GaussianProcess(spectrum.flow(y, times).predict(Z), covariance, spectrum.notes)


def ensemble(
    nngp: Kernel,
    ntk: Kernel,
    X: Points,
    y: Labels,
    Z: Points,
    times: Values = jnp.inf,
) -> GaussianProcess:
    """The distribution at time t over wide networks trained in all layers from independent starts [K11].

    Mean Θ_zX Θ⁻¹(I - e^{-Θt})y; covariance from NNGP and NTK together (Lee et al. 2019, eq. 16).
    """
    X, Z = ntk.read(X, Z)
    y = labels(y, count(X))
    spectrum = decompose(ntk, X)
    U, c = spectrum.spectrum.eigenvectors, spectrum.function(FLOW, times)
    covariance = dynamics.ensemble_covariance(nngp.gram(Z), nngp.gram(Z, X), nngp.gram(X), ntk.gram(Z, X), U, c)
    return GaussianProcess(spectrum.flow(y, times).predict(Z), covariance, spectrum.notes)


def log_marginal_likelihood(
    kernel: Kernel, X: Points, y: Labels, noise_variance: Real[ArrayLike, ""] = 0.0
) -> Float[Array, ""]:
    """log p(y | X), differentiable in the kernel's parameters, X and the noise; finite on a singular K."""
    X, _ = kernel.read(X)
    y = labels(y, count(X))
    noise = jnp.asarray(noise_variance, float_type(X))
    return theory.log_marginal_likelihood(kernel.gram(X), y.reshape(y.shape[0], -1), noise)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
