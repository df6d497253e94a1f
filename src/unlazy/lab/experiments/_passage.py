"""First-passage sample counts as a function of d: medians over seeds, log-log slopes, and claims about them."""

import math

import numpy as np
from scipy.stats import binomtest

from unlazy.lab.claims import Claim, interval_claim
from unlazy.lab.experiment import Records
from unlazy.lab.experiments._baselines import by_seed
from unlazy.measures import scaling_fit
from unlazy.measures.scaling_fit import Interval

MAX_FAILED_SHARE = 0.05
"""Largest share of bootstrap draws with an infinite median; beyond it the interval would omit the slow runs."""


def passages(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Dimensions, and for each a row of first-passage counts over seeds (infinite for runs that never arrive)."""
    d, table = by_seed(records, "d", "found")
    return np.array(d), np.asarray(table, float)


def median_slope(d: np.ndarray, table: np.ndarray) -> Interval:
    """Slope of log median against log d with its 95% bootstrap interval; NaN if a median is infinite."""
    nothing = Interval(math.nan, math.nan, math.nan, 1.0)
    if not np.isfinite(np.median(table, 1)).all():
        return nothing
    with np.errstate(invalid="ignore"):  # a draw whose median is infinite has no slope
        found = scaling_fit.slope(d, table)
    return found if found.failed <= MAX_FAILED_SHARE else nothing


def slope_claim(
    statement: str, tag: str, slope: Interval, low: float, high: float, interval: str = "95%, bootstrap"
) -> Claim:
    """Claim that holds if the whole interval lies in [low, high] and fails if it is disjoint from it."""
    text = f"in [{low:g}, {high:g}]" if np.isfinite([low, high]).all() else f"≤ {high:g}" if low < 0 else f"≥ {low:g}"
    inside, outside = low <= slope.low and slope.high <= high, slope.high < low or slope.low > high
    holds = inside if inside or outside else None
    return interval_claim(statement, tag, slope.value, slope.low, slope.high, holds, text, interval)


def share_claim(statement: str, tag: str, count: int, runs: int, low: float, high: float) -> Claim:
    """Claim about the share count/runs with its Clopper–Pearson interval; the rule is that of `slope_claim`."""
    sure = binomtest(count, runs).proportion_ci(0.95)
    return slope_claim(statement, tag, Interval(count / runs, sure.low, sure.high), low, high, "95%, Clopper–Pearson")
