"""The final fit, to all rows.

One factorization if it fits into memory; beyond, the leaves of a partition or an iterative solution, whichever predicts
held-out rows better, or neither if the fit to fewer rows is better still.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.arrays import dot, precision, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.progress import ProgressOption
from unlazy.estimators.base import TrainingData, map_blocks
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.held_out import SingleSplit, significantly_worse
from unlazy.estimators.feature_search.stage_checkpoints import Stages, checkpointable
from unlazy.estimators.feature_search.successive_halving import (
    HalvingCandidate,
    HalvingResult,
    max_exact_rows,
    stage_sizes,
    tune,
)
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.kernels.row_weights import Weighted
from unlazy.products.engines.numpy_engine import ENTRIES
from unlazy.products.metric_gram import Map, cross, metric_gram
from unlazy.products.multiply import Job, cheapest
from unlazy.solvers.method_selection import FLOAT32_RIDGE_ROUNDINGS, GPU_RECOMPUTE_MAX_N, NystromCG
from unlazy.solvers.ridge import BandwidthAndRidge, unexplained_variance, weighted_mean
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.rfm.device_programs import pad_map
from unlazy.training.rfm.iteration import (
    free_directions,
    leading_directions,
    metric_of_map,
    metric_power,
    metric_root,
    normalize_metric,
    rotate_directions,
)
from unlazy.training.rfm.partition import Tree, partition
from unlazy.training.rfm.split_fits import exact_fit, slopes

SAMPLE = 1200
"""Number of rows whose distances give the default bandwidth."""
MAX_HIDDEN_RIDGE = 1e-6
"""Rounding cannot hide relative ridges above this: n·2⁻⁵³·‖K‖ is below it for 60,000 rows."""
SAME_SIZE_SHARE = 0.8
"""Choices made on this share of the rows are not repeated on all rows."""
GRADIENT_ROWS = 2000
"""Number of rows over which gradients are averaged."""
IMPORTANCE_ROWS = 300
"""The same for feature importances."""
ROTATION_ROWS, ROTATION_ROWS_DEVICE = 20_000, 60_000
"""Number of rows whose residuals rotate directions, on the host and on an accelerator."""
ROTATION_ROWS_FEW_UNKNOWNS, FEW_UNKNOWNS = 100_000, 200
"""Number of rows on the host for at most this many unknowns; fewer rows for more, never below ROTATION_ROWS."""
MAX_ROUNDING = 0.01
"""Largest rounding error of sums in float32, in units of the standard deviation of the labels."""
MANY_LEAVES, TRIAL_LEAVES = 16, 4
"""Beyond this number of leaves, a few of them are tried before all are fitted."""
FEW_LEAVES = 5
"""Up to this number of leaves, a partition is not tried if one fit of all rows is better than that of fewer rows."""
CENTERS = 32_768
"""Number of centers of an iterative solution on an accelerator, if K is too large to be recomputed in each pass."""
MAX_PASSES = 50
"""Largest number of passes over the data with such centers.

A pass takes a second for a few million rows, and validation rows show the quality of the solution.
"""


@checkpointable
class KernelModel(NamedTuple):
    """f(x) = b + Σ_i α_i k(x, x_i), or one such sum for each leaf of a tree."""

    centers: Float[np.ndarray, "n d"] | Float[np.ndarray, "l m d"]
    alpha: Float[np.ndarray, "n c"] | Float[np.ndarray, "l m c"]
    intercept: Float[np.ndarray, " c"] | Float[np.ndarray, "l c"]
    tree: Tree | None
    solver: str
    ridge: float
    converged: bool = True


class FinalFitProblem(NamedTuple):
    """A kernel under its metric at one bandwidth, and the ridge."""

    choice: HalvingCandidate
    map: np.ndarray
    bandwidth: float
    tolerance: float
    key: PRNGKeyArray
    progress: ProgressOption

    @property
    def kernel(self) -> Kernel:
        """The kernel k(Lx/h, Lz/h)."""
        return apply_metric(self.choice.candidate.kernel, self.map / self.bandwidth)

    def predict(self, model: "KernelModel", Z: Float[np.ndarray, "rows d"]) -> Float[np.ndarray, "rows c"]:
        """Evaluate a model under this kernel."""
        return predict_rows(self.choice.candidate.kernel, self.map, self.bandwidth, model, Z)

    @property
    def relative_ridge(self) -> float:
        """Ridge as a multiple of k(x, x)."""
        return self.choice.scored.place[1]


def fit_all_rows(
    found: HalvingResult, data: TrainingData, fixed: tuple[float | None, float | None], tolerance: float,
    key: PRNGKeyArray, progress: ProgressOption, stages: Stages | None = None,
) -> tuple[KernelModel, FinalFitProblem, HalvingCandidate]:  # fmt: skip
    """Fit all rows; return the model, its problem and the candidate with its score.

    `fixed` are a bandwidth and a ridge that must not be tuned. Each fit and choice is one of the `stages`.
    """
    limit, stages = max_exact_rows(), stages or Stages()

    def problem(choice: HalvingCandidate) -> FinalFitProblem:
        L = metric_root(choice.metric)
        usual = metric_gram(
            choice.candidate.kernel, data.X[evenly_spaced_rows(len(data.X), SAMPLE)], L
        ).default_bandwidth
        return FinalFitProblem(choice, L, choice.scored.place[0] * usual, tolerance, key, progress)

    first = problem(found.best)
    fits_in_memory = len(data.X) <= limit
    if fits_in_memory and (not found.best.updates or found.best.rows >= SAME_SIZE_SHARE * len(found.training.X)):
        return _fit_exact(first, data), first, found.best
    if (
        (fits_in_memory or devices.is_host())
        and found.best.updates
        and constants.ROTATIONS_PER_SIZE
        and not found.best.rotations
    ):
        # more rows than in the last stage: try rotation once more
        first = problem(found.best._replace(rotations=(constants.LEADING_SHARE,)))
    best, model, used = first.choice, None, first
    fit_method: Callable[[FinalFitProblem, TrainingData], KernelModel | None] = _fit_exact
    many = len(data.X) > MANY_LEAVES * limit
    for i, make in enumerate([_fit_exact] if fits_in_memory else _fit_methods(first, many)):
        if make is _fit_partition and many and model is not None and not _partition_is_promising(first, found, best):
            continue
        scored = stages(f"last fit {i}", functools.partial(_fit_and_score, make, first, found))
        if scored is not None and not significantly_worse(scored[0].scored, best.scored, found.validation):
            best, model, fit_method = *scored, make
        if devices.is_host() and model is not None and len(data.X) <= FEW_LEAVES * limit:
            break  # one fit of all rows is better than a few leaves
    place = best.scored.place
    for i in range(constants.UPDATES_PER_SIZE if best.updates else 0):  # a helpful metric is learned from all rows
        if model is None:
            break
        metric = stages(f"metric {i}", functools.partial(_next_metric, model, used, found.training))
        sharper = best._replace(metric=metric, updates=best.updates + 1)
        tried = problem(sharper._replace(scored=best.scored._replace(place=place)))
        scored = stages(f"update {i}", functools.partial(_fit_and_score, fit_method, tried, found))
        if scored is None or significantly_worse(scored[0].scored, best.scored, found.validation):
            break
        gain = scored[0].error / best.error if best.error > 0 else 1.0
        best, model, used = *scored, tried
        if gain > constants.WORTH_ANOTHER_UPDATE:
            break
        if gain < constants.RETUNE_FACTOR:  # a much better metric needs another bandwidth and ridge
            place = stages(f"place {i}", functools.partial(_retune, best, found, fixed))
    if model is None:
        return _fit_exact(first, data if fits_in_memory else found.training.rows(slice(limit))), first, found.best
    few = not fits_in_memory and len(found.validation.X) <= 0.1 * len(
        data.X
    )  # leaving them out is cheaper than another fit
    return model if few else (stages("all rows", functools.partial(fit_method, used, data)) or model), used, best


def _retune(
    choice: HalvingCandidate, found: HalvingResult, fixed: tuple[float | None, float | None]
) -> BandwidthAndRidge:
    """Tune bandwidth and ridge for this metric on the number of rows of the last stage."""
    *_, size = stage_sizes(len(found.training.X))
    evidence = SingleSplit(found.training.rows(slice(size)), found.validation)
    views = evidence.views(choice.candidate.kernel, [choice.metric])
    here = choice._replace(scored=evidence.score(views, choice.scored.place))
    return tune(here, evidence, views, *fixed).scored.place


def _fit_methods(
    problem: FinalFitProblem, many: bool
) -> list[Callable[[FinalFitProblem, TrainingData], KernelModel | None]]:
    """Methods for more rows than one factorization can hold, the fastest first; `many` leaves are slow."""
    if devices.is_host() or (many and problem.kernel.formula is not None):
        return [_fit_iterative, _fit_partition]
    soft = problem.relative_ridge >= constants.MIN_ITERATIVE_RIDGE and problem.kernel.formula is not None
    return [_fit_partition, _fit_iterative] if soft else [_fit_partition]


def predict_rows(
    kernel: Kernel, L: Map, h: float, model: KernelModel, Z: Float[np.ndarray, "rows d"], dtype: np.dtype | None = None
) -> Float[np.ndarray, "rows c"]:
    """Evaluate a model at the rows of Z, mapped to Lx/h."""
    dtype = np.dtype("float64") if dtype is None else dtype
    with precision(dtype.name):
        Z, L = Z.astype(dtype, copy=False), L.astype(dtype, copy=False)
        centers, alphas, b = (np.asarray(a, dtype) for a in model[:3])
        if model.tree is None:
            return _kernel_sums(kernel, L, h, Z, centers, alphas) + b
        leaf = model.tree.leaf(Z)
        found = np.empty((len(Z), b.shape[1]), dtype)
        for i, (X, alpha) in enumerate(zip(centers, alphas)):
            rows = np.flatnonzero(leaf == i)
            if len(rows):
                found[rows] = _kernel_sums(kernel, L, h, Z[rows], X, alpha) + b[i]
        return found


def _kernel_sums(kernel: Kernel, L: Map, h: float, Z: np.ndarray, X: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """K(Z, X) α at Lx/h by the cheapest engine: NumPy for any shape, a device in blocks of few shapes."""
    engine = cheapest(Job(kernel, Z, X, allow_float32_sums=True))
    if engine.name == "numpy":
        rows = max(1, ENTRIES // len(X))
        parts = [dot(cross(kernel, Z[i : i + rows], X, L, h), alpha) for i in range(0, len(Z), rows)]
        return np.concatenate(parts)
    L = pad_map(L, X.shape[1])  # kernels of networks depend on the number of coordinates
    left, right = ((A * L if L.ndim == 1 else dot(A, L.T)) / h for A in (Z, X))
    centers, columns = jax.device_put(right), jax.device_put(alpha)
    return map_blocks(lambda rows: engine.build(Job(kernel, rows, centers)).matmul(columns), left)


def _fit_and_score(
    make: Callable[[FinalFitProblem, TrainingData], KernelModel | None], problem: FinalFitProblem, found: HalvingResult
) -> tuple[HalvingCandidate, KernelModel] | None:
    """Fit without the validation rows and score on them; None if the fit fails."""
    model = make(problem, found.training)
    if model is None:
        return None
    validation = found.validation
    predicted = problem.predict(model, validation.X)
    error = unexplained_variance(predicted - validation.Y, validation.Y, validation.weights)
    if not np.isfinite(error):
        return None
    scored = problem.choice.scored._replace(error=error, held_out=predicted)
    return problem.choice._replace(scored=scored, rows=len(found.training.X)), model


def _fit_exact(problem: FinalFitProblem, data: TrainingData) -> KernelModel:
    """Fit by one factorization; if rounding hides the ridge chosen on fewer rows, increase it."""
    kernel, relative = problem.choice.candidate.kernel, problem.relative_ridge
    while True:
        try:
            alpha, b, ridge = exact_fit(kernel, data.X, problem.map, problem.bandwidth, relative, data.Y, data.weights)
        except ValueError:
            if relative > MAX_HIDDEN_RIDGE:
                raise
            relative *= 10
        else:
            return KernelModel(data.X, alpha, b, None, "cholesky", ridge)


def _fit_partition(problem: FinalFitProblem, data: TrainingData) -> KernelModel | None:
    """Fit each leaf of a partition in the learned metric by one factorization; None if a fit fails."""
    tree, leaves = partition(data.X, problem.map, max_exact_rows())
    centers, found, ridge = [], [], 0.0
    for rows in leaves:
        part = data.rows(rows)
        try:
            model = _fit_exact(problem, part)
        except ValueError:
            return None
        centers.append(part.X)
        found.append((model.alpha, model.intercept))
        ridge = model.ridge
    alphas, intercepts = zip(*found)
    return KernelModel(np.stack(centers), np.stack(alphas), np.stack(intercepts), tree, "partition", ridge)


def _partition_is_promising(problem: FinalFitProblem, found: HalvingResult, other: HalvingCandidate) -> bool:
    """Return whether a few leaves predict their validation rows significantly better than the other fit."""
    tree, leaves = partition(found.training.X, problem.map, max_exact_rows())
    leaf = tree.leaf(found.validation.X)
    trial = np.argsort(np.bincount(leaf, minlength=len(leaves)))[-TRIAL_LEAVES:]
    rows = np.flatnonzero(np.isin(leaf, trial))
    predicted = np.empty_like(found.validation.Y)
    for i in trial:
        here = np.flatnonzero(leaf == i)
        try:
            model = _fit_exact(problem, found.training.rows(leaves[i]))
        except ValueError:
            return False
        predicted[here] = problem.predict(model, found.validation.X[here])
    mine, others = (other.scored._replace(held_out=p[rows]) for p in (predicted, other.scored.held_out))
    return significantly_worse(others, mine, found.validation.rows(rows))


def _fit_iterative(problem: FinalFitProblem, data: TrainingData) -> KernelModel | None:
    """Fit by the large-scale solvers: labels are centered, weights are part of the kernel; None if it fails."""
    w, n = data.weights, len(data.X)
    # float32 if it resolves the small eigenvalues of K + ρI (λ_max ≤ n·k(x, x)) and K can be stored, for half of the
    # memory; fused products on a GPU are in float32
    stored = 4 * n * n <= 0.8 * memory_budget()
    visible = stored and problem.relative_ridge >= FLOAT32_RIDGE_ROUNDINGS * unit_roundoff(np.float32) * n
    dtype = np.dtype("float32" if visible or not devices.is_host() else "float64")
    with precision(dtype.name):
        kernel = apply_metric(problem.choice.candidate.kernel, (problem.map / problem.bandwidth).astype(dtype))
        unit = float(np.mean(np.asarray(kernel.diag(jnp.asarray(data.X[:SAMPLE], dtype)))))
    center = weighted_mean(data.Y, w)
    X, Y, used = data.X, data.Y - center, kernel
    if w is not None:
        scale = np.sqrt(w)[:, None]
        used, X, Y = Weighted(kernel), np.hstack([X, scale]), Y * scale
    ridge = problem.relative_ridge * unit
    few = not devices.is_host() and n > GPU_RECOMPUTE_MAX_N
    options = SolveOptions(
        precision=None if visible and devices.is_host() else dtype.name, max_steps=MAX_PASSES if few else None
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlazyWarning)  # validation rows show its quality
            solution = solve(
                used,
                X,
                Y,
                ridge,
                method=NystromCG(centers=CENTERS) if few else None,
                tolerance=problem.tolerance,
                options=options,
                progress=problem.progress,
                key=problem.key,
            )
    except (ValueError, UnlazyError):
        return None
    Z, alpha = np.asarray(solution.centers, np.float64), np.asarray(solution.coefficients, np.float64)
    if w is not None:
        Z, alpha = Z[:, :-1], alpha * Z[:, -1:]
    return KernelModel(Z, alpha, center, None, solution.method, ridge, bool(solution.converged))


def _next_metric(model: KernelModel, problem: FinalFitProblem, data: TrainingData) -> np.ndarray:
    """Next metric: rotated by the residuals of this model if rotation has helped, else from its gradients."""
    share = problem.choice.rotations
    M = _rotated_metric(model, problem, data, share[0]) if share else None
    return _updated_metric(model, problem, data) if M is None else M


def mean_squared_gradients(model: KernelModel, problem: FinalFitProblem, data: TrainingData) -> Float[np.ndarray, " d"]:
    """Mean squared gradient of the model along each column, on a sample of rows: the diagonal of its AGOP."""
    Z = data.X[evenly_spaced_rows(len(data.X), IMPORTANCE_ROWS)]
    total = np.zeros(Z.shape[1])
    for G in _gradients(model, problem, Z):
        total += np.einsum("pd,pd->d", G, G)
    return total / len(Z)


def _gradients(
    model: KernelModel, problem: FinalFitProblem, Z: Float[np.ndarray, "p d"], dtype: str | None = None
) -> Iterator[Float[np.ndarray, "rows d"]]:
    """Yield the gradients of all outputs at the rows of Z of each leaf, by default summed in `sum_precision`."""
    L = problem.map
    for index, X, alpha in _groups(model, Z):
        kernel = problem.choice.candidate.kernel
        along = slopes(kernel, X, L, problem.bandwidth, alpha, Z[index], dtype or sum_precision(alpha))
        G = along.reshape(-1, along.shape[2])
        yield G * L if L.ndim == 1 else dot(G, L)


def sum_precision(alpha: Float[np.ndarray, "n c"]) -> str:
    """float32 if the rounding of sums Σ α k stays below MAX_ROUNDING for labels of unit variance, else float64.

    Small ridges have coefficients that nearly cancel.
    """
    return "float32" if unit_roundoff(np.float32) * np.linalg.norm(alpha, axis=0).max() <= MAX_ROUNDING else "float64"


def _groups(model: KernelModel, Z: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the rows of each leaf, with the centers and coefficients that predict them."""
    if model.tree is None:
        yield np.arange(len(Z)), model.centers, model.alpha
        return
    leaf = model.tree.leaf(Z)
    for i, (X, alpha) in enumerate(zip(model.centers, model.alpha)):
        rows = np.flatnonzero(leaf == i)
        if len(rows):
            yield rows, X, alpha


def _rotated_metric(
    model: KernelModel, problem: FinalFitProblem, data: TrainingData, share: float
) -> np.ndarray | None:
    """The metric with directions rotated by residuals on a sample of rows; None if there are too few rows."""
    choice = problem.choice
    most, (n, d) = ROTATION_ROWS if devices.is_host() else ROTATION_ROWS_DEVICE, data.X.shape
    L = leading_directions(problem.map, share)
    free = free_directions(L, d, min(n, most))
    if not free:
        return None
    if devices.is_host():
        most = max(most, ROTATION_ROWS_FEW_UNKNOWNS * FEW_UNKNOWNS // max(FEW_UNKNOWNS, d * free))
    rows = evenly_spaced_rows(n, most)
    part = data.rows(rows)
    if model.solver == "cholesky" and len(model.centers) == len(data.X):  # y - f of a ridge fit to these rows
        w = np.ones(len(rows)) if part.weights is None else part.weights
        missed = model.ridge * model.alpha[rows] / w[:, None]
    else:
        missed = part.Y - problem.predict(model, part.X)
    along = np.empty((len(rows), part.Y.shape[1], len(L) if L.ndim == 1 else free))
    for index, X, alpha in _groups(model, part.X):
        kernel, h = choice.candidate.kernel, problem.bandwidth
        found = slopes(kernel, X, problem.map, h, alpha, part.X[index], sum_precision(alpha))
        along[index] = found if L.ndim == 1 else found[:, :, -free:]
    return normalize_metric(
        metric_of_map(rotate_directions(L, part.X, missed, along, part.weights, free)), choice.candidate.metric
    )


def _updated_metric(model: KernelModel, problem: FinalFitProblem, data: TrainingData) -> np.ndarray:
    """The metric from the gradients of this model on a sample of rows."""
    kind, power = problem.choice.candidate.metric, problem.choice.power
    Z = data.X[evenly_spaced_rows(len(data.X), GRADIENT_ROWS)]
    total = np.zeros((Z.shape[1],) * (1 if kind == "diagonal" else 2))
    for G in _gradients(model, problem, Z, "float64"):
        total += np.einsum("pd,pd->d", G, G) if kind == "diagonal" else dot(G.T, G)
    M = normalize_metric(total / len(Z), kind)
    return M if power == 1 else normalize_metric(metric_power(M, power), kind)
