"""Prediction intervals from held-out residuals, without assumptions on their distribution.

Of m exchangeable absolute residuals the k-th smallest, k = ⌈(m + 1)·level⌉, is at least that of a new row with
probability k/(m + 1) ≥ level (Vovk, Gammerman and Shafer 2005; Lei et al. 2018). Residuals of rows held out from one
fit are exchangeable with that of a new row under the same fit. Leave-one-out residuals (the jackknife) are nearly so if
the fit does not depend strongly on single rows; they are slightly too small if hyperparameters were chosen by them.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Points


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

    `held_out_residuals_` has an array (m, outputs) for each fit from which rows were held out; `held_out_weights_` are
    the weights of those rows.
    """

    predict: Callable[[Points], np.ndarray]
    held_out_residuals_: list[np.ndarray]
    held_out_weights_: np.ndarray | None

    def predict_interval(self, X: Points, level: float = 0.9) -> np.ndarray:
        """Predict intervals that contain a new target with the given probability.

        The interval is prediction ± an order statistic of the absolute held-out residuals, equally wide at every x. The
        coverage holds on average over rows drawn like those of the fit, whatever the noise distribution, but not at
        each single x. If rows were held out from several fits, the median of their radii is used.

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
        radius = self.interval_radius(level)
        center = self.predict(X)
        radius = radius[0] if center.ndim == 1 else radius
        return np.stack([center - radius, center + radius], -1)

    def interval_radius(self, level: float = 0.9) -> Float[np.ndarray, " outputs"]:
        """Half the width of the intervals of `predict_interval`.

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
        return np.median([conformal_radius(part, level, weights) for part in kept], 0)

    def keep_residuals(self, parts: Sequence[np.ndarray], weights: np.ndarray | None = None) -> None:
        """Store held-out residuals for `predict_interval`.

        Parameters
        ----------
        parts : sequence of arrays of shape (m,) or (m, outputs)
            Residuals, one array for each fit from which rows were held out.
        weights : array of shape (m,), optional
            Weights of the held-out rows.
        """
        self.held_out_residuals_ = [np.abs(np.asarray(part, np.float64).reshape(len(part), -1)) for part in parts]
        self.held_out_weights_ = None if weights is None else np.asarray(weights, np.float64)
