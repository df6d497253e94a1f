"""Kernel ridge regression and classification: any kernel, ridge by leave-one-out, from one row to millions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.estimators.base import KernelEstimator, Training, by_blocks
from unlazy.estimators.classifiers import CalibratedClassifier
from unlazy.estimators.intervals import HeldOutIntervals
from unlazy.estimators.named_kernels import kernel_named, usual_bandwidth
from unlazy.estimators.preprocessing.points import on_device
from unlazy.kernels.base import Kernel
from unlazy.kernels.weighted import Weighted
from unlazy.products import gram, matmul
from unlazy.solvers.ridge.intercept import Fit, fit_every
from unlazy.solvers.solve import solve

EXACT = 3000
"""Distinct rows up to which one eigendecomposition gives the fit and every leave-one-out error; beyond, `solve` fits
and a random sample of so many rows chooses the ridge (and the probabilities' calibration)."""


class KernelMachine(KernelEstimator):
    """f(x) = b + Σ_i α_i k(x - o, x_i - o), α from ridge regression with a free intercept b; o is `offset_`."""

    kernel: str | Kernel
    bandwidth: float | str | None
    ridge: float | None
    tolerance: float
    precision: str | None
    random_state: Any
    progress: bool

    def __init__(
        self, kernel="laplace", *, bandwidth=None, ridge=None, tolerance=1e-3,
        precision=None, random_state=0, progress=False,
    ):  # fmt: skip
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.ridge = ridge
        self.tolerance = tolerance
        self.precision = precision
        self.random_state = random_state
        self.progress = progress

    def _fit(self, given: Training) -> tuple[Fit, Training]:
        """Sets the fitted attributes; the closed-form fit and the rows it saw (a sample, where there are many)."""
        self._check()
        data = given.merged()
        self.offset_ = data.X.mean(0) if self._given is None else self._no_offset(data.X)
        data = data._replace(X=self._moved(data.X))
        with self._scope():
            part = data if data.n <= EXACT else self._sample(data)
            exact = self._choose(part)
            self.ridge_, self.leave_one_out_error_ = exact.ridge, exact.error
            if part is data:
                self.X_fit_, self.dual_coef_, self.intercept_ = data.X, exact.alpha, exact.intercept
                self.solver_ = "eigendecomposition"
            else:
                self._solve(data)
        return exact, part

    def _choose(self, data: Training) -> Fit:
        """Sets `kernel_` and `bandwidth_`; the fit of the best (or only) bandwidth."""
        if self._given is not None:
            self.kernel_, self.bandwidth_ = self._given, None
            return self._exact(self.kernel_, data)
        name = str(self.kernel)
        usual = usual_bandwidth(name, data.X)
        if self.bandwidth == "search":
            options = [usual * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
        else:
            options = [usual if self.bandwidth is None else float(self.bandwidth)]
        kernels = [kernel_named(name, h, data.X.shape[1]) for h in options]
        fits = [self._exact(kernel, data) for kernel in kernels]
        best = int(np.argmin([fit.error for fit in fits]))
        self.kernel_, self.bandwidth_ = kernels[best], float(options[best])
        return fits[best]

    def _exact(self, kernel: Kernel, data: Training) -> Fit:
        return fit_every(np.asarray(gram(kernel, on_device(data.X))), data.Y, data.weights, self.ridge)

    def _solve(self, data: Training) -> None:
        """The fit to all rows by `solve`: labels less their mean, weights as a factor of the kernel."""
        w = data.weights
        mean = np.average(data.Y, axis=0, weights=w)
        kernel, X, Y = self.kernel_, data.X, data.Y - mean
        weighted = Weighted(kernel, not self._table_)
        if w is not None:
            root = np.sqrt(w)[:, None]
            X = np.hstack([X, root]) if self._table_ else (X, root[:, 0])
            kernel, Y = weighted, Y * root
        found = solve(
            kernel, X, Y, self.ridge_, tolerance=self.tolerance, precision=self.precision, key=self._key(),
            progress=self.progress,
        )  # fmt: skip
        centers, alpha = jax.tree.map(np.asarray, found.centers), np.asarray(found.coefficients)
        if w is not None:
            centers, root = weighted.parts(centers)
            alpha = alpha * root[:, None]
        self.X_fit_, self.dual_coef_, self.intercept_ = centers, alpha, mean
        self.solver_, self.converged_ = found.method, bool(found.converged)

    def _sample(self, data: Training) -> Training:
        rng = np.random.default_rng(int(jax.random.randint(self._key(), (), 0, 2**31 - 1)))
        return data.rows(np.sort(rng.choice(data.n, EXACT, replace=False)))

    def _scores(self, X: Any) -> np.ndarray:
        """f at the rows of X, (m, c)."""
        X = self._moved(self._inputs(X))
        with self._scope():
            centers, alpha = on_device(self.X_fit_), jnp.asarray(self.dual_coef_)
            return by_blocks(lambda Z: matmul(self.kernel_, on_device(Z), centers, alpha), X) + self.intercept_

    def _check(self) -> None:
        if self._given is not None and self.bandwidth is not None:
            raise ValueError(
                f"bandwidth={self.bandwidth!r} belongs to kernels given by name; a kernel object brings its own"
            )
        if self.bandwidth not in (None, "search") and not _is_number(self.bandwidth, above=0):
            raise ValueError(f"bandwidth must be a positive number, 'search' or None (median), got {self.bandwidth!r}")
        if self.ridge is not None and not (_is_number(self.ridge, above=0) or self.ridge == 0):
            raise ValueError(f"ridge must be zero, positive or None (leave-one-out), got {self.ridge!r}")


class KernelRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, KernelMachine):
    """Kernel ridge regression [K2] with a free intercept.

    `kernel` is a name ('laplace', 'gaussian', 'matern', 'product_laplace', 'rational_quadratic', 'ntk', 'nngp',
    'linear', 'polynomial') or a kernel; `bandwidth` a number, None for the median distance, or 'search' for the best
    of five around it; `ridge` (added to K) a number or None for the smallest leave-one-out error. Columns are taken as
    they come: scale them first where their units differ. float64 on every device, float32 on request. Where a kernel
    takes more than rows, X may be that: images, tokens, a dictionary of arrays with a leading axis of points, or a list
    of such points. `predict_interval(X, level)` gives prediction intervals from leave-one-out residuals.

    >>> KernelRegressor("gaussian").fit(X, y).predict(Z)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelRegressor":
        """Weights count rows: a row of weight 2 is that row twice."""
        exact, seen = self._fit(self._training(X, y, sample_weight))
        self.keep_residuals([seen.Y - exact.held_out], seen.weights)
        return self

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._shaped(self._scores(X))


class KernelClassifier(CalibratedClassifier, KernelMachine):
    """Least squares on one-hot labels; probabilities are calibrated on leave-one-out scores. Parameters as
    `KernelRegressor`; `class_weight` ('balanced', or a dictionary) is a weight of every row of a class.

    >>> KernelClassifier("laplace").fit(X, labels).predict_proba(Z)
    """

    class_weight: dict | str | None

    def __init__(
        self, kernel="laplace", *, bandwidth=None, ridge=None, tolerance=1e-3,
        precision=None, random_state=0, progress=False, class_weight=None,
    ):  # fmt: skip
        super().__init__(
            kernel, bandwidth=bandwidth, ridge=ridge, tolerance=tolerance, precision=precision,
            random_state=random_state, progress=progress,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "KernelClassifier":
        """Weights count rows: a row of weight 2 is that row twice."""
        exact, seen = self._fit(self._labeled(X, y, sample_weight))
        self._calibrate(exact.held_out, seen.Y, seen.weights)
        return self


def _is_number(value: object, above: float) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and above < float(value) < np.inf
