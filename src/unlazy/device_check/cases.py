"""Cases of the device check. Each runs a public function and compares a sample of rows with float64."""

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core import devices
from unlazy.core.arrays import dot, precision
from unlazy.core.reference import UNIT, UNITS, error, float64_gram, product_bound
from unlazy.device_check.compositions import CONV, VECTORS, points
from unlazy.device_check.reference_kernels import GRAMS
from unlazy.estimators.feature_machine.machines import FeatureMachineRegressor
from unlazy.kernels.base import Kernel
from unlazy.kernels.conv_gpu import dispatch
from unlazy.kernels.networks.flips import with_flips
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.layers import Conv, Dense, GlobalAvgPool, Layer, Shape, myrtle, serial
from unlazy.layers.protocol import covariance
from unlazy.products import agop, product
from unlazy.products.engines.base import FusedOperator
from unlazy.solvers.method_selection import NystromCG
from unlazy.solvers.solve import solve
from unlazy.training.options import RFMOptions
from unlazy.training.rfm.rfm import recursive_features

SAMPLE = 64
"""Rows of a product that are compared."""
SCALES = {"near": 0.01, "far": 30.0}
"""Factors of points that are near each other, and many bandwidths apart."""
TOLERANCE = 1e-4
"""Tolerance of solvers, and so the bound of their errors."""
GRADIENT_BOUND = 1e-4
"""Bound of the error of an AGOP relative to its largest entry: twice that of gradients, which are sums of 300 terms
(`product_bound`, 8e-6); cancellation loses at most six times as much."""
REPEATS = 3
"""Timed repetitions, of which the fastest counts."""


class Measured(NamedTuple):
    """Outcome of a case.

    `programs` are the names of verdicts that it concerns, such as "mosaic GaussianForm"; `seconds` and `xla_seconds`
    the times of the chosen and of the plain XLA program, if they were measured; `problem` is the exception, if any.
    """

    engine: str
    error: float
    bound: float
    programs: tuple[str, ...] = ()
    seconds: float | None = None
    xla_seconds: float | None = None
    problem: str = ""


class Case(NamedTuple):
    """A named comparison."""

    name: str
    run: Callable[[], Measured]
    timed: bool = False
    """Whether it measures times, so that nothing may run beside it."""


def all_cases() -> Iterator[Case]:
    """Every case for this device, the most important first."""
    on_gpu = not devices.is_host()
    n, m = (16_384, 65_536) if on_gpu else (2_000, 2_000)
    common = ("gaussian", "laplace", "ntk", "ntk_biases")
    for name in common:
        yield Case(f"{name} 70 × 300", partial(multiply, name))
    for name in ("gaussian", "laplace"):
        for where, scale in SCALES.items():
            yield Case(f"{name} 70 × 300, {where} points", partial(multiply, name, scale=scale))
    yield Case("laplace 70 × 300, far from 0", partial(multiply, "laplace", offset=100.0))
    yield Case("laplace 70 × 300, float64", partial(multiply, "laplace", dtype="float64"))
    yield Case("laplace 300 × 300, 20 products", partial(multiply, "laplace", (300, 300), passes=20))
    for name in common:
        yield Case(f"{name} {n} × {m}", partial(multiply, name, (n, m), timed=True), timed=True)
    yield from _images(on_gpu)
    yield from _fits()
    for name, columns in (("gaussian", 8), ("ntk_biases", 8), ("gaussian", 20), ("sum", 3)):
        yield Case(f"{name} 70 × 300, {columns} columns", partial(multiply, name, columns=columns))
    for name in sorted({*GRAMS} - {*common}):
        yield Case(f"{name} 70 × 300", partial(multiply, name))
    for where, scale in SCALES.items():
        yield Case(f"matern 70 × 300, {where} points", partial(multiply, "matern", scale=scale))
    for name, d in (("gaussian", 200), ("laplace", 100), ("ntk", 200)):
        yield Case(f"{name} 70 × 300, d = {d}", partial(multiply, name, d=d))


def multiply(
    name: str, shape: tuple[int, int] = (70, 300), *, d: int = 20, columns: int = 1, scale: float = 1.0,
    offset: float = 0.0, passes: int = 1, dtype: str = "float32", timed: bool = False,
) -> Measured:  # fmt: skip
    """K(X, Z) @ V for a K of this shape, with the engine of choice."""
    n, m = shape
    X, Z = (scale * points(rows, seed=seed, d=d) + np.float32(offset) for rows, seed in ((n, 0), (m, 1)))
    Z[:SAMPLE] = X[:SAMPLE]
    V = np.random.default_rng(2).uniform(0.5, 1.5, size=(m, columns)).astype(np.float32)
    kernel, rows = VECTORS[name](), np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)
    K = GRAMS[name](X[rows].astype(np.float64), Z.astype(np.float64))
    wanted, size = np.matmul(K, V.astype(np.float64)), float(np.matmul(np.abs(K), V).max())
    with precision(dtype):
        X, Z, V = (A.astype(dtype) for A in (X, Z, V))
        operator = product(kernel, X, Z, passes=passes)
        engine, programs = _fused(operator, columns) if isinstance(operator, FusedOperator) else (operator.engine, ())
        bound = product_bound(m, operator.engine == "fused") * (1 if dtype == "float32" else 2.0**-29)
        plain = product(kernel, X, Z, engine="blocked") if timed else None
        return _compare(
            engine, bound, programs, lambda: error(np.asarray(operator.matmul(V))[rows], wanted, size),
            (lambda: operator.matmul(V)) if timed else None,
            None if plain is None or engine == "blocked" else lambda: plain.matmul(V),
        )  # fmt: skip


def _compare(
    engine: str, bound: float, programs: tuple[str, ...], deviation: Callable[[], float],
    run: Callable[[], Any] | None = None, run_plain: Callable[[], Any] | None = None,
) -> Measured:  # fmt: skip
    """The error of a program and its time beside plain XLA; an exception is a failure of that program."""
    try:
        off = deviation()
        seconds, plain_seconds = (None if timed is None else _seconds(timed) for timed in (run, run_plain))
    except Exception as problem:
        return Measured(engine, math.inf, bound, programs, problem=describe(problem))
    return Measured(engine, off, bound, programs, seconds, plain_seconds)


def describe(problem: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:200]


def _fused(operator: FusedOperator, columns: int) -> tuple[str, tuple[str, ...]]:
    """Name of the fused program, and of its verdict."""
    from unlazy.products.fused import first_check, fused_product

    engine = fused_product.engine_of(operator.left, columns)
    return engine, (f"{engine} {first_check.family(operator.left.form).__name__}",)


def _seconds(run: Callable[[], Any]) -> float:
    """Time of the fastest of several runs, after one that compiles."""
    jax.block_until_ready(run())
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - start)
    return min(found)


def _images(on_gpu: bool) -> Iterator[Case]:
    """On Hopper GPUs 8 pixels run in one program, 4 in the other, and myrtle in both."""
    one_stage = serial(Conv(3), "relu", GlobalAvgPool(), Dense())
    yield Case("conv NNGP, 8 × 8 pixels", partial(convolve, NNGP, one_stage, 8, 9, 12))
    yield Case("flips of conv NTK, 8 × 8 pixels", partial(convolve, NTK, one_stage, 8, 20, 20, flips=True))
    if on_gpu:
        yield Case("conv NNGP, 4 × 4 pixels", partial(convolve, NNGP, one_stage, 4, 9, 12))
        yield Case("conv NTK, 4 × 4 pixels", partial(convolve, NTK, one_stage, 4, 9, 12))
        yield Case("flips of conv NNGP, 16 × 16 pixels", partial(convolve, NNGP, CONV, 16, 33, 33, flips=True))
        yield Case("myrtle NTK, 8 × 8 pixels", partial(convolve, NTK, myrtle(5), 8, 9, 33))
        myrtle_nngp = partial(convolve, NNGP, myrtle(5), 32, 32, 32, rows=2, timed=True)
        yield Case("myrtle NNGP, 32 × 32 pixels", myrtle_nngp, timed=True)


def convolve(
    make: type[NNGP] | type[NTK], network: Layer, size: int, n: int, m: int, *, flips: bool = False,
    rows: int = 4, timed: bool = False,
) -> Measured:  # fmt: skip
    """K(X, Z) of a convolutional network, or K(X, X) with flips."""
    X, Z = points(n, images=True, size=size), points(m, images=True, seed=1, size=size)
    kernel: Kernel = make(network)
    tangent = make is NTK
    plan = dispatch.plan_for(network, jnp.asarray(X), tangent)
    case = "NTK" if tangent else "NNGP"
    by_warps, by_threads = plan is not None and plan.warps > 0, plan is not None and plan.warps < len(plan.stages)
    engines = ["conv_mosaic"] * by_warps + ["conv_triton"] * by_threads
    kernel, Z = (with_flips(kernel), X) if flips else (kernel, Z)
    sample = np.linspace(0, n - 1, rows).astype(int)
    few = np.linspace(0, m - 1, 2).astype(int) if size > 16 else np.arange(m)
    wanted = float64_gram(kernel, X[sample], Z[few])

    def run() -> Any:
        return kernel.gram(X) if flips else kernel.gram(X, Z)

    return _compare(
        " + ".join(engines) or "blocked", UNITS * UNIT, tuple(f"{engine} {case}" for engine in engines),
        lambda: error(np.asarray(run())[np.ix_(sample, few)], wanted), run if timed else None,
        partial(_plain_convolution, network, X, Z, tangent) if timed and plan is not None else None,
    )  # fmt: skip


def _plain_convolution(network: Layer, X: np.ndarray, Z: np.ndarray, tangent: bool) -> Any:
    """Σ and Θ by XLA, a few images at a time."""
    grid = covariance.grid_of(network, Shape(X.shape[1:-1], X.shape[-1]))
    return [_plain_block(network, X[i : i + 2], Z, grid, tangent) for i in range(0, len(X), 2)]


@partial(jax.jit, static_argnames=("grid", "tangent"))
def _plain_block(network: Layer, X: Any, Z: Any, grid: Any, tangent: bool) -> Any:
    point = partial(covariance.point_covariances, network, tangent=tangent)
    left, right = (jax.vmap(lambda x: point(x, None))(A) for A in (X, Z))
    return covariance.of_block(network, left, right, grid, tangent)


def _fits() -> Iterator[Case]:
    for method in ("direct", "preconditioned_cg", "nystrom_cg"):
        yield Case(f"solve, {method}", partial(regress, method))
    for name in ("laplace", "ntk_biases"):
        yield Case(f"AGOP, {name}", partial(gradients, name))
    yield Case("recursive features", metric_update)
    yield Case("feature machine", machine)


def _labels(X: np.ndarray) -> np.ndarray:
    return np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2]


def regress(method: str) -> Measured:
    """Predictions of ridge regression at the training points against NumPy's solution."""
    X = points(500, d=5)
    y, kernel, ridge = _labels(X), Laplace(3.0), 0.1
    with_centers = method == "nystrom_cg"
    chosen = NystromCG(centers=100) if with_centers else method
    solution = solve(kernel, X, y, ridge, method=chosen, tolerance=TOLERANCE)
    K = float64_gram(kernel, X, np.asarray(solution.centers))
    if with_centers:  # min ‖K a - y‖² + ridge aᵀ K_centers a
        K_centers = float64_gram(kernel, np.asarray(solution.centers))
        normal = np.matmul(K.T, K) + ridge * K_centers
        wanted = np.dot(K, np.linalg.lstsq(normal, np.dot(K.T, y), rcond=None)[0])
    else:
        wanted = np.dot(K, np.linalg.solve(K + ridge * np.eye(len(X)), y))
    found = np.asarray(solution.predict(X), np.float64)
    return Measured(method, float(np.linalg.norm(found - wanted) / np.linalg.norm(y)), TOLERANCE)


def gradients(name: str) -> Measured:
    """AGOP of a predictor against central differences of the formula in NumPy."""
    X, Z = points(200), points(300, seed=1)
    V = np.random.default_rng(2).uniform(0.5, 1.5, size=300).astype(np.float32)
    exact, centers, step = X.astype(np.float64), Z.astype(np.float64), 1e-4
    shifts = step * np.eye(X.shape[1])
    changes = (GRAMS[name](exact + s, centers) - GRAMS[name](exact - s, centers) for s in shifts)
    G = np.stack([np.dot(change, V) for change in changes], 1)
    wanted = np.matmul(G.T, G) / (4 * step**2 * len(X))
    return _compare("agop", GRADIENT_BOUND, (), lambda: error(agop(VECTORS[name](), X, Z, V), wanted))


def metric_update() -> Measured:
    """Fit and M after one update of a recursive feature machine with the Gaussian kernel, against NumPy."""
    X = points(200, d=5).astype(np.float64)
    options = RFMOptions(relative_bandwidth=1.0, method="preconditioned_cg", tolerance=1e-6)
    fit = recursive_features(Gaussian(1.0), X, _labels(X), updates=1, relative_ridge=1e-2, options=options)
    first, second = fit.iterates
    M = np.asarray(first.matrix) / first.bandwidth**2
    difference = X[:, None] - X[None]
    K = np.exp(-0.5 * np.einsum("ijk,kl,ijl->ij", difference, M, difference))
    alpha, intercept = _with_intercept(K, 1e-2, _labels(X))
    G = -np.einsum("ij,j,ijk->ik", K, alpha, dot(difference, M))
    wanted = np.matmul(G.T, G)
    off = error(second.matrix, wanted / np.trace(wanted))
    fitted = error(np.dot(K, first.alpha[:, 0]) + first.intercept, np.dot(K, alpha) + intercept)
    return Measured("recursive_features", max(off, fitted), TOLERANCE)


def machine() -> Measured:
    """Predictions of a feature machine against NumPy, for the metric, bandwidth and ridge that it chose."""
    X, Z = points(200, d=5).astype(np.float64), points(SAMPLE, seed=1, d=5).astype(np.float64)
    fit = FeatureMachineRegressor(
        kernel="gaussian", metric="full", updates=1, iterate="last", categorical=(), robust=False, average=False,
        relative_bandwidth=1.0, relative_ridge=1e-2, precision="float32",
    ).fit(X, _labels(X))  # fmt: skip
    F, G = (
        np.dot(np.asarray(fit.standardized(A), np.float64), np.asarray(fit.map_).T) / fit.bandwidth_ for A in (X, Z)
    )
    K, K_new = (np.exp(-0.5 * ((A[:, None] - F[None]) ** 2).sum(-1)) for A in (F, G))
    alpha, intercept = _with_intercept(K, float(fit.ridge_), _labels(X))
    return Measured(fit.solver_, error(fit.predict(Z), np.dot(K_new, alpha) + intercept), TOLERANCE)


def _with_intercept(K: np.ndarray, ridge: float, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Coefficients and intercept of ridge regression, by NumPy: (K + ridge I) α + b = y, Σα = 0."""
    ones = np.ones((len(K), 1))
    border = np.block([[K + ridge * np.eye(len(K)), ones], [ones.T, np.zeros((1, 1))]])
    found = np.linalg.solve(border, np.append(y, 0.0))
    return found[:-1], found[-1]
