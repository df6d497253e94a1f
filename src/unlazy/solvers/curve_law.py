"""The learning curve of a kernel from one eigendecomposition: no refit, and beyond the rows at hand [G1, G2].

Leave-one-out errors at n points, one for every ridge, give the bias as a function of the effective ridge κ
(theory.renormalisation). That function and the counts of learnt modes are the population's, so the risk at any other
number of points is read off them. Smaller κ than n points reach are read off laws: bias = floor + c·κ^s, modes a power
of κ, both through what was measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Real

from unlazy.core.linear import dot
from unlazy.measures.scaling_fit import floored_laws, power_law
from unlazy.theory import renormalisation
from unlazy.theory.leave_one_out import left_out

Numbers = Real[ArrayLike, " _"] | Sequence[float]
DEFAULT_SIZES = np.array([0.25, 0.5, 1, 2, 4, 8, 16])
"""Multiples of the points at hand at which a curve is read, unless asked otherwise."""
FEWEST = 40
"""Points below which quarters of them say nothing."""
RIDGES = 81
TRUSTED, FITTED = 0.7, 0.05
"""Share of n: up to so many learnt modes leave-one-out is believed (nearer to interpolation close points decide it),
from so many on the law of the bias is fitted."""
BEYOND = 1e4
"""How far below the smallest trusted κ the laws are read."""
PIECES = 4
"""Quarters of the rows, each of which predicts the risk of all: how wrong the laws are on these very data."""
AGAIN = 0.5
"""Share of the quarters' common miss that is expected of all rows too, which see further down the spectrum. On 33
curves of real tables 0 leaves a median error of 11%, 1/2 one of 8.5% and 1 one of 10%."""


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
    learnt: Float[np.ndarray, " s"]
    """Share of what is no noise that is learnt, 1 - (bias - noise)/(variance - noise)."""
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
        for n, value, low, high, learnt in zip(self.sizes, self.risk, self.low, self.high, self.learnt):
            lines.append(f"{n:12,.0f} points: {value:.4g} [{low:.4g}, {high:.4g}], {learnt:.0%} of the signal learnt")
        return "\n".join(lines)


class Seen(NamedTuple):
    """K(X,X) = U diag(λ) Uᵀ, and the rows whose left-out errors count: all of them, or those whose labels a learnt
    metric has not seen."""

    eigenvalues: Float[np.ndarray, " n"]
    eigenvectors: Float[np.ndarray, "n n"]
    judged: Int[np.ndarray, " j"]


class Law(NamedTuple):
    """Bias, Σ L and Σ L² on a grid of log κ, ascending; `reached` is the smallest that was measured."""

    log_kappa: np.ndarray
    bias: np.ndarray
    learnt: np.ndarray
    squares: np.ndarray
    reached: float
    floor: float
    error: float
    """Relative standard error of the smallest leave-one-out error."""

    def risks(self, m: float) -> np.ndarray:
        """At every κ of the grid."""
        risk = np.asarray(renormalisation.risk(self.bias, self.squares, m))
        return np.where(self.learnt < m, risk, np.inf)

    def ridges(self, m: float) -> np.ndarray:
        """δ = κ(m - Σ L), which rises with κ; not positive where m points cannot reach κ."""
        return np.exp(self.log_kappa) * (m - self.learnt)


def learning_curve_of(
    eigenvalues: Float[Array, " n"],
    eigenvectors: Float[Array, "n n"],
    y: Float[Array, "n *c"],
    sizes: Numbers,
    ridges: Numbers = (),
    *,
    floor: float,
) -> LearningCurve:
    """The curve of labels y under K = U diag(λ) Uᵀ, whose eigenvalues are known up to `floor`."""
    asked, given = checked_sizes(sizes, len(y)), np.asarray(ridges, float).reshape(-1)
    if not np.all(given > 0):
        raise ValueError(f"ridges must be positive, got {ridges!r}")
    seen = [Seen(np.asarray(eigenvalues, float), np.asarray(eigenvectors, float), np.arange(len(y)))]
    labels = np.asarray(y, float).reshape(len(y), -1)
    law = law_of(seen, labels, floor)
    return curve_of(law, misses(seen, labels, law, floor), labels, asked, given)


def checked_sizes(sizes: Numbers, n: int) -> Float[np.ndarray, " s"]:
    """Numbers of training points, from n at hand."""
    m = np.atleast_1d(np.asarray(sizes, float))
    if n < FEWEST:
        raise ValueError(f"a learning curve needs {FEWEST} points or more, got {n}")
    if m.ndim != 1 or not (m.size and np.all(np.isfinite(m)) and np.all(m >= 1)):
        raise ValueError(f"sizes are numbers of training points, one or more each, got {sizes!r}")
    return m


def curve_of(
    law: Law, missed: tuple[float, float], y: Float[np.ndarray, "n c"], sizes: Float[np.ndarray, " s"],
    ridges: Float[np.ndarray, " r"],
) -> LearningCurve:  # fmt: skip
    """What a law says at these sizes, with what `misses` expects of it."""
    n, variance, (more, spread) = len(y), float(np.mean(np.sum(y**2, 1))), missed
    rows, every = [], []
    for size in sizes:
        at, risk = law.ridges(size), law.risks(size)
        best = int(np.argmin(risk))
        if size > n:  # the misses are those of a gain over four times the points
            risk = risk * (risk.min() / law.risks(n).min()) ** more
        error = 1.645 * np.hypot(law.error, spread * max(0.0, np.log(size / n) / np.log(PIECES)))
        learnt = 1 - (law.bias[best] - law.floor) / max(variance - law.floor, np.finfo(float).tiny)
        rows.append(
            (risk[best], risk[best] * np.exp(-error), risk[best] * np.exp(error), max(at[best], 0.0), learnt,
             law.log_kappa[best] < law.reached)
        )  # fmt: skip
        some = (at > 0) & np.isfinite(risk)
        every.append(np.exp(np.interp(np.log(ridges), np.log(at[some]), np.log(risk[some]))))
    risk, low, high, ridge, learnt, beyond = (np.array(column) for column in zip(*rows))
    return LearningCurve(
        sizes, risk, low, high, ridge, np.clip(learnt, 0, 1), beyond, ridges, np.array(every), law.floor, variance, n
    )


def misses(seen: Sequence[Seen], y: Float[np.ndarray, "n c"], whole: Law, floor: float) -> tuple[float, float]:
    """How far, in logarithms, quarters of the rows are from the risk of all of them that they predict: what of it all
    rows are expected to repeat, as a share of the gain that they foresee, and how far the quarters are from that."""
    n = len(y)
    measured, found = np.log(whole.risks(n).min()), []
    for i in range(PIECES):
        rows = np.arange(i, n, PIECES)
        parts = [_part(one, rows) for one in seen]
        if np.any(y[rows]):
            found.append(np.log(law_of(parts, y[rows], floor).risks(n).min()) - measured)
    drift = AGAIN * float(np.mean(found))
    gain = measured - np.log(whole.risks(PIECES * n).min())
    more = max(drift / gain, -1.0) if gain > 0 else 0.0  # more points do no harm
    return more, float(np.sqrt(np.mean(np.square(np.array(found) - drift))))


def _part(one: Seen, rows: Int[np.ndarray, " m"]) -> Seen:
    """The same kernel on some of the rows."""
    some = one.eigenvectors[rows]
    values, vectors = np.linalg.eigh(dot(some * np.maximum(one.eigenvalues, 0), some.T))
    return Seen(values, vectors, np.flatnonzero(np.isin(rows, one.judged)))


def smallest_error(one: Seen, y: Float[np.ndarray, "n c"]) -> tuple[float, float]:
    """Mean squared error of the rows that count at the best ridge, and its standard error."""
    errors = _errors(one, y, _ridges(float(one.eigenvalues[-1]), 0.0))
    best = errors[int(np.argmin(errors.mean(1)))]
    return float(best.mean()), float(best.std() / np.sqrt(len(best)))


def _ridges(top: float, floor: float) -> Float[np.ndarray, " r"]:
    return np.geomspace(max(1e-10 * top, floor), 10 * top, RIDGES)


def law_of(seen: Sequence[Seen], y: Float[np.ndarray, "n c"], floor: float) -> Law:
    """What leave-one-out measures, continued below; of several kernels of the same rows the mean."""
    n, top = len(y), max(float(one.eigenvalues[-1]) for one in seen)
    if not (top > 0 and np.any(y)):
        raise ValueError("a learning curve needs labels that are not all zero, and a kernel that is not")
    ridges = _ridges(top, floor)
    every = [[np.asarray(p, float) for p in renormalisation.renormalised(one.eigenvalues, ridges)] for one in seen]
    parts = [every[0][i] if len(every) == 1 else np.mean([p[i] for p in every], 0) for i in range(3)]
    errors = np.concatenate([_errors(one, y, ridges) for one in seen], 1)
    bias = np.asarray(renormalisation.bias(errors.mean(1), parts[2], n), float)
    best = int(np.argmin(errors.mean(1)))
    order = np.argsort(parts[0])
    kappa, learnt, squares, bias = parts[0][order], parts[1][order], (n - parts[2])[order], bias[order]
    bias = np.minimum.accumulate(bias[::-1])[::-1]  # it falls with κ; what rises is leave-one-out near interpolation
    known = learnt <= max(TRUSTED * n, learnt.min())
    kappa, bias = (np.maximum(a[known], np.finfo(float).tiny) for a in (kappa, bias))
    learnt, squares = (np.maximum(a[known], 1e-9 * n) for a in (learnt, squares))  # differences: less is rounding
    # a kernel of few modes learns half of them where others learn a share of n; above, nothing is learnt yet
    fitted = next((f for f in (learnt >= FITTED * n, learnt >= learnt.max() / 2) if f.sum() > 3), learnt > 0)
    law = floored_laws(1 / kappa[fitted], bias[None, fitted])[0]
    below = np.exp(np.linspace(np.log(kappa[0] / BEYOND), np.log(kappa[0]), 400, endpoint=False))

    def continued(count: np.ndarray) -> np.ndarray:
        power = (below / kappa[0]) ** power_law(kappa[:6], count[:6]).exponent
        return np.concatenate([count[0] * power, count])

    return Law(
        np.concatenate([np.log(below), np.log(kappa)]),
        np.concatenate([law(1 / below) * bias[0] / law(1 / kappa[:1]), bias]),
        continued(learnt), continued(squares), float(np.log(kappa[0])), law.floor,
        float(errors[best].std() / np.sqrt(min(n, errors.shape[1])) / errors[best].mean()),
    )  # fmt: skip


def _errors(one: Seen, y: np.ndarray, ridges: np.ndarray) -> Float[np.ndarray, "r j"]:
    """Squared errors of the rows that count, each left out [K2]."""
    U, filters = one.eigenvectors[one.judged], 1 / (np.maximum(one.eigenvalues, 0)[:, None] + ridges)
    diagonal, found = dot(U**2, filters), np.zeros((len(U), len(ridges)))
    for inside in dot(one.eigenvectors.T, y).T:  # one output after the other
        found += left_out(dot(U, filters * inside[:, None]), diagonal) ** 2
    return found.T
