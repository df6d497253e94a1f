"""Prediction intervals from held-out residuals, without assumptions on their distribution.

Of m exchangeable absolute residuals the k-th smallest, k = ⌈(m + 1)·level⌉, is at least that of a new row with
probability k/(m + 1) ≥ level (Vovk, Gammerman and Shafer 2005; Lei et al. 2018). Residuals of rows held out from one
fit are exchangeable with that of a new row under the same fit. Leave-one-out residuals (the jackknife) are nearly so if
the fit does not depend strongly on single rows; they are slightly too small if hyperparameters were chosen by them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Points
from unlazy.core.threads import single_threaded_blas
from unlazy.estimators.interval_width import (
    MAX_COLUMNS,
    MAX_ROWS,
    HeldOutRows,
    WidthForm,
    choose_width,
    held_out_folds,
)


def conformal_radius(
    residuals: Float[np.ndarray, "m c"], level: float, weights: Float[np.ndarray, " m"] | None = None
) -> Float[np.ndarray, " c"]:
    """Return the k-th smallest |residual|, k = ⌈(m + 1)·level⌉, of each output; weights count rows."""
    check_level(level)
    total = len(residuals) if weights is None else float(np.sum(weights))
    needed = math.ceil((total + 1) * level - 1e-9)  # 0.9·10 is 9 despite rounding
    if needed > total:
        raise ValueError(
            f"an interval of level {level:g} needs at least {math.ceil(level / (1 - level) - 1e-9)} held-out rows, got "
            f"{total:g}; use a level of at most {total / (total + 1):.3g}"
        )
    size = np.abs(residuals)
    order = np.argsort(size, 0)
    below = np.cumsum(np.ones_like(size) if weights is None else weights[order], 0)
    place = np.argmax(below >= needed - 1e-9, 0)
    return np.take_along_axis(size, np.take_along_axis(order, place[None], 0), 0)[0]


def predict_interval(model: BaseEstimator, X: Points, level: float = 0.9) -> np.ndarray:
    """Predict intervals that contain a new target with the given probability, through a pipeline if there is one.

    Parameters
    ----------
    model : estimator or Pipeline
        A fitted regressor with a method `predict_interval`, such as `KernelRegressor` and `FeatureMachineRegressor`, or
        a scikit-learn pipeline that ends in one.
    X : array or data frame of shape (m, d)
        Points to predict at.
    level : float, default 0.9
        Probability that a new target lies in its interval, between 0 and 1.

    Returns
    -------
    array of shape (m, 2) or (m, outputs, 2)
        Lower and upper ends of the intervals.

    Raises
    ------
    ValueError
        If the model predicts classes or has no intervals.

    Examples
    --------
    >>> import numpy as np
    >>> import unlazy
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> model = make_pipeline(StandardScaler(), unlazy.KernelRegressor()).fit(X, np.sin(X[:, 0]))
    >>> unlazy.predict_interval(model, X[:5], 0.9).shape
    (5, 2)
    """
    if hasattr(model, "named_steps"):
        check_is_fitted(model)
        for _, step in model.steps[:-1]:
            X = X if step is None or step == "passthrough" else step.transform(X)
        return predict_interval(model.steps[-1][1], X, level)
    if hasattr(model, "predict_interval"):
        return model.predict_interval(X, level)
    if hasattr(model, "classes_"):
        raise ValueError("this model predicts classes, which have no intervals; use their probabilities instead")
    raise ValueError(
        f"{type(model).__name__} has no prediction intervals; KernelRegressor and FeatureMachineRegressor have them, "
        "and so do models of unlazy compare and unlazy fit"
    )


def check_level(level: float) -> None:
    """Raise ValueError unless the level lies strictly between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, for example 0.9, got {level!r}")


class HeldOutIntervals:
    """Mixin that adds prediction intervals to a regressor that stores held-out residuals.

    `held_out_residuals_` has an array (m, outputs) for each fit from which rows were held out; `held_out_weights_` has
    the weights of those rows, or is None. `widths_` has for each output how the width varies (`interval_width`), or
    None.
    """

    predict: Callable[[Points], np.ndarray]
    _validate_inputs: Callable[[Points], Any]
    held_out_residuals_: list[np.ndarray]
    held_out_weights_: list[np.ndarray] | None
    widths_: list[dict[str, Any] | None]
    held_out_inputs_: np.ndarray | None
    nonnegative_: np.ndarray

    def predict_interval(self, X: Points, level: float = 0.9) -> np.ndarray:
        """Predict intervals that contain a new target with the given probability.

        The interval is the prediction ± a radius from held-out residuals. With 100 of them or more, the radius follows
        the row: it is learned from the residuals of held-out rows with similar predictions and inputs, unless equal
        radii are as good. In both cases an order statistic of held-out residuals, relative to the radius that other
        rows give them, sets the scale. So the coverage holds on average over rows drawn like those of the fit, whatever
        the noise distribution, but not at each single x. If no training target is negative, lower ends below zero are
        set to zero.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.
        level : float, default 0.9
            Probability that a new target lies in its interval, between 0 and 1.

        Returns
        -------
        array of shape (m, 2) or (m, outputs, 2)
            Lower and upper ends of the intervals.

        Raises
        ------
        ValueError
            If the estimator has no held-out residuals, or too few of them for this level.

        Examples
        --------
        >>> import numpy as np
        >>> from unlazy import KernelRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 3))
        >>> y = np.sin(X[:, 0])
        >>> low, high = KernelRegressor().fit(X, y).predict_interval(X[:5], 0.9).T
        >>> bool((low < high).all())
        True
        """
        check_is_fitted(self)
        equal = self.interval_radius(level)
        center = self.predict(X)
        columns = center.reshape(len(center), -1)
        radius = np.broadcast_to(equal, columns.shape).copy()
        forms = getattr(self, "widths_", [])  # not in files of earlier versions
        if any(forms):
            inputs = None if self.held_out_inputs_ is None else self._width_inputs(X)
            for c, kept in enumerate(forms):
                if kept is not None:
                    form = WidthForm(**kept)
                    scores = form.residuals / form.held_out_scale(level)
                    factor = conformal_radius(scores[:, None], level, form.weights)[0]
                    radius[:, c] = factor * form.scale(level, columns[:, c], inputs, self.held_out_inputs_)
        low, high = columns - radius, columns + radius
        if np.any(positive := getattr(self, "nonnegative_", False)):
            low, high = (np.where(positive, np.maximum(end, 0), end) for end in (low, high))
        return np.stack([low, high], -1).reshape(*center.shape, 2)

    def interval_radius(self, level: float = 0.9) -> Float[np.ndarray, " outputs"]:
        """Half the width of intervals of equal width: the error that new predictions exceed with probability 1 - level.

        If rows were held out from several fits, it is the median of their radii.

        Parameters
        ----------
        level : float, default 0.9
            Probability that a new target lies in its interval.

        Returns
        -------
        array of shape (outputs,)
            Half-widths.
        """
        check_is_fitted(self)
        check_level(level)
        kept = getattr(self, "held_out_residuals_", [])
        if not kept:
            raise ValueError(
                f"this {type(self).__name__} has no held-out residuals, so it has no intervals; KernelRegressor "
                "and FeatureMachineRegressor store them in fit, and `unlazy compare` stores them with each model"
            )
        weights = getattr(self, "held_out_weights_", None)
        if not isinstance(weights, list):  # files of earlier versions have one array for all
            weights = [weights] * len(kept)
        return np.median([conformal_radius(part, level, w) for part, w in zip(kept, weights)], 0)

    def keep_residuals(
        self, parts: Sequence[np.ndarray], weights: np.ndarray | Sequence[np.ndarray] | None = None, *,
        predictions: Sequence[np.ndarray] | None = None, inputs: Sequence[Points] | None = None,
        nonnegative: np.ndarray | bool = False,
    ) -> None:  # fmt: skip
        """Store held-out residuals for `predict_interval`.

        Parameters
        ----------
        parts : sequence of arrays of shape (m,) or (m, outputs)
            Residuals, target - prediction, one array for each fit from which rows were held out.
        weights : array of shape (m,) or sequence of arrays, optional
            Weights of the held-out rows, one array for each of `parts` or one for all. They count rows; if their mean
            is below one they are divided by it.
        predictions : sequence of arrays, optional
            Predictions of the held-out rows, of the shape of `parts`. Without them all intervals have equal width.
        inputs : sequence of arrays of shape (m, d), optional
            Inputs of the held-out rows, as `predict` takes them.
        nonnegative : bool or array of shape (outputs,), default False
            Whether no training target is negative.

        Raises
        ------
        ValueError
            If residuals or predictions are not finite, or weights do not match them.
        """
        for what, arrays in (("residuals", parts), ("predictions", predictions or ())):
            if not all(np.isfinite(np.asarray(part, np.float64)).all() for part in arrays):
                raise ValueError(f"{what} of held-out rows contain NaN or infinity; leave those rows out")
        rows = None if inputs is None else [self._width_inputs(X) for X in inputs]
        self._keep_residuals(parts, weights, predictions, rows, nonnegative)

    def _keep_residuals(
        self, parts: Sequence[np.ndarray], weights: np.ndarray | Sequence[np.ndarray] | None,
        predictions: Sequence[np.ndarray] | None, rows: Sequence[np.ndarray | None] | None,
        nonnegative: np.ndarray | bool,
    ) -> None:  # fmt: skip
        """Store residuals and how the width varies; `rows` are the inputs as `_width_inputs` returns them."""
        missed = [np.asarray(part, np.float64).reshape(len(part), -1) for part in parts]
        self.held_out_residuals_ = [np.abs(part) for part in missed]
        self.held_out_weights_ = _weights_of_parts(weights, missed)
        self.nonnegative_ = np.atleast_1d(nonnegative)
        self.widths_, self.held_out_inputs_ = [], None
        if predictions is None:
            return
        residuals = np.concatenate(missed)
        f = np.concatenate([np.asarray(part, np.float64).reshape(len(part), -1) for part in predictions])
        tables = [part for part in rows or () if part is not None]
        X: np.ndarray | None = np.concatenate(tables) if tables and len(tables) == len(parts) else None
        w = None if self.held_out_weights_ is None else np.concatenate(self.held_out_weights_)
        fold = held_out_folds(X, len(f))
        if len(f) > MAX_ROWS:
            some = np.sort(np.random.default_rng(0).permutation(len(f))[:MAX_ROWS])
            residuals, f, fold = residuals[some], f[some], fold[some]
            X, w = (None if part is None else part[some] for part in (X, w))
        with single_threaded_blas():  # small products
            forms = [choose_width(HeldOutRows(f[:, c], residuals[:, c], X, w, fold)) for c in range(f.shape[1])]
        self.widths_ = [None if form is None else form._asdict() for form in forms]
        if any(form is not None and form.ratios is not None for form in forms):
            self.held_out_inputs_ = X

    def _width_inputs(self, X: Points) -> np.ndarray | None:
        """Rows whose distances tell which residuals are comparable; None if the points are no table, or too wide."""
        return width_inputs(self._validate_inputs(X))


def _weights_of_parts(
    weights: np.ndarray | Sequence[np.ndarray] | None, parts: Sequence[np.ndarray]
) -> list[np.ndarray] | None:
    """Weights of each part; weights of mean below one, which cannot count rows, are divided by their mean."""
    if weights is None:
        return None
    given = [weights] * len(parts) if np.ndim(weights[0]) == 0 else weights
    found = [np.asarray(w, np.float64) for w in given]
    lengths, rows = [len(w) for w in found], [len(part) for part in parts]
    if lengths != rows:
        raise ValueError(
            f"weights must have one array for each part, of as many rows, or one for all: got {lengths} weights of "
            f"{rows} rows"
        )
    mean = float(np.mean(np.concatenate(found)))
    if not mean > 0:
        raise ValueError("all weights of held-out rows are zero: give at least one row a positive weight")
    return [w / min(1.0, mean) for w in found]


def width_inputs(X: Any) -> np.ndarray | None:
    """Rows in float64; None if the points are not rows of at most MAX_COLUMNS numbers."""
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] > MAX_COLUMNS:
        return None
    return X.astype(np.float64, copy=False)
