"""Preconditioned conjugate gradients for several right-hand sides, with float64 vectors around a float32 kernel.

Vectors are NumPy's, or JAX's spread over devices, where they stay: then only sums over rows come to the host.

A step: p → Ap in the kernel's precision; everything else in float64. When the recursion says it is done, the true
residual is formed; where the two have drifted apart, the iteration starts again from there (iterative refinement), and
it ends as 'stalled' when that no longer helps: the rounding floor of the kernel's precision.
Hestenes and Stiefel (1952); the smallest Ritz value comes from the same coefficients (Lanczos).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from unlazy.solvers.watch import Watch

Vector = Any
"""Columns of float64: NumPy's, or JAX's spread over devices."""
Operator = Callable[[Vector], Vector]
STALL = 200
"""Steps without a new smallest residual after which the iteration counts as stalled."""
RESTARTS = 5


class Home(NamedTuple):
    """Where vectors live: how the host's come there, and back."""

    put: Callable[[np.ndarray], Vector]
    get: Callable[[Vector], np.ndarray]


HOST = Home(lambda v: v, lambda v: v)


@dataclass
class State:
    """Where the iteration stands; what a checkpoint keeps."""

    x: Vector
    r: Vector
    p: Vector
    rz: np.ndarray
    step: int = 0
    lanczos: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    home: Home = HOST

    def arrays(self) -> dict[str, np.ndarray]:
        get = self.home.get
        return {"x": get(self.x), "r": get(self.r), "p": get(self.p), "rz": self.rz, "step": np.array(self.step)}


def conjugate_gradients(
    apply: Operator,
    b: Vector,
    precondition: Operator,
    measure: Callable[[Vector, float], float],
    coefficients: Operator,
    watch: Watch,
    accurate: Operator | None = None,
    home: Home = HOST,
) -> tuple[Vector, float, int, str, Vector]:
    """Solve A x = b; returns x, the size of its true residual by `measure(r, smallest Ritz value)`, the steps, why it
    stopped, and that residual.

    `coefficients` turns x into what `watch` validates; `accurate` is `apply` with more digits, for true residuals.
    """
    s = _start(b, precondition, watch.resume(), home)
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
        s.p, s.rz = z, inner(s.r, z)
    return s.x, true, s.step, "stalled", s.r


def inner(u: Vector, v: Vector) -> np.ndarray:
    """⟨u, v⟩ of every column."""
    return np.asarray((u * v).sum(0))


def _start(b: Vector, precondition: Operator, kept: dict[str, np.ndarray] | None, home: Home) -> State:
    if kept is not None:
        x, r, p = (home.put(kept[name]) for name in "xrp")
        return State(x, r, p, kept["rz"], int(kept["step"].item()), home=home)
    z = precondition(b)
    return State(0 * b, b, z, inner(b, z), home=home)


def _run(apply, precondition, measure, coefficients, watch: Watch, s: State) -> str:  # type: ignore[no-untyped-def]
    """Steps until the recursion's residual reaches the tolerance, or something else ends the run."""
    smallest, since = np.inf, 0
    if not s.step and measure(s.r, 1.0) <= watch.tolerance:  # y = 0
        return "tolerance"
    s.lanczos.clear()
    while True:
        Ap = apply(s.p)
        a = _ratio(s.rz, inner(s.p, Ap))
        s.x = s.x + a * s.p
        s.r = s.r - a * Ap
        z = precondition(s.r)
        rz = inner(s.r, z)
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
