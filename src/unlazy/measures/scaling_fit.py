"""Exponents from measurements: log-log slopes and threshold crossings of risk curves, with bootstrap intervals."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Num

from unlazy.theory.spectra import eigenvalues

Numbers = Sequence[float] | Num[np.ndarray, " _"]
BOOTSTRAPS = 2_000
"""Bootstrap resamples."""


@dataclass(frozen=True)
class Interval:
    """A value with its confidence interval.

    Attributes
    ----------
    value : float
    low, high : float
        Ends of the interval; NaN if more than half of the resamples failed.
    failed : float
        Share of bootstrap resamples without a finite value.
    """

    value: float
    low: float
    high: float
    failed: float = 0.0


@dataclass(frozen=True)
class PowerLaw:
    """Power law y ≈ constant·x^exponent; call it to evaluate at x.

    Attributes
    ----------
    exponent : float
        Exponent of x.
    constant : float
        Value at x = 1.
    """

    exponent: float
    constant: float

    def __call__(self, x: Numbers) -> Float[np.ndarray, " _"]:
        return self.constant * np.asarray(x, float) ** self.exponent


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit a power law by least squares through (log x, log y).

    Parameters
    ----------
    x, y : sequence of float
        Positive and finite.

    Returns
    -------
    PowerLaw

    Raises
    ------
    ValueError
        If there are fewer than two different x, or values that are not positive and finite.

    Examples
    --------
    >>> from unlazy.measures import power_law
    >>> law = power_law([1.0, 2.0, 4.0], [3.0, 12.0, 48.0])
    >>> round(law.exponent, 6), round(law.constant, 6)
    (2.0, 3.0)
    >>> law([10.0]).round(6).tolist()
    [300.0]
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if a.shape != b.shape or len(np.unique(a)) < 2:
        raise ValueError(
            f"a slope needs at least two different x and one y for each, got shapes {a.shape} and {b.shape}"
        )
    if not (np.all(a > 0) and np.all(b > 0) and np.all(np.isfinite(a)) and np.all(np.isfinite(b))):
        raise ValueError("x and y must be positive and finite; leave out points without a value")
    log_x, log_y = np.log(a), np.log(b)
    exponent = float(eigenvalues.slope(log_x, log_y))
    return PowerLaw(exponent, math.exp(log_y.mean() - exponent * log_x.mean()))


@dataclass(frozen=True)
class FlooredLaw:
    """y ≈ floor + constant·x^exponent with floor ≥ 0 and exponent < 0; call it to evaluate at x."""

    exponent: float
    constant: float
    floor: float

    def __call__(self, x: Numbers) -> Float[np.ndarray, " _"]:
        return self.floor + self.constant * np.asarray(x, float) ** self.exponent


EXPONENTS = -np.geomspace(0.02, 4, 160)
"""Grid of exponents that `floored_laws` searches."""


def floored_laws(x: Numbers, curves: Float[np.ndarray, "curves points"]) -> list[FlooredLaw]:
    """Fit a power law with a floor to each curve, by least squares of relative errors.

    The exponent is searched on a grid. For each exponent, constant and floor solve a least-squares problem in two
    unknowns with nonnegativity constraints: both free, floor zero, or constant zero. With fewer than three points, or
    if a floor does not improve the fit, the floor is zero.

    Parameters
    ----------
    x : sequence of float
        Sizes, shared by all curves.
    curves : array of shape (curves, points)
        Positive values.

    Returns
    -------
    list of FlooredLaw
        One per curve.

    Raises
    ------
    ValueError
        If there are fewer than two different x, or the shapes do not match.
    """
    sizes, y = np.asarray(x, float), np.asarray(curves, float)
    if y.ndim != 2 or y.shape[1] != len(sizes) or len(np.unique(sizes)) < 2:
        raise ValueError(
            f"a fit needs at least two different x and one y for each, got shapes {sizes.shape} and {y.shape}"
        )
    scale = sizes[-1]
    powers = (sizes / scale) ** EXPONENTS[:, None]
    p, q = powers[None] / y[:, None], np.broadcast_to(1 / y[:, None], (len(y), len(EXPONENTS), len(sizes)))
    pp, pq, qq, p1, q1 = ((a * b).sum(-1) for a, b in ((p, p), (p, q), (q, q), (p, 1), (q, 1)))
    det = np.maximum(pp * qq - pq**2, 1e-300)
    free = np.stack([(p1 * qq - q1 * pq) / det, (q1 * pp - p1 * pq) / det])
    no_floor = np.stack([p1 / pp, np.zeros_like(pp)])
    flat = np.stack([np.zeros_like(qq), q1 / qq])
    options = np.stack([free, no_floor, flat])  # option, (constant, floor), curve, exponent
    fits = options[:, 0, ..., None] * p + options[:, 1, ..., None] * q
    loss = ((fits - 1) ** 2).sum(-1)
    loss[0] = np.where((free >= 0).all(0) & (len(sizes) > 2), loss[0], np.inf)
    found = []
    for i in range(len(y)):
        option, j = np.unravel_index(np.argmin(loss[:, i]), loss[:, i].shape)
        constant, floor = options[option, :, i, j]
        exponent = float(EXPONENTS[j])
        found.append(FlooredLaw(exponent, float(constant * scale**-exponent), float(floor)))
    return found


def slope(
    x: Numbers, y: Float[np.ndarray, "points seeds"], *, statistic: Callable = np.median, level: float = 0.95,
    seed: int = 0,
) -> Interval:  # fmt: skip
    """Log-log slope of a statistic over seeds, with a percentile bootstrap interval.

    The seeds of each point are resampled independently, since the experiments at different points are independent.

    Parameters
    ----------
    x : sequence of float
        Positive values, one per point.
    y : array of shape (points, seeds)
        Positive measurements.
    statistic : callable, default numpy.median
        Takes an array and `axis`.
    level : float, default 0.95
        Confidence level.
    seed : int, default 0
        Seed of the bootstrap.

    Returns
    -------
    Interval

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import slope
    >>> x = np.array([10.0, 20.0, 40.0, 80.0])
    >>> noise = np.exp(0.1 * np.random.default_rng(0).normal(size=(4, 8)))
    >>> found = slope(x, noise / x[:, None])
    >>> round(found.value, 1), found.low < found.value < found.high
    (-1.0, True)
    """
    values = np.asarray(y, float)
    if values.ndim != 2 or values.shape[0] != len(x):
        raise ValueError(f"y must have one row per x ({len(x)}) and one column per seed, got {values.shape}")

    value = power_law(x, statistic(values, axis=1)).exponent
    log_x = np.log(np.asarray(x, float))
    centered = log_x - log_x.mean()
    chosen = np.random.default_rng(seed).integers(values.shape[1], size=(BOOTSTRAPS, *values.shape))
    middles = statistic(np.take_along_axis(values[None], chosen, 2), axis=2)
    return _interval(value, np.log(middles) @ centered / (centered @ centered), level)


def crossing(n: Numbers, curve: Numbers, threshold: float) -> float:
    """First n at which a decreasing curve reaches the threshold, by log-log interpolation.

    Parameters
    ----------
    n : sequence of float
        Positive and increasing.
    curve : sequence of float
        Values at n.
    threshold : float
        Positive.

    Returns
    -------
    float
        NaN if the curve stays above the threshold; the first n if it starts below, an upper bound for the crossing.

    Raises
    ------
    ValueError
        If n is not positive and increasing, or the threshold is not positive.

    Examples
    --------
    >>> from unlazy.measures import crossing
    >>> round(crossing([10, 100, 1000], [1.0, 0.1, 0.01], 0.05), 1)
    200.0
    >>> crossing([10, 100, 1000], [1.0, 0.1, 0.01], 0.001)
    nan
    """
    sizes, values = np.asarray(n, float), np.asarray(curve, float)
    if sizes.shape != values.shape or np.any(np.diff(sizes) <= 0) or np.any(sizes <= 0):
        raise ValueError(f"n must be positive and increasing, with one value for each; got {sizes} and {values.shape}")
    if not threshold > 0:
        raise ValueError(f"the threshold must be positive, got {threshold}")
    below = np.flatnonzero(values <= threshold)
    if len(below) == 0:
        return math.nan
    i = int(below[0])
    if i == 0:
        return float(sizes[0])
    high, low = math.log(values[i - 1]), math.log(max(values[i], 1e-300))
    share = (high - math.log(threshold)) / (high - low)
    return float(math.exp((1 - share) * math.log(sizes[i - 1]) + share * math.log(sizes[i])))


def first_n(
    n: Numbers, risks: Float[np.ndarray, "points seeds"], threshold: float, *, level: float = 0.95, seed: int = 0
) -> Interval:
    """n* at which the median risk over seeds first reaches the threshold, with a bootstrap interval over seeds.

    Samples are nested in n, so a seed is a whole curve: curves are resampled, not points.

    Parameters
    ----------
    n : sequence of float
    risks : array of shape (points, seeds)
    threshold : float
    level : float, default 0.95
        Confidence level.
    seed : int, default 0

    Returns
    -------
    Interval
    """
    values = _curves(n, risks)
    (chosen,) = _redrawn([values.shape[1]], seed)
    value = crossing(n, np.median(values, 1), threshold)
    return _interval(value, _crossings(n, np.median(values[:, chosen], 2).T, threshold), level)


def scaling_exponent(
    curves: Mapping[float, tuple[Numbers, Float[np.ndarray, "points seeds"]]], threshold: float, *,
    level: float = 0.95, seed: int = 0,
) -> Interval:  # fmt: skip
    """Exponent of n*(d) ∝ d^exponent from risk curves, with a bootstrap interval over seeds.

    Each resample draws curves for every d, finds n* and fits the slope. Resamples in which some d never reaches the
    threshold are discarded and counted in `failed`.

    Parameters
    ----------
    curves : mapping
        d → (n, risks), with risks of shape (points, seeds).
    threshold : float
        Risk that defines n*, positive.
    level : float, default 0.95
        Confidence level.
    seed : int, default 0
        Seed of the bootstrap.

    Returns
    -------
    Interval

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import scaling_exponent
    >>> n = np.array([10.0, 100.0, 1000.0, 10000.0])
    >>> noise = np.exp(0.1 * np.random.default_rng(0).normal(size=(4, 6)))
    >>> curves = {d: (n, d**2 / n[:, None] * noise) for d in (4.0, 8.0, 16.0)}  # n* = d²/threshold
    >>> found = scaling_exponent(curves, 0.5)
    >>> round(found.value, 1), found.failed
    (2.0, 0.0)
    """
    checked = {d: (n, _curves(n, risks)) for d, (n, risks) in curves.items()}
    found = [crossing(n, np.median(values, 1), threshold) for n, values in checked.values()]
    value = power_law(list(checked), found).exponent if all(map(math.isfinite, found)) else math.nan
    chosen = _redrawn([values.shape[1] for _, values in checked.values()], seed)
    stars = np.stack([
        _crossings(n, np.median(values[:, rows], 2).T, threshold)
        for (n, values), rows in zip(checked.values(), chosen)
    ])  # fmt: skip
    log_d = np.log(np.asarray(list(checked), float))
    centered = log_d - log_d.mean()
    with np.errstate(invalid="ignore"):  # a single d
        return _interval(value, centered @ np.log(stars) / (centered @ centered), level)


def _curves(n: Numbers, risks: Float[np.ndarray, "points seeds"]) -> np.ndarray:
    """The risks as an array of shape (points, seeds); raise ValueError otherwise."""
    values = np.asarray(risks, float)
    if values.ndim != 2 or values.shape[0] != len(n):
        raise ValueError(f"risks must have one row per n ({len(n)}) and one column per seed, got {values.shape}")
    return values


def _redrawn(seeds: Sequence[int], seed: int) -> list[np.ndarray]:
    """For each count of seeds, BOOTSTRAPS index sets drawn with replacement."""
    rng = np.random.default_rng(seed)
    draws = [[rng.integers(count, size=count) for count in seeds] for _ in range(BOOTSTRAPS)]
    return [np.stack(column) for column in zip(*draws)]


def _crossings(n: Numbers, curves: Float[np.ndarray, "draws points"], threshold: float) -> Float[np.ndarray, " draws"]:
    """`crossing` of every curve, vectorized."""
    log_n, below = np.log(np.asarray(n, float)), curves <= threshold
    i, rows = below.argmax(1), np.arange(len(curves))
    before = np.maximum(i - 1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):  # curves that start below the threshold, or never reach it
        high, low = np.log(curves[rows, before]), np.log(np.maximum(curves[rows, i], 1e-300))
        share = np.where(i > 0, (high - math.log(threshold)) / (high - low), 1.0)
        return np.where(below.any(1), np.exp((1 - share) * log_n[before] + share * log_n[i]), math.nan)


def _interval(value: float, draws: np.ndarray, level: float) -> Interval:
    """Percentile interval over finite resamples; NaN if more than half of them failed."""
    kept = draws[np.isfinite(draws)]
    failed = 1 - len(kept) / len(draws)
    if failed > 0.5:
        return Interval(value, math.nan, math.nan, failed)
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), failed)
