"""The front door to kernel regression: `solve` chooses a method by size, memory, device and accuracy, and says why."""

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.errors import UnlazyWarning, check_positive_integer, nearest
from unlazy.core.precision import precision as in_precision
from unlazy.kernels.base import Kernel
from unlazy.solvers import direct, eigenpro, nystrom_cg, preconditioned_cg, richardson
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.choice import choose, choose_precision
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
    ridge: float,
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
    `tolerance` is on the relative error of the fitted values. `centres` (a number or rows) belongs to nystrom_cg,
    `rank` to the preconditioners of preconditioned_cg and eigenpro. `validation` = (X, y) stops a run when the error
    there no longer falls, and keeps the best coefficients. `checkpoint` names a file from which a killed run continues.
    `progress` is a bool or a function of watch.Progress.

    >>> solution = solve(Gaussian(2.0), X, y, ridge=1e-6)
    >>> solution.converged, solution.residual, solution.method
    """
    started = time.perf_counter()
    seed = 0 if key is None else int(jax.random.key_data(key).ravel()[-1])
    problem = make(kernel, X, y, ridge, memory, seed)
    _check(method, tolerance)
    chosen, why = choose(problem, method, centres is not None)
    dtype, dtype_note = choose_precision(problem, chosen, tolerance, precision)
    problem = replace(problem, dtype=dtype, notes=problem.notes + dtype_note)
    keywords = _keywords(chosen, centres, rank)
    with in_precision(dtype.name):
        watch = _watch(problem, chosen, tolerance, max_steps, validation, progress, checkpoint, repr(keywords))
        fit = METHODS[chosen](problem, watch, **keywords)
        solution = _solution(problem, fit, watch, chosen, why, labels(y, problem.n)[1], started)
    if not solution.converged and solution.stopped not in ("validation",):
        warnings.warn(_advice(solution, tolerance), UnlazyWarning, stacklevel=2)
    return solution


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


def _watch(problem, method, tolerance, max_steps, validation, progress, checkpoint, keywords) -> Watch:  # type: ignore[no-untyped-def]
    steps = DEFAULT_STEPS[method] if max_steps is None else check_positive_integer("max_steps", max_steps)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None:
        checkpoint = Checkpoint(checkpoint.path, checkpoint.every, problem.identity(method, keywords))
    watch = Watch(tolerance, steps, progress, None, checkpoint)
    if validation is not None:
        watch.validate = _validator(problem, validation, watch)
    return watch


def _validator(problem: Problem, validation: tuple[Any, Any], watch: Watch) -> Callable[[np.ndarray], float]:
    """Mean squared error on the held-out points of a predictor with these coefficients."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError("validation is a pair (X, y) of held-out points")
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


def _solution(problem, fit: Fit, watch: Watch, method, why, label_shape, started) -> Solution:  # type: ignore[no-untyped-def]
    alpha, notes, residual = fit.coefficients, fit.notes, fit.residual
    if watch.validate is not None and watch.best is not None:
        alpha, residual = watch.best, watch.best_residual
        notes += (f"coefficients of the smallest validation error, {watch.best_error:.4g}",)
    if not np.isfinite(alpha).all():
        raise ValueError("the iteration overflowed: rescale the inputs or labels, or use precision='float64'")
    centres = problem.X() if fit.centres is None else jnp.asarray(fit.centres)
    return Solution(
        kernel=problem.kernel, centres=centres,
        coefficients=jnp.asarray(alpha, problem.dtype).reshape((alpha.shape[0], *label_shape)),
        residual=float(residual), steps=fit.steps, converged=bool(residual <= watch.tolerance),
        seconds=time.perf_counter() - started, bytes=int(fit.bytes), method=method, why=why, stopped=fit.stopped,
        ridge=float(fit.ridge if fit.ridge is not None else problem.ridge), notes=tuple(notes),
    )  # fmt: skip


def _advice(solution: Solution, tolerance: float) -> str:
    remedy = {
        "steps": "allow more with max_steps, raise the ridge or the rank, or ask for less",
        "stalled": "rounding rules here: use precision='float64', raise the ridge, or ask for less",
    }.get(solution.stopped, "look at the notes")
    return (
        f"{solution.method} stopped at residual {solution.residual:.2g} after {solution.steps} steps, short of the "
        f"tolerance {tolerance:.2g}: {remedy}"
    )
