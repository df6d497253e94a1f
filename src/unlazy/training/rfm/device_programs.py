"""The programs of kernel fits under a metric on an accelerator [D11].

A program is compiled on first use, which takes longer than many fits, so there are few of them: the kernels of `SHARED`
are branches of one program, and their metrics are square matrices, of which ProductLaplace takes the diagonal. XLA's
autotuning takes most of the time of compilation and does not make these programs faster, so it is off. `compile_ahead`
compiles programs that will be needed in threads, while others run.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from unlazy.core.arrays import dot, einsum, precision
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.agop import agop_blocks, gradient_blocks, gradient_formula, rows_per_block
from unlazy.products.metric_gram import Map
from unlazy.theory.dynamics.leave_one_out import with_intercept

R = TypeVar("R")
SHARED: tuple[ProductLaplace | Laplace | Gaussian, ...] = (ProductLaplace(1.0), Laplace(1.0), Gaussian(1.0))
"""Kernels that are branches of the same programs."""
COMPILER_OPTIONS = {"xla_gpu_autotune_level": 0}
COPIES = 4.3
"""Number of n × n matrices alive at once in a fit to n rows, in one allocation: XLA plans 4.25 on an H200."""
SLOPE_ROWS = 2048
"""Number of rows at which the gradients of a final fit are computed at a time."""
UNKNOWNS = 1200
"""Largest number of entries of L that change in one step; the directions of largest weight are chosen."""
BLOCK = 2**26
"""Number of array entries of the normal equations computed at a time."""
COMPILING_THREADS, MAX_PROGRAMS = 4, 64
"""Programs that are compiled at the same time, and that are kept."""
Shaped = Any
"""An array, or the shape of one in `compile_ahead`."""
_programs: OrderedDict[Hashable, Future] = OrderedDict()
_lock = threading.Lock()


class MappedKernel(NamedTuple):
    """The kernel k(Lx, Lz), as an argument of a program."""

    kernel: Kernel | None
    """None for a kernel of `SHARED`."""
    place: Shaped
    """Its place in `SHARED`."""
    map: Shaped
    """L, a vector or a matrix."""


def mapped_kernel(kernel: Kernel, L: Map, d: int) -> MappedKernel:
    """Return k(Lx, Lz) for d columns; all metrics of a kernel in `SHARED` share one compilation."""
    L = pad_map(L, d)
    for i, one in enumerate(SHARED):
        if type(kernel) is type(one) and np.ndim(kernel.bandwidth) == 0 and float(kernel.bandwidth) == 1:
            return MappedKernel(None, np.asarray(i), np.diag(L) if L.ndim == 1 else L)
    return MappedKernel(kernel, np.asarray(0), L)


def pad_map(L: np.ndarray, d: int) -> np.ndarray:
    """Put rows of zeros before those of a map, up to d, so that all metrics of a table share one compilation.

    Rows of zeros do not change inner products.
    """
    return L if L.ndim == 1 else pad_rows(L, d, front=True)


def pad_rows(A: np.ndarray, n: int, front: bool = False) -> np.ndarray:
    """Pad a matrix with rows of zeros, up to n rows."""
    zeros = np.zeros((max(0, n - len(A)), *A.shape[1:]), A.dtype)
    return np.concatenate([zeros, A] if front else [A, zeros]) if len(zeros) else A


def is_shared(kernel: Kernel) -> bool:
    """Return whether the kernel is a branch of the shared programs."""
    return mapped_kernel(kernel, np.ones(1), 1).kernel is None


def fit(
    kernel: MappedKernel, X: Float[Array, "n d"], Z: Float[Array, "r d"], Y: Float[np.ndarray, "n c"],
    relative_ridge: float, weights: Float[np.ndarray, " n"] | None,
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"], Float[np.ndarray, "r c"], float]:  # fmt: skip
    """Return coefficients, intercept, predictions of Z and the ridge; NaN unless K + ρW⁻¹ is positive definite."""
    alpha, b, predicted, ridge = _run(_fit, kernel, X, Z, Y, relative_ridge, _row_weights(weights))
    return np.asarray(alpha), np.asarray(b), np.asarray(predicted), float(ridge)


def coefficients(
    kernel: MappedKernel, X: Float[np.ndarray, "n d"], Y: Float[np.ndarray, "n c"], relative_ridge: float,
    weights: Float[np.ndarray, " n"] | None,
) -> tuple[Float[np.ndarray, "n c"], Float[np.ndarray, " c"], float]:  # fmt: skip
    """Return coefficients, intercept and the ridge; NaN unless K + ρW⁻¹ is positive definite."""
    alpha, b, ridge = _run(_coefficients, kernel, X, Y, relative_ridge, _row_weights(weights))
    return np.asarray(alpha), np.asarray(b), float(ridge)


def agop(
    kernel: MappedKernel, Z: Float[np.ndarray, "p d"], X: Float[Array | np.ndarray, "n d"],
    alpha: Float[np.ndarray, "n c"],
) -> Float[np.ndarray, "d d"]:  # fmt: skip
    """Return the average gradient outer product of Σ_i α_i k(x, x_i) over the rows of Z."""
    rows = rows_per_block(len(Z), X.shape, alpha.shape[1])
    return np.asarray(_run(_agop, kernel, Z, X, alpha, rows=rows))


class Gradients(NamedTuple):
    """A fit Σ_i α_i k(x, x_i) whose gradients at the rows of Z a program computes."""

    kernel: MappedKernel
    Z: Shaped
    X: Shaped
    alpha: Shaped
    bandwidth: Shaped
    """h, by which L is divided."""


def slopes(fit: Gradients, dtype: str) -> Float[np.ndarray, "p c r"]:
    """Return the derivatives along Lx, summed in the given precision.

    They are computed SLOPE_ROWS at a time, so that any number of rows, such as those of each leaf, shares one program.
    """
    with precision("float64"):
        fixed = jax.device_put(fit._replace(Z=None))
    (n, d), c, found = fit.X.shape, fit.alpha.shape[1], []
    options = _slope_options(n, d, c, dtype)
    for start in range(0, len(fit.Z), SLOPE_ROWS):
        Z = fit.Z[start : start + SLOPE_ROWS]
        part = _run(_slopes, fixed._replace(Z=pad_rows(Z, SLOPE_ROWS)), **options)
        found.append(np.asarray(part, np.float64)[: len(Z)])
    return np.concatenate(found)


def _slope_options(n: int, d: int, c: int, dtype: str) -> dict[str, Any]:
    return {"rows": rows_per_block(SLOPE_ROWS, (n, d), c), "dtype": dtype}


def rotation_equations(
    G: Float[np.ndarray, "p c r"] | Gradients, Z: Float[np.ndarray, "p d"], R: Float[np.ndarray, "p c"],
    weights: Float[np.ndarray, " p"], free: int, width: int | None,
) -> tuple[Float[np.ndarray, "u u"], Float[np.ndarray, " u"]]:  # fmt: skip
    """Return FᵀWF and FᵀWr for F_((i,c),(k,j)) = g_ick z_ij, where k are the last `free` directions.

    One program computes them for the last `width` ≥ `free` directions; without `width` the map is diagonal, and
    F_((i,c),j) = g_icj z_ij. If G has more rows than the other arrays, they do not count.
    """
    if isinstance(G, Gradients):
        Z, R, weights = (pad_rows(A, len(G.Z)) for A in (Z, R, weights))
    if width is None:
        A, b = _run(_diagonal_equations, G, Z, R, weights)
        return np.array(A), np.array(b)
    d, options = Z.shape[1], _block_options(len(Z), Z.shape[1], R.shape[1], width)
    A, b = (np.asarray(a) for a in _run(_equations, G, Z, R, weights, **options))
    # copies: arrays of JAX are read-only
    return np.array(A[-free:, -free:].transpose(0, 2, 1, 3)).reshape(free * d, free * d), np.array(b[-free:]).reshape(
        -1
    )


def _block_options(n: int, d: int, c: int, width: int) -> dict[str, int]:
    return {"width": width, "rows": max(1, min(n, BLOCK // max(d * d, c * d, width**2)))}


def _row_weights(weights: np.ndarray | None) -> np.ndarray:
    return np.ones(1) if weights is None else weights


def compile_ahead(
    n: int,
    sizes: list[int],
    n_validation: int,
    d: int,
    c: int,
    *,
    weighted: bool,
    leaves: bool,
    gradient_rows: tuple[int, int] | None,
) -> None:
    """Start to compile the programs of fits with a kernel of `SHARED`, in the order in which they will be needed.

    Parameters
    ----------
    n : int
        Number of rows of the last fit, or of each leaf.
    sizes : list of int
        Numbers of training rows of the fits; the last is the capacity of the programs for gradients.
    n_validation, d, c : int
        Number of validation rows, columns and outputs.
    weighted : bool
        Whether rows have weights.
    leaves : bool
        Whether the last fits are those of leaves, from whose gradients the metric is updated further.
    gradient_rows : (int, int) or None
        Most rows of gradients and of rotations; None if the metric is not learned.
    """

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.float64)

    def row_weights(m: int) -> jax.ShapeDtypeStruct:
        return array(m if weighted else 1)

    with precision("float64"):
        kernel = MappedKernel(None, jax.ShapeDtypeStruct((), np.int64), array(d, d))
        for m in sizes:
            fits = (kernel, array(m, d), array(n_validation, d), array(m, c), array(), row_weights(m))
            _executable(_fit, fits, {}, ahead=True)
            if gradient_rows is not None and m == sizes[0]:
                most, rotated = (min(sizes[-1], rows) for rows in gradient_rows)
                centers, alpha, rows = array(sizes[-1], d), array(sizes[-1], c), min(m, most)
                args = (kernel, array(rows, d), centers, alpha)
                _executable(_agop, args, {"rows": rows_per_block(rows, centers.shape, c)}, ahead=True)
                gradients = Gradients(kernel, array(rotated, d), centers, alpha, array())
                width = max(1, min(d, UNKNOWNS // d))
                equations = (gradients, array(rotated, d), array(rotated, c), array(rotated))
                _executable(_equations, equations, _block_options(rotated, d, c, width), ahead=True)
        if gradient_rows is not None:
            _executable(_diagonal_equations, equations, {}, ahead=True)
        _executable(_coefficients, (kernel, array(n, d), array(n, c), array(), row_weights(n)), {}, ahead=True)
        if leaves and gradient_rows is not None:
            last = (Gradients(kernel, array(SLOPE_ROWS, d), array(n, d), array(n, c), array()),)
            _executable(_slopes, last, _slope_options(n, d, c, "float32"), ahead=True)


def _run(program: Any, *args: Any, **options: Any) -> Any:
    args = jax.tree.map(lambda a: a if isinstance(a, jax.Array) else np.asarray(a), args)
    with precision("float64"):
        return _executable(program, args, options).result()(*args)


def _executable(program: Any, args: tuple, options: dict[str, Any], ahead: bool = False) -> Future:
    """The compiled program for arguments of these shapes; one thread compiles it, and others wait."""
    leaves, tree = jax.tree.flatten(args)
    key = (program, tree, tuple((a.shape, np.dtype(a.dtype)) for a in leaves), tuple(sorted(options.items())))
    with _lock:
        future = _programs.get(key)
        if known := future is not None:
            _programs.move_to_end(key)
        else:
            future = _programs[key] = Future()
        while len(_programs) > MAX_PROGRAMS:
            _programs.popitem(last=False)
    if not known:
        given = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args)
        trace = partial(_settle, future, key, partial(program.lower, *given, **options))
        if ahead:  # one thread traces, which Python does one at a time, in the given order; others compile
            _tracer().submit(trace, _compilers().submit)
        else:
            trace(lambda task: task())
    return future


@cache
def _tracer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "trace")


@cache
def _compilers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(COMPILING_THREADS, "compile")


def _settle(
    future: Future, key: Hashable, trace: Callable[[], Any], start: Callable[[Callable[[], None]], object]
) -> None:
    """Trace a program, and start the task that compiles it and sets the future."""

    def compile_it() -> None:
        try:
            with precision("float64"):
                future.set_result(lowered.compile())
        except BaseException as problem:
            fail(problem)

    def fail(problem: BaseException) -> None:
        with _lock:
            _programs.pop(key, None)
        future.set_exception(problem)

    try:
        with precision("float64"):
            lowered = trace()
    except BaseException as problem:
        fail(problem)
    else:
        start(compile_it)


def _apply(f: Callable[..., R], kernel: MappedKernel, *args: Array) -> R:
    """f(k, ...) for the kernel k(Lx, Lz)."""
    if kernel.kernel is not None:
        return f(apply_metric(kernel.kernel, kernel.map), *args)

    def branch(one: Kernel, *args: Array) -> R:
        L = jnp.diagonal(kernel.map) if isinstance(one, ProductLaplace) else kernel.map
        return f(apply_metric(one, L), *args)

    return jax.lax.switch(kernel.place, [partial(branch, one) for one in SHARED], *args)


_program = partial(jax.jit, compiler_options=COMPILER_OPTIONS)


@_program
def _fit(
    kernel: MappedKernel, X: Array, Z: Array, Y: Array, relative_ridge: Array, weights: Array
) -> tuple[Array, ...]:
    def fit(kernel: Kernel, X: Array, Z: Array, *rest: Array) -> tuple[Array, ...]:
        alpha, b, ridge = _solve(kernel, X, *rest)
        return alpha, b, dot(kernel.gram(Z, X), alpha) + b, ridge

    return _apply(fit, kernel, X, Z, Y, relative_ridge, weights)


@_program
def _coefficients(kernel: MappedKernel, X: Array, Y: Array, relative_ridge: Array, weights: Array) -> tuple[Array, ...]:
    return _apply(_solve, kernel, X, Y, relative_ridge, weights)


def _solve(kernel: Kernel, X: Array, Y: Array, relative_ridge: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Return coefficients, intercept and the ridge."""
    K = kernel.gram(X)
    ridge = relative_ridge * jnp.mean(jnp.diagonal(K))
    at = jnp.arange(len(X))
    # K is symmetric: jnp.linalg.cholesky would average it with its transpose
    factor = jax.lax.linalg.cholesky(K.at[at, at].add(ridge / weights), symmetrize_input=False)
    center = dot(weights, Y) / weights.sum() if weights.size > 1 else Y.mean(0)
    solved = cho_solve((factor, True), jnp.concatenate([Y - center, jnp.ones((len(Y), 1))], 1))
    alpha, shift = with_intercept(solved[:, :-1], solved[:, -1])
    return alpha, center + shift, ridge


@partial(_program, static_argnames="rows")
def _agop(kernel: MappedKernel, Z: Array, X: Array, alpha: Array, rows: int) -> Array:
    return _apply(lambda k, *args: agop_blocks(gradient_formula(k), *args, None, rows), kernel, Z, X, alpha)


@partial(_program, static_argnames=("rows", "dtype"))
def _slopes(fit: Gradients, rows: int, dtype: str) -> Array:
    return _slopes_along_map(fit, rows, dtype)


def _slopes_along_map(fit: Gradients, rows: int, dtype: str = "float64") -> Array:
    """The derivatives along Lx: those along Lx/h, divided by h."""
    L = fit.kernel.map
    left, right = ((A * L if L.ndim == 1 else dot(A, L.T)).astype(dtype) for A in (fit.Z, fit.X))
    identity = jnp.ones(left.shape[1], dtype) if L.ndim == 1 else jnp.eye(left.shape[1], dtype=dtype)
    kernel, alpha = fit.kernel._replace(map=identity), fit.alpha.astype(dtype)
    found = _apply(lambda k, *args: gradient_blocks(gradient_formula(k), *args, rows), kernel, left, right, alpha)
    return found / fit.bandwidth


def _weighted(G: Array | Gradients, R: Array, weights: Array) -> tuple[Array, Array]:
    if isinstance(G, Gradients):
        slopes = _slopes_along_map(G, rows_per_block(len(G.Z), G.X.shape, G.alpha.shape[1]))
    else:
        slopes = G
    root = jnp.sqrt(weights)[:, None]
    return slopes * root[:, :, None], R * root


@_program
def _diagonal_equations(G: Array | Gradients, Z: Array, R: Array, weights: Array) -> tuple[Array, Array]:
    G, R = _weighted(G, R, weights)
    F = (G * Z[:, None]).reshape(-1, Z.shape[1])
    return dot(F.T, F), dot(F.T, R.reshape(-1))


@partial(_program, static_argnames=("width", "rows"))
def _equations(G: Array | Gradients, Z: Array, R: Array, weights: Array, width: int, rows: int) -> tuple[Array, Array]:
    """A_(kl)(jm) = Σ_i w_i (Σ_c g_ick g_icl) z_ij z_im in blocks of rows: the sum over outputs is taken first."""
    G, R = _weighted(G, R, weights)
    n, _, f = G.shape
    G = jnp.pad(G, ((0, 0), (0, 0), (max(0, width - f), 0)))[:, :, -width:]
    d = Z.shape[1]

    def add(i: Array, total: Array) -> Array:
        start = jnp.minimum(i * rows, n - rows)
        fresh = (start + jnp.arange(rows) >= i * rows)[:, None, None]  # the last block overlaps the one before
        g = jnp.where(fresh, jax.lax.dynamic_slice_in_dim(G, start, rows), 0)
        z = jax.lax.dynamic_slice_in_dim(Z, start, rows)
        pairs = einsum("icf,icg->ifg", g, g).reshape(rows, width**2)
        return total + dot(pairs.T, (z[:, :, None] * z[:, None]).reshape(rows, d * d))

    A = jax.lax.fori_loop(0, math.ceil(n / rows), add, jnp.zeros((width**2, d * d), G.dtype))
    return A.reshape(width, width, d, d), dot(einsum("icf,ic->if", G, R).T, Z)
