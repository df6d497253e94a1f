"""How many samples until something is reached, against d: medians over seeds and the slope of their logarithms."""

from dataclasses import replace

import numpy as np

from unlazy.core.claims import Claim, interval_claim
from unlazy.core.experiment import Records
from unlazy.experiments._opponents import by_seed
from unlazy.measures.scaling_fit import Interval

BOOTSTRAPS = 2000


def passages(records: Records) -> tuple[np.ndarray, np.ndarray]:
    """Dimensions, and a row of first passages (infinite where none) over the seeds for each."""
    d, table = by_seed(records, "d", "found")
    return np.array(d), np.asarray(table, float)


def median_slope(d: np.ndarray, table: np.ndarray) -> Interval:
    """Slope of log median against log d with its 95% bootstrap interval over seeds; nothing where a median is not
    reached."""
    rng, seeds = np.random.default_rng(0), table.shape[1]
    picks = np.concatenate([np.arange(seeds)[None], rng.integers(0, seeds, (BOOTSTRAPS, seeds))])
    medians = np.median(table[:, picks], axis=-1)  # dimensions × draws
    reached = np.all(np.isfinite(medians), axis=0)
    if not reached[0] or reached.mean() < 0.95:
        return Interval(np.nan, np.nan, np.nan, 1.0)
    slopes = np.polyfit(np.log(d), np.log(medians[:, reached]), 1)[0]
    low, high = np.quantile(slopes[1:], [0.025, 0.975])
    return Interval(float(slopes[0]), float(low), float(high), 1 - float(reached.mean()))


def sloped(statement: str, tag: str, slope: Interval, low: float, high: float) -> Claim:
    """Holds where the whole interval lies in [low, high], fails where none of it does."""
    text = f"in [{low:g}, {high:g}]" if np.isfinite([low, high]).all() else f"≤ {high:g}" if low < 0 else f"≥ {low:g}"
    holds, fails = low <= slope.low and slope.high <= high, slope.high < low or slope.low > high
    claim = interval_claim(statement, tag, slope.value, slope.low, slope.high, holds, text, "95%, bootstrap")
    return claim if holds or fails or claim.verdict == "undecided" else replace(claim, verdict="undecided")
