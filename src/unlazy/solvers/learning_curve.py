"""Learning curves of a kernel from one eigendecomposition: no refit, also beyond the number of given points [G1, G2].

Leave-one-out errors at n points, one for every ridge, give the bias as a function of the effective ridge κ
(theory.spectra.renormalization). That function and the numbers of learned modes are properties of the population, so
the risk at any other number of points follows from them. Values of κ below the range that n points reach are
extrapolated: bias = floor + c·κ^s, and the number of modes as a power of κ, both fitted at the smallest trusted κ.

A fitted floor is not an estimate of the noise: where the bias still falls it is often zero, with noise or without. The
noise is estimated from the modes that the kernel learns last (theory.spectra.noise). Beyond 4n, where nothing checks
the law, no predicted risk is below a cautious value of it. Up to 4n the law alone is closer: what the kernel cannot
resolve at n counts as noise, and on eleven tables it raises the mean error of the logarithm from 0.09 to 0.15.

The constants below were chosen on 84 curves of twelve tables (draws of 250 and 500 rows that the benchmark does not
use): the mean error of the logarithm of the risk at 4n is then 0.18, against 0.25 for a power law through refits.
Leave-one-out at n alone has an error of 0.10, which no law fitted to the same rows can remove.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Real

from unlazy.core.arrays import dot
from unlazy.measures.scaling_fit import floored_laws, power_law
from unlazy.theory.dynamics.leave_one_out import leave_one_out_residual
from unlazy.theory.spectra import renormalization
from unlazy.theory.spectra.noise import NoiseEstimate, estimate_noise

Numbers = Real[ArrayLike, " _"] | Sequence[float]
"""One-dimensional array or sequence of numbers."""
DEFAULT_SIZES = np.array([0.25, 0.5, 1, 2, 4, 8, 16])
"""Default sizes of a curve, as multiples of the number of given points."""
MIN_POINTS = 40
"""Minimum number of points."""
LOG_RIDGE_STEP = 0.4
"""Spacing of the logarithms of the ridges at which leave-one-out errors are computed."""
TRUSTED_SHARES, TRUSTED_FACTOR = (0.4, 0.8), 1.5
"""Leave-one-out errors are trusted up to this share of n learned modes (minimum and maximum); closer to interpolation
they depend on close points. Within these bounds the limit is TRUSTED_FACTOR times the number of modes learned at the
best ridge: the more noise, the fewer."""
FIT_START = 0.45
"""Share of the trusted modes from which the law of the bias is fitted: the law bends, and its end is extrapolated."""
EXTRAPOLATION_FACTOR = 1e4
"""How far below the smallest trusted κ the laws are extrapolated."""
SELECTION_FACTOR, SLOPE_FACTOR, GAIN_ERROR = 1.4, 1.0, 0.4
"""Standard errors of the risk. SELECTION_FACTOR multiplies the standard error of leave-one-out: kernel and ridge were
chosen on the same rows, and fits that share rows have correlated errors. SLOPE_FACTOR is the same for every fourfold
number of rows, due to the fitted slope. GAIN_ERROR is the standard error of a predicted gain, as a share of it.
Intervals of 90% then contain 93% of those curves at n and 95% at 4n."""
CALIBRATED = 4
"""Those curves end at this multiple of n: for more points the intervals of the risk have not been checked."""


@dataclass(frozen=True)
class LearningCurve:
    """Expected squared error at new points, noise included, against the number of training points.

    Attributes
    ----------
    sizes : array of shape (s,)
        Numbers of training points.
    risk : array of shape (s,)
        Risk at the best ridge of every size.
    low, high : arrays of shape (s,)
        90% interval of `risk`.
    ridge : array of shape (s,)
        The best ridge, added to K (not to K/n).
    learned : array of shape (s,)
        Share of the signal that is learned, 1 - (bias - noise)/(variance - noise).
    beyond : bool array of shape (s,)
        Whether the best κ is below the range of the given points, so that `risk` is extrapolated.
    ridges : array of shape (r,)
        The requested ridges.
    risks : array of shape (s, r)
        Risk at every size and requested ridge.
    noise, noise_low, noise_high : float
        Variance of the noise and its 95% interval: the risk of any kernel with infinitely many points. The upper limit
        holds for every target. What the kernel cannot resolve with so many points counts as noise in `noise`.
    variance : float
        Mean squared label.
    points : int
        Number of given points.
    """

    sizes: Float[np.ndarray, " s"]
    risk: Float[np.ndarray, " s"]
    low: Float[np.ndarray, " s"]
    high: Float[np.ndarray, " s"]
    ridge: Float[np.ndarray, " s"]
    learned: Float[np.ndarray, " s"]
    """Share of the signal that is learned, 1 - (bias - noise)/(variance - noise)."""
    beyond: np.ndarray
    """Whether the best κ is below the range of the given points, so that the risk is extrapolated."""
    ridges: Float[np.ndarray, " r"]
    risks: Float[np.ndarray, "s r"]
    noise: float
    noise_low: float
    noise_high: float
    variance: float
    points: int

    @property
    def calibrated(self) -> np.ndarray:
        """Whether the size is at most 4n, where the intervals have been checked; bool array of shape (s,)."""
        return self.sizes <= CALIBRATED * self.points

    def __str__(self) -> str:
        noise = f"{self.noise:.4g} [{self.noise_low:.4g}, {self.noise_high:.4g}]"
        lines = [f"from {self.points} points; variance {self.variance:.4g}, noise {noise}"]
        columns = (self.sizes, self.risk, self.low, self.high, self.learned, self.calibrated)
        for n, value, low, high, learned, calibrated in zip(*columns):
            mark = "" if calibrated else f"; beyond {CALIBRATED * self.points:,}: not calibrated"
            lines.append(
                f"{n:12,.0f} points: {value:.4g} [{low:.4g}, {high:.4g}], {learned:.0%} of the signal learned{mark}"
            )
        return "\n".join(lines)


class EvaluatedSpectrum(NamedTuple):
    """K(X,X) = U diag(λ) Uᵀ, and the rows whose leave-one-out errors are counted.

    These are all rows, or those whose labels a learned metric has not used. With a free intercept, K is the kernel of
    centered features, and the labels are centered too.
    """

    eigenvalues: Float[np.ndarray, " n"]
    eigenvectors: Float[np.ndarray, "n n"]
    validation_rows: Int[np.ndarray, " j"]
    intercept: bool = False


class LearningCurveLaw(NamedTuple):
    """Bias, Σ L and Σ L² on an ascending grid of log κ; `reached` is the smallest measured log κ."""

    log_kappa: np.ndarray
    bias: np.ndarray
    learned: np.ndarray
    squares: np.ndarray
    reached: float
    error: float
    """Relative standard error of the smallest leave-one-out error."""

    def risks(self, m: float) -> np.ndarray:
        """Risk at m points for every κ of the grid."""
        risk = np.asarray(renormalization.risk(self.bias, self.squares, m))
        return np.where(self.learned < m, risk, np.inf)

    def ridges(self, m: float) -> np.ndarray:
        """δ = κ(m - Σ L), which increases with κ; not positive where m points cannot reach κ."""
        return np.exp(self.log_kappa) * (m - self.learned)


def learning_curve_from_spectrum(
    eigenvalues: Float[Array | np.ndarray, " n"],
    eigenvectors: Float[Array | np.ndarray, "n n"],
    y: Float[Array | np.ndarray, " n *c"],
    sizes: Numbers,
    ridges: Numbers = (),
    *,
    floor: float,
    intercept: bool = False,
) -> LearningCurve:
    """Learning curve for labels y under K = U diag(λ) Uᵀ, whose eigenvalues are accurate up to `floor`.

    With a free intercept both K and y are centered.
    """
    requested, given = validate_sizes(sizes, len(y)), np.asarray(ridges, float).reshape(-1)
    if not np.all(given > 0):
        raise ValueError(f"ridges must be positive, got {ridges!r}")
    seen = [
        EvaluatedSpectrum(np.asarray(eigenvalues, float), np.asarray(eigenvectors, float), np.arange(len(y)), intercept)
    ]
    labels = np.asarray(y, float).reshape(len(y), -1)
    return evaluate_law(fit_law(seen, labels, floor), noise_of(seen, labels), labels, requested, given)


def validate_sizes(sizes: Numbers, n: int) -> Float[np.ndarray, " s"]:
    """Return the sizes as an array; raise ValueError if they are invalid or n is too small."""
    m = np.atleast_1d(np.asarray(sizes, float))
    if n < MIN_POINTS:
        raise ValueError(f"a learning curve needs {MIN_POINTS} points or more, got {n}")
    if m.ndim != 1 or not (m.size and np.all(np.isfinite(m)) and np.all(m >= 1)):
        raise ValueError(f"sizes must be numbers of training points, at least 1 each, got {sizes!r}")
    return m


def evaluate_law(
    law: LearningCurveLaw,
    noise: NoiseEstimate,
    y: Float[np.ndarray, "n c"],
    sizes: Float[np.ndarray, " s"],
    ridges: Float[np.ndarray, " r"],
) -> LearningCurve:
    """The learning curve that a law predicts at these sizes and ridges; beyond CALIBRATED·n not below the noise."""
    n, variance = len(y), float(np.mean(np.sum(y**2, 1)))
    here, farthest = law.risks(n).min(), law.risks(CALIBRATED * n).min()
    signal = variance - noise.value
    rows, every = [], []
    for size in sizes:
        at, risk = law.ridges(size), law.risks(size)
        best = int(np.argmin(risk))
        gain, way = (np.log(here / risk[best]), np.log(size / n) / np.log(4)) if size > n else (0.0, 0.0)
        error = 1.645 * np.sqrt(
            law.error**2 * (SELECTION_FACTOR**2 + (SLOPE_FACTOR * way) ** 2) + (GAIN_ERROR * gain) ** 2
        )
        bound = min(noise.cautious, farthest) if size > CALIBRATED * n else 0.0
        value = max(risk[best], bound)
        lowest = min(noise.low, value) if size > n else 0.0
        rows.append(
            (value, max(risk[best] * np.exp(-error), lowest), value * np.exp(error), max(at[best], 0.0),
             1 - (law.bias[best] - noise.value) / signal if signal > 0 else 0.0, law.log_kappa[best] < law.reached)
        )  # fmt: skip
        some = (at > 0) & np.isfinite(risk)
        every.append(np.maximum(np.exp(np.interp(np.log(ridges), np.log(at[some]), np.log(risk[some]))), bound))
    risk, low, high, ridge, learned, beyond = (np.array(column) for column in zip(*rows))
    return LearningCurve(
        sizes, risk, low, high, ridge, np.clip(learned, 0, 1), beyond, ridges, np.array(every), *noise, variance, n
    )


def noise_of(seen: Sequence[EvaluatedSpectrum], y: Float[np.ndarray, "n c"]) -> NoiseEstimate:
    """The noise of the labels of the counted rows, which must be disjoint if there are several kernels."""
    found = [_label_spectrum(one, y) for one in seen]
    n = min(len(values) for values, _ in found)
    values, powers = (np.mean([each[:n] for each in some], 0) for some in zip(*found))
    return estimate_noise(values, powers, absent=int(seen[0].intercept), draws=len(seen))


def _label_spectrum(one: EvaluatedSpectrum, y: Float[np.ndarray, "n c"]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the kernel of the counted rows, and squared coefficients of their labels."""
    values, U = one.eigenvalues, one.eigenvectors
    if len(one.validation_rows) < len(U):
        U = U[one.validation_rows]
        values, U = np.linalg.eigh(dot(U * values, U.T))
    return np.maximum(values, 0), np.sum(np.square(dot(U.T, y[one.validation_rows])), 1)


def smallest_leave_one_out_error(one: EvaluatedSpectrum, y: Float[np.ndarray, "n c"]) -> tuple[float, float]:
    """Mean squared error of the counted rows at the best ridge, and its standard error."""
    errors = _errors(one, y, _ridges(float(one.eigenvalues[-1]), 0.0))
    best = errors[int(np.argmin(errors.mean(1)))]
    return float(best.mean()), float(best.std() / np.sqrt(len(best)))


def _ridges(top: float, floor: float) -> Float[np.ndarray, " r"]:
    """Grid of ridges from rounding, or `floor`, to where nothing is learned."""
    low, high = max(1e-10 * top, floor), 10 * top
    return np.geomspace(low, high, 1 + int(np.ceil(np.log(high / low) / LOG_RIDGE_STEP)))


def _counts(seen: Sequence[EvaluatedSpectrum], ridges: Float[np.ndarray, " r"]) -> list[Float[np.ndarray, " r"]]:
    """κ, Σ L and n - Σ L² [G1]; the mean over several kernels of the same rows."""
    every = [[np.asarray(p, float) for p in renormalization.renormalize(one.eigenvalues, ridges)] for one in seen]
    return [every[0][i] if len(every) == 1 else np.mean([p[i] for p in every], 0) for i in range(3)]


def fit_law(seen: Sequence[EvaluatedSpectrum], y: Float[np.ndarray, "n c"], floor: float) -> LearningCurveLaw:
    """Fit the law to leave-one-out errors and extrapolate it; the mean over several kernels of the same rows."""
    n, top = len(y), max(float(one.eigenvalues[-1]) for one in seen)
    if not (top > 0 and np.any(y)):
        raise ValueError("a learning curve needs labels that vary (are not all zero) and a kernel that is not zero")
    ridges = _ridges(top, floor)
    modes = _counts(seen, ridges)[1]  # decreasing in the ridge; with more learned modes nothing is trusted
    if modes[0] > TRUSTED_SHARES[1] * n:
        ridges = _ridges(top, float(np.exp(np.interp(-TRUSTED_SHARES[1] * n, -modes, np.log(ridges)))))
    kappa, learned, spare = _counts(seen, ridges)
    errors = np.concatenate([_errors(one, y, ridges) for one in seen], 1)
    means = errors.mean(1)
    bias = np.asarray(renormalization.bias(means, spare, n), float)
    best = int(np.argmin(means))
    trusted = float(np.clip(TRUSTED_FACTOR * learned[best], TRUSTED_SHARES[0] * n, TRUSTED_SHARES[1] * n))
    order = np.argsort(kappa)
    kappa, learned, squares, bias = kappa[order], learned[order], (n - spare)[order], bias[order]
    # the bias decreases as κ → 0; an increase is an artifact of leave-one-out near interpolation
    bias = np.minimum.accumulate(bias[::-1])[::-1]
    known = learned <= max(trusted, learned.min())
    kappa, bias = (np.maximum(a[known], np.finfo(float).tiny) for a in (kappa, bias))
    # these are differences: smaller values are rounding
    learned, squares = (np.maximum(a[known], 1e-9 * n) for a in (learned, squares))
    # a kernel with few modes learns half of them where others learn a share of n; above, nothing is learned yet
    fitted = next(
        (f for f in (learned >= FIT_START * trusted, learned >= learned.max() / 2) if f.sum() > 3), learned > 0
    )
    law = floored_laws(1 / kappa[fitted], bias[None, fitted])[0]
    below = np.exp(np.linspace(np.log(kappa[0] / EXTRAPOLATION_FACTOR), np.log(kappa[0]), 400, endpoint=False))

    def continued(count: np.ndarray) -> np.ndarray:
        power = (below / kappa[0]) ** power_law(kappa[:5], count[:5]).exponent
        return np.concatenate([count[0] * power, count])

    return LearningCurveLaw(
        np.concatenate([np.log(below), np.log(kappa)]),
        np.concatenate([law(1 / below) * bias[0] / law(1 / kappa[:1]), bias]),
        continued(learned), continued(squares), float(np.log(kappa[0])),
        float(errors[best].std() / np.sqrt(min(n, errors.shape[1])) / means[best]),
    )  # fmt: skip


def _errors(one: EvaluatedSpectrum, y: np.ndarray, ridges: np.ndarray) -> Float[np.ndarray, "r j"]:
    """Squared leave-one-out errors of the counted rows [K2].

    Sums are computed in float32 at half the cost: the terms have one sign, or their rounding error is far below the
    error of a mean over rows.
    """
    U, filters = one.eigenvectors, ridges / (np.maximum(one.eigenvalues, 0)[:, None] + ridges)  # at most 1
    if one.intercept:
        U = U - U.mean(0)  # P = H(HKH + ρ)⁻¹H: drop the constant direction, which would cancel
    if len(one.validation_rows) < len(U):
        U = U[one.validation_rows]
    short, thin = U.astype(np.float32), filters.astype(np.float32)
    diagonal = dot(short**2, thin)
    found, scale = np.zeros((len(U), len(ridges))), np.abs(y).max() or 1.0
    for inside in dot(one.eigenvectors.T, y / scale).T.astype(np.float32):  # one output at a time
        found += np.square(leave_one_out_residual(dot(short, thin * inside[:, None]), diagonal), dtype=float)
    return scale**2 * found.T
