"""The last fit, to all rows: one factorization where it fits; beyond, leaves of a partition or one iterative solution,
whichever predicts held-out rows better, and neither where the fit to fewer rows is better still.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from unlazy.core import devices
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.core.precision import precision, rounding
from unlazy.estimators.base import Training, by_blocks
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.held_out import HeldOut
from unlazy.estimators.feature_search.stages import Stages, kept
from unlazy.estimators.feature_search.successive_halving import Contender, Grown, most_exact, sizes, tuned
from unlazy.estimators.feature_search.trajectory import surely_worse
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.kernels.weighted import Weighted
from unlazy.products.agop import agop
from unlazy.products.engines.numpy_engine import ENTRIES
from unlazy.products.engines.selection import Job, cheapest
from unlazy.products.metric_gram import Map, cross, view
from unlazy.solvers.ridge.intercept import mean, unexplained
from unlazy.solvers.selection import GPU_FULL, HARD
from unlazy.solvers.solve import solve
from unlazy.training.rfm.bandwidth_and_ridge import Place
from unlazy.training.rfm.gauss_newton_metric import free_directions, turned
from unlazy.training.rfm.iteration import heaviest, normalized, raised, root, squared
from unlazy.training.rfm.partition import Tree, partition
from unlazy.training.rfm.split_fits import exact, slopes, spread

SAMPLE = 1200
"""Rows whose distances give the usual bandwidth."""
HIDDEN = 1e-6
"""Relative ridges above this are not hidden by rounding: n·2⁻⁵³·‖K‖ is below it for 60,000 rows."""
NEARLY = 0.8
"""Choices made on this share of the rows are those of all."""
GRADIENTS = 2000
"""Rows over which gradients are averaged."""
FEW_GRADIENTS = 300
"""The same for importances."""
TURNING, TURNING_DEVICE = 20_000, 60_000
"""Rows whose residuals turn directions: a direction is as good as they are many."""
TURNING_FEW, FEW_UNKNOWNS = 100_000, 200
"""The same on the host where there are at most so many numbers to find; fewer rows for more, never below TURNING."""
CANCELS = 0.01
"""Rounding of sums, in units of the labels' spread, from which on they are taken in float64."""
MANY_LEAVES, LOOK_LEAVES = 16, 4
"""Beyond so many leaves some of them are looked at before all are fitted."""
FEW_LEAVES = 5
"""Leaves that are not tried where one fit of all rows is better than that of fewer."""
CENTERS = 32_768
"""Of an iterative solution on an accelerator, where K of all points cannot be recomputed in every pass."""
PASSES = 50
"""Over the data, at most, with such centers: each takes a second for some millions of rows, and the judges see what the
solution is worth."""


@kept
class Model(NamedTuple):
    """f(x) = b + Σ_i α_i k(x, x_i), or one such sum for every leaf of a tree."""

    centers: Float[np.ndarray, "n d"] | Float[np.ndarray, "l m d"]
    alpha: Float[np.ndarray, "n c"] | Float[np.ndarray, "l m c"]
    intercept: Float[np.ndarray, " c"] | Float[np.ndarray, "l c"]
    tree: Tree | None
    solver: str
    ridge: float
    converged: bool = True


class Problem(NamedTuple):
    """A kernel under its metric at one bandwidth, and the ridge."""

    contender: Contender
    map: np.ndarray
    bandwidth: float
    tolerance: float
    key: Any
    progress: bool

    @property
    def kernel(self) -> Kernel:
        return mapped(self.contender.candidate.kernel, self.map / self.bandwidth)

    def predict(self, model: "Model", Z: Float[np.ndarray, "rows d"]) -> Float[np.ndarray, "rows c"]:
        """f of a model under this kernel."""
        return predictions(self.contender.candidate.kernel, self.map, self.bandwidth, model, Z)

    @property
    def relative_ridge(self) -> float:
        return self.contender.judged.place[1]


def last_fit(
    found: Grown, data: Training, fixed: tuple[float | None, float | None], tolerance: float, key: Any, progress: bool,
    stages: Stages | None = None,
) -> tuple[Model, Problem, Contender]:  # fmt: skip
    """The model for all rows, and the contender with what the judges say of it; `fixed` is a bandwidth and a ridge that
    may not be chosen. Every fit and choice is one of the `stages`."""
    limit, stages = most_exact(), stages or Stages()

    def problem(contender: Contender) -> Problem:
        L = root(contender.metric)
        usual = view(contender.candidate.kernel, data.X[spread(len(data.X), SAMPLE)], L).usual
        return Problem(contender, L, contender.judged.place[0] * usual, tolerance, key, progress)

    first = problem(found.best)
    whole = len(data.X) <= limit
    if whole and (not found.best.updates or found.best.rows >= NEARLY * len(found.learned.X)):
        return _exactly(first, data), first, found.best
    if (whole or devices.is_host()) and found.best.updates and thresholds.TURNS and not found.best.turns:
        # more rows than choices were made on: seen once more
        first = problem(found.best._replace(turns=(thresholds.NEARLY_ALL,)))
    best, model, used = first.contender, None, first
    maker: Callable[[Problem, Training], Model | None] = _exactly
    many = len(data.X) > MANY_LEAVES * limit
    for i, make in enumerate([_exactly] if whole else _makers(first, many)):
        if make is _by_leaves and many and model is not None and not _leaves_promise(first, found, best):
            continue
        judged = stages(f"last fit {i}", functools.partial(_judged, make, first, found))
        if judged is not None and not surely_worse(judged[0].judged, best.judged, found.judging):
            best, model, maker = *judged, make
        if devices.is_host() and model is not None and len(data.X) <= FEW_LEAVES * limit:
            break  # one fit of all rows beats a few leaves
    place = best.judged.place
    for i in range(thresholds.UPDATES if best.updates else 0):  # a metric that pays is learned from all rows
        if model is None:
            break
        metric = stages(f"metric {i}", functools.partial(_next_metric, model, used, found.learned))
        sharper = best._replace(metric=metric, updates=best.updates + 1)
        tried = problem(sharper._replace(judged=best.judged._replace(place=place)))
        judged = stages(f"update {i}", functools.partial(_judged, maker, tried, found))
        if judged is None or surely_worse(judged[0].judged, best.judged, found.judging):
            break
        gain = judged[0].error / best.error if best.error > 0 else 1.0
        best, model, used = *judged, tried
        if gain > thresholds.WORTH_ANOTHER:
            break
        if gain < thresholds.OTHER_PLACE:  # so much better a metric wants another bandwidth and ridge
            place = stages(f"place {i}", functools.partial(_place, best, found, fixed))
    if model is None:
        return _exactly(first, data if whole else found.learned.rows(slice(limit))), first, found.best
    few = not whole and len(found.judging.X) <= 0.1 * len(data.X)  # leaving them out costs less than another fit
    return model if few else (stages("all rows", functools.partial(maker, used, data)) or model), used, best


def _place(contender: Contender, found: Grown, fixed: tuple[float | None, float | None]) -> Place:
    """Bandwidth and ridge for this metric, on as many rows as choices are made on."""
    *_, size = sizes(len(found.learned.X))
    evidence = HeldOut(found.learned.rows(slice(size)), found.judging)
    views = evidence.views(contender.candidate.kernel, [contender.metric])
    here = contender._replace(judged=evidence.judged(views, contender.judged.place))
    return tuned(here, evidence, views, *fixed).judged.place


def _makers(problem: Problem, many: bool) -> list[Callable[[Problem, Training], Model | None]]:
    """Ways to fit more rows than one factorization holds, what is quick first; `many` leaves are not."""
    if devices.is_host() or (many and problem.kernel.formula is not None):
        return [_by_iteration, _by_leaves]
    soft = problem.relative_ridge >= thresholds.SOFT_RIDGE and problem.kernel.formula is not None
    return [_by_leaves, _by_iteration] if soft else [_by_leaves]


def predictions(
    kernel: Kernel, L: Map, h: float, model: Model, Z: Float[np.ndarray, "rows d"], dtype: np.dtype | None = None
) -> Float[np.ndarray, "rows c"]:
    """f at the rows of Z, seen through Lx/h."""
    dtype = np.dtype("float64") if dtype is None else dtype
    with precision(dtype.name):
        Z, L = Z.astype(dtype, copy=False), L.astype(dtype, copy=False)
        centers, alphas, b = (np.asarray(a, dtype) for a in model[:3])
        if model.tree is None:
            return _sums(kernel, L, h, Z, centers, alphas) + b
        leaf = model.tree.leaf(Z)
        found = np.empty((len(Z), b.shape[1]), dtype)
        for i, (X, alpha) in enumerate(zip(centers, alphas)):
            rows = np.flatnonzero(leaf == i)
            if len(rows):
                found[rows] = _sums(kernel, L, h, Z[rows], X, alpha) + b[i]
        return found


def _sums(kernel: Kernel, L: Map, h: float, Z: np.ndarray, X: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """K(Z, X) α at Lx/h by the engine that costs least: NumPy's for any shape, a device's in blocks of few shapes."""
    engine = cheapest(Job(kernel, Z, X, any_sums=True))
    if engine.name == "host":
        rows = max(1, ENTRIES // len(X))
        parts = [dot(cross(kernel, Z[i : i + rows], X, L, h), alpha) for i in range(0, len(Z), rows)]
        return np.concatenate(parts)
    seen, centers, columns = mapped(kernel, L / h), jnp.asarray(X), jnp.asarray(alpha)
    return by_blocks(lambda rows: engine.build(Job(seen, rows, centers)).matmul(columns), Z)


def _judged(
    make: Callable[[Problem, Training], Model | None], problem: Problem, found: Grown
) -> tuple[Contender, Model] | None:
    """What the judges say of a model made without them."""
    model = make(problem, found.learned)
    if model is None:
        return None
    judging = found.judging
    predicted = problem.predict(model, judging.X)
    error = unexplained(predicted - judging.Y, judging.Y, judging.weights)
    if not np.isfinite(error):
        return None
    judged = problem.contender.judged._replace(error=error, held_out=predicted)
    return problem.contender._replace(judged=judged, rows=len(found.learned.X)), model


def _exactly(problem: Problem, data: Training) -> Model:
    """One factorization of all rows; where rounding at so many hides the ridge that fewer chose, under a larger one."""
    kernel, relative = problem.contender.candidate.kernel, problem.relative_ridge
    while True:
        try:
            alpha, b, ridge = exact(kernel, data.X, problem.map, problem.bandwidth, relative, data.Y, data.weights)
        except ValueError:
            if relative > HIDDEN:
                raise
            relative *= 10
        else:
            return Model(data.X, alpha, b, None, "cholesky", ridge)


def _by_leaves(problem: Problem, data: Training) -> Model | None:
    """A factorization for every leaf of a partition in the learned metric."""
    tree, leaves = partition(data.X, problem.map, most_exact())
    centers, found, ridge = [], [], 0.0
    for rows in leaves:
        part = data.rows(rows)
        try:
            model = _exactly(problem, part)
        except ValueError:
            return None
        centers.append(part.X)
        found.append((model.alpha, model.intercept))
        ridge = model.ridge
    alphas, intercepts = zip(*found)
    return Model(np.stack(centers), np.stack(alphas), np.stack(intercepts), tree, "partition", ridge)


def _leaves_promise(problem: Problem, found: Grown, other: Contender) -> bool:
    """Whether a few of the leaves predict their own held-out rows better than the other fit does, surely."""
    tree, leaves = partition(found.learned.X, problem.map, most_exact())
    leaf = tree.leaf(found.judging.X)
    looked_at = np.argsort(np.bincount(leaf, minlength=len(leaves)))[-LOOK_LEAVES:]
    rows = np.flatnonzero(np.isin(leaf, looked_at))
    predicted = np.empty_like(found.judging.Y)
    for i in looked_at:
        here = np.flatnonzero(leaf == i)
        try:
            model = _exactly(problem, found.learned.rows(leaves[i]))
        except ValueError:
            return False
        predicted[here] = problem.predict(model, found.judging.X[here])
    mine, others = (other.judged._replace(held_out=p[rows]) for p in (predicted, other.judged.held_out))
    return surely_worse(others, mine, found.judging.rows(rows))


def _by_iteration(problem: Problem, data: Training) -> Model | None:
    """One solution for all rows by the large-scale solvers: labels less their mean, weights inside the kernel."""
    w, n = data.weights, len(data.X)
    # float32 where K + ρI keeps its small directions in it (λ_max ≤ n·k(x, x)) and K can be stored, for half of the
    # memory; a card's fused products are of float32
    stored = 4 * n * n <= 0.8 * memory_budget()
    visible = stored and problem.relative_ridge >= HARD * rounding(np.float32) * n
    dtype = np.dtype("float32" if visible or not devices.is_host() else "float64")
    with precision(dtype.name):
        kernel = mapped(problem.contender.candidate.kernel, (problem.map / problem.bandwidth).astype(dtype))
        unit = float(np.mean(np.asarray(kernel.diag(jnp.asarray(data.X[:SAMPLE], dtype)))))
    center = mean(data.Y, w)
    X, Y, used = data.X, data.Y - center, kernel
    if w is not None:
        scale = np.sqrt(w)[:, None]
        used, X, Y = Weighted(kernel), np.hstack([X, scale]), Y * scale
    ridge = problem.relative_ridge * unit
    centers, most = (None, None) if devices.is_host() or n <= GPU_FULL else (CENTERS, PASSES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnlazyWarning)  # the judges see what it is worth
            solution = solve(
                used, X, Y, ridge, tolerance=problem.tolerance, centers=centers, max_steps=most, key=problem.key,
                precision=None if visible and devices.is_host() else dtype.name, progress=problem.progress,
            )  # fmt: skip
    except (ValueError, UnlazyError):
        return None
    Z, alpha = np.asarray(solution.centers, np.float64), np.asarray(solution.coefficients, np.float64)
    if w is not None:
        Z, alpha = Z[:, :-1], alpha * Z[:, -1:]
    return Model(Z, alpha, center, None, solution.method, ridge, bool(solution.converged))


def _next_metric(model: Model, problem: Problem, data: Training) -> np.ndarray:
    """The metric turned by the residuals of this model where turning has paid, else from its gradients."""
    share = problem.contender.turns
    M = _turned(model, problem, data, share[0]) if share else None
    return _learned_on(model, problem, data) if M is None else M


def squared_slopes(model: Model, problem: Problem, data: Training) -> Float[np.ndarray, " d"]:
    """Mean squared gradient along every column, of this model at some of the rows: the diagonal of its AGOP."""
    Z, L = data.X[spread(len(data.X), FEW_GRADIENTS)], problem.map
    total = np.zeros(data.X.shape[1])
    for index, X, alpha in _parts(model, Z):
        kernel = problem.contender.candidate.kernel
        along = slopes(kernel, X, L, problem.bandwidth, alpha, Z[index], digits(alpha))
        G = along * L if L.ndim == 1 else dot(along, L)
        total += np.einsum("pcd,pcd->d", G, G)
    return total / len(Z)


def digits(alpha: Float[np.ndarray, "n c"]) -> str:
    """float32 for sums Σ α k whose rounding stays below a hundredth of labels of spread one: small ridges have
    coefficients that nearly cancel."""
    return "float32" if rounding(np.float32) * np.linalg.norm(alpha, axis=0).max() <= CANCELS else "float64"


def _parts(model: Model, Z: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Which of these rows belong together, and the centers and coefficients that predict them."""
    if model.tree is None:
        yield np.arange(len(Z)), model.centers, model.alpha
        return
    leaf = model.tree.leaf(Z)
    for i, (X, alpha) in enumerate(zip(model.centers, model.alpha)):
        rows = np.flatnonzero(leaf == i)
        if len(rows):
            yield rows, X, alpha


def _turned(model: Model, problem: Problem, data: Training, share: float) -> np.ndarray | None:
    """The metric with its directions turned by residuals at some of the rows; None where these are too few."""
    contender = problem.contender
    most, (n, d) = TURNING if devices.is_host() else TURNING_DEVICE, data.X.shape
    L = heaviest(problem.map, share)
    free = free_directions(L, d, min(n, most))
    if not free:
        return None
    if devices.is_host():
        most = max(most, TURNING_FEW * FEW_UNKNOWNS // max(FEW_UNKNOWNS, d * free))
    rows = spread(n, most)
    part = data.rows(rows)
    if model.solver == "cholesky" and len(model.centers) == len(data.X):  # y - f of a ridge fit to these rows
        w = np.ones(len(rows)) if part.weights is None else part.weights
        missed = model.ridge * model.alpha[rows] / w[:, None]
    else:
        missed = part.Y - problem.predict(model, part.X)
    along = np.empty((len(rows), part.Y.shape[1], len(L) if L.ndim == 1 else free))
    for index, X, alpha in _parts(model, part.X):
        kernel, h = contender.candidate.kernel, problem.bandwidth
        found = slopes(kernel, X, problem.map, h, alpha, part.X[index], digits(alpha))
        along[index] = found if L.ndim == 1 else found[:, :, -free:]
    return normalized(squared(turned(L, part.X, missed, along, part.weights)), contender.candidate.metric)


def _learned_on(model: Model, problem: Problem, data: Training) -> np.ndarray:
    """The metric from the gradients of this model at some of the rows."""
    kind, power = problem.contender.candidate.metric, problem.contender.power
    rows = data.X[spread(len(data.X), GRADIENTS)]
    total = np.zeros((rows.shape[1],) * 2)
    with precision("float64"):
        for index, X, alpha in _parts(model, rows):
            total += len(index) / len(rows) * np.asarray(agop(problem.kernel, rows[index], X, alpha))
    M = normalized(total, kind)
    return M if power == 1 else normalized(raised(M, power), kind)
