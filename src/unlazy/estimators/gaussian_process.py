"""Gaussian processes of infinitely wide networks: Bayesian (NNGP) and ensembles of trained networks (NTK)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy.linalg import solve_triangular
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points, dot, n_points
from unlazy.estimators.base import KernelEstimator, RandomState, TrainingData, map_blocks, on_device
from unlazy.estimators.named_kernels import NETWORK, default_bandwidth, kernel_named, scaled
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.products import gram
from unlazy.solvers.ridge import RELATIVE_RIDGES, cholesky_factor, cholesky_solve, eigh
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.infinite_width.architecture import MLP

ENSEMBLE = "ntk_ensemble"


class GaussianProcess(MultiOutputMixin, RegressorMixin, KernelEstimator):
    """Gaussian process regression with the kernels of infinitely wide networks.

    `kernel="nngp"` is Bayesian inference for the infinitely wide `network` [K7]; other kernels work likewise.
    `kernel="ntk_ensemble"` is the distribution of wide networks trained by gradient flow for `time` from independent
    initializations [K11].

    The mean of y is subtracted. The amplitude of the prior maximizes the marginal likelihood (for the ensemble it is
    the variance of y). The memory is that of an n × n matrix.

    Parameters
    ----------
    kernel : str or Kernel, default "nngp"
        "nngp", "ntk", "ntk_ensemble", any name that `KernelRegressor` accepts, or a kernel object. With a kernel
        object, X may be anything that the kernel takes.
    network : MLP or None, default None
        Network of "nngp", "ntk" and "ntk_ensemble". None is `MLP(depth=2, activation="relu", sigma_b=0.5)`.
    relative_noise_variance : float or None, default None
        Noise variance divided by the mean prior variance. None maximizes the marginal likelihood. The ensemble has no
        noise.
    time : float, default inf
        Training time of the ensemble.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the fit and the predictions. None is float64 on every device.

    Attributes
    ----------
    kernel_ : Kernel
        Kernel of the prior, of amplitude one.
    mean_kernel_ : Kernel
        Kernel of the posterior mean: `kernel_`, or the NTK for the ensemble.
    amplitude_ : array of shape (outputs,)
        Amplitude of the prior.
    noise_variance_ : array of shape (outputs,)
        Variance of the noise.
    log_marginal_likelihood_value_ : float
        Log marginal likelihood at the chosen noise; not set for the ensemble.
    offset_ : array
        Subtracted from the rows before a kernel given by name is applied.
    X_fit_ : array of shape (n, d)
        Training points, less `offset_`.
    y_mean_ : array of shape (outputs,)
        Mean of y.
    dual_coef_ : array of shape (n, outputs)
        Coefficients of the posterior mean.
    factor_ : array of shape (n, n)
        Cholesky factor of K + noise, or for the ensemble Θ⁻¹(1 - e^{-Θt}).
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Lee, Bahri, Novak, Schoenholz, Pennington and Sohl-Dickstein (2018), Deep neural networks as Gaussian processes.
    Lee, Xiao, Schoenholz, Bahri, Novak, Sohl-Dickstein and Pennington (2019), Wide neural networks of any depth evolve
    as linear models under gradient descent.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import GaussianProcess
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> mean, std = GaussianProcess().fit(X, y).predict(Z, return_std=True)
    >>> mean.shape, std.shape
    ((5,), (5,))
    """

    _kernel_options = "'nngp', 'ntk_ensemble', another name"
    kernel: str | Kernel
    network: MLP | None
    relative_noise_variance: float | None
    time: float
    precision: str | None

    def __init__(
        self, kernel="nngp", *, network=None, relative_noise_variance=None, time=np.inf, precision=None
    ):  # fmt: skip
        self.kernel = kernel
        self.network = network
        self.relative_noise_variance = relative_noise_variance
        self.time = time
        self.precision = precision

    def fit(self, X: Points, y: Labels) -> "GaussianProcess":
        """Fit the process.

        Parameters
        ----------
        X : array of shape (n, d), or whatever points the kernel takes
            Training points.
        y : array of shape (n,) or (n, outputs)
            Targets.

        Returns
        -------
        GaussianProcess
            The fitted estimator.
        """
        data = self._validate_regression(X, y)
        self._check()
        self.X_fit_ = self._prepare(data.X)
        self.y_mean_ = data.Y.mean(0)
        with self._precision_scope():
            if self.kernel == ENSEMBLE:
                self._train(data)
            else:
                self._infer(data)
        return self

    def predict(
        self, X: Points, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the mean, and optionally the uncertainty, of the function at X.

        Parameters
        ----------
        X : array of shape (m, d), or whatever points the kernel takes
            Points to predict at.
        return_std : bool, default False
            Whether to return the standard deviation.
        return_cov : bool, default False
            Whether to return the covariance matrix.

        Returns
        -------
        mean : array of shape (m,) or (m, outputs)
            Mean of f.
        std : array of shape (m,) or (m, outputs)
            Standard deviation of f, without the noise. Only if `return_std`.
        cov : array of shape (m, m) or (m, m, outputs)
            Covariance of f, without the noise. Only if `return_cov`.

        Raises
        ------
        ValueError
            If both `return_std` and `return_cov` are set.
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise ValueError(
                "set return_std or return_cov, not both: the diagonal of the covariance holds the variances"
            )
        Z = self._centered(self._validate_inputs(X))
        with self._precision_scope():
            mean = self._restore_output_axes(
                dot(self._gram(self.mean_kernel_, Z, self.X_fit_), self.dual_coef_) + self.y_mean_
            )
            if not return_std and not return_cov:
                return mean
            spread = self._covariance(Z) if return_cov else np.sqrt(np.maximum(self._variance(Z), 0))
        scale = self.amplitude_ if return_cov else np.sqrt(self.amplitude_)
        return mean, self._restore_spread_axes(spread[..., None] * scale)

    def sample_y(self, X: Points, n_samples: int = 1, random_state: RandomState = 0) -> np.ndarray:
        """Draw functions from the posterior, evaluated at X.

        Parameters
        ----------
        X : array of shape (m, d), or whatever points the kernel takes
            Points to evaluate at.
        n_samples : int, default 1
            Number of functions.
        random_state : int, RandomState or None, default 0
            Seed of the draws.

        Returns
        -------
        array of shape (m, n_samples) or (m, outputs, n_samples)
            Function values.
        """
        check_is_fitted(self)
        mean = np.asarray(self.predict(X))
        Z = self._centered(self._validate_inputs(X))
        with self._precision_scope():
            s, U = scipy.linalg.eigh(self._covariance(Z))
        root = U * np.sqrt(np.maximum(s, 0))
        normal = check_random_state(random_state).standard_normal((n_points(Z), self.amplitude_.size, n_samples))
        draws = np.einsum("ab,bcs->acs", root, normal) * np.sqrt(self.amplitude_)[:, None]
        return (mean[:, None] + draws[:, 0] if self._y_axes_ == 1 else mean[:, :, None] + draws).astype(self._dtype)

    def _prepare(self, X: Points) -> Any:
        """Set offset, bandwidth and kernels; return the centered inputs."""
        if self._kernel_object is not None:
            self.offset_ = self._zero_offset(X)
            self.kernel_ = self.mean_kernel_ = self._kernel_object
            return X
        d, self.offset_ = X.shape[1], X.mean(0)
        network = NETWORK if self.network is None else self.network
        of_network = {"nngp": (NNGP, NNGP), "ntk": (NTK, NTK), ENSEMBLE: (NNGP, NTK)}
        with self._precision_scope():
            name = str(self.kernel)
            if name in of_network:
                h = default_bandwidth("nngp", X)
                self.kernel_, self.mean_kernel_ = (scaled(kind(network), h, d) for kind in of_network[name])
            else:
                self.kernel_ = kernel_named(name, default_bandwidth(name, X), d)
                self.mean_kernel_ = self.kernel_
        return X - self.offset_

    def _infer(self, data: TrainingData) -> None:
        """Compute the posterior: amplitude in closed form, noise by marginal likelihood, from one spectrum."""
        Y, n = data.Y - self.y_mean_, data.n
        K = self._gram(self.kernel_, self.X_fit_, None)
        s, U = eigh(K)
        floor = n * float(np.finfo(K.dtype).eps) * float(s[-1])
        unit = float(np.mean(np.diag(K)))
        rho = np.maximum(
            unit
            * (RELATIVE_RIDGES if self.relative_noise_variance is None else np.array([self.relative_noise_variance])),
            floor,
        )
        shifted = np.maximum(s, 0) + rho[:, None]  # (ridges, n)
        energy = np.einsum("nc,ln->lc", dot(U.T, Y) ** 2, 1 / shifted) / n
        least = np.finfo(np.float32).tiny  # if all labels are equal
        evidence = -0.5 * n * np.sum(np.log(np.maximum(energy, least)) + 1 + np.log(2 * np.pi), 1)
        evidence = evidence - 0.5 * Y.shape[1] * np.sum(np.log(shifted), 1)
        best = int(np.argmax(evidence))
        self.log_marginal_likelihood_value_ = float(evidence[best])
        self.amplitude_ = energy[best]
        self.noise_variance_ = rho[best] * self.amplitude_
        L = cholesky_factor(K, float(rho[best]))
        if L is None:
            raise ValueError(
                f"K + {rho[best]:.2g}·I is not numerically positive definite: increase relative_noise_variance or use "
                "float64"
            )
        self.factor_, self.dual_coef_ = L, cholesky_solve(L, Y)

    def _train(self, data: TrainingData) -> None:
        """Train by gradient flow in the NTK: the mean is f_t = Θ_zX Θ⁻¹(1 - e^{-Θt}) y."""
        T = self._gram(self.mean_kernel_, self.X_fit_, None)
        s, U = eigh(T)
        values, floor = jnp.asarray(np.maximum(s, 0)), spectral_filters.rounding_floor(jnp.asarray(s))
        c = spectral_filters.flow_coefficient(values, jnp.asarray(self.time, values.dtype))
        self.factor_ = dot(U * np.asarray(spectral_filters.drop_null_directions(c, values, floor)), U.T)
        Y = data.Y - self.y_mean_
        self.dual_coef_ = dot(self.factor_, Y)
        self.amplitude_ = Y.var(0)
        self.noise_variance_ = np.zeros_like(self.amplitude_)

    def _variance(self, Z: Any) -> np.ndarray:
        """Posterior variance at Z, for amplitude one."""
        S_zx = self._gram(self.kernel_, Z, self.X_fit_)
        prior = map_blocks(lambda Z: self.kernel_.diag(on_device(Z)), Z)
        if self.kernel != ENSEMBLE:
            return prior - np.sum(self._whitened(S_zx) ** 2, 0)
        A = dot(self._gram(self.mean_kernel_, Z, self.X_fit_), self.factor_)
        S_xx = self._gram(self.kernel_, self.X_fit_, None)
        return prior - 2 * np.sum(A * S_zx, 1) + np.sum(dot(A, S_xx) * A, 1)

    def _covariance(self, Z: Any) -> np.ndarray:
        """Posterior covariance at Z, for amplitude one."""
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
    def _gram(kernel: Kernel, Z: Any, X: Points) -> np.ndarray:
        if X is None:
            return np.asarray(gram(kernel, on_device(Z)))
        columns = on_device(X)
        return map_blocks(lambda Z: gram(kernel, on_device(Z), columns), Z)

    def _restore_spread_axes(self, spread: np.ndarray) -> np.ndarray:
        return spread[..., 0] if self._y_axes_ == 1 else spread

    def _check(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        if self.relative_noise_variance is not None and not 0 <= self.relative_noise_variance < np.inf:
            raise ValueError(
                f"relative_noise_variance must be zero, positive or None, got {self.relative_noise_variance!r}"
            )
        if not self.time > 0:
            raise ValueError(f"time must be positive (inf: train to convergence), got {self.time!r}")
        of_network = self._kernel_object is None and self.kernel in ("nngp", "ntk", ENSEMBLE)
        if self.network is not None and not of_network:
            raise ValueError(f"network applies to kernel='nngp', 'ntk' or 'ntk_ensemble', not to {self.kernel!r}")
