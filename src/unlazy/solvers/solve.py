"""Kernel ridge regression with automatic choice of method by size, memory, device and accuracy."""

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray, Real

from unlazy.core.arrays import Labels, Points, is_concrete
from unlazy.core.arrays import precision as in_precision
from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.core.progress import ProgressOption
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers import traced
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.checkpoint import Checkpoint, as_checkpoint
from unlazy.solvers.error_estimate import ITERATION_SHARE, can_check, full_regression_error
from unlazy.solvers.method_selection import METHODS, choose_method, choose_precision, float64_method, validate_method
from unlazy.solvers.methods.base import Method
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.problem import FittedCoefficients, Problem, label_matrix, make_problem, predict
from unlazy.solvers.solution import PROBLEM, Solution
from unlazy.solvers.sources import finite_floats


@dataclass(frozen=True)
class SolveOptions:
    """Precision, limits, validation and checkpoint of a call of `solve`.

    Parameters
    ----------
    precision : {"float32", "float64"}, optional
        Floating-point type of the kernel entries. Chosen automatically by default.
    max_steps : int, optional
        Maximum number of iterations. The default depends on the method.
    validation : tuple (X, y), optional
        Held-out points. The run stops when the error on them no longer decreases, and the coefficients with the
        smallest validation error are returned.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB". By default, a share of the available memory.
    checkpoint : str, Path or Checkpoint, optional
        File from which an interrupted run resumes.

    Raises
    ------
    ValueError
        If `precision` is unknown, `max_steps` is not a positive integer, or `validation` is not a pair.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, SolveOptions, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> options = SolveOptions(precision="float64", memory="1GiB")
    >>> solve(Gaussian(2.0), X, np.sin(X[:, 0]), ridge=1e-3, options=options).coefficients.dtype
    dtype('float64')
    """

    precision: str | None = None
    max_steps: int | None = None
    validation: tuple[Points, Labels] | None = None
    memory: int | str | None = None
    checkpoint: str | Path | Checkpoint | None = None

    def __post_init__(self) -> None:
        if self.precision not in (None, "float32", "float64"):
            raise ValueError(f"precision must be 'float32' or 'float64', got {self.precision!r}")
        if self.max_steps is not None:
            check_positive_integer("max_steps", self.max_steps)
        if self.validation is not None and not (
            isinstance(self.validation, tuple | list) and len(self.validation) == 2
        ):
            raise ValueError("validation must be a pair (X, y) of held-out points")


def solve(
    kernel: Kernel,
    X: Points,
    y: Labels,
    ridge: float | Real[ArrayLike, ""],
    *,
    method: str | Method | None = None,
    tolerance: float = 1e-3,
    options: SolveOptions | None = None,
    progress: ProgressOption = False,
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
    options : SolveOptions, optional
        Precision, maximum number of steps, validation points, memory budget and checkpoint.
    progress : bool or callable, default False
        Whether to show a progress line for runs of more than three seconds. A callable is called with a
        `SolverProgress` after every step.
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
    validate_method(method)
    options = options or SolveOptions()
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be between 0 and 1, got {tolerance!r}")
    requested = method.name if isinstance(method, Method) else method
    if not is_concrete(kernel, X, y, ridge):
        _check_traced(requested, options, progress)
        return traced.solve(kernel, X, y, ridge, options.memory)
    seed = 0 if key is None else int(jax.random.key_data(key).ravel()[-1])
    problem = make_problem(kernel, X, y, ridge, options.memory, seed)
    request = _Request(tolerance, options, progress, np.shape(y)[1:], automatic=method is None)
    name, why = choose_method(problem, requested)
    with _compile_time_eval():
        dtype, notes = choose_precision(problem, tolerance, options.precision)
    if dtype == np.float64 and float64_method(problem, name, request.automatic) != name:
        name, why = "direct", f"n = {problem.n} is small enough to factorize in float64"
    chosen = method if isinstance(method, Method) else METHODS[name]()
    with _compile_time_eval():
        solution = _attempt(problem, request, chosen, why, dtype, notes)
        if dtype == np.float32 and options.precision is None:
            solution = _retry_in_float64(problem, request, chosen, solution)
    if not solution.residual < 1 and not request.stopped_early(solution):
        raise ValueError(f"the result is worse than predicting zero: {_advice(solution, tolerance)}")
    if not solution.converged and solution.stopped != "validation":
        warnings.warn(_advice(solution, tolerance), UnlazyWarning, stacklevel=2)
    return solution


def _check_traced(method: str | None, options: SolveOptions, progress: ProgressOption) -> None:
    """Raise ValueError for what a traced solution cannot use; of the options it only uses `memory`."""
    if method not in (None, "direct"):
        raise ValueError(f"only method='direct' is supported inside jit, grad or vmap, got {method!r}")
    named = [f.name for f in fields(options) if f.name != "memory" and getattr(options, f.name) is not None]
    unsupported = named + ["progress"] * bool(progress)
    if unsupported:
        raise ValueError(
            f"{', '.join(unsupported)} cannot be used inside jit, grad or vmap: omit or call solve outside"
        )


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
    options: SolveOptions
    progress: ProgressOption
    label_shape: tuple[int, ...]
    automatic: bool
    """Whether the method was chosen automatically: then it may be changed, and if it uses Nyström centers, the error
    against full regression is reported."""
    started: float = field(default_factory=time.perf_counter)

    def stopped_early(self, solution: Solution) -> bool:
        """Whether the run ended early because of `validation` or `max_steps`."""
        return solution.stopped == "validation" or (solution.stopped == "steps" and self.options.max_steps is not None)


def _attempt(
    problem: Problem, request: _Request, chosen: Method, why: str, dtype: np.dtype, notes: tuple[str, ...]
) -> Solution:
    """Run one method in one precision."""
    problem = replace(problem, dtype=dtype, notes=problem.notes + notes)
    target = request.tolerance * (ITERATION_SHARE if dtype == np.float32 or chosen.uses_centers else 1.0)
    with in_precision(dtype.name):
        callback = _make_callback(problem, chosen, target, request)
        fit = chosen.solve(problem, callback)
        if request.automatic and isinstance(chosen, NystromCG):
            fit = chosen.compare_with_full(problem, fit, target)
        return _solution(problem, fit, callback, request, chosen.name, why)


def _retry_in_float64(problem: Problem, request: _Request, chosen: Method, solution: Solution) -> Solution:
    """Return the solution, or solve again in float64 if float32 did not reach the tolerance.

    A run that ended at its step limit is not repeated with the same method.
    """
    if solution.converged or request.stopped_early(solution) or solution.stopped == "centers":
        return solution
    wide = float64_method(problem, chosen.name, request.automatic)
    if solution.stopped == "steps" and wide == chosen.name:
        return solution
    note = f"float64, since {solution.method} in float32 only reached an error of {solution.residual:.2g}"
    if request.options.checkpoint is not None:  # the first file belongs to the run in float32
        first = as_checkpoint(request.options.checkpoint)
        kept = Checkpoint(f"{first.path}.float64", first.every)
        request = replace(request, options=replace(request.options, checkpoint=kept))
    chosen = chosen if wide == chosen.name else METHODS[wide]()
    return _attempt(problem, request, chosen, solution.why, np.dtype("float64"), (note,))


def _make_callback(problem: Problem, method: Method, tolerance: float, request: _Request) -> SolverCallback:
    """The callback of a run: step limit, progress, validation and checkpoint."""
    steps = request.options.max_steps or method.default_max_steps
    callback = SolverCallback(tolerance, steps, request.progress)
    if request.options.checkpoint is not None:
        given = as_checkpoint(request.options.checkpoint)
        problem_id = problem.checkpoint_identity(method.name, method.options())
        callback.checkpoint = Checkpoint(given.path, given.every, problem_id)
    if request.options.validation is not None:
        callback.validate = _validator(problem, request.options.validation, callback)
    return callback


def _validator(
    problem: Problem, validation: tuple[Points, Labels], callback: SolverCallback
) -> Callable[[np.ndarray], float]:
    """Return a function that maps coefficients to the mean squared error on the held-out points."""
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
    """The `Solution` for fitted coefficients, with the error estimate from float64 entries of differences of inputs."""
    alpha, notes, residual, left = fit.coefficients, fit.notes, fit.residual, fit.residual_vector
    if callback.validate is not None and callback.best is not None:
        alpha, residual, left = callback.best, callback.best_residual, None
        notes += (f"coefficients with the smallest validation error, {callback.best_error:.4g}",)
    if not np.isfinite(alpha).all():
        raise ValueError("the iteration overflowed: rescale X or y, or use precision='float64'")
    if fit.centers is None and (problem.dtype == np.float32 or can_check(problem)):
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
        "centers": "K does not fit in memory, and the number of centers is the limit: use "
        "method=NystromCG(centers=…), increase memory=, or use all points with method='preconditioned_cg'",
    }.get(solution.stopped, rounding)
    return (
        f"{solution.method} stopped at an error of {solution.residual:.2g} after {solution.steps} steps, above the "
        f"tolerance {tolerance:.2g}: {remedy}"
    )
