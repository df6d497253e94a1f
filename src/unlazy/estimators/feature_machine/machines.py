"""Recursive feature machines [D11] as scikit-learn estimators: kernels that learn which directions matter."""

from typing import Any

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from unlazy.core.threads import at_most
from unlazy.estimators.base import Training
from unlazy.estimators.classifiers import CalibratedClassifier
from unlazy.estimators.feature_machine.base import FeatureMachine
from unlazy.estimators.feature_machine.candidates import KERNELS as KERNELS
from unlazy.estimators.intervals import HeldOutIntervals


class FeatureMachineRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, FeatureMachine):
    """A kernel machine that learns its metric from the average gradient outer product of its own fits [D11].

    With no arguments it chooses among the ℓ1 Laplace kernel with a diagonal metric and the Laplace and Gaussian
    kernels with full and diagonal metrics, their bandwidth, ridge and number of updates, all by leave-one-out in which
    the metric never sees a held-out label. Columns are standardized and a free intercept is fitted, so neither units
    nor offsets matter. Beyond 3,000 rows a split of held-out rows judges instead, choices are made again at growing
    sizes, and more rows than one factorization holds are fitted by leaves of a partition or by iteration.

    Columns of few evenly spaced values (months, grades) are tried as categories too, an indicator for every value in
    place of the number or beside it, by searches on 400 rows; `categories` names those that are categories (columns by
    name or number; an empty list for none).

    Up to 400 rows the mean of all candidates is predicted that leave-one-out cannot tell from the best (the difference
    of their squared errors is within two standard errors z, weights exp(-z²/2)); `average=False` picks the best.
    Where residuals of held-out rows have a kurtosis above 8, labels are clipped to within three deviations of held-out
    predictions, if that predicts held-out rows, with the labels they have, better by more than a standard error; if by
    less, the mean of both fits is predicted. `robust=False` leaves labels alone.

    `kernel` ('product_laplace', 'laplace', 'gaussian', 'matern', 'ntk', 'nngp', or a kernel),
    `metric` ('full', 'diagonal', 'low_rank' with `rank`), `relative_bandwidth` (a multiple of the median distance) and
    `relative_ridge` (a multiple of k(x, x)) fix what is otherwise chosen; `iterate='last'` always makes all `updates`;
    `start='one_step'` begins with the metric W¹ᵀW¹ of Algorithm 1. `checkpoint` names a file from which a killed fit of
    more than 3,000 rows continues after its last finished stage, to the same model bit for bit.

    Candidates and folds run side by side in threads, as many as there are cores; `n_jobs` is the most of them, and of
    BLAS's, in a fit.

    Fitted: `metric_` (M of trace one, for standardized columns), `feature_importances_` (shares of the mean squared
    gradients of the last fit; beyond 3,000 rows those of the metric's diagonal where it was learned), `n_updates_`,
    `bandwidth_`, `ridge_` (added to K), `relative_ridge_`, `kernel_`, `leave_one_out_error_` (share of the
    variance not explained, of held-out rows where there are many), `solver_`, `coding_` ('numbers', 'categories' or
    'numbers and categories', of columns that look like codes) and `categories_` (their values), `members_` (the fits
    whose mean is predicted; the attributes above are those of the first, importances the mean), `outliers_` ('kept',
    'clipped' or 'averaged') and `clip_` (largest distance of a clipped label from its prediction, for every output;
    infinite where none was).

    `predict_interval(X, level)` gives prediction intervals from residuals of held-out rows (`held_out_residuals_`).

    >>> FeatureMachineRegressor().fit(X, y).predict(Z)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "FeatureMachineRegressor":
        """Weights count rows: a row of weight 2 is that row twice."""
        with at_most(self.n_jobs):
            held_out, part = self._fit(self._training(X, y, sample_weight), regression=True)
        self.keep_residuals([part.Y - held_out], part.weights)
        return self

    def _targets(self, X: Any, y: Any) -> tuple[Training, bool]:
        return self._training(X, y), True

    def predict(self, X: Any) -> np.ndarray:
        return self._shaped(self._scores(X))


class FeatureMachineClassifier(CalibratedClassifier, FeatureMachine):
    """Least squares on one-hot labels with a learned metric; probabilities are calibrated on held-out scores.
    Parameters and fitted attributes as `FeatureMachineRegressor`; `class_weight` ('balanced', or a dictionary) is a
    weight of every row of a class.

    >>> FeatureMachineClassifier().fit(X, labels).predict_proba(Z)
    """

    class_weight: dict | str | None

    def __init__(
        self, kernel=None, *, metric=None, updates=8, iterate="best", rank=None, start=None, relative_bandwidth=None,
        relative_ridge=None, standardize=True, categories=None, robust=True, average=True, tolerance=1e-3,
        precision=None, random_state=0, progress=False, checkpoint=None, n_jobs=None, class_weight=None,
    ):  # fmt: skip
        super().__init__(
            kernel, metric=metric, updates=updates, iterate=iterate, rank=rank, start=start,
            relative_bandwidth=relative_bandwidth, relative_ridge=relative_ridge, standardize=standardize,
            categories=categories, robust=robust, average=average, tolerance=tolerance, precision=precision,
            random_state=random_state, progress=progress, checkpoint=checkpoint, n_jobs=n_jobs,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "FeatureMachineClassifier":
        """Weights count rows: a row of weight 2 is that row twice."""
        with at_most(self.n_jobs):
            held_out, part = self._fit(self._labeled(X, y, sample_weight), regression=False)
        self._calibrate(held_out, part.Y, part.weights)
        return self

    def _targets(self, X: Any, y: Any) -> tuple[Training, bool]:
        return self._labeled(X, y), False
