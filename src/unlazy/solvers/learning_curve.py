"""The learning curve of a kernel from one eigendecomposition: no refit, and beyond the rows at hand [G1, G2].

Leave-one-out errors at n points, one for every ridge, give the bias as a function of the effective ridge κ
(theory.spectra.renormalization). That function and the counts of learned modes are the population's, so the risk at any
other number of points is read off them. Smaller κ than n points reach are read off laws: bias = floor + c·κ^s, modes a
power of κ, both through what was measured at the smallest κ that are believed.

The constants below were chosen on 84 curves of twelve tables (draws of 250 and 500 rows that the benchmark does not
look at): the logarithm of the risk at 4n is then off by 0.18 in the mean, that of a power law through refits by 0.25;
leave-one-out at n alone is off by 0.10, which no law of the same rows takes away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Real

from unlazy.core.linalg import dot
from unlazy.measures.scaling_fit import floored_laws, power_law
from unlazy.theory.dynamics.leave_one_out import left_out
from unlazy.theory.spectra import renormalization

Numbers = Real[ArrayLike, " _"] | Sequence[float]
DEFAULT_SIZES = np.array([0.25, 0.5, 1, 2, 4, 8, 16])
"""Multiples of the points at hand at which a curve is read, unless asked otherwise."""
FEWEST = 40
"""Points below which quarters of them say nothing."""
STEP = 0.4
"""Between the logarithms of ridges at which leave-one-out is measured."""
TRUSTED, PAST = (0.4, 0.8), 1.5
"""Share of n: up to so many learned modes leave-one-out is believed, nearer to interpolation close points decide it.
The more noise, the sooner: within these, up to so many times the modes that the best ridge learns."""
FITTED = 0.45
"""Share of the believed modes from which on the law of the bias is fitted: it bends, and its end is what goes on."""
BEYOND = 1e4
"""How far below the smallest trusted κ the laws are read."""
CHOSEN, SLOPE, DOUBT = 1.4, 1.0, 0.4
"""Standard errors of leave-one-out for one of the risk: kernel and ridge were chosen on the same rows, and fits that
share their rows err together. As many for every fourfold number of rows, which the fitted slope brings. Standard error
of a foreseen gain, as a share of it. Intervals of 90% then hold 93% of those curves at n and 95% at 4n."""


@dataclass(frozen=True)
class LearningCurve:
    """Expected squared error at new points against the number of training points, noise included.

    `risk` is that of the best ridge at every size, [low, high] its 90% interval, `ridge` that ridge (of K, not K/n),
    `risks` those of given `ridges`: sizes × ridges.
    """

    sizes: Float[np.ndarray, " s"]
    risk: Float[np.ndarray, " s"]
    low: Float[np.ndarray, " s"]
    high: Float[np.ndarray, " s"]
    ridge: Float[np.ndarray, " s"]
    learned: Float[np.ndarray, " s"]
    """Share of what is no noise that is learned, 1 - (bias - noise)/(variance - noise)."""
    beyond: np.ndarray
    """Where the best κ is smaller than the points at hand reach: read off laws there."""
    ridges: Float[np.ndarray, " r"]
    risks: Float[np.ndarray, "s r"]
    noise: float
    """The floor of the law: what no number of points takes away from this kernel."""
    variance: float
    points: int

    def __str__(self) -> str:
        lines = [f"from {self.points} points; variance {self.variance:.4g}, floor {self.noise:.4g}"]
        for n, value, low, high, learned in zip(self.sizes, self.risk, self.low, self.high, self.learned):
            lines.append(f"{n:12,.0f} points: {value:.4g} [{low:.4g}, {high:.4g}], {learned:.0%} of the signal learned")
        return "\n".join(lines)


class Seen(NamedTuple):
    """K(X,X) = U diag(λ) Uᵀ, and the rows whose left-out errors count: all of them, or those whose labels a learned
    metric has not seen. With a free intercept K is that of centered features, and labels are centered too."""

    eigenvalues: Float[np.ndarray, " n"]
    eigenvectors: Float[np.ndarray, "n n"]
    judged: Int[np.ndarray, " j"]
    intercept: bool = False


class Law(NamedTuple):
    """Bias, Σ L and Σ L² on a grid of log κ, ascending; `reached` is the smallest that was measured."""

    log_kappa: np.ndarray
    bias: np.ndarray
    learned: np.ndarray
    squares: np.ndarray
    reached: float
    floor: float
    error: float
    """Relative standard error of the smallest leave-one-out error."""

    def risks(self, m: float) -> np.ndarray:
        """At every κ of the grid."""
        risk = np.asarray(renormalization.risk(self.bias, self.squares, m))
        return np.where(self.learned < m, risk, np.inf)

    def ridges(self, m: float) -> np.ndarray:
        """δ = κ(m - Σ L), which rises with κ; not positive where m points cannot reach κ."""
        return np.exp(self.log_kappa) * (m - self.learned)


def learning_curve_of(
    eigenvalues: Float[Array | np.ndarray, " n"],
    eigenvectors: Float[Array | np.ndarray, "n n"],
    y: Float[Array | np.ndarray, "n *c"],
    sizes: Numbers,
    ridges: Numbers = (),
    *,
    floor: float,
    intercept: bool = False,
) -> LearningCurve:
    """The curve of labels y under K = U diag(λ) Uᵀ, whose eigenvalues are known up to `floor`; with a free intercept
    both are centered."""
    asked, given = checked_sizes(sizes, len(y)), np.asarray(ridges, float).reshape(-1)
    if not np.all(given > 0):
        raise ValueError(f"ridges must be positive, got {ridges!r}")
    seen = [Seen(np.asarray(eigenvalues, float), np.asarray(eigenvectors, float), np.arange(len(y)), intercept)]
    labels = np.asarray(y, float).reshape(len(y), -1)
    return curve_of(law_of(seen, labels, floor), labels, asked, given)


def checked_sizes(sizes: Numbers, n: int) -> Float[np.ndarray, " s"]:
    """Numbers of training points, from n at hand."""
    m = np.atleast_1d(np.asarray(sizes, float))
    if n < FEWEST:
        raise ValueError(f"a learning curve needs {FEWEST} points or more, got {n}")
    if m.ndim != 1 or not (m.size and np.all(np.isfinite(m)) and np.all(m >= 1)):
        raise ValueError(f"sizes are numbers of training points, one or more each, got {sizes!r}")
    return m


def curve_of(
    law: Law, y: Float[np.ndarray, "n c"], sizes: Float[np.ndarray, " s"], ridges: Float[np.ndarray, " r"]
) -> LearningCurve:
    """What a law says at these sizes."""
    n, variance = len(y), float(np.mean(np.sum(y**2, 1)))
    here = law.risks(n).min()
    rows, every = [], []
    for size in sizes:
        at, risk = law.ridges(size), law.risks(size)
        best = int(np.argmin(risk))
        gain, way = (np.log(here / risk[best]), np.log(size / n) / np.log(4)) if size > n else (0.0, 0.0)
        error = 1.645 * np.sqrt(law.error**2 * (CHOSEN**2 + (SLOPE * way) ** 2) + (DOUBT * gain) ** 2)
        learned = 1 - (law.bias[best] - law.floor) / max(variance - law.floor, np.finfo(float).tiny)
        rows.append(
            (risk[best], risk[best] * np.exp(-error), risk[best] * np.exp(error), max(at[best], 0.0), learned,
             law.log_kappa[best] < law.reached)
        )  # fmt: skip
        some = (at > 0) & np.isfinite(risk)
        every.append(np.exp(np.interp(np.log(ridges), np.log(at[some]), np.log(risk[some]))))
    risk, low, high, ridge, learned, beyond = (np.array(column) for column in zip(*rows))
    return LearningCurve(
        sizes, risk, low, high, ridge, np.clip(learned, 0, 1), beyond, ridges, np.array(every), law.floor, variance, n
    )


def smallest_error(one: Seen, y: Float[np.ndarray, "n c"]) -> tuple[float, float]:
    """Mean squared error of the rows that count at the best ridge, and its standard error."""
    errors = _errors(one, y, _ridges(float(one.eigenvalues[-1]), 0.0))
    best = errors[int(np.argmin(errors.mean(1)))]
    return float(best.mean()), float(best.std() / np.sqrt(len(best)))


def _ridges(top: float, floor: float) -> Float[np.ndarray, " r"]:
    """From rounding, or `floor`, to where nothing is learned."""
    low, high = max(1e-10 * top, floor), 10 * top
    return np.geomspace(low, high, 1 + int(np.ceil(np.log(high / low) / STEP)))


def _counts(seen: Sequence[Seen], ridges: Float[np.ndarray, " r"]) -> list[Float[np.ndarray, " r"]]:
    """κ, Σ L and n - Σ L² [G1]; of several kernels of the same rows the mean."""
    every = [[np.asarray(p, float) for p in renormalization.renormalized(one.eigenvalues, ridges)] for one in seen]
    return [every[0][i] if len(every) == 1 else np.mean([p[i] for p in every], 0) for i in range(3)]


def law_of(seen: Sequence[Seen], y: Float[np.ndarray, "n c"], floor: float) -> Law:
    """What leave-one-out measures, continued below; of several kernels of the same rows the mean."""
    n, top = len(y), max(float(one.eigenvalues[-1]) for one in seen)
    if not (top > 0 and np.any(y)):
        raise ValueError("a learning curve needs labels that vary (are not all zero), and a kernel that is not zero")
    ridges = _ridges(top, floor)
    modes = _counts(seen, ridges)[1]  # they fall with the ridge; where more are learned nothing is believed
    if modes[0] > TRUSTED[1] * n:
        ridges = _ridges(top, float(np.exp(np.interp(-TRUSTED[1] * n, -modes, np.log(ridges)))))
    kappa, learned, spare = _counts(seen, ridges)
    errors = np.concatenate([_errors(one, y, ridges) for one in seen], 1)
    means = errors.mean(1)
    bias = np.asarray(renormalization.bias(means, spare, n), float)
    best = int(np.argmin(means))
    believed = float(np.clip(PAST * learned[best], TRUSTED[0] * n, TRUSTED[1] * n))
    order = np.argsort(kappa)
    kappa, learned, squares, bias = kappa[order], learned[order], (n - spare)[order], bias[order]
    bias = np.minimum.accumulate(bias[::-1])[::-1]  # it falls with κ; what rises is leave-one-out near interpolation
    known = learned <= max(believed, learned.min())
    kappa, bias = (np.maximum(a[known], np.finfo(float).tiny) for a in (kappa, bias))
    learned, squares = (np.maximum(a[known], 1e-9 * n) for a in (learned, squares))  # differences: less is rounding
    # a kernel of few modes learns half of them where others learn a share of n; above, nothing is learned yet
    fitted = next((f for f in (learned >= FITTED * believed, learned >= learned.max() / 2) if f.sum() > 3), learned > 0)
    law = floored_laws(1 / kappa[fitted], bias[None, fitted])[0]
    below = np.exp(np.linspace(np.log(kappa[0] / BEYOND), np.log(kappa[0]), 400, endpoint=False))

    def continued(count: np.ndarray) -> np.ndarray:
        power = (below / kappa[0]) ** power_law(kappa[:5], count[:5]).exponent
        return np.concatenate([count[0] * power, count])

    return Law(
        np.concatenate([np.log(below), np.log(kappa)]),
        np.concatenate([law(1 / below) * bias[0] / law(1 / kappa[:1]), bias]),
        continued(learned), continued(squares), float(np.log(kappa[0])), law.floor,
        float(errors[best].std() / np.sqrt(min(n, errors.shape[1])) / means[best]),
    )  # fmt: skip


def _errors(one: Seen, y: np.ndarray, ridges: np.ndarray) -> Float[np.ndarray, "r j"]:
    """Squared errors of the rows that count, each left out [K2]. Sums in float32 at half the price: of terms of one
    sign, or as wrong as their rounding, far less than the error of a mean over rows."""
    U, filters = one.eigenvectors, ridges / (np.maximum(one.eigenvalues, 0)[:, None] + ridges)  # at most 1
    if one.intercept:
        U = U - U.mean(0)  # P = H(HKH + ρ)⁻¹H: without the constant direction, whose part would be taken away again
    if len(one.judged) < len(U):
        U = U[one.judged]
    short, thin = U.astype(np.float32), filters.astype(np.float32)
    diagonal = dot(short**2, thin)
    found, scale = np.zeros((len(U), len(ridges))), np.abs(y).max() or 1.0
    for inside in dot(one.eigenvectors.T, y / scale).T.astype(np.float32):  # one output after the other
        found += np.square(left_out(dot(short, thin * inside[:, None]), diagonal), dtype=float)
    return scale**2 * found.T
