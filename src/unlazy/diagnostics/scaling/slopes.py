"""Exponents of the width: slopes in logarithms, with their standard errors."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int

Values: TypeAlias = Sequence[float] | Float[np.ndarray, " n"] | Int[np.ndarray, " n"]


class Slope(NamedTuple):
    """Exponent a of a quantity that grows like n^a.

    Attributes
    ----------
    value : float
        NaN if the quantity is 0 or not finite somewhere.
    error : float
        Standard error; NaN for two values, through which a line passes exactly.
    """

    value: float
    error: float

    @property
    def known(self) -> bool:
        """Whether the quantity could be measured at all sizes."""
        return math.isfinite(self.value)

    def __add__(self, other: object) -> "Slope":
        if not isinstance(other, int | float):
            return NotImplemented
        return Slope(self.value + other, self.error)


UNKNOWN = Slope(math.nan, math.nan)


def fit_slope(sizes: Values, values: Values) -> Slope:
    """Least-squares slope of log(value) against log(size).

    Parameters
    ----------
    sizes : sequence of float
        Widths or depths, each as often as it was measured.
    values : sequence of float
        A positive quantity at each of them.

    Returns
    -------
    Slope
        Unknown if a value is not positive and finite.
    """
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    if not (np.isfinite(y).all() and (y > 0).all()):
        return UNKNOWN
    x, y = np.log(x) - np.log(x).mean(), np.log(y) - np.log(y).mean()
    spread = float(x @ x)
    value = float(x @ y) / spread
    if len(x) < 3:
        return Slope(value, math.nan)
    residual = y - value * x
    return Slope(value, math.sqrt(float(residual @ residual) / (len(x) - 2) / spread))


def smaller(one: Slope, two: Slope) -> Slope:
    """Of two measures of the same exponent the smaller one; 0 if their signs differ. A finite size biases either."""
    if not (one.known and two.known):
        return one if one.known else two
    if one.value * two.value < 0:
        return Slope(0.0, max(one.error, two.error))
    return min(one, two, key=lambda slope: abs(slope.value))
