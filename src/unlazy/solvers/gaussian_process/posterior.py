"""Gaussian processes: prior, posterior, trained ensembles at any time, samples and marginal likelihood [K5, K11].

>>> import jax
>>> from unlazy import MLP, NNGP, NTK, ensemble, posterior, prior
>>> from unlazy.solvers.gaussian_process.posterior import condition
>>> X = jax.random.normal(jax.random.key(0), (60, 3))
>>> y, Z, network = X[:, 0], X[:5], MLP(1, "relu", sigma_b=0.5)
>>> kernel = NNGP(network)
>>> prior(kernel, Z).sample(5, key=jax.random.key(1)).shape
(5, 5)
>>> posterior(kernel, X, y, Z, noise_variance=0.01).std.shape
(5,)
>>> condition(kernel, X, y, noise_variance=0.01).predict(Z).shape  # the same mean; X is factorized once for every Z
(5,)
>>> ensemble(NNGP(network), NTK(network), X, y, Z, times=[1.0, float("inf")]).mean.shape  # (times, m)
(2, 5)
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.arrays import (
    Labels,
    Points,
    as_labels,
    default_float,
    dot,
    float_type,
    is_concrete,
    n_points,
    precision,
)
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Decomposition, Path, Values, decompose
from unlazy.theory.dynamics import gaussian_process as theory
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.numerics.divided_differences import FLOW, RIDGE


class PredictiveDistribution(eqx.Module):
    """Gaussian distribution of function values at m points: mean and full covariance, outputs independent.

    A leading axis, if any, is a path of times or noise variances.

    Attributes
    ----------
    mean : array of shape (*path, m, *outputs)
        Mean at every point.
    covariance : array of shape (*path, m, m)
        Covariance of the points, the same for every output.
    evidence : Evidence
        Error estimate and messages.
    """

    mean: Float[Array, "..."]
    """Shape (*path, m, *outputs)."""
    covariance: Float[Array, "*t m m"]
    """Shape (*path, m, m), the same for every output."""
    evidence: Evidence = Evidence()

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the computation."""
        return self.evidence.notes

    @property
    def std(self) -> Float[Array, "*t m"]:
        """Standard deviation at every point; variances that rounding made negative are set to zero."""
        return jnp.sqrt(jnp.maximum(jnp.diagonal(self.covariance, axis1=-2, axis2=-1), 0))

    def sample(self, draws: int, *, key: PRNGKeyArray) -> Float[Array, "..."]:
        """Independent draws of the function, jointly over the points.

        Parameters
        ----------
        draws : int
            Number of draws.
        key : PRNG key
            JAX random key.

        Returns
        -------
        array of shape (draws, *path, m, *outputs)

        Raises
        ------
        ValueError
            If `draws` is less than 1.
        """
        if draws < 1:
            raise ValueError(f"draws must be at least 1, got {draws}")
        path, m = self.covariance.shape[:-2], self.covariance.shape[-1]
        outputs = self.mean.shape[len(path) + 1 :]
        flat = self.covariance.reshape(-1, m, m)
        root = jax.vmap(theory.square_root)(flat).reshape(*path, m, m)
        noise = jax.random.normal(key, (draws, *path, m, max(1, math.prod(outputs))), self.mean.dtype)
        return self.mean + dot(root, noise).reshape(draws, *path, m, *outputs)


def prior(kernel: Kernel, Z: Points) -> PredictiveDistribution:
    """Prior f ~ GP(0, K) at Z [K5]: the distribution of a wide random network before training if K is its NNGP kernel.

    Parameters
    ----------
    kernel : Kernel
        Prior covariance.
    Z : array of shape (m, d)
        Points.

    Returns
    -------
    PredictiveDistribution

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from unlazy import MLP, NNGP, prior
    >>> Z = np.random.default_rng(0).normal(size=(5, 3))
    >>> prior(NNGP(MLP(2)), Z).sample(3, key=jax.random.key(0)).shape  # three random networks
    (3, 5)
    """
    Z, _ = kernel.read(Z, names=("Z", ""))
    return PredictiveDistribution(jnp.zeros(n_points(Z), float_type(Z)), kernel.gram(Z))


class ConditionedProcess(eqx.Module):
    """A process conditioned on data: `predict` returns its mean, `at` the joint distribution at points.

    Attributes
    ----------
    kernel : Kernel
        Prior covariance.
    spectrum : Decomposition
        Eigendecomposition of the Gram matrix of the training points.
    path : Path
        The mean along noise variances or times.
    """

    kernel: Kernel
    """Prior covariance."""
    spectrum: Decomposition
    path: Path
    """The mean along noise variances or times."""

    @property
    def evidence(self) -> Evidence:
        """Error estimate and messages."""
        return self.path.evidence

    @property
    def times(self) -> Float[Array, "*t"]:
        """Noise variances or times."""
        return self.path.times

    def predict(self, Z: Points, t: Values | None = None, memory: int | str | None = None) -> Float[Array, "..."]:
        """Mean at Z, shape (*path, m, *outputs), at all `times` or at one or several of them (`t`)."""
        return self._evaluate(lambda Z: self.path.predict(Z, t, memory=memory), Z)

    def kernel_at(self, t: Values) -> Kernel:
        """Return the kernel in which the mean is a regression; the same at every t."""
        return self.path.kernel

    def at(self, Z: Points) -> PredictiveDistribution:
        """Joint distribution at Z."""

        def values(Z: Any) -> tuple[Array, Array]:
            X, Z = self.path.kernel.read(self.path.X, Z)
            return self.path.predict(Z), self._covariance(X, Z)

        mean, covariance = self._evaluate(values, Z)
        return PredictiveDistribution(mean, covariance, self.evidence)

    def _evaluate(self, function: Callable[[Any], Any], Z: Points) -> Any:
        """function(Z) in the precision of the fit, returned in the default precision."""
        if not is_concrete(self, Z) or self.path.coefficients.dtype == jnp.zeros(()).dtype:
            return function(Z)
        with precision("float64"):
            return jax.tree.map(_as_float32, function(_as_float64(Z)))

    @abc.abstractmethod
    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        """Posterior covariance at Z."""


class Posterior(ConditionedProcess):
    """Posterior f | y for y = f(X) + noise [K2, K5]."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        U, c = self.spectrum.spectrum.eigenvectors, self.spectrum.function(RIDGE, self.times)
        return theory.posterior_covariance(self.kernel.gram(Z), self.kernel.gram(Z, X), U, c)


class TrainedFeatures(ConditionedProcess):
    """Random-features model at time t of gradient flow [K5]."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        (lam, U, _), c = self.spectrum.spectrum, self.spectrum.function(FLOW, self.times)
        return spectral_filters.random_features_covariance(self.kernel.gram(Z), self.kernel.gram(Z, X), U, lam, c)


class Ensemble(ConditionedProcess):
    """Wide networks with all layers trained for time t from independent initializations [K11]; `kernel` is the NNGP."""

    def _covariance(self, X: Any, Z: Any) -> Float[Array, "*t m m"]:
        nngp, ntk = self.kernel, self.path.kernel
        U, c = self.spectrum.spectrum.eigenvectors, self.spectrum.function(FLOW, self.times)
        return spectral_filters.ensemble_covariance(nngp.gram(Z), nngp.gram(Z, X), nngp.gram(X), ntk.gram(Z, X), U, c)


def condition(kernel: Kernel, X: Points, y: Labels, noise_variance: Values = 0.0) -> Posterior:
    """Posterior given y = f(X) + noise, to be evaluated at any Z [K2, K5].

    Mean K_zX(K + ρI)⁻¹y, covariance K_zz - K_zX(K + ρI)⁻¹K_Xz with the noise variance ρ. With K = NNGP this is Bayesian
    inference for the infinitely wide network. Computed in float64, since variances are differences of larger numbers;
    inside jit, grad and vmap in the precision of X.

    Parameters
    ----------
    kernel : Kernel
        Prior covariance.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels; outputs are independent.
    noise_variance : float or array, default 0.0
        Variance ρ of the noise; the path of an array costs one eigendecomposition.

    Returns
    -------
    Posterior
        With methods `predict` and `at`.
    """
    if not is_concrete(kernel, X, y, noise_variance):
        return _condition(kernel, X, y, noise_variance)
    with precision("float64"):
        return _condition(*_as_float64((kernel, X, y, noise_variance)))


def _condition(kernel: Kernel, X: Points, y: Labels, noise_variance: Values) -> Posterior:
    """The same in the precision of X."""
    spectrum = decompose(kernel, X)
    return Posterior(kernel, spectrum, spectrum.ridge_path(y, noise_variance))


def posterior(kernel: Kernel, X: Points, y: Labels, Z: Points, noise_variance: Values = 0.0) -> PredictiveDistribution:
    """Posterior distribution at Z given y = f(X) + noise [K2, K5].

    Mean K_zX(K + ρI)⁻¹y, covariance K_zz - K_zX(K + ρI)⁻¹K_Xz with the noise variance ρ. Computed in float64, since
    variances are differences of larger numbers; inside jit, grad and vmap in the precision of X.

    Parameters
    ----------
    kernel : Kernel
        Prior covariance.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels; outputs are independent.
    Z : array of shape (m, d)
        Test points.
    noise_variance : float or array, default 0.0
        Variance ρ of the noise; an array gives a leading path axis and costs one eigendecomposition.

    Returns
    -------
    PredictiveDistribution

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, posterior
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.normal(size=(60, 3)), rng.normal(size=(5, 3))
    >>> at_Z = posterior(Gaussian(1.0), X, np.sin(X[:, 0]), Z, noise_variance=0.01)
    >>> at_Z.mean.shape, at_Z.std.shape
    ((5,), (5,))
    """
    kernel.read(X, Z)  # raises errors that name both
    return condition(kernel, X, y, noise_variance).at(Z)


def trained_random_features(
    kernel: Kernel, X: Points, y: Labels, Z: Points, times: Values = jnp.inf
) -> PredictiveDistribution:
    """Distribution at time t of a random-features model, or of a network with only the head trained [K5].

    Gradient flow starts at θ ~ N(0, I). At t = ∞ the distribution is the noiseless posterior.

    Parameters
    ----------
    kernel : Kernel
        Prior covariance.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels; outputs are independent.
    Z : array of shape (m, d)
        Test points.
    times : float or array, default inf
        Training times.

    Returns
    -------
    PredictiveDistribution
    """
    X, Z = kernel.read(X, Z)
    spectrum = decompose(kernel, X)
    return TrainedFeatures(kernel, spectrum, spectrum.flow(y, times)).at(Z)


def trained_ensemble(nngp: Kernel, ntk: Kernel, X: Points, y: Labels, times: Values = jnp.inf) -> Ensemble:
    """Wide networks with all layers trained from independent initializations, to be evaluated at any Z [K11].

    Mean Θ_zX Θ⁻¹(I - e^{-Θt})y; the covariance depends on both NNGP and NTK (Lee et al. 2019, eq. 16).

    Parameters
    ----------
    nngp : Kernel
        NNGP kernel: the covariance at initialization.
    ntk : Kernel
        Neural tangent kernel Θ.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    times : float or array, default inf
        Training times.

    Returns
    -------
    Ensemble
        With methods `predict` and `at`.
    """
    spectrum = decompose(ntk, X)
    return Ensemble(nngp, spectrum, spectrum.flow(y, times))


def ensemble(
    nngp: Kernel, ntk: Kernel, X: Points, y: Labels, Z: Points, times: Values = jnp.inf
) -> PredictiveDistribution:
    """Distribution at Z of wide networks with all layers trained from independent initializations [K11].

    Mean Θ_zX Θ⁻¹(I - e^{-Θt})y; the covariance depends on both NNGP and NTK (Lee et al. 2019, eq. 16).

    Parameters
    ----------
    nngp : Kernel
        NNGP kernel: the covariance at initialization.
    ntk : Kernel
        Neural tangent kernel Θ.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    Z : array of shape (m, d)
        Test points.
    times : float or array, default inf
        Training times; an array gives a leading path axis.

    Returns
    -------
    PredictiveDistribution

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, NNGP, NTK, ensemble
    >>> rng = np.random.default_rng(0)
    >>> X, Z = rng.normal(size=(60, 3)), rng.normal(size=(5, 3))
    >>> network = MLP(1, "relu", sigma_b=0.5)
    >>> ensemble(NNGP(network), NTK(network), X, np.sin(X[:, 0]), Z, times=[1.0, 10.0]).mean.shape
    (2, 5)
    """
    X, Z = ntk.read(X, Z)
    return trained_ensemble(nngp, ntk, X, y, times).at(Z)


def log_marginal_likelihood(
    kernel: Kernel, X: Points, y: Labels, noise_variance: Real[ArrayLike, ""] = 0.0
) -> Float[Array, ""]:
    """Log marginal likelihood log p(y | X), summed over outputs.

    Differentiable in the parameters of the kernel, X and the noise variance; finite for a singular K. Computed in
    float64 also if X is float32, whose rounding would hide a small noise variance; second derivatives then need forward
    mode, as in `jax.hessian`.

    Parameters
    ----------
    kernel : Kernel
        Prior covariance.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels; outputs are independent.
    noise_variance : float, default 0.0
        Variance of the noise.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> from unlazy import Gaussian, log_marginal_likelihood
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> slope = jax.grad(lambda h: log_marginal_likelihood(Gaussian(h), X, np.sin(X[:, 0]), 0.01))(1.0)
    >>> slope.shape
    ()
    """
    if default_float() == np.float64:
        return _log_marginal_likelihood(kernel, X, y, noise_variance)
    if is_concrete(kernel, X, y, noise_variance):
        with precision("float64"):
            return _as_float32(_log_marginal_likelihood(*_as_float64((kernel, X, y, noise_variance))))
    X, _ = kernel.read(X)
    given = (kernel, X, as_labels(y, n_points(X)), jnp.asarray(noise_variance, jnp.float32))
    traced, known = eqx.partition(given, lambda leaf: isinstance(leaf, jax.core.Tracer))
    return _scalar_in_float64(lambda arrays: _log_marginal_likelihood(*_as_float64(eqx.combine(arrays, known))), traced)


def _log_marginal_likelihood(kernel: Kernel, X: Any, y: Any, noise_variance: Any) -> Array:
    """The same in the precision of X."""
    X, _ = kernel.read(X)
    y = as_labels(y, n_points(X))
    noise = jnp.asarray(noise_variance, float_type(X))
    return theory.log_marginal_likelihood(kernel.gram(X), y.reshape(y.shape[0], -1), noise)


def _scalar_in_float64(function: Callable[[Any], Array], arrays: Any) -> Array:
    """function(arrays) in float64 while float32 is the default, with first derivatives, and forward ones of these.

    Reverse mode runs outside of this scope, where JAX has no float64. The gradient is therefore computed inside, and
    what is transposed is its float32 product with the tangents.
    """

    @jax.custom_jvp
    def value(arrays: Any) -> Array:
        with precision("float64"):
            return function(_as_float64(arrays)).astype(jnp.float32)

    @value.defjvp
    def derivative(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
        with precision("float64"):
            found, slopes = jax.value_and_grad(function)(_as_float64(primals[0]))
            found, slopes = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), (found, slopes))
        products = jax.tree.map(lambda slope, tangent: jnp.sum(slope * tangent), slopes, tangents[0])
        return found, sum(jax.tree.leaves(products), jnp.zeros((), jnp.float32))

    return value(arrays)


def _as_float32(found: Array) -> Array:
    """Concrete results in float32; those that are finite only in float64 are an error."""
    rounded = found.astype(jnp.float32)
    if bool(jnp.any(jnp.isinf(rounded) & jnp.isfinite(found))):
        largest = float(jnp.max(jnp.abs(found)))
        raise ValueError(f"results up to {largest:.2g} overflow float32; scale X and y, or set jax_enable_x64")
    return rounded


def _as_float64(tree: Any) -> Any:
    """The tree with float arrays in float64."""

    def wide(leaf: Any) -> Any:
        floats = isinstance(leaf, np.ndarray | jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
        return leaf.astype(jnp.float64) if floats else leaf

    return jax.tree.map(wide, tree)
