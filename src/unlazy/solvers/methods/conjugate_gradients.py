"""Preconditioned conjugate gradients for several right-hand sides, with float64 vectors and products in float32.

Each step computes p → Ap in the precision of the kernel, and everything else in float64. When the recursive residual
reaches the tolerance, the true residual is computed. If the two have drifted apart, the iteration restarts from there
(iterative refinement); if that no longer helps, it ends as 'stalled': the rounding floor of the kernel's precision.
Vectors stay where products are computed (solvers.problem), or sharded over devices. Each step transfers three
numbers per output to the host, which must decide whether to stop: 24 bytes, for which a GPU waits about 20 µs. Hestenes
and Stiefel (1952); the smallest Ritz value comes from the same coefficients (Lanczos).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal

from unlazy.core.arrays import namespace
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.problem import Operator, Vectors, add_scaled, jit_float64, to_float64

STALL_STEPS = 200
"""Steps without a new smallest residual after which the iteration counts as stalled."""
MAX_RESTARTS = 5
"""Restarts from the true residual."""


class VectorPlacement(NamedTuple):
    """Where vectors are stored: functions that move them from the host and back."""

    to_device: Callable[[Any], Any]
    to_host: Callable[[Any], np.ndarray]


LOCAL_PLACEMENT = VectorPlacement(to_float64, np.asarray)
"""Vectors stored where a single device computes products."""


@dataclass
class CGState:
    """State of the iteration, as stored in a checkpoint."""

    x: Any
    r: Any
    p: Any
    rz: Any
    step: int = 0
    lanczos: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    placement: VectorPlacement = LOCAL_PLACEMENT

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as NumPy arrays."""
        to_host = self.placement.to_host
        vectors = {"x": to_host(self.x), "r": to_host(self.r), "p": to_host(self.p)}
        return {**vectors, "rz": np.asarray(self.rz), "step": np.array(self.step)}


def conjugate_gradients(
    apply: Operator,
    b: Vectors,
    precondition: Operator,
    measure: Callable[[np.ndarray, float], float],
    coefficients: Operator,
    callback: SolverCallback,
    accurate_apply: Operator | None = None,
    placement: VectorPlacement = LOCAL_PLACEMENT,
) -> tuple[np.ndarray, float, int, str, np.ndarray]:
    """Solve A x = b.

    Returns x, the size of its true residual, the number of steps, the reason for stopping, and the residual itself. The
    size is `measure(‖r‖ of every output, smallest Ritz value)`. `coefficients` maps x to the coefficients that
    `callback` validates; `accurate_apply` is a more accurate `apply` for true residuals.
    """
    b = placement.to_device(b)
    s = _start(b, precondition, callback.resume(), placement)
    previous = np.inf
    for _ in range(MAX_RESTARTS):
        stopped = _run(apply, precondition, measure, coefficients, callback, s)
        s.r = add_scaled(b, apply(s.x), -1.0)
        true = measure(_norms(s.r), smallest_ritz_value(s))
        if accurate_apply is not None and true > callback.tolerance:  # otherwise rounding only increased it: not needed
            s.r = add_scaled(b, accurate_apply(s.x), -1.0)
            true = measure(_norms(s.r), smallest_ritz_value(s))
        if stopped != "tolerance" or true <= callback.tolerance:
            return _result(s, true, "tolerance" if true <= callback.tolerance else stopped)
        if true > 0.5 * previous:
            break
        previous = true
        s.p = precondition(s.r)
        s.rz = _inner_products(s.r, s.p)
    return _result(s, true, "stalled")


def _result(s: CGState, true: float, stopped: str) -> tuple[np.ndarray, float, int, str, np.ndarray]:
    """The return value, moved to the host."""
    return s.placement.to_host(s.x), true, s.step, stopped, s.placement.to_host(s.r)


def _start(b: Any, precondition: Operator, saved: dict[str, np.ndarray] | None, placement: VectorPlacement) -> CGState:
    """Initial state, or the state of a checkpoint."""
    if saved is not None:
        x, r, p = (placement.to_device(saved[name]) for name in "xrp")
        return CGState(x, r, p, to_float64(saved["rz"]), int(saved["step"].item()), placement=placement)
    z = precondition(b)
    return CGState(add_scaled(b, b, -1.0), b, z, _inner_products(b, z), placement=placement)


def _run(apply, precondition, measure, coefficients, callback: SolverCallback, s: CGState) -> str:  # type: ignore[no-untyped-def]
    """Iterate until the recursive residual reaches the tolerance or another criterion stops the run."""
    smallest, since = np.inf, 0
    if not s.step and measure(_norms(s.r), 1.0) <= callback.tolerance:  # y = 0
        return "tolerance"
    s.lanczos.clear()
    while True:
        s.x, s.r, a, square = _update_solution(s.x, s.r, s.p, s.rz, apply(s.p))
        s.p, s.rz, ratio = _update_direction(s.r, s.p, s.rz, precondition(s.r))
        a, ratio, square = (np.asarray(numbers) for numbers in (a, ratio, square))  # one value per output
        s.lanczos.append((a, ratio))
        s.step += 1
        now = measure(np.sqrt(square), smallest_ritz_value(s))
        reason = callback.after_step(s.step, now, lambda: np.asarray(coefficients(s.x)), s.arrays)
        smallest, since = (now, 0) if now < smallest else (smallest, since + 1)
        if reason or since > STALL_STEPS:
            return reason or "stalled"


@jit_float64
def _update_solution(x: Any, r: Any, p: Any, rz: Any, Ap: Any) -> tuple[Any, Any, Any, Any]:
    """x and r after one step along p, the step length, and ‖r‖²."""
    a = _safe_ratio(rz, (p * Ap).sum(0))
    r = r - a * Ap
    return x + a * p, r, a, (r * r).sum(0)


@jit_float64
def _update_direction(r: Any, p: Any, rz: Any, z: Any) -> tuple[Any, Any, Any]:
    """The next direction, its ⟨r, z⟩, and the ratio to the previous one."""
    new = (r * z).sum(0)
    ratio = _safe_ratio(new, rz)
    return z + ratio * p, new, ratio


@jit_float64
def _inner_products(r: Any, z: Any) -> Any:
    """⟨r, z⟩ of every output."""
    return (r * z).sum(0)


def _norms(r: Any) -> np.ndarray:
    """‖r‖ of every output, on the host."""
    return np.sqrt(np.asarray(_inner_products(r, r)))


def _safe_ratio(a: Any, b: Any) -> Any:
    """a/b, and 0 for outputs that are solved (0/0) or whose sign was lost to rounding."""
    xp = namespace(a, b)
    return xp.where((b > 0) & (a > 0), a / xp.where(b > 0, b, 1), 0.0)


def smallest_ritz_value(s: CGState) -> float:
    """Smallest eigenvalue of the preconditioned matrix as estimated by the iteration, over all outputs."""
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
