"""What a feature machine chooses among: kernels with metrics, encodings of integer codes, original and clipped labels.

Encodings are compared by the held-out errors of short searches on a sample of the rows; a plain kernel cannot decide,
since categories often help only once a metric has been learned on them. Outliers in the labels are detected in held-out
residuals, and clipped if that predicts better:

    y*_i = f_i + clip(y_i - f_i, ±3 s),   s = 1.48 median |y - f|,

where f_i is the prediction of row i by a fit without it (pseudo-values of Huber 1964). Fits to y* and y are compared on
held-out rows with their original labels, in squared error, the loss of R². y* is used if it is better by more than one
standard error; if it is better by less, the mean of both fits is used.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import constants
from unlazy.estimators.feature_search.ensemble import FitFunction, leave_one_out_predictions
from unlazy.estimators.feature_search.held_out import standardized_difference
from unlazy.estimators.feature_search.kernel_model import KernelModel, predict_rows
from unlazy.estimators.feature_search.search import Selected
from unlazy.estimators.feature_search.trajectory import KernelCandidate
from unlazy.estimators.named_kernels import unit_kernel
from unlazy.estimators.preprocessing.columns import ColumnScale, IntegerCodes, weighted_median
from unlazy.kernels.base import Kernel, resolve_kernel
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers.ridge import weighted_mean
from unlazy.training.options import METRICS
from unlazy.training.rfm.iteration import check_metric

KERNELS = ("product_laplace", "laplace", "gaussian", "matern", "ntk", "nngp")
DEFAULT = (ProductLaplace(1.0), Laplace(1.0), Gaussian(1.0))
MANY_COLUMNS = 500
"""Number of columns beyond which a full metric is not tried by default if there are fewer rows.

Its rank is at most the number of rows, and an update costs the cube of the number of columns.
"""
Labels = Float[np.ndarray, "n c"]
SearchFunction = Callable[[Sequence[KernelCandidate], TrainingData], Selected]
"""Searches these candidates on these rows."""


@runtime_checkable
class CandidateSettings(Protocol):
    """Parameters of a feature machine that decide what is tried."""

    kernel: str | Kernel | None
    metric: str | None
    updates: int
    iterate: str
    rank: int | None
    start: str | None
    relative_bandwidth: float | None
    relative_ridge: float | None


def list_candidates(machine: CandidateSettings, shape: tuple[int, int] = (0, 0)) -> list[KernelCandidate]:
    """List the kernels and metrics to choose from for a table of this shape; validate the parameters."""
    if machine.metric is not None and machine.metric not in METRICS:
        raise ValueError(f"unknown metric {machine.metric!r}{did_you_mean(str(machine.metric), METRICS)}")
    if machine.metric == "low_rank":
        check_positive_integer("rank", machine.rank, "the number of directions of metric='low_rank'")
    if machine.iterate not in ("best", "last"):
        raise ValueError(f"iterate must be 'best' or 'last', got {machine.iterate!r}")
    if machine.start not in (None, "one_step"):
        raise ValueError(f"start must be None or 'one_step', got {machine.start!r}")
    if machine.updates != 0:
        check_positive_integer("updates", machine.updates, "or 0 for a fixed kernel")
    for what in ("relative_bandwidth", "relative_ridge"):
        value = getattr(machine, what)
        if value is not None and not (isinstance(value, int | float | np.number) and 0 < value < math.inf):
            raise ValueError(f"{what} must be positive or None (leave-one-out), got {value!r}")
    kernels: Sequence[Kernel] = DEFAULT
    if machine.kernel is not None:
        given = resolve_kernel(machine.kernel, "a name, None (a choice)")
        if given is None and machine.kernel not in KERNELS:
            name = str(machine.kernel)
            raise ValueError(f"unknown kernel {name!r}{did_you_mean(name, KERNELS)}, or pass a kernel")
        kernels = [unit_kernel(str(machine.kernel)) if given is None else given]
    rows, columns = shape
    tried = ("diagonal",) if columns > max(MANY_COLUMNS, rows) else ("full", "diagonal")
    metrics = tried if machine.metric is None else (machine.metric,)
    pairs = [KernelCandidate(k, m) for k in kernels for m in metrics]
    found = [c for c in pairs if c.metric in c.kernel.metrics]
    if not found:
        check_metric(kernels[0], metrics[0])
    return found


def choose_encoding(
    options: Sequence[IntegerCodes], data: TrainingData, standardize: bool, candidates: Sequence[KernelCandidate],
    search: SearchFunction,
) -> tuple[IntegerCodes, Selected | None]:  # fmt: skip
    """Return the encoding with the smallest held-out error, and its search.

    The first encoding is kept unless another one is better by the factor constants.TAKEOVER_FACTOR. Other encodings are
    tried with the candidates near the best for the first one.
    """
    if len(options) == 1:
        return options[0], None
    found: list[Selected] = []
    for codes in options:
        found.append(search(candidates, _read(codes, data, standardize)))
        candidates = candidates if len(found) > 1 else _near_best(candidates, found[0])
        if standardized_difference(found[-1].held_out, found[0].held_out, data) > 1:
            break  # indicators next to the numbers are significantly worse: do not try them in place of the numbers
    best = min(range(len(found)), key=lambda i: found[i].error)
    best = best if found[best].error < constants.TAKEOVER_FACTOR * found[0].error else 0
    return options[best], found[best]


def _near_best(candidates: Sequence[KernelCandidate], found: Selected) -> list[KernelCandidate]:
    """Candidates whose smallest error is within the factor constants.WITHIN_REACH of that of the best."""
    errors: dict[int, float] = {}
    for candidate, _, error in found.table:
        errors[candidate] = min(error, errors.get(candidate, error))
    return [candidates[i] for i, error in errors.items() if error <= constants.WITHIN_REACH * min(errors.values())]


def _read(codes: IntegerCodes, data: TrainingData, standardize: bool) -> TrainingData:
    X = codes(data.X)
    return data._replace(X=ColumnScale.from_data(X, data.weights, standardize)(X))


class ResidualTail(NamedTuple):
    """Kurtosis of the residuals of each output, and the largest distance of clipped labels from predictions."""

    kurtosis: Float[np.ndarray, " c"]
    limit: Float[np.ndarray, " c"]
    """inf if nothing is clipped."""


def residual_tail(held_out: Labels, data: TrainingData) -> ResidualTail:
    """Detect heavy-tailed residuals.

    Residuals are heavy-tailed if their kurtosis is above constants.HEAVY_KURTOSIS, they hold at least
    constants.MIN_RESIDUAL_SHARE of the variance, and at least constants.MIN_CLIPPED labels would be clipped.
    """
    missed, w = data.Y - held_out, data.weights
    heavy = kurtosis(missed, w)
    share = weighted_mean(missed**2, w) / np.maximum(
        weighted_mean((data.Y - weighted_mean(data.Y, w)) ** 2, w), np.finfo(np.float64).tiny
    )
    size = 1.4826 * weighted_median(np.abs(missed), w)
    several = np.sum(np.abs(missed) > constants.CLIP_DEVIATIONS * size, 0) >= constants.MIN_CLIPPED
    clip = (heavy > constants.HEAVY_KURTOSIS) & (share > constants.MIN_RESIDUAL_SHARE) & (size > 0) & several
    return ResidualTail(heavy, np.where(clip, constants.CLIP_DEVIATIONS * size, np.inf))


def kurtosis(values: Labels, weights: Float[np.ndarray, " n"] | None) -> Float[np.ndarray, " c"]:
    """E(v - Ev)⁴ / (E(v - Ev)²)²: 3 for a normal, 6 for a Laplace, 9 for an exponential distribution."""
    off = values - weighted_mean(values, weights)
    second = weighted_mean(off**2, weights)
    return weighted_mean(off**4, weights) / np.maximum(second**2, np.finfo(np.float64).tiny)


def clip_labels(data: TrainingData, around: Labels, limit: Float[np.ndarray, " c"]) -> TrainingData:
    """Clip labels to within `limit` of `around`."""
    return data._replace(Y=np.clip(data.Y, around - limit, around + limit))


def outlier_treatment(as_is: Labels, clip: Labels, data: TrainingData) -> str:
    """Return 'clipped', 'averaged' or 'kept', by predictions of held-out rows with their original labels."""
    worse = standardized_difference(clip, as_is, data)
    return "clipped" if worse < -1 else "averaged" if worse < 0 else "kept"


class LabelChoice(NamedTuple):
    """What to fit to which labels."""

    fits: list[tuple[Selected, TrainingData]]
    outliers: str
    """'kept', 'clipped', or 'averaged': one fit of each."""
    clip: Float[np.ndarray, " c"]
    """Largest distance of clipped labels from predictions; inf if none was clipped."""


def choose_labels(
    found: Selected, data: TrainingData, rows: np.ndarray, find: SearchFunction, learn: FitFunction
) -> LabelChoice:
    """Choose the labels; `found` is the result of the search on these `rows` of the data."""
    part = data.rows(rows)
    seen = residual_tail(found.held_out, part)
    kept = LabelChoice([(found, data)], "kept", np.full_like(seen.limit, np.inf))
    if np.isinf(seen.limit).all():
        return kept
    around = found.held_out
    if data.n > part.n:
        around = leave_one_out_predictions(found, data, learn)
        around[rows] = found.held_out
    clipped_data = clip_labels(data, around, seen.limit)
    other = find([one.candidate for one in (found, *found.ties)], clipped_data.rows(rows))
    treatment = outlier_treatment(found.held_out, other.held_out, part)
    if treatment == "kept":
        return kept
    fits = [(other, clipped_data)] if treatment == "clipped" else [(found, data), (other, clipped_data)]
    return LabelChoice(fits, treatment, seen.limit)


def choose_labels_large(
    candidate: KernelCandidate, data: TrainingData, rows: np.ndarray, find: SearchFunction, learn: FitFunction
) -> LabelChoice:
    """Choose the labels for many rows, with one candidate on a sample, if the target itself is heavy-tailed.

    Fits are not averaged; `fits` holds the labels of all rows.
    """
    kept = LabelChoice([], "kept", np.full(data.Y.shape[1], np.inf))
    if not (kurtosis(data.Y, data.weights) > constants.HEAVY_KURTOSIS).any():
        return kept
    part = data.rows(rows)
    found = find([candidate], part)
    chosen = choose_labels(found, part, np.arange(part.n), find, learn)
    if chosen.outliers != "clipped":
        return kept
    fit = learn(found, part)
    model = KernelModel(part.X, fit.dual_coef, fit.intercept, None, "cholesky", fit.ridge)
    around = predict_rows(fit.kernel, fit.map, fit.bandwidth, model, data.X)
    labels = clip_labels(data, around, chosen.clip)
    labels.Y[rows] = chosen.fits[0][1].Y
    return LabelChoice([(found, labels)], "clipped", chosen.clip)
