"""Prediction intervals from residuals of rows that a fit had not seen, without a word about their distribution.

Of m exchangeable absolute residuals the k-th smallest, k = ⌈(m + 1)·level⌉, is at least the next one's with probability
k/(m + 1) ≥ level (Vovk, Gammerman and Shafer 2005; Lei et al. 2018). Residuals of rows held out from one fit are
exchangeable with a new row's of the same fit. Those of leave-one-out (the jackknife) nearly are where a fit does not
hang on single rows; settings chosen by them make them a little too small.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted


def conformal_radius(
    residuals: Float[np.ndarray, "m c"], level: float, weights: Float[np.ndarray, " m"] | None = None
) -> Float[np.ndarray, " c"]:
    """The k-th smallest of |residuals|, k = ⌈(m + 1)·level⌉, for every output; weights count rows."""
    check_level(level)
    total = len(residuals) if weights is None else float(np.sum(weights))
    needed = math.ceil((total + 1) * level - 1e-9)  # 0.9·10 is 9, whatever it rounds to
    if needed > total:
        raise ValueError(
            f"an interval of level {level:g} needs {math.ceil(level / (1 - level) - 1e-9)} held-out rows or more, and "
            f"there are {total:g}; ask for {total / (total + 1):.3g} at most"
        )
    size = np.abs(residuals)
    order = np.argsort(size, 0)
    below = np.cumsum(np.ones_like(size) if weights is None else weights[order], 0)
    place = np.argmax(below >= needed - 1e-9, 0)
    return np.take_along_axis(size, np.take_along_axis(order, place[None], 0), 0)[0]


def check_level(level: float) -> None:
    """Between none and all of the rows."""
    if not 0 < level < 1:
        raise ValueError(f"the level of an interval lies between 0 and 1, such as 0.9; got {level!r}")


class HeldOutIntervals:
    """Intervals of a regressor that keeps residuals of held-out rows: `held_out_residuals_`, an array (m, outputs) for
    every fit that rows were held out from, `held_out_weights_` where rows count by weight."""

    predict: Callable[[Any], np.ndarray]
    held_out_residuals_: list[np.ndarray]
    held_out_weights_: np.ndarray | None

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Low and high of every prediction, (m, 2) or (m, outputs, 2): a new row's target lies between them with this
        probability, whatever the noise's distribution, over rows like those of the fit (not at every single x). As
        wide everywhere: prediction ∓ the order statistic of absolute held-out residuals; where several fits had rows
        held out, the median of theirs.

        >>> low, high = model.predict_interval(Z, 0.9).T
        """
        check_is_fitted(self)
        radius = self.interval_radius(level)
        middle = self.predict(X)
        radius = radius[0] if middle.ndim == 1 else radius
        return np.stack([middle - radius, middle + radius], -1)

    def interval_radius(self, level: float = 0.9) -> Float[np.ndarray, " outputs"]:
        """Half of the width of `predict_interval`, for every output."""
        check_is_fitted(self)
        check_level(level)
        kept = getattr(self, "held_out_residuals_", [])
        if not kept:
            raise ValueError(
                f"this {type(self).__name__} kept no held-out residuals, so it gives no intervals; unlazy compare "
                "keeps them with every model, KernelRegressor and FeatureMachineRegressor with every fit"
            )
        weights = getattr(self, "held_out_weights_", None)
        return np.median([conformal_radius(part, level, weights) for part in kept], 0)

    def keep_residuals(self, parts: Sequence[np.ndarray], weights: np.ndarray | None = None) -> None:
        """Remember what held-out rows were missed by, (m,) or (m, outputs) a fit."""
        self.held_out_residuals_ = [np.abs(np.asarray(part, np.float64).reshape(len(part), -1)) for part in parts]
        self.held_out_weights_ = None if weights is None else np.asarray(weights, np.float64)
