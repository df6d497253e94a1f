"""Kernel ridge regression with automatic choice of method by size, memory, device and accuracy."""

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

from unlazy.core.arrays import is_concrete
from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.core.precision import precision as in_precision
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers import traced
from unlazy.solvers.callbacks import Progress, SolverCallback
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.error_estimate import ITERATION_SHARE, full_regression_error
from unlazy.solvers.methods.base import Method
from unlazy.solvers.methods.registry import make_method, validate_method
from unlazy.solvers.problem import FittedCoefficients, Problem, label_matrix, make_problem, predict
from unlazy.solvers.selection import choose_method, choose_precision, float64_method
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

    The method and the precision are chosen from the number of points, the memory budget, the device and the tolerance;
    `Solution.why` and `Solution.notes` report the choice. If float32 cannot reach the tolerance, the problem is solved
    again in float64. Inside jit, grad, jvp and vmap the direct method is used; the solution is then differentiable in
    the parameters of the kernel, X, y and the ridge (solvers.traced).

    Parameters
    ----------
    kernel : Kernel
        The kernel, with all parameters set.
    X : array of shape (n, d), path, or object with `shape` and row slices
        Training points. A path names a .npy or .parquet file; objects such as memmaps, Zarr and HDF5 arrays are read
        block by block. If the kernel accepts images or pytrees, X may be such (methods "direct" and "askotch" only).
    y : array of shape (n,) or (n, c)
        Labels, one or several outputs per point.
    ridge : float
        Added to the diagonal of K, absolute; zero or more.
    method : str or Method, optional
        "direct", "preconditioned_cg", "nystrom_cg", "askotch", "eigenpro" or "richardson", or a method with options,
        such as `NystromCG(centers=1000)`. Chosen automatically by default.
    tolerance : float, default 1e-3
        Bound on the relative error of the predictions at the training points, rounding included.
    precision : {"float32", "float64"}, optional
        Floating-point type of the kernel entries. Chosen automatically by default.
    max_steps : int, optional
        Maximum number of iterations. The default depends on the method.
    centers : int or array of shape (m, d), optional
        Option `centers` of the chosen method: the number of Nyström centers, or the centers themselves.
    rank : int, optional
        Option `rank` of the chosen method: the rank of its preconditioner.
    validation : tuple (X, y), optional
        Held-out points. The run stops when the error on them no longer decreases, and the coefficients with the
        smallest validation error are returned.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB". By default, a share of the available memory.
    progress : bool or callable, optional
        True shows a progress line, False does not; by default it is shown if standard error is a terminal. A callable
        is called with a `solvers.callbacks.Progress` after every step.
    checkpoint : str, Path or Checkpoint, optional
        File from which an interrupted run resumes.
    key : PRNG key, optional
        Seed of the random choices (centers, pivots, batches). The default is fixed, so runs are reproducible.

    Returns
    -------
    Solution
        Coefficients, with the error estimate, the method and notes.

    Raises
    ------
    ValueError
        If an argument is invalid, if the problem does not fit the memory budget, or if the result is worse than
        predicting zero.

    Warns
    -----
    UnlazyWarning
        If the tolerance was not reached.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, NystromCG, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> solution = solve(Gaussian(2.0), X, y, ridge=1e-3)
    >>> solution.converged, solution.method
    (True, 'direct')
    >>> solution.predict(X[:5]).shape
    (5,)
    >>> solve(Gaussian(2.0), X, y, ridge=1e-3, method=NystromCG(centers=30)).coefficients.shape
    (30,)
    """
    options = {name: value for name, value in (("centers", centers), ("rank", rank)) if value is not None}
    validate_method(method, options)
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance!r}")
    requested = method.name if isinstance(method, Method) else method
    if not is_concrete(kernel, X, y, ridge):
        others = {
            "precision": precision, "max_steps": max_steps, "centers": centers, "rank": rank, "validation": validation,
            "progress": progress, "checkpoint": checkpoint,
        }  # fmt: skip
        return traced.solve(kernel, X, y, ridge, requested, memory, others)
    seed = 0 if key is None else int(jax.random.key_data(key).ravel()[-1])
    problem = make_problem(kernel, X, y, ridge, memory, seed)
    request = _Request(
        tolerance, max_steps, validation, progress, checkpoint, np.shape(y)[1:],
        automatic_centers=method is None and centers is None, method_is_free=method is None and rank is None,
    )  # fmt: skip
    name, why = choose_method(problem, requested, centers is not None)
    with _compile_time_eval():
        dtype, notes = choose_precision(problem, name, tolerance, precision)
    if dtype == np.float64 and float64_method(problem, name, request.method_is_free) != name:
        name, why = "direct", f"n = {problem.n} is small enough to factorize in float64"
    chosen = method if isinstance(method, Method) else make_method(name, options)
    with _compile_time_eval():
        solution = _attempt(problem, request, chosen, why, dtype, notes)
        if dtype == np.float32 and precision is None:
            solution = _retry_in_float64(problem, request, chosen, solution)
    if not solution.residual < 1 and not request.stopped_early(solution):
        raise ValueError(f"the result is worse than predicting zero: {_advice(solution, tolerance)}")
    if not solution.converged and solution.stopped != "validation":
        warnings.warn(_advice(solution, tolerance), UnlazyWarning, stacklevel=2)
    return solution


def _compile_time_eval() -> AbstractContextManager:
    """Context that evaluates constants immediately while an outer program is traced; a null context otherwise.

    Without tracing it must do nothing: fused products are traced themselves and must not have their constants folded.
    """
    traced_now = isinstance(jnp.zeros(()), jax.core.Tracer)
    return jax.ensure_compile_time_eval() if traced_now else nullcontext()


@dataclass(frozen=True)
class _Request:
    """The keyword arguments of `solve`, shared by the first attempt and the retry in float64."""

    tolerance: float
    max_steps: int | None
    validation: tuple[Any, Any] | None
    progress: bool | Callable[[Progress], None] | None
    checkpoint: str | Path | Checkpoint | None
    label_shape: tuple[int, ...]
    automatic_centers: bool
    """Whether Nyström centers, if used, were chosen automatically: then the error against full regression is reported.
    Whether Nyström centers, if used, were chosen automatically: then the error against full regression is reported."""
    method_is_free: bool
    """Whether the method may be changed."""
    started: float = field(default_factory=time.perf_counter)

    def stopped_early(self, solution: Solution) -> bool:
        """Whether the run ended early because of `validation` or `max_steps`."""
        return solution.stopped == "validation" or (solution.stopped == "steps" and self.max_steps is not None)


def _attempt(
    problem: Problem, request: _Request, chosen: Method, why: str, dtype: np.dtype, notes: tuple[str, ...]
) -> Solution:
    """Run one method in one precision."""
    problem = replace(problem, dtype=dtype, notes=problem.notes + notes)
    target = request.tolerance * (ITERATION_SHARE if dtype == np.float32 or chosen.uses_centers else 1.0)
    with in_precision(dtype.name):
        callback = _make_callback(problem, chosen, target, request)
        fit = chosen.solve(problem, callback)
        if request.automatic_centers:
            fit = chosen.compare_with_full(problem, fit, target)
        return _solution(problem, fit, callback, request, chosen.name, why)


def _retry_in_float64(problem: Problem, request: _Request, chosen: Method, solution: Solution) -> Solution:
    """Return the solution, or solve again in float64 if float32 did not reach the tolerance.

    A run that ended at its step limit is not repeated with the same method.
    """
    if solution.converged or request.stopped_early(solution) or solution.stopped == "centers":
        return solution
    wide = float64_method(problem, chosen.name, request.method_is_free)
    if solution.stopped == "steps" and wide == chosen.name:
        return solution
    note = f"float64, since {solution.method} in float32 only reached an error of {solution.residual:.2g}"
    if request.checkpoint is not None:  # the first file belongs to the run in float32
        kept = request.checkpoint if isinstance(request.checkpoint, Checkpoint) else Checkpoint(request.checkpoint)
        request = replace(request, checkpoint=Checkpoint(f"{kept.path}.float64", kept.every))
    chosen = chosen if wide == chosen.name else make_method(wide, {})
    return _attempt(problem, request, chosen, solution.why, np.dtype("float64"), (note,))


def _make_callback(problem: Problem, method: Method, tolerance: float, request: _Request) -> SolverCallback:
    """The callback of a run: step limit, progress, validation and checkpoint."""
    most, checkpoint = request.max_steps, request.checkpoint
    steps = method.default_max_steps if most is None else check_positive_integer("max_steps", most)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    if checkpoint is not None:
        checkpoint = Checkpoint(
            checkpoint.path, checkpoint.every, problem.checkpoint_identity(method.name, method.options())
        )
    callback = SolverCallback(tolerance, steps, request.progress, None, checkpoint)
    if request.validation is not None:
        callback.validate = _validator(problem, request.validation, callback)
    return callback


def _validator(
    problem: Problem, validation: tuple[Any, Any], callback: SolverCallback
) -> Callable[[np.ndarray], float]:
    """Return a function that maps coefficients to the mean squared error on the held-out points."""
    if not isinstance(validation, tuple | list) or len(validation) != 2:
        raise ValueError("validation must be a pair (X, y) of held-out points")
    if not problem.source.is_matrix:
        raise ValueError("validation requires a matrix X: predict at the held-out points after solve instead")
    X = finite_floats("validation X", np.asarray(validation[0]))
    if X.ndim != 2 or X.shape[1] != problem.source.d:
        raise ValueError(f"validation X must have {problem.source.d} columns, got shape {X.shape}")
    y, _ = label_matrix(validation[1], X.shape[0])
    if y.shape[1] != problem.y.shape[1]:
        raise ValueError(f"validation y must have {problem.y.shape[1]} outputs, got {y.shape[1]}")

    def error(alpha: np.ndarray) -> float:
        centers = callback.centers if callback.centers is not None else problem.inputs_to_store()
        return float(np.mean((predict(problem.kernel, X, centers, alpha, problem.memory) - y) ** 2))

    return error


def _solution(
    problem: Problem, fit: FittedCoefficients, callback: SolverCallback, request: _Request, method: str, why: str
) -> Solution:
    """The `Solution` for fitted coefficients, with the float64 error estimate if the fit is float32."""
    alpha, notes, residual, left = fit.coefficients, fit.notes, fit.residual, fit.residual_vector
    if callback.validate is not None and callback.best is not None:
        alpha, residual, left = callback.best, callback.best_residual, None
        notes += (f"coefficients with the smallest validation error, {callback.best_error:.4g}",)
    if not np.isfinite(alpha).all():
        raise ValueError("the iteration overflowed: rescale X or y, or use precision='float64'")
    if fit.centers is None and problem.dtype == np.float32:
        residual = full_regression_error(
            replace(problem, ridge=problem.ridge if fit.ridge is None else fit.ridge), alpha, left
        )
    centers = problem.inputs_to_store() if fit.centers is None else jnp.asarray(fit.centers, problem.dtype)
    description = FitDescription(PROBLEM, method, why, fit.stopped, tuple(notes))
    evidence = Evidence(
        float(residual), request.tolerance, float(fit.ridge if fit.ridge is not None else problem.ridge), fit.steps,
        time.perf_counter() - request.started, int(fit.bytes), description,
    )  # fmt: skip
    shape = (alpha.shape[0], *request.label_shape)
    return Solution(problem.kernel, centers, jnp.asarray(alpha, problem.dtype).reshape(shape), evidence)


def _advice(solution: Solution, tolerance: float) -> str:
    """Message for a run that did not reach the tolerance, with what to change."""
    wide = solution.coefficients.dtype == np.float64
    rounding = (
        "limited by rounding: " + ("" if wide else "use precision='float64', ") + "increase the ridge or the tolerance"
    )
    remedy = {
        "steps": "increase max_steps, the ridge, the rank or the tolerance",
        "centers": "K does not fit in memory, and the number of centers is the limit: set centers=, increase "
        "memory=, or use all points with method='preconditioned_cg'",
    }.get(solution.stopped, rounding)
    return (
        f"{solution.method} stopped at an error of {solution.residual:.2g} after {solution.steps} steps, above the "
        f"tolerance {tolerance:.2g}: {remedy}"
    )
