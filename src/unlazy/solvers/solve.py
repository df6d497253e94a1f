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

from unlazy.core.arrays import concrete
from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.core.precision import precision as in_precision
from unlazy.core.results import Evidence, Words
from unlazy.kernels.base import Kernel
from unlazy.solvers import traced
from unlazy.solvers.callbacks import Progress, Watch
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.error_estimate import ROOM, full_error
from unlazy.solvers.methods.base import Method
from unlazy.solvers.methods.registry import check_method, made
from unlazy.solvers.problem import Fit, Problem, labels, make, predict
from unlazy.solvers.selection import choose, choose_precision, wide_method
from unlazy.solvers.solution import PROBLEM, Solution
from unlazy.solvers.sources import finite_floats


def solve(
    kernel: Kernel,
    X: Any,
    y: Any,
    ridge: float | Real[ArrayLike, ""],
    *,
    method: str | Method | None = None,
    tolerance: float = 1e-3,
    precision: str | None = None,
    max_steps: int | None = None,
    centers: int | Any | None = None,
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
    cannot reach it, float64 is used, and the notes say so. `method` is chosen unless given: a word ("nystrom_cg") or a
    value with options of its own (`NystromCG(centers=1000)`); `centers` and `rank` alone stand for those options of
    whatever is chosen. `validation` = (X, y) stops a run when the error there no longer falls, and keeps the best
    coefficients. `checkpoint` names a file from which a killed run continues. `progress` is a bool or a function of
    watch.Progress.

    Inside jit, grad, jvp and vmap the solution is the direct one, differentiable in the kernel's parameters, X, y and
    the ridge (solvers.traced).

    >>> solution = solve(Gaussian(2.0), X, y, ridge=1e-6)
    >>> solution.converged, solution.residual, solution.method
    >>> solve(Gaussian(2.0), X, y, ridge=1e-6, method=NystromCG(centers=1000))
    """
    options = {name: value for name, value in (("centers", centers), ("rank", rank)) if value is not None}
    check_method(method, options)
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
    asked = method.name if isinstance(method, Method) else method
    if not concrete(kernel, X, y, ridge):
        others = {
            "precision": precision, "max_steps": max_steps, "centers": centers, "rank": rank, "validation": validation,
            "progress": progress, "checkpoint": checkpoint,
        }  # fmt: skip
        return traced.solve(kernel, X, y, ridge, asked, memory, others)
    seed = 0 if key is None else int(jax.random.key_data(key).ravel()[-1])
    problem = make(kernel, X, y, ridge, memory, seed)
    request = _Request(
        tolerance, max_steps, validation, progress, checkpoint, np.shape(y)[1:],
        alone=method is None and centers is None, free=method is None and rank is None,
    )  # fmt: skip
    name, why = choose(problem, asked, centers is not None)
    with _at_once():
        dtype, notes = choose_precision(problem, name, tolerance, precision)
    if dtype == np.float64 and wide_method(problem, name, request.free) != name:
        name, why = "direct", f"n = {problem.n} can be factorized in float64"
    chosen = method if isinstance(method, Method) else made(name, options)
    with _at_once():
        solution = _attempt(problem, request, chosen, why, dtype, notes)
        if dtype == np.float32 and precision is None:
            solution = _widened(problem, request, chosen, solution)
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
    problem: Problem, request: _Request, chosen: Method, why: str, dtype: np.dtype, notes: tuple[str, ...]
) -> Solution:
    """One run of one method in one precision."""
    problem = replace(problem, dtype=dtype, notes=problem.notes + notes)
    target = request.tolerance * (ROOM if dtype == np.float32 or chosen.restricts else 1.0)
    with in_precision(dtype.name):
        watch = _watch(problem, chosen, target, request)
        fit = chosen.solve(problem, watch)
        if request.alone:
            fit = chosen.against_full(problem, fit, target)
        return _solution(problem, fit, watch, request, chosen.name, why)


def _widened(problem: Problem, request: _Request, chosen: Method, solution: Solution) -> Solution:
    """The solution, or one in float64 where float32 came short; more steps of the same would not be another answer."""
    if solution.converged or request.cut(solution) or solution.stopped == "centers":
        return solution
    wide = wide_method(problem, chosen.name, request.free)
    if solution.stopped == "steps" and wide == chosen.name:
        return solution
    note = f"float64, since {solution.method} in float32 came to an error of {solution.residual:.2g} only"
    if request.checkpoint is not None:  # the first file belongs to the run in float32
        kept = request.checkpoint if isinstance(request.checkpoint, Checkpoint) else Checkpoint(request.checkpoint)
        request = replace(request, checkpoint=Checkpoint(f"{kept.path}.float64", kept.every))
    chosen = chosen if wide == chosen.name else made(wide, {})
    return _attempt(problem, request, chosen, solution.why, np.dtype("float64"), (note,))


def _watch(problem: Problem, method: Method, tolerance: float, request: _Request) -> Watch:
    most, checkpoint = request.max_steps, request.checkpoint
    steps = method.most_steps if most is None else check_positive_integer("max_steps", most)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None:
        checkpoint = Checkpoint(checkpoint.path, checkpoint.every, problem.identity(method.name, method.options()))
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
        centers = watch.centers if watch.centers is not None else problem.kept()
        return float(np.mean((predict(problem.kernel, X, centers, alpha, problem.memory) - y) ** 2))

    return error


def _solution(problem: Problem, fit: Fit, watch: Watch, request: _Request, method: str, why: str) -> Solution:
    alpha, notes, residual, left = fit.coefficients, fit.notes, fit.residual, fit.left
    if watch.validate is not None and watch.best is not None:
        alpha, residual, left = watch.best, watch.best_residual, None
        notes += (f"coefficients of the smallest validation error, {watch.best_error:.4g}",)
    if not np.isfinite(alpha).all():
        raise ValueError("the iteration overflowed: rescale the inputs or labels, or use precision='float64'")
    if fit.centers is None and problem.dtype == np.float32:
        residual = full_error(replace(problem, ridge=problem.ridge if fit.ridge is None else fit.ridge), alpha, left)
    centers = problem.kept() if fit.centers is None else jnp.asarray(fit.centers, problem.dtype)
    words = Words(PROBLEM, method, why, fit.stopped, tuple(notes))
    evidence = Evidence(
        float(residual), request.tolerance, float(fit.ridge if fit.ridge is not None else problem.ridge), fit.steps,
        time.perf_counter() - request.started, int(fit.bytes), words,
    )  # fmt: skip
    shape = (alpha.shape[0], *request.label_shape)
    return Solution(problem.kernel, centers, jnp.asarray(alpha, problem.dtype).reshape(shape), evidence)


def _advice(solution: Solution, tolerance: float) -> str:
    wide = solution.coefficients.dtype == np.float64
    rounding = (
        "rounding rules here: " + ("" if wide else "use precision='float64', ") + "raise the ridge, or ask for less"
    )
    remedy = {
        "steps": "allow more with max_steps, raise the ridge or the rank, or ask for less",
        "centers": "K does not fit, and centers are the limit: name how many you want with centers=, allow more with "
        "memory=, or take all points with method='preconditioned_cg'",
    }.get(solution.stopped, rounding)
    return (
        f"{solution.method} stopped at an error of {solution.residual:.2g} after {solution.steps} steps, short of the "
        f"tolerance {tolerance:.2g}: {remedy}"
    )
