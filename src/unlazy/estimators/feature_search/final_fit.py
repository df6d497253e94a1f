"""The final fit, to all rows.

One factorization if it fits into memory; beyond, the leaves of a partition or an iterative solution, whichever predicts
held-out rows better, or neither if the fit to fewer rows is better still.
"""

import functools
import warnings
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core import devices
from unlazy.core.arrays import precision, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.progress import ProgressOption
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.held_out import SingleSplit, significantly_worse
from unlazy.estimators.feature_search.kernel_model import FinalFitProblem, KernelModel, next_metric
from unlazy.estimators.feature_search.stage_checkpoints import Stages
from unlazy.estimators.feature_search.successive_halving import (
    HalvingCandidate,
    HalvingResult,
    max_exact_rows,
    stage_sizes,
    tune,
)
from unlazy.kernels.metric import apply_metric
from unlazy.kernels.row_weights import Weighted
from unlazy.products.metric_gram import metric_gram
from unlazy.solvers.method_selection import FLOAT32_RIDGE_ROUNDINGS, GPU_RECOMPUTE_MAX_N, NystromCG
from unlazy.solvers.ridge import BandwidthAndRidge, unexplained_variance, weighted_mean
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.rfm.iteration import (
    metric_root,
)
from unlazy.training.rfm.partition import partition
from unlazy.training.rfm.split_fits import exact_fit

SAMPLE = 1200
"""Number of rows whose distances give the default bandwidth."""
MAX_HIDDEN_RIDGE = 1e-6
"""Rounding cannot hide relative ridges above this: n·2⁻⁵³·‖K‖ is below it for 60,000 rows."""
SAME_SIZE_SHARE = 0.8
"""Choices made on this share of the rows are not repeated on all rows."""
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
        metric = stages(f"metric {i}", functools.partial(next_metric, model, used, found.training))
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
