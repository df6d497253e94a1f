"""Gaussian processes: prior, posterior, trained ensembles at any time, draws and evidence [K5, K11].

>>> prior(kernel, Z).sample(key, 5)
>>> posterior(kernel, X, y, Z, noise_variance=0.01).std
>>> condition(kernel, X, y, noise_variance=0.01).predict(Z)      # the same mean; X is factorized once for every Z
>>> ensemble(NNGP(network), NTK(network), X, y, Z, times=[1.0, float("inf")]).mean     # (times, m)
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.arrays import Labels, Points, count, float_type, labels
from unlazy.core.linalg import dot
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Decomposition, Path, Values, decompose
from unlazy.theory.dynamics import gaussian_process as theory
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.numerics.divided_differences import FLOW, RIDGE


class GaussianProcess(eqx.Module):
    """A Gaussian distribution of function values at m points: mean and full covariance, outputs independent.

    A leading axis, where there is one, is a path of times or noise levels.
    """

    mean: Float[Array, "..."]
    """Shape (*path, m, *outputs)."""
    covariance: Float[Array, "*t m m"]
    """The same for every output."""
    evidence: Evidence = Evidence()

    @property
    def notes(self) -> tuple[str, ...]:
        return self.evidence.notes

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
    """f ~ GP(0, K) at Z [K5]: what a wide random network is before training, when K is its NNGP kernel.

    >>> prior(NNGP(MLP(2)), Z).sample(key, 3).shape  # three random networks
    (3, 5)
    """
    Z, _ = kernel.read(Z, names=("Z", ""))
    return GaussianProcess(jnp.zeros(count(Z), float_type(Z)), kernel.gram(Z))


class Conditioned(eqx.Module):
    """A process that has seen data: `predict` gives its mean, `at` the joint distribution at points."""

    kernel: Kernel
    """The covariance before."""
    spectrum: Decomposition
    path: Path
    """The mean along noise levels or times."""

    @property
    def evidence(self) -> Evidence:
        return self.path.evidence

    @property
    def times(self) -> Float[Array, "*t"]:
        """Noise levels or times."""
        return self.path.times

    def predict(self, Z: Points, t: Any = None, memory: int | str | None = None) -> Float[Array, "..."]:
        """The mean at Z, shape (*path, m, *outputs), or at t, one or several of `times`."""
        return self.path.predict(Z, t, memory=memory)

    def kernel_at(self, t: Any) -> Kernel:
        """The kernel in which the mean is a regression: the same at every t."""
        return self.path.kernel

    def at(self, Z: Points) -> GaussianProcess:
        """The joint distribution at Z."""
        X, Z = self.path.kernel.read(self.path.X, Z)
        return GaussianProcess(self.path.predict(Z), self._covariance(X, Z), self.evidence)

    @abc.abstractmethod
    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]: ...


class Posterior(Conditioned):
    """f | y for y = f(X) + noise [K2, K5]."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        U, c = self.spectrum.spectrum.eigenvectors, self.spectrum.function(RIDGE, self.times)
        return theory.posterior_covariance(self.kernel.gram(Z), self.kernel.gram(Z, X), U, c)


class TrainedFeatures(Conditioned):
    """A random-features model at time t of gradient flow [K5]."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        (lam, U, _), c = self.spectrum.spectrum, self.spectrum.function(FLOW, self.times)
        return spectral_filters.random_features_covariance(self.kernel.gram(Z), self.kernel.gram(Z, X), U, lam, c)


class Ensemble(Conditioned):
    """Wide networks trained in all layers for time t from independent starts [K11]: `kernel` is the NNGP."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        nngp, ntk = self.kernel, self.path.kernel
        U, c = self.spectrum.spectrum.eigenvectors, self.spectrum.function(FLOW, self.times)
        return spectral_filters.ensemble_covariance(nngp.gram(Z), nngp.gram(Z, X), nngp.gram(X), ntk.gram(Z, X), U, c)


def condition(kernel: Kernel, X: Points, y: Labels, noise_variance: Values = 0.0) -> Posterior:
    """The process given y = f(X) + noise, for any Z: mean K_zX(K + ρI)⁻¹y, covariance K_zz - K_zX(K + ρI)⁻¹K_Xz
    [K2, K5].

    `noise_variance` ρ may be an array: the whole path costs one eigendecomposition. With K = NNGP this is Bayesian
    inference for the infinitely wide network.
    """
    spectrum = decompose(kernel, X)
    return Posterior(kernel, spectrum, spectrum.ridge_path(y, noise_variance))


def posterior(kernel: Kernel, X: Points, y: Labels, Z: Points, noise_variance: Values = 0.0) -> GaussianProcess:
    """The distribution of `condition` at Z.

    >>> at_Z = posterior(kernel, X, y, Z, noise_variance=0.01)
    >>> at_Z.mean.shape, at_Z.std.shape
    ((5,), (5,))
    """
    X, Z = kernel.read(X, Z)
    return condition(kernel, X, y, noise_variance).at(Z)


def trained_random_features(
    kernel: Kernel, X: Points, y: Labels, Z: Points, times: Values = jnp.inf
) -> GaussianProcess:
    """The distribution at time t of a random-features model, or of a network of which only the head is trained,
    started at θ ~ N(0, I) [K5]. At t = ∞ it is the noiseless posterior."""
    X, Z = kernel.read(X, Z)
    spectrum = decompose(kernel, X)
    return TrainedFeatures(kernel, spectrum, spectrum.flow(y, times)).at(Z)


def trained_ensemble(nngp: Kernel, ntk: Kernel, X: Points, y: Labels, times: Values = jnp.inf) -> Ensemble:
    """Wide networks trained in all layers from independent starts [K11], for any Z.

    Mean Θ_zX Θ⁻¹(I - e^{-Θt})y; covariance from NNGP and NTK together (Lee et al. 2019, eq. 16).
    """
    spectrum = decompose(ntk, X)
    return Ensemble(nngp, spectrum, spectrum.flow(y, times))


def ensemble(nngp: Kernel, ntk: Kernel, X: Points, y: Labels, Z: Points, times: Values = jnp.inf) -> GaussianProcess:
    """The distribution of `trained_ensemble` at Z.

    >>> ensemble(NNGP(network), NTK(network), X, y, Z, times=[1.0, 10.0]).mean.shape
    (2, 5)
    """
    X, Z = ntk.read(X, Z)
    return trained_ensemble(nngp, ntk, X, y, times).at(Z)


def log_marginal_likelihood(
    kernel: Kernel, X: Points, y: Labels, noise_variance: Real[ArrayLike, ""] = 0.0
) -> Float[Array, ""]:
    """log p(y | X), differentiable in the kernel's parameters, X and the noise; finite on a singular K.

    >>> slope = jax.grad(lambda h: log_marginal_likelihood(Gaussian(h), X, y, 0.01))(1.0)
    """
    X, _ = kernel.read(X)
    y = labels(y, count(X))
    noise = jnp.asarray(noise_variance, float_type(X))
    return theory.log_marginal_likelihood(kernel.gram(X), y.reshape(y.shape[0], -1), noise)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
