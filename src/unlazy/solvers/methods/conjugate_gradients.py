"""Preconditioned conjugate gradients for several right-hand sides, with float64 vectors around a float32 kernel.

A step: p → Ap in the kernel's precision; everything else in float64. When the recursion says it is done, the true
residual is formed; where the two have drifted apart, the iteration starts again from there (iterative refinement), and
it ends as 'stalled' when that no longer helps: the rounding floor of the kernel's precision.
Vectors stay where products are made (solvers.float64_vectors), or spread over devices. A step hands three numbers for
every output to the host, which must know whether to go on: 24 bytes, and a card that waits some 20 µs. Hestenes and
Stiefel (1952); the smallest Ritz value comes from the same coefficients (Lanczos).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from unlazy.core.linalg import namespace
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.float64_vectors import Operator, Vectors, in_float64, wide

STALL = 200
"""Steps without a new smallest residual after which the iteration counts as stalled."""
RESTARTS = 5


class Home(NamedTuple):
    """Where vectors live: how the host's come there, and back."""

    put: Callable[[Any], Any]
    get: Callable[[Any], np.ndarray]


HERE = Home(wide, np.asarray)
"""Where products of one device are made."""


@dataclass
class State:
    """Where the iteration stands; what a checkpoint keeps."""

    x: Any
    r: Any
    p: Any
    rz: Any
    step: int = 0
    lanczos: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    home: Home = HERE

    def arrays(self) -> dict[str, np.ndarray]:
        get = self.home.get
        vectors = {"x": get(self.x), "r": get(self.r), "p": get(self.p)}
        return {**vectors, "rz": np.asarray(self.rz), "step": np.array(self.step)}


def conjugate_gradients(
    apply: Operator,
    b: Vectors,
    precondition: Operator,
    measure: Callable[[np.ndarray, float], float],
    coefficients: Operator,
    watch: Watch,
    accurate: Operator | None = None,
    home: Home = HERE,
) -> tuple[np.ndarray, float, int, str, np.ndarray]:
    """Solve A x = b; returns x, the size of its true residual by `measure(‖r‖ of every output, smallest Ritz value)`,
    the steps, why it stopped, and that residual.

    `coefficients` turns x into what `watch` validates; `accurate` is `apply` with more digits, for true residuals.
    """
    b = home.put(b)
    s = _start(b, precondition, watch.resume(), home)
    previous = np.inf
    for _ in range(RESTARTS):
        stopped = _run(apply, precondition, measure, coefficients, watch, s)
        s.r = _less(b, apply(s.x))
        true = measure(_norms(s.r), smallest_ritz(s))
        if accurate is not None and true > watch.tolerance:  # else rounding has only added to it: no need
            s.r = _less(b, accurate(s.x))
            true = measure(_norms(s.r), smallest_ritz(s))
        if stopped != "tolerance" or true <= watch.tolerance:
            return _result(s, true, "tolerance" if true <= watch.tolerance else stopped)
        if true > 0.5 * previous:
            break
        previous = true
        s.p = precondition(s.r)
        s.rz = _inner(s.r, s.p)
    return _result(s, true, "stalled")


def _result(s: State, true: float, stopped: str) -> tuple[np.ndarray, float, int, str, np.ndarray]:
    return s.home.get(s.x), true, s.step, stopped, s.home.get(s.r)


def _start(b: Any, precondition: Operator, kept: dict[str, np.ndarray] | None, home: Home) -> State:
    if kept is not None:
        x, r, p = (home.put(kept[name]) for name in "xrp")
        return State(x, r, p, wide(kept["rz"]), int(kept["step"].item()), home=home)
    z = precondition(b)
    return State(_nothing(b), b, z, _inner(b, z), home=home)


def _run(apply, precondition, measure, coefficients, watch: Watch, s: State) -> str:  # type: ignore[no-untyped-def]
    """Steps until the recursion's residual reaches the tolerance, or something else ends the run."""
    smallest, since = np.inf, 0
    if not s.step and measure(_norms(s.r), 1.0) <= watch.tolerance:  # y = 0
        return "tolerance"
    s.lanczos.clear()
    while True:
        s.x, s.r, a, square = _moved(s.x, s.r, s.p, s.rz, apply(s.p))
        s.p, s.rz, ratio = _turned(s.r, s.p, s.rz, precondition(s.r))
        a, ratio, square = (np.asarray(numbers) for numbers in (a, ratio, square))  # one number for every output
        s.lanczos.append((a, ratio))
        s.step += 1
        now = measure(np.sqrt(square), smallest_ritz(s))
        reason = watch.after(s.step, now, lambda: np.asarray(coefficients(s.x)), s.arrays)
        smallest, since = (now, 0) if now < smallest else (smallest, since + 1)
        if reason or since > STALL:
            return reason or "stalled"


@in_float64
def _moved(x: Any, r: Any, p: Any, rz: Any, Ap: Any) -> tuple[Any, Any, Any, Any]:
    """x and r one step along p, how far, and ‖r‖²."""
    a = _ratio(rz, (p * Ap).sum(0))
    r = r - a * Ap
    return x + a * p, r, a, (r * r).sum(0)


@in_float64
def _turned(r: Any, p: Any, rz: Any, z: Any) -> tuple[Any, Any, Any]:
    """The next direction, its ⟨r, z⟩, and the ratio to the one before."""
    new = (r * z).sum(0)
    ratio = _ratio(new, rz)
    return z + ratio * p, new, ratio


@in_float64
def _less(b: Any, Ax: Any) -> Any:
    return b - Ax


@in_float64
def _nothing(b: Any) -> Any:
    return 0 * b


@in_float64
def _inner(r: Any, z: Any) -> Any:
    return (r * z).sum(0)


def _norms(r: Any) -> np.ndarray:
    """‖r‖ of every output, on the host."""
    return np.sqrt(np.asarray(_inner(r, r)))


def _ratio(a: Any, b: Any) -> Any:
    """a/b, and 0 for outputs that are solved (0/0) or where rounding has taken the sign."""
    xp = namespace(a, b)
    return xp.where((b > 0) & (a > 0), a / xp.where(b > 0, b, 1), 0.0)


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
