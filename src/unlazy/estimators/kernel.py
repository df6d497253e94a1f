"""Kernel ridge regression and classification: any kernel, ridge by leave-one-out, from one row to millions."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points
from unlazy.core.progress import ProgressOption
from unlazy.estimators.base import (
    KernelEstimator,
    RandomState,
    TrainingData,
    map_blocks,
    on_device,
    places_in,
    rows_by_place,
)
from unlazy.estimators.classifiers import CalibratedClassifier
from unlazy.estimators.intervals import HeldOutIntervals, width_inputs
from unlazy.estimators.named_kernels import default_bandwidth, kernel_named
from unlazy.kernels.base import Kernel
from unlazy.kernels.row_weights import Weighted
from unlazy.products import gram, matmul
from unlazy.solvers.ridge import RidgeFit, fit_ridge_path, weighted_mean
from unlazy.solvers.solve import SolveOptions, solve

MAX_EXACT_ROWS = 3000
"""Largest number of distinct rows that are fitted by one eigendecomposition, with all leave-one-out errors.

Beyond it, `solve` fits all rows, and a random sample of this size chooses the ridge and calibrates probabilities.
"""


def _error_before_merging(given: TrainingData, merged: TrainingData, exact: RidgeFit) -> float:
    """Leave-one-out error relative to the variance of all labels; that within duplicate rows counts as unexplained."""

    def variance(data: TrainingData, center: np.ndarray | float) -> np.ndarray:
        return np.average((data.Y - center) ** 2, axis=0, weights=data.weights)

    total = variance(given, weighted_mean(given.Y, given.weights))
    between = variance(merged, weighted_mean(merged.Y, merged.weights))
    unexplained = variance(merged, exact.held_out) + np.maximum(total - between, 0)
    return float(np.mean(np.divide(unexplained, total, out=np.zeros_like(total), where=total > 0)))


def _leave_one_out_residuals(rows: TrainingData, place: np.ndarray, merged: TrainingData, fit: RidgeFit) -> np.ndarray:
    """Residuals of single rows under the fit without that row, where equal rows were merged.

    A merged row of weight W with label Y, prediction f and leave-one-out prediction f₋ has the leverage H = 1 -
    (Y - f)/(Y - f₋). A row of weight w in it has the leverage H·w/W, and the residual (y - f)/(1 - H·w/W) [K3].
    """
    missed = merged.Y - fit.held_out
    if len(place) == merged.n or merged.weights is None:
        return missed[place]
    left = fit.ridge * fit.alpha / merged.weights[:, None]  # Y - f, by (K + ρ/W)α + b = Y
    sizes = np.abs(missed).sum(1)  # of all outputs, which share H
    H = 1 - np.clip(np.divide(np.abs(left).sum(1), sizes, out=np.zeros_like(sizes), where=sizes > 0), 0, 1)
    share = (1.0 if rows.weights is None else rows.weights) / merged.weights[place]
    alone = np.bincount(place)[place] == 1
    found = (rows.Y - (merged.Y - left)[place]) / np.where(alone, 1, 1 - H[place] * share)[:, None]
    return np.where(alone[:, None], missed[place], found)


class KernelMachine(KernelEstimator):
    """Base class: f(x) = b + Σ_i α_i k(x - o, x_i - o), α from ridge regression, b a free intercept, o = `offset_`."""

    kernel: str | Kernel
    bandwidth: float | str | None
    ridge: float | None
    tolerance: float
    precision: str | None
    random_state: RandomState
    progress: ProgressOption

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

    def _fit(self, given: TrainingData) -> tuple[RidgeFit, TrainingData, np.ndarray]:
        """Set the fitted attributes; return the closed-form fit, the merged rows it used (a sample if there are many),
        and the merged row to which each given row belongs, -1 if it is not in the sample."""
        self._check()
        data, place = given.merge_and_place()
        self.offset_ = data.X.mean(0) if self._kernel_object is None else self._zero_offset(data.X)
        data = data._replace(X=self._centered(data.X))
        with self._precision_scope():
            subset = data
            if data.n > MAX_EXACT_ROWS:
                rows = self._sample(data.n)
                subset, place = data.rows(rows), places_in(rows, data.n)[place]
            exact = self._select_bandwidth(subset)
            self.ridge_, self.leave_one_out_error_ = exact.ridge, exact.error
            if subset is data:
                self.X_fit_, self.dual_coef_, self.intercept_ = data.X, exact.alpha, exact.intercept
                self.solver_ = "eigendecomposition"
                if data.n < given.n:
                    self.leave_one_out_error_ = _error_before_merging(given, data, exact)
            else:
                self._solve(data)
        return exact, subset, place

    def _select_bandwidth(self, data: TrainingData) -> RidgeFit:
        """Set `kernel_` and `bandwidth_`; return the fit at the best (or only) bandwidth."""
        if self._kernel_object is not None:
            self.kernel_, self.bandwidth_ = self._kernel_object, None
            return self._exact(self.kernel_, data)
        name = str(self.kernel)
        default = default_bandwidth(name, data.X)
        if self.bandwidth == "search":
            options = [default * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
        else:
            options = [default if self.bandwidth is None else float(self.bandwidth)]
        kernels = [kernel_named(name, h, data.X.shape[1]) for h in options]
        fits = [self._exact(kernel, data) for kernel in kernels]
        best = int(np.argmin([fit.error for fit in fits]))
        self.kernel_, self.bandwidth_ = kernels[best], float(options[best])
        return fits[best]

    def _exact(self, kernel: Kernel, data: TrainingData) -> RidgeFit:
        """Fit by eigendecomposition of the Gram matrix."""
        return fit_ridge_path(np.asarray(gram(kernel, on_device(data.X))), data.Y, data.weights, self.ridge)

    def _solve(self, data: TrainingData) -> None:
        """Fit all rows with `solve`: labels are centered, weights become a factor of the kernel."""
        w = data.weights
        mean = np.average(data.Y, axis=0, weights=w)
        kernel, X, Y = self.kernel_, data.X, data.Y - mean
        weighted = Weighted(kernel, not self._table_)
        if w is not None:
            sqrt_weights = np.sqrt(w)[:, None]
            X = np.hstack([X, sqrt_weights]) if self._table_ else (X, sqrt_weights[:, 0])
            kernel, Y = weighted, Y * sqrt_weights
        found = solve(
            kernel,
            X,
            Y,
            self.ridge_,
            tolerance=self.tolerance,
            options=SolveOptions(precision=self.precision),
            progress=self.progress,
            key=self._key(),
        )
        centers, alpha = jax.tree.map(np.asarray, found.centers), np.asarray(found.coefficients)
        if w is not None:
            centers, sqrt_weights = weighted.parts(centers)
            alpha = alpha * sqrt_weights[:, None]
        self.X_fit_, self.dual_coef_, self.intercept_ = centers, alpha, mean
        self.solver_, self.converged_ = found.method, bool(found.converged)

    def _sample(self, n: int) -> np.ndarray:
        """Return MAX_EXACT_ROWS random rows of n."""
        rng = np.random.default_rng(int(jax.random.randint(self._key(), (), 0, 2**31 - 1)))
        return np.sort(rng.choice(n, MAX_EXACT_ROWS, replace=False))

    def _scores(self, X: Points) -> np.ndarray:
        """Evaluate f at the rows of X, shape (m, c)."""
        X = self._centered(self._validate_inputs(X))
        with self._precision_scope():
            centers, alpha = on_device(self.X_fit_), jnp.asarray(self.dual_coef_)
            return map_blocks(lambda Z: matmul(self.kernel_, on_device(Z), centers, alpha), X) + self.intercept_

    def _check(self) -> None:
        """Raise ValueError if `bandwidth` or `ridge` is invalid."""
        if self._kernel_object is not None and self.bandwidth is not None:
            raise ValueError(
                f"bandwidth={self.bandwidth!r} applies to kernels given by name; a kernel object has its own"
            )
        if self.bandwidth not in (None, "search") and not _is_number_above(self.bandwidth, above=0):
            raise ValueError(f"bandwidth must be a positive number, 'search' or None (median), got {self.bandwidth!r}")
        if self.ridge is not None and not (_is_number_above(self.ridge, above=0) or self.ridge == 0):
            raise ValueError(f"ridge must be zero, positive or None (leave-one-out), got {self.ridge!r}")


class KernelRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, KernelMachine):
    """Kernel ridge regression with a free intercept [K2].

    f(x) = b + Σ_i α_i k(x, x_i) minimizes Σ_i (f(x_i) - y_i)² + ridge · αᵀKα. Columns are used as they are: scale them
    first if their units differ. Up to 3,000 distinct rows the fit is exact; beyond, `unlazy.solve` fits all rows.

    Parameters
    ----------
    kernel : str or Kernel, default "laplace"
        "laplace", "gaussian", "matern", "product_laplace", "rational_quadratic", "ntk", "nngp", "linear", "polynomial",
        or a kernel object. With a kernel object, X may be anything that the kernel takes: images, tokens, a dictionary
        of arrays with a leading axis of points, or a list of such points.
    bandwidth : float, "search" or None, default None
        Bandwidth of a kernel given by name. None uses the median distance between rows; "search" picks the best of five
        values around it by leave-one-out.
    ridge : float or None, default None
        Added to the diagonal of K, absolute. None minimizes the leave-one-out error.
    tolerance : float, default 1e-3
        Relative tolerance of the iterative solver, used beyond 3,000 distinct rows.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the fit and the predictions. None is float64 on every device.
    random_state : int, RandomState or None, default 0
        Seed of the sample that chooses the ridge, and of the iterative solver. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of the iterative solver, or a function called with a `Progress` after every step.

    Attributes
    ----------
    kernel_ : Kernel
        The fitted kernel, applied to x - `offset_`.
    bandwidth_ : float or None
        The bandwidth; None for a kernel object.
    ridge_ : float
        The ridge.
    offset_ : array
        Subtracted from the rows before a kernel given by name is applied; zero for kernel objects.
    X_fit_ : array of shape (n_centers, d)
        The points x_i, minus `offset_`.
    dual_coef_ : array of shape (n_centers, outputs)
        The coefficients α.
    intercept_ : array of shape (outputs,)
        The intercept b.
    leave_one_out_error_ : float
        Share of the variance that leave-one-out predictions do not explain (1 - R²).
    solver_ : str
        "eigendecomposition", or the method that `unlazy.solve` used.
    converged_ : bool
        Whether the iterative solver reached `tolerance`; only set when it was used.
    held_out_residuals_ : list of arrays
        Absolute leave-one-out residuals, used by `predict_interval`.
    widths_ : list of dict or None
        How the width of intervals varies, for each output; None for equal width.
    n_features_in_ : int
        Number of columns of X; not set if X is not a table.
    feature_names_in_ : array of str
        Column names, if X had string column names.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, chapters 2 and 5.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import KernelRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> KernelRegressor("gaussian").fit(X, y).predict(Z).shape
    (5,)
    """

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "KernelRegressor":
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n, d), or whatever points the kernel takes
            Training points.
        y : array of shape (n,) or (n, outputs)
            Targets.
        sample_weight : array of shape (n,), optional
            Weights of the rows. A row of weight 2 counts as that row twice; rows of weight 0 are ignored.

        Returns
        -------
        KernelRegressor
            The fitted estimator.
        """
        data = self._validate_regression(X, y, sample_weight)
        exact, seen, place = self._fit(data)
        rows, own = rows_by_place(place)
        missed, inputs = _leave_one_out_residuals(data.rows(rows), own, seen, exact), width_inputs(seen.X)
        self._keep_residuals(
            [missed],
            None if data.weights is None else data.weights[rows],
            [data.Y[rows] - missed],
            [None if inputs is None else inputs[own]],
            data.Y.min(0) >= 0,
        )
        return self

    def _width_inputs(self, X: Points) -> np.ndarray | None:
        return width_inputs(self._centered(self._validate_inputs(X)))

    def predict(self, X: Points) -> np.ndarray:
        """Predict the targets of X.

        Parameters
        ----------
        X : array of shape (m, d), or whatever points the kernel takes
            Points to predict at.

        Returns
        -------
        array of shape (m,) or (m, outputs)
            Predictions, with as many axes as the `y` passed to `fit`.
        """
        check_is_fitted(self)
        return self._restore_output_axes(self._scores(X))


class KernelClassifier(CalibratedClassifier, KernelMachine):
    """Kernel ridge classification: least squares on one-hot labels, with calibrated probabilities.

    Scores are those of `KernelRegressor` on one-hot labels. Probabilities are softmax(a·f + b), with a and b fitted to
    leave-one-out scores.

    Parameters
    ----------
    kernel : str or Kernel, default "laplace"
        Name of a kernel or a kernel object, as in `KernelRegressor`.
    bandwidth : float, "search" or None, default None
        Bandwidth of a kernel given by name. None uses the median distance between rows; "search" picks the best of five
        values around it by leave-one-out.
    ridge : float or None, default None
        Added to the diagonal of K, absolute. None minimizes the leave-one-out error.
    tolerance : float, default 1e-3
        Relative tolerance of the iterative solver, used beyond 3,000 distinct rows.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the fit and the predictions. None is float64 on every device.
    random_state : int, RandomState or None, default 0
        Seed of the sample that chooses the ridge, and of the iterative solver. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of the iterative solver, or a function called with a `Progress` after every step.
    class_weight : dict, "balanced" or None, default None
        Weight of all rows of a class; multiplies `sample_weight`.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The class labels.
    calibration_slope_ : float
        The slope a of the calibration.
    calibration_shift_ : array of shape (n_classes,)
        The shifts b of the calibration.
    kernel_, bandwidth_, ridge_, offset_, X_fit_, dual_coef_, intercept_, leave_one_out_error_, solver_, converged_
        As in `KernelRegressor`.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Platt (1999), Probabilistic outputs for support vector machines.
    Guo, Pleiss, Sun and Weinberger (2017), On calibration of modern neural networks.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import KernelClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> KernelClassifier("laplace").fit(X, X[:, 0] > 0).predict_proba(X[:5]).shape
    (5, 2)
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

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "KernelClassifier":
        """Fit the model.

        Parameters
        ----------
        X : array of shape (n, d), or whatever points the kernel takes
            Training points.
        y : array of shape (n,)
            Class labels.
        sample_weight : array of shape (n,), optional
            Weights of the rows. A row of weight 2 counts as that row twice; rows of weight 0 are ignored.

        Returns
        -------
        KernelClassifier
            The fitted estimator.
        """
        exact, seen, _ = self._fit(self._validate_classification(X, y, sample_weight))
        self._calibrate(exact.held_out, seen.Y, seen.weights)
        return self


def _is_number_above(value: object, above: float) -> bool:
    """Return whether the value is a finite number larger than `above`."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and above < float(value) < np.inf
