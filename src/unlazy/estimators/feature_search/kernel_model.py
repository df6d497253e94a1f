"""A model fitted to all rows: its predictions, its gradients, and the metric that they or its residuals give next."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from unlazy.core import devices
from unlazy.core.arrays import dot, precision, unit_roundoff
from unlazy.core.progress import ProgressOption
from unlazy.estimators.base import TrainingData, map_blocks
from unlazy.estimators.feature_search.stage_checkpoints import checkpointable
from unlazy.estimators.feature_search.successive_halving import (
    HalvingCandidate,
)
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.products.engines.numpy_engine import ENTRIES
from unlazy.products.metric_gram import Map, cross
from unlazy.products.multiply import Job, cheapest
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.rfm.device_programs import pad_map
from unlazy.training.rfm.iteration import (
    free_directions,
    leading_directions,
    metric_of_map,
    metric_power,
    normalize_metric,
    rotate_directions,
)
from unlazy.training.rfm.partition import Tree
from unlazy.training.rfm.split_fits import slopes

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


def next_metric(model: KernelModel, problem: FinalFitProblem, data: TrainingData) -> np.ndarray:
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
