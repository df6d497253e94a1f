"""Preconditioned conjugate gradients for several right-hand sides, with float64 vectors around a float32 kernel.

A step: p → Ap in the kernel's precision; everything else in float64. When the recursion says it is done, the true
residual is formed; where the two have drifted apart, the iteration starts again from there (iterative refinement), and
it ends as 'stalled' when that no longer helps: the rounding floor of the kernel's precision.
Hestenes and Stiefel (1952); the smallest Ritz value comes from the same coefficients (Lanczos).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from unlazy.solvers.watch import Watch

Operator = Callable[[np.ndarray], np.ndarray]
STALL = 200
"""Steps without a new smallest residual after which the iteration counts as stalled."""
RESTARTS = 5


@dataclass
class State:
    """Where the iteration stands; what a checkpoint keeps."""

    x: np.ndarray
    r: np.ndarray
    p: np.ndarray
    rz: np.ndarray
    step: int = 0
    lanczos: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"x": self.x, "r": self.r, "p": self.p, "rz": self.rz, "step": np.array(self.step)}


def conjugate_gradients(
    apply: Operator,
    b: np.ndarray,
    precondition: Operator,
    measure: Callable[[np.ndarray, float], float],
    coefficients: Operator,
    watch: Watch,
    accurate: Operator | None = None,
) -> tuple[np.ndarray, float, int, str, np.ndarray]:
    """Solve A x = b; returns x, the size of its true residual by `measure(r, smallest Ritz value)`, the steps, why it
    stopped, and that residual.

    `coefficients` turns x into what `watch` validates; `accurate` is `apply` with more digits, for true residuals.
    """
    s = _start(b, precondition, watch.resume())
    previous = np.inf
    for _ in range(RESTARTS):
        stopped = _run(apply, precondition, measure, coefficients, watch, s)
        s.r = b - apply(s.x)
        true = measure(s.r, smallest_ritz(s))
        if accurate is not None and true > watch.tolerance:  # else rounding has only added to it: no need
            s.r = b - accurate(s.x)
            true = measure(s.r, smallest_ritz(s))
        if stopped != "tolerance" or true <= watch.tolerance:
            return s.x, true, s.step, "tolerance" if true <= watch.tolerance else stopped, s.r
        if true > 0.5 * previous:
            break
        previous = true
        z = precondition(s.r)
        s.p, s.rz = z, np.sum(s.r * z, 0)
    return s.x, true, s.step, "stalled", s.r


def _start(b: np.ndarray, precondition: Operator, kept: dict[str, np.ndarray] | None) -> State:
    if kept is not None:
        return State(kept["x"], kept["r"], kept["p"], kept["rz"], int(kept["step"].item()))
    z = precondition(b)
    return State(np.zeros_like(b), b.copy(), z, np.sum(b * z, 0))


def _run(apply, precondition, measure, coefficients, watch: Watch, s: State) -> str:  # type: ignore[no-untyped-def]
    """Steps until the recursion's residual reaches the tolerance, or something else ends the run."""
    smallest, since = np.inf, 0
    if not s.step and measure(s.r, 1.0) <= watch.tolerance:  # y = 0
        return "tolerance"
    s.lanczos.clear()
    while True:
        Ap = apply(s.p)
        a = _ratio(s.rz, np.sum(s.p * Ap, 0))
        s.x = s.x + a * s.p
        s.r = s.r - a * Ap
        z = precondition(s.r)
        rz = np.sum(s.r * z, 0)
        ratio = _ratio(rz, s.rz)
        s.lanczos.append((a, ratio))
        s.p, s.rz = z + ratio * s.p, rz
        s.step += 1
        now = measure(s.r, smallest_ritz(s))
        reason = watch.after(s.step, now, lambda: coefficients(s.x), s.arrays)
        smallest, since = (now, 0) if now < smallest else (smallest, since + 1)
        if reason or since > STALL:
            return reason or "stalled"


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a/b, and 0 for outputs that are solved (0/0) or where rounding has taken the sign."""
    return np.where((b > 0) & (a > 0), a / np.where(b > 0, b, 1), 0.0)


def smallest_ritz(s: State) -> float:
    """The smallest eigenvalue of the preconditioned matrix that the iteration has seen (of any output)."""
    found = []
    for j in range(s.r.shape[1]):
        a = np.array([x[0][j] for x in s.lanczos])
        ratio = np.array([x[1][j] for x in s.lanczos])
        k = int(np.argmin(a > 0)) if not np.all(a > 0) else a.size
        if k == 0:
            continue
        a, ratio = a[:k], ratio[:k]
        diagonal = 1 / a
        diagonal[1:] += ratio[:-1] / a[:-1]
        found.append(float(eigvalsh_tridiagonal(diagonal, np.sqrt(ratio[:-1]) / a[:-1])[0]) if k > 1 else diagonal[0])
    return max(min(found), np.finfo(float).tiny) if found else 1.0
