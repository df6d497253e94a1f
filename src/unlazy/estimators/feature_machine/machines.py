"""Recursive feature machines [D11] as scikit-learn estimators: kernels that learn which directions matter."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin

from unlazy.core.arrays import Labels, Points, dot
from unlazy.core.threads import limit_threads
from unlazy.estimators.base import TrainingData, rows_by_place
from unlazy.estimators.classifiers import CalibratedClassifier
from unlazy.estimators.feature_machine.base import FeatureMachine
from unlazy.estimators.feature_machine.held_out_scale import error_of_more_rows
from unlazy.estimators.intervals import HeldOutIntervals, width_inputs


class FeatureMachineRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, FeatureMachine):
    """Kernel regression that learns its metric from the average gradient outer product of its own fits [D11].

    f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h). By default the estimator chooses among the ℓ1 Laplace kernel with a diagonal
    metric and the Laplace and Gaussian kernels with full and diagonal metrics, together with bandwidth, ridge and
    number of updates, by leave-one-out in which the metric never depends on a held-out label. Columns are standardized
    and a free intercept is fitted, so neither units nor offsets matter. Beyond 3,000 rows a single split replaces
    leave-one-out, candidates are reduced by successive halving, and more rows than one factorization can hold are
    fitted by the leaves of a partition or iteratively.

    Parameters
    ----------
    kernel : str, Kernel or None, default None
        "product_laplace", "laplace", "gaussian", "matern", "ntk", "nngp", or a kernel object. None chooses among the
        first three.
    metric : {"full", "diagonal", "low_rank"} or None, default None
        Kind of metric. None chooses between "full" and "diagonal"; "low_rank" needs `rank`.
    updates : int, default 8
        Largest number of metric updates; 0 for a fixed kernel.
    iterate : {"best", "last"}, default "best"
        Whether to use the best number of updates, or always all of them.
    rank : int or None, default None
        Number of directions of a "low_rank" metric.
    start : {"one_step"} or None, default None
        Initial metric: None is the identity, "one_step" is W¹ᵀW¹ of Algorithm 1 [D4].
    relative_bandwidth : float or None, default None
        Bandwidth as a multiple of the median distance. None chooses it.
    relative_ridge : float or None, default None
        Ridge as a multiple of k(x, x). None chooses it.
    standardize : bool, default True
        Whether to divide columns by their standard deviation.
    categorical : sequence of str or int, or None, default None
        Columns (names or indices) to encode as categories; an empty sequence for none. None tries categories for
        columns of few evenly spaced values (months, grades), with an indicator for each value in place of the number or
        in addition to it.
    robust : bool, default True
        Whether to clip heavy-tailed labels. If held-out residuals have a kurtosis above 8, labels are clipped to within
        three deviations of held-out predictions, if that predicts held-out rows, with their original labels, better by
        more than one standard error; if it is better by less, the mean of both fits is used. Regression only.
    average : bool, default True
        Whether to average candidates if there are at most 400 rows: all candidates whose leave-one-out error is within
        z = 2 standard errors of the best one, with weights exp(-z²/2).
    effort : {"low", "medium", "high"}, default "medium"
        How much is searched. "low" fits one kernel (Laplace unless `kernel` is given) with its bandwidth and ridge, and
        nothing else: no metric, encoding, clipping or averaging. "medium" searches on at most 1,200 rows if there are
        at most 3,000, and "high" on all of them.
    tolerance : float, default 1e-3
        Relative tolerance of iterative fits, used for more rows than one factorization can hold.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the predictions. None is float64. The search is always in float64.
    random_state : int, RandomState or None, default 0
        Seed of the samples and splits of rows. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of the fit, or a function called with a `Progress` after every step.
    checkpoint : str, Path or None, default None
        File from which an interrupted fit of more than 3,000 rows resumes after its last finished stage, with the same
        result bit for bit.
    n_jobs : int or None, default None
        Largest number of threads, of candidates and folds and of BLAS. None is the number of cores.

    Attributes
    ----------
    metric_ : array of shape (d, d) or (d,)
        The metric M, or its diagonal, with trace one, for the scaled columns.
    feature_importances_ : array of shape (n_features_in_,)
        Share of each column in the mean squared gradients of the final fit; beyond 3,000 rows the diagonal of the
        metric if it was learned. The share of a column of a frame is the sum over its encoded columns.
    kernel_ : Kernel
        The fitted kernel, for the scaled columns.
    n_updates_ : int
        Number of metric updates.
    bandwidth_ : float
        The bandwidth.
    ridge_ : float
        The ridge, added to the diagonal of K.
    relative_ridge_ : float
        The ridge as a multiple of k(x, x).
    leave_one_out_error_ : float
        Share of the variance that held-out predictions do not explain.
    offset_, scale_ : arrays
        Offset and scale of the (encoded) columns.
    map_ : array
        The map L with M = LᵀL.
    X_fit_, dual_coef_, intercept_ : arrays
        Centers, coefficients and intercept of the final fit.
    solver_ : str
        How the final fit was computed: "cholesky", "partition", "constant" or the name of an iterative method.
    converged_ : bool
        Whether an iterative fit converged; only set beyond 3,000 rows.
    coding_ : str
        Encoding of columns that look like codes: "numbers", "categories" or "numbers and categories".
    categories_ : dict
        Values of the columns that are encoded as categories.
    members_ : list of dict
        The fits whose weighted mean is predicted, the best first. The attributes above are those of the first one,
        except `feature_importances_`, which is averaged.
    outliers_ : {"kept", "clipped", "averaged"}
        Treatment of heavy-tailed labels.
    clip_ : array of shape (outputs,)
        Largest distance of a clipped label from its prediction; inf if none was clipped.
    held_out_residuals_ : list of arrays
        Absolute residuals of held-out rows, used by `predict_interval`. If these are a sample of the rows, they are
        multiplied by the leave-one-out error of all rows over that of the sample, both in the final metric.
    widths_ : list of dict or None
        How the width of intervals varies, for each output; None for equal width.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin (2024), Mechanism for feature learning in neural networks and
    backpropagation-free machine learning models.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import FeatureMachineRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> FeatureMachineRegressor().fit(X, y).predict(Z).shape
    (5,)
    """

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "FeatureMachineRegressor":
        """Choose kernel, metric and hyperparameters, and fit all rows.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points.
        y : array of shape (n,) or (n, outputs)
            Targets.
        sample_weight : array of shape (n,), optional
            Weights of the rows. A row of weight 2 counts as that row twice; rows of weight 0 are ignored.

        Returns
        -------
        FeatureMachineRegressor
            The fitted estimator.
        """
        with limit_threads(self.n_jobs):
            data = self._validate_regression(X, y, sample_weight)
            held_out, part, place = self._fit(data, regression=True)
            rows, own = rows_by_place(place)  # one residual for each row, also where equal rows were merged
            missed = (data.Y[rows] - held_out[own]) * error_of_more_rows(self, part)
        nearer = data.Y[rows] - missed  # the predictions with these residuals
        weights, inputs = None if data.weights is None else data.weights[rows], self._mapped(part.X)
        inputs = None if inputs is None else inputs[own]
        self._keep_residuals([missed], weights, [nearer], [inputs], data.Y.min(0) >= 0)
        return self

    def _width_inputs(self, X: Points) -> np.ndarray | None:
        return self._mapped(self.standardized(X))

    def _mapped(self, Z: np.ndarray) -> np.ndarray | None:
        """Scaled rows in the coordinates of the learned metric."""
        return width_inputs(Z * self.map_ if self.map_.ndim == 1 else dot(Z, self.map_.T))

    def _targets(self, X: Points, y: Labels) -> tuple[TrainingData, bool]:
        return self._validate_regression(X, y), True

    def predict(self, X: Points) -> np.ndarray:
        """Predict the targets of X.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.

        Returns
        -------
        array of shape (m,) or (m, outputs)
            Predictions, with as many axes as the `y` passed to `fit`.
        """
        return self._restore_output_axes(self._scores(X))


class FeatureMachineClassifier(CalibratedClassifier, FeatureMachine):
    """Feature machine for classification: least squares on one-hot labels, with calibrated probabilities [D11].

    Kernel, metric and hyperparameters are chosen as in `FeatureMachineRegressor`. Probabilities are softmax(a·f + b),
    with a and b fitted to held-out scores.

    Parameters
    ----------
    kernel : str, Kernel or None, default None
        "product_laplace", "laplace", "gaussian", "matern", "ntk", "nngp", or a kernel object. None chooses among the
        first three.
    metric : {"full", "diagonal", "low_rank"} or None, default None
        Kind of metric. None chooses between "full" and "diagonal"; "low_rank" needs `rank`.
    updates : int, default 8
        Largest number of metric updates; 0 for a fixed kernel.
    iterate : {"best", "last"}, default "best"
        Whether to use the best number of updates, or always all of them.
    rank : int or None, default None
        Number of directions of a "low_rank" metric.
    start : {"one_step"} or None, default None
        Initial metric: None is the identity, "one_step" is W¹ᵀW¹ of Algorithm 1 [D4].
    relative_bandwidth : float or None, default None
        Bandwidth as a multiple of the median distance. None chooses it.
    relative_ridge : float or None, default None
        Ridge as a multiple of k(x, x). None chooses it.
    standardize : bool, default True
        Whether to divide columns by their standard deviation.
    categorical : sequence of str or int, or None, default None
        Columns (names or indices) to encode as categories; an empty sequence for none. None tries categories for
        columns of few evenly spaced values (months, grades), with an indicator for each value in place of the number or
        in addition to it.
    robust : bool, default True
        Whether to clip heavy-tailed labels. If held-out residuals have a kurtosis above 8, labels are clipped to within
        three deviations of held-out predictions, if that predicts held-out rows, with their original labels, better by
        more than one standard error; if it is better by less, the mean of both fits is used. Regression only.
    average : bool, default True
        Whether to average candidates if there are at most 400 rows: all candidates whose leave-one-out error is within
        z = 2 standard errors of the best one, with weights exp(-z²/2).
    effort : {"low", "medium", "high"}, default "medium"
        How much is searched. "low" fits one kernel (Laplace unless `kernel` is given) with its bandwidth and ridge, and
        nothing else: no metric, encoding, clipping or averaging. "medium" searches on at most 1,200 rows if there are
        at most 3,000, and "high" on all of them.
    tolerance : float, default 1e-3
        Relative tolerance of iterative fits, used for more rows than one factorization can hold.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the predictions. None is float64. The search is always in float64.
    random_state : int, RandomState or None, default 0
        Seed of the samples and splits of rows. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of the fit, or a function called with a `Progress` after every step.
    checkpoint : str, Path or None, default None
        File from which an interrupted fit of more than 3,000 rows resumes after its last finished stage, with the same
        result bit for bit.
    n_jobs : int or None, default None
        Largest number of threads, of candidates and folds and of BLAS. None is the number of cores.
    class_weight : dict, "balanced" or None, default None
        Weight of all rows of a class; multiplies `sample_weight`.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The class labels.
    calibration_slope_, calibration_shift_ : float and array of shape (n_classes,)
        Slope a and shifts b of the calibration.
    metric_ : array of shape (d, d) or (d,)
        The metric M, or its diagonal, with trace one, for the scaled columns.
    feature_importances_ : array of shape (n_features_in_,)
        Share of each column in the mean squared gradients of the final fit; beyond 3,000 rows the diagonal of the
        metric if it was learned. The share of a column of a frame is the sum over its encoded columns.
    kernel_ : Kernel
        The fitted kernel, for the scaled columns.
    n_updates_ : int
        Number of metric updates.
    bandwidth_ : float
        The bandwidth.
    ridge_ : float
        The ridge, added to the diagonal of K.
    relative_ridge_ : float
        The ridge as a multiple of k(x, x).
    leave_one_out_error_ : float
        Share of the variance that held-out predictions do not explain.
    offset_, scale_ : arrays
        Offset and scale of the (encoded) columns.
    map_ : array
        The map L with M = LᵀL.
    X_fit_, dual_coef_, intercept_ : arrays
        Centers, coefficients and intercept of the final fit.
    solver_ : str
        How the final fit was computed: "cholesky", "partition", "constant" or the name of an iterative method.
    converged_ : bool
        Whether an iterative fit converged; only set beyond 3,000 rows.
    coding_ : str
        Encoding of columns that look like codes: "numbers", "categories" or "numbers and categories".
    categories_ : dict
        Values of the columns that are encoded as categories.
    members_ : list of dict
        The fits whose weighted mean is predicted, the best first. The attributes above are those of the first one,
        except `feature_importances_`, which is averaged.
    outliers_ : {"kept", "clipped", "averaged"}
        Treatment of heavy-tailed labels.
    clip_ : array of shape (outputs,)
        Largest distance of a clipped label from its prediction; inf if none was clipped.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin (2024), Mechanism for feature learning in neural networks and
    backpropagation-free machine learning models.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import FeatureMachineClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> FeatureMachineClassifier().fit(X, X[:, 0] > 0).predict_proba(X[:5]).shape
    (5, 2)
    """

    class_weight: dict | str | None

    def __init__(
        self, kernel=None, *, metric=None, updates=8, iterate="best", rank=None, start=None, relative_bandwidth=None,
        relative_ridge=None, standardize=True, categorical=None, robust=True, average=True, effort="medium",
        tolerance=1e-3, precision=None, random_state=0, progress=False, checkpoint=None, n_jobs=None,
        class_weight=None,
    ):  # fmt: skip
        super().__init__(
            kernel, metric=metric, updates=updates, iterate=iterate, rank=rank, start=start,
            relative_bandwidth=relative_bandwidth, relative_ridge=relative_ridge, standardize=standardize,
            categorical=categorical, robust=robust, average=average, effort=effort, tolerance=tolerance,
            precision=precision, random_state=random_state, progress=progress, checkpoint=checkpoint, n_jobs=n_jobs,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "FeatureMachineClassifier":
        """Choose kernel, metric and hyperparameters, and fit all rows.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points.
        y : array of shape (n,)
            Class labels.
        sample_weight : array of shape (n,), optional
            Weights of the rows. A row of weight 2 counts as that row twice; rows of weight 0 are ignored.

        Returns
        -------
        FeatureMachineClassifier
            The fitted estimator.
        """
        with limit_threads(self.n_jobs):
            held_out, part, _ = self._fit(self._validate_classification(X, y, sample_weight), regression=False)
        self._calibrate(held_out, part.Y, part.weights)
        return self

    def _targets(self, X: Points, y: Labels) -> tuple[TrainingData, bool]:
        return self._validate_classification(X, y), False
