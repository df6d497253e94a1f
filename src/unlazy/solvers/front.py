"""The front door to kernel regression: `solve` chooses a method by size, memory, device and accuracy, and says why."""

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray, Real

from unlazy.core.errors import UnlazyWarning, check_positive_integer, nearest
from unlazy.core.inputs import concrete
from unlazy.core.precision import precision as in_precision
from unlazy.kernels.base import Kernel
from unlazy.solvers import direct, eigenpro, nystrom_cg, preconditioned_cg, richardson, traced
from unlazy.solvers.audit import ROOM, full_error
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.choice import choose, choose_precision, wide_method
from unlazy.solvers.problem import Fit, Problem, labels, make, predict
from unlazy.solvers.solution import Solution
from unlazy.solvers.sources import finite_floats
from unlazy.solvers.watch import Progress, Watch

METHODS: dict[str, Callable[..., Fit]] = {
    "direct": direct.solve,
    "preconditioned_cg": preconditioned_cg.solve,
    "nystrom_cg": nystrom_cg.solve,
    "eigenpro": eigenpro.solve,
    "richardson": richardson.solve,
}
DEFAULT_STEPS = {"direct": 4, "preconditioned_cg": 1000, "nystrom_cg": 500, "eigenpro": 500, "richardson": 100_000}


def solve(
    kernel: Kernel,
    X: Any,
    y: Any,
    ridge: float | Real[ArrayLike, ""],
    *,
    method: str | None = None,
    tolerance: float = 1e-3,
    precision: str | None = None,
    max_steps: int | None = None,
    centres: int | Any | None = None,
    rank: int | None = None,
    validation: tuple[Any, Any] | None = None,
    memory: int | str | None = None,
    progress: bool | Callable[[Progress], None] | None = None,
    checkpoint: str | Path | Checkpoint | None = None,
    key: PRNGKeyArray | None = None,
) -> Solution:
    """Kernel ridge regression, (K + ridge·I)α = y [K2], from a thousand points to tens of millions.

    `X` is an array, a .npy or .parquet file, or anything with a shape and row slices; `y` has one or several outputs.
    Where the kernel takes images or trees, X may be such (method "direct").
    `tolerance` is on the relative error of the predictions at the training points, rounding included: where float32
    cannot reach it, float64 is used, and the notes say so. `centres` (a number or rows) belongs to nystrom_cg, `rank`
    to the preconditioners of preconditioned_cg and eigenpro. `validation` = (X, y) stops a run when the error there no
    longer falls, and keeps the best coefficients. `checkpoint` names a file from which a killed run continues.
    `progress` is a bool or a function of watch.Progress.

    Inside jit, grad, jvp and vmap the solution is the direct one, differentiable in the kernel's parameters, X, y and
    the ridge (solvers.traced).

    >>> solution = solve(Gaussian(2.0), X, y, ridge=1e-6)
    >>> solution.converged, solution.residual, solution.method
    """
    _check(method, tolerance)
    if not concrete(kernel, X, y, ridge):
        others = {
            "precision": precision, "max_steps": max_steps, "centres": centres, "rank": rank, "validation": validation,
            "progress": progress, "checkpoint": checkpoint,
        }  # fmt: skip
        return traced.solve(kernel, X, y, ridge, method, memory, others)
    seed = 0 if key is None else int(jax.random.key_data(key).ravel()[-1])
    problem = make(kernel, X, y, ridge, memory, seed)
    request = _Request(
        tolerance, max_steps, centres, rank, validation, progress, checkpoint, labels(y, problem.n)[1],
        alone=method is None and centres is None, free=method is None and rank is None,
    )  # fmt: skip
    chosen, why = choose(problem, method, centres is not None)
    with _at_once():
        dtype, notes = choose_precision(problem, chosen, tolerance, precision)
    if dtype == np.float64 and wide_method(problem, chosen, request.free) != chosen:
        chosen, why = "direct", f"n = {problem.n} can be factorised in float64"
    with _at_once():
        solution = _attempt(problem, request, chosen, why, dtype, notes)
        if dtype == np.float32 and precision is None:
            solution = _widened(problem, request, solution)
    if not solution.residual < 1 and not request.cut(solution):
        raise ValueError(f"this is worse than predicting zero: {_advice(solution, tolerance)}")
    if not solution.converged and solution.stopped != "validation":
        warnings.warn(_advice(solution, tolerance), UnlazyWarning, stacklevel=2)
    return solution


def _at_once() -> AbstractContextManager:
    """Where a program is being traced, constants are solved while it is; elsewhere nothing: fused products are traced
    themselves, and may not see their own constants folded."""
    traced_now = isinstance(jnp.zeros(()), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if traced_now else nullcontext()


@dataclass(frozen=True)
class _Request:
    """The keywords of `solve`, for one attempt or two."""

    tolerance: float
    max_steps: int | None
    centres: Any
    rank: int | None
    validation: tuple[Any, Any] | None
    progress: bool | Callable[[Progress], None] | None
    checkpoint: str | Path | Checkpoint | None
    label_shape: tuple[int, ...]
    alone: bool
    """Whether Nyström, if it is used, is our choice: its distance from full regression is then our business."""
    free: bool
    """Whether the method may change."""
    started: float = field(default_factory=time.perf_counter)

    def cut(self, solution: Solution) -> bool:
        """Whether the run ended early because of what was asked."""
        return solution.stopped == "validation" or (solution.stopped == "steps" and self.max_steps is not None)


def _attempt(
    problem: Problem, request: _Request, chosen: str, why: str, dtype: np.dtype, notes: tuple[str, ...]
) -> Solution:
    """One run of one method in one precision."""
    keywords = _keywords(chosen, request.centres, request.rank)
    problem = replace(problem, dtype=dtype, notes=problem.notes + notes)
    target = request.tolerance * (ROOM if dtype == np.float32 or chosen == "nystrom_cg" else 1.0)
    with in_precision(dtype.name):
        watch = _watch(problem, chosen, target, request, keywords)
        fit = METHODS[chosen](problem, watch, **keywords)
        if chosen == "nystrom_cg" and request.alone:
            fit = nystrom_cg.against_full(problem, fit, target)
        return _solution(problem, fit, watch, request, chosen, why)


def _widened(problem: Problem, request: _Request, solution: Solution) -> Solution:
    """The solution, or one in float64 where float32 came short; more steps of the same would not be another answer."""
    if solution.converged or request.cut(solution) or solution.stopped == "centres":
        return solution
    wide = wide_method(problem, solution.method, request.free)
    if solution.stopped == "steps" and wide == solution.method:
        return solution
    note = f"float64, since {solution.method} in float32 came to an error of {solution.residual:.2g} only"
    if request.checkpoint is not None:  # the first file belongs to the run in float32
        kept = request.checkpoint if isinstance(request.checkpoint, Checkpoint) else Checkpoint(request.checkpoint)
        request = replace(request, checkpoint=Checkpoint(f"{kept.path}.float64", kept.every))
    return _attempt(problem, request, wide, solution.why, np.dtype("float64"), (note,))


def _check(method: str | None, tolerance: float) -> None:
    if method is not None and method not in METHODS:
        raise ValueError(f"unknown method {method!r}{nearest(str(method), METHODS)}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")


def _keywords(method: str, centres: Any, rank: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if centres is not None:
        if method != "nystrom_cg":
            raise ValueError(f"centres belong to method 'nystrom_cg', not to {method!r}")
        whole = isinstance(centres, int | np.integer)
        found["centres"] = check_positive_integer("centres", centres) if whole else _rows(centres)
    if rank is not None:
        if method not in ("preconditioned_cg", "eigenpro"):
            raise ValueError(f"rank belongs to 'preconditioned_cg' and 'eigenpro', not to {method!r}")
        found["rank"] = check_positive_integer("rank", rank)
    return found


def _rows(centres: Any) -> np.ndarray:
    array = finite_floats("centres", np.asarray(centres))
    if array.ndim != 2 or not array.size:
        raise ValueError(f"centres are a number or rows of inputs, got shape {array.shape}")
    return array


def _watch(problem: Problem, method: str, tolerance: float, request: _Request, keywords: dict[str, Any]) -> Watch:
    most, checkpoint = request.max_steps, request.checkpoint
    steps = DEFAULT_STEPS[method] if most is None else check_positive_integer("max_steps", most)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None:
        checkpoint = Checkpoint(checkpoint.path, checkpoint.every, problem.identity(method, keywords))
    watch = Watch(tolerance, steps, request.progress, None, checkpoint)
    if request.validation is not None:
        watch.validate = _validator(problem, request.validation, watch)
    return watch


def _validator(problem: Problem, validation: tuple[Any, Any], watch: Watch) -> Callable[[np.ndarray], float]:
    """Mean squared error on the held-out points of a predictor with these coefficients."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError("validation is a pair (X, y) of held-out points")
    if not problem.source.matrix:
        raise ValueError("validation needs inputs that are a matrix: predict at held-out points after the solution")
    X = finite_floats("validation X", np.asarray(validation[0]))
    if X.ndim != 2 or X.shape[1] != problem.source.d:
        raise ValueError(f"validation X must have {problem.source.d} columns, got shape {X.shape}")
    y, _ = labels(validation[1], X.shape[0])
    if y.shape[1] != problem.y.shape[1]:
        raise ValueError(f"validation y must have {problem.y.shape[1]} outputs, got {y.shape[1]}")

    def error(alpha: np.ndarray) -> float:
        centres = watch.centres if watch.centres is not None else problem.X()
        return float(np.mean((predict(problem.kernel, X, centres, alpha, problem.memory) - y) ** 2))

    return error


def _solution(problem: Problem, fit: Fit, watch: Watch, request: _Request, method: str, why: str) -> Solution:
    alpha, notes, residual, left = fit.coefficients, fit.notes, fit.residual, fit.left
    if watch.validate is not None and watch.best is not None:
        alpha, residual, left = watch.best, watch.best_residual, None
        notes += (f"coefficients of the smallest validation error, {watch.best_error:.4g}",)
    if not np.isfinite(alpha).all():
        raise ValueError("the iteration overflowed: rescale the inputs or labels, or use precision='float64'")
    if fit.centres is None and problem.dtype == np.float32:
        residual = full_error(replace(problem, ridge=problem.ridge if fit.ridge is None else fit.ridge), alpha, left)
    centres = problem.X() if fit.centres is None else jnp.asarray(fit.centres, problem.dtype)
    return Solution(
        kernel=problem.kernel, centres=centres,
        coefficients=jnp.asarray(alpha, problem.dtype).reshape((alpha.shape[0], *request.label_shape)),
        residual=float(residual), steps=fit.steps, converged=bool(residual <= request.tolerance),
        seconds=time.perf_counter() - request.started, bytes=int(fit.bytes), method=method, why=why,
        stopped=fit.stopped, ridge=float(fit.ridge if fit.ridge is not None else problem.ridge), notes=tuple(notes),
    )  # fmt: skip


def _advice(solution: Solution, tolerance: float) -> str:
    wide = solution.coefficients.dtype == np.float64
    rounding = (
        "rounding rules here: " + ("" if wide else "use precision='float64', ") + "raise the ridge, or ask for less"
    )
    remedy = {
        "steps": "allow more with max_steps, raise the ridge or the rank, or ask for less",
        "centres": "K does not fit, and centres are the limit: name how many you want with centres=, allow more with "
        "memory=, or take all points with method='preconditioned_cg'",
    }.get(solution.stopped, rounding)
    return (
        f"{solution.method} stopped at an error of {solution.residual:.2g} after {solution.steps} steps, short of the "
        f"tolerance {tolerance:.2g}: {remedy}"
    )
