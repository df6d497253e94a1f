"""Gaussian processes of infinitely wide networks: Bayesian ones (NNGP) and ensembles of trained ones (NTK)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.linalg import eigh, solve_triangular
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import count
from unlazy.core.linalg import dot
from unlazy.estimators.base import KernelEstimator, Training, by_blocks
from unlazy.estimators.named_kernels import NETWORK, kernel_named, scaled, usual_bandwidth
from unlazy.estimators.preprocessing.points import on_device
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.products import gram
from unlazy.solvers.ridge import factorization
from unlazy.solvers.ridge.intercept import RELATIVE_RIDGES
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.infinite_width.architecture import MLP

ENSEMBLE = "ntk_ensemble"


class GaussianProcess(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """A distribution over functions given the data.

    kernel='nngp': Bayesian inference for the infinitely wide `network` (Lee et al. 2018) [K7]; any other kernel name or
    kernel likewise. kernel='ntk_ensemble': the distribution of wide networks trained by gradient flow for `time` from
    independent starts [K11] (Lee et al. 2019).

    The mean of y is taken off; the prior's amplitude is the one of largest marginal likelihood (for the ensemble: the
    variance of y). `noise` is the noise's variance over the prior's; None maximizes the marginal likelihood, the
    ensemble has none. Memory is that of an n×n matrix. X may be whatever a given kernel takes (`KernelRegressor`).

    >>> mean, std = GaussianProcess().fit(X, y).predict(Z, return_std=True)
    """

    _named = "'nngp', 'ntk_ensemble', another name"
    kernel: str | Kernel
    network: MLP | None
    noise: float | None
    time: float
    precision: str | None

    def __init__(
        self, kernel="nngp", *, network=None, noise=None, time=np.inf, precision=None
    ):  # fmt: skip
        self.kernel = kernel
        self.network = network
        self.noise = noise
        self.time = time
        self.precision = precision

    def fit(self, X: Any, y: Any) -> "GaussianProcess":
        data = self._training(X, y)
        self._check()
        self.X_fit_ = self._prepare(data.X)
        self.y_mean_ = data.Y.mean(0)
        with self._scope():
            if self.kernel == ENSEMBLE:
                self._train(data)
            else:
                self._infer(data)
        return self

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """The mean; with its standard deviation (m,) or covariance (m, m), of f itself, without the noise. Several
        outputs add a last axis."""
        check_is_fitted(self)
        if return_std and return_cov:
            raise ValueError("ask for return_std or return_cov, not for both: the covariance holds the deviations")
        Z = self._moved(self._inputs(X))
        with self._scope():
            mean = self._shaped(dot(self._gram(self.mean_kernel_, Z, self.X_fit_), self.dual_coef_) + self.y_mean_)
            if not return_std and not return_cov:
                return mean
            spread = self._covariance(Z) if return_cov else np.sqrt(np.maximum(self._variance(Z), 0))
        scale = self.amplitude_ if return_cov else np.sqrt(self.amplitude_)
        return mean, self._shaped_spread(spread[..., None] * scale)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Functions drawn from the distribution, at the rows of X: (m, n_samples) or (m, outputs, n_samples)."""
        check_is_fitted(self)
        mean = self.predict(X)
        Z = self._moved(self._inputs(X))
        with self._scope():
            s, U = eigh(self._covariance(Z))
        root = U * np.sqrt(np.maximum(s, 0))
        normal = check_random_state(random_state).standard_normal((count(Z), self.amplitude_.size, n_samples))
        draws = np.einsum("ab,bcs->acs", root, normal) * np.sqrt(self.amplitude_)[:, None]
        return (mean[:, None] + draws[:, 0] if self._y_axes_ == 1 else mean[:, :, None] + draws).astype(self._dtype)

    def _prepare(self, X: Any) -> Any:
        """Sets offset, bandwidth and kernels; inputs less the offset."""
        if self._given is not None:
            self.offset_ = self._no_offset(X)
            self.kernel_ = self.mean_kernel_ = self._given
            return X
        d, self.offset_ = X.shape[1], X.mean(0)
        network = NETWORK if self.network is None else self.network
        of_network = {"nngp": (NNGP, NNGP), "ntk": (NTK, NTK), ENSEMBLE: (NNGP, NTK)}
        with self._scope():
            name = str(self.kernel)
            if name in of_network:
                h = usual_bandwidth("nngp", X)
                self.kernel_, self.mean_kernel_ = (scaled(kind(network), h, d) for kind in of_network[name])
            else:
                self.kernel_ = kernel_named(name, usual_bandwidth(name, X), d)
                self.mean_kernel_ = self.kernel_
        return X - self.offset_

    def _infer(self, data: Training) -> None:
        """Posterior: amplitude in closed form, and the noise of the largest marginal likelihood, from one spectrum."""
        Y, n = data.Y - self.y_mean_, data.n
        K = self._gram(self.kernel_, self.X_fit_, None)
        s, U = factorization.eigh(K)
        floor = n * float(np.finfo(K.dtype).eps) * float(s[-1])
        unit = float(np.mean(np.diag(K)))
        rho = np.maximum(unit * (RELATIVE_RIDGES if self.noise is None else np.array([self.noise])), floor)
        shifted = np.maximum(s, 0) + rho[:, None]  # (ridges, n)
        energy = np.einsum("nc,ln->lc", dot(U.T, Y) ** 2, 1 / shifted) / n
        least = np.finfo(np.float32).tiny  # of labels that are all alike
        evidence = -0.5 * n * np.sum(np.log(np.maximum(energy, least)) + 1 + np.log(2 * np.pi), 1)
        evidence = evidence - 0.5 * Y.shape[1] * np.sum(np.log(shifted), 1)
        best = int(np.argmax(evidence))
        self.log_marginal_likelihood_value_ = float(evidence[best])
        self.amplitude_ = energy[best]
        self.noise_variance_ = rho[best] * self.amplitude_
        L = factorization.factor(K, float(rho[best]))
        if L is None:
            raise ValueError(f"K + {rho[best]:.2g}·I is not positive to rounding: give a larger noise, or use float64")
        self.factor_, self.dual_coef_ = L, factorization.substitute(L, Y)

    def _train(self, data: Training) -> None:
        """Gradient flow in the NTK: f_t = Θ_zX Θ⁻¹(1 - e^{-Θt}) y on average."""
        T = self._gram(self.mean_kernel_, self.X_fit_, None)
        s, U = factorization.eigh(T)
        values, floor = jnp.asarray(np.maximum(s, 0)), spectral_filters.rounding_floor(jnp.asarray(s))
        c = spectral_filters.flow_coefficient(values, jnp.asarray(self.time, values.dtype))
        self.factor_ = dot(U * np.asarray(spectral_filters.trusted(c, values, floor)), U.T)
        Y = data.Y - self.y_mean_
        self.dual_coef_ = dot(self.factor_, Y)
        self.amplitude_ = Y.var(0)
        self.noise_variance_ = np.zeros_like(self.amplitude_)

    def _variance(self, Z: Any) -> np.ndarray:
        S_zx = self._gram(self.kernel_, Z, self.X_fit_)
        prior = by_blocks(lambda Z: self.kernel_.diag(on_device(Z)), Z)
        if self.kernel != ENSEMBLE:
            return prior - np.sum(self._whitened(S_zx) ** 2, 0)
        A = dot(self._gram(self.mean_kernel_, Z, self.X_fit_), self.factor_)
        S_xx = self._gram(self.kernel_, self.X_fit_, None)
        return prior - 2 * np.sum(A * S_zx, 1) + np.sum(dot(A, S_xx) * A, 1)

    def _covariance(self, Z: Any) -> np.ndarray:
        S_zz, S_zx = self._gram(self.kernel_, Z, None), self._gram(self.kernel_, Z, self.X_fit_)
        if self.kernel != ENSEMBLE:
            V = self._whitened(S_zx)
            return S_zz - dot(V.T, V)
        A = dot(self._gram(self.mean_kernel_, Z, self.X_fit_), self.factor_)
        cross = dot(A, S_zx.T)
        C = S_zz - cross - cross.T + dot(A, self._gram(self.kernel_, self.X_fit_, None), A.T)
        return 0.5 * (C + C.T)

    def _whitened(self, S_zx: np.ndarray) -> np.ndarray:
        return solve_triangular(self.factor_, S_zx.T, lower=True)

    @staticmethod
    def _gram(kernel: Kernel, Z: Any, X: Any) -> np.ndarray:
        if X is None:
            return np.asarray(gram(kernel, on_device(Z)))
        columns = on_device(X)
        return by_blocks(lambda Z: gram(kernel, on_device(Z), columns), Z)

    def _shaped_spread(self, spread: np.ndarray) -> np.ndarray:
        return spread[..., 0] if self._y_axes_ == 1 else spread

    def _check(self) -> None:
        if self.noise is not None and not 0 <= self.noise < np.inf:
            raise ValueError(f"noise must be zero, positive or None, got {self.noise!r}")
        if not self.time > 0:
            raise ValueError(f"time must be positive (infinity: trained to the end), got {self.time!r}")
        of_network = self._given is None and self.kernel in ("nngp", "ntk", ENSEMBLE)
        if self.network is not None and not of_network:
            raise ValueError(f"network belongs to kernel='nngp', 'ntk' or 'ntk_ensemble', not to {self.kernel!r}")
