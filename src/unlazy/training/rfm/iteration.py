"""Iteration of recursive feature machines [D11]: fit, average gradient outer product (AGOP), new metric.

    α = (K_M + ρI)⁻¹ y,   M ← AGOP(f)/tr AGOP(f),   K_M(x, z) = k(M^½ x/h, M^½ z/h).

Works for every kernel of inner products, and with a diagonal metric for the ℓ1 (product) Laplace kernel. M is
normalized by its trace, so nothing depends on the scale of the labels. Radhakrishnan, Beaglehole, Pandit and Belkin
(Science 2024).

Gradients lie in the directions that the previous fit could see, so a small error of a direction persists. The residuals
determine a better map L, to first order, by

    y_i - f(x_i) ≈ Σ_kj ∂_k f(Lx_i) x_ij δL_kj,

with ∂_k the derivative along (Lx)_k: least squares in δL (a Gauss-Newton step), as efficient as an estimator that knows
the link (the refinement of outer products of gradients by minimum average variance, Xia, Tong, Li and Zhu, JRSS B
2002). `rotate_directions` computes it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from unlazy.core import devices
from unlazy.core.arrays import as_real_array, dot, einsum
from unlazy.core.errors import did_you_mean
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import Map, MetricGram, cross, metric_gram
from unlazy.solvers.ridge import coordinate_search, leave_one_out, ridge_coefficients
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.options import METRICS, RFMOptions
from unlazy.training.rfm.device_programs import UNKNOWNS, Gradients, rotation_equations

FIRST_RIDGE = 1e-3
ROTATION_ROWS = 8000
"""Largest number of rows whose residuals rotate the directions."""
DAMPING = 1e-4
"""Added to the diagonal of the normal equations, relative to its mean; undetermined entries stay unchanged."""
BLOCK = 2**22
"""Number of array entries computed at a time."""
SEVERAL = 4
"""Number of outputs from which the sum over outputs is taken first."""


class Iterate(NamedTuple):
    """One round: the metric and the fit f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h)."""

    matrix: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]
    """M with trace one, or its diagonal."""
    map: Map
    """L with M = LᵀL."""
    bandwidth: float
    relative_ridge: float
    """Relative to the mean of k(x, x)."""
    alpha: Float[np.ndarray, "n c"]
    intercept: Float[np.ndarray, " c"]
    centers: Float[np.ndarray, "n d"] | None = None
    """The centers, if they are not all training rows (`recursive_features` with very many rows)."""
    evidence: Evidence | None = None
    """Evidence of the fit; None for one factorization."""

    def predict(
        self, kernel: Kernel, X: Float[np.ndarray, "n d"], Z: Float[np.ndarray, "m d"]
    ) -> Float[np.ndarray, "m c"]:
        """Evaluate f at the rows of Z, for the kernel and the training rows of the fit."""
        centers = X if self.centers is None else self.centers
        return dot(cross(kernel, Z, centers, self.map, self.bandwidth), self.alpha) + self.intercept


def isotropic_metric(d: int, metric: str, dtype: DTypeLike = np.float64) -> np.ndarray:
    """Return the initial metric: the identity over d, or its diagonal."""
    return np.full(d, 1 / d, dtype) if metric == "diagonal" else np.eye(d, dtype=dtype) / d


def metric_root(matrix: np.ndarray) -> Map:
    """Return L with LᵀL = M, one row per direction, without directions at the rounding error of the largest."""
    if matrix.ndim == 1:
        return np.sqrt(np.maximum(matrix, 0))
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    keep = values > values[-1] * len(values) * np.finfo(matrix.dtype).eps
    return np.sqrt(values[keep])[:, None] * vectors.T[keep]


def metric_of_map(L: Map) -> np.ndarray:
    """Return M = LᵀL, or its diagonal."""
    return L**2 if L.ndim == 1 else dot(L.T, L)


def learn(
    kernel: Kernel,
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    *,
    updates: int = 5,
    relative_ridge: float | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
    options: RFMOptions | None = None,
) -> list[Iterate]:
    """Return all iterates of a recursive feature machine, beginning with the plain kernel.

    `kernel` has bandwidth one: the inputs are divided by h instead. `relative_ridge` is relative to the mean of
    k(x, x). Ridge and bandwidth, if None, are chosen by leave-one-out before the first update and then kept: later
    metrics depend on the labels, which makes leave-one-out optimistic. Every fit is one factorization, whatever the
    options of the solver.
    """
    options = options or RFMOptions()
    metric, powers = options.metric, options.powers(updates)
    M = first_metric(kernel, X, options)
    seen = metric_gram(kernel, X, metric_root(M))
    factor, rho = select_bandwidth_and_ridge(seen, Y, weights, options.relative_bandwidth, relative_ridge)
    found = []
    for t in range(updates + 1):
        h = factor * seen.default_bandwidth
        alpha, intercept = ridge_coefficients(seen.gram(h), Y, rho, weights)
        found.append(Iterate(M, seen.map, h, rho, alpha, intercept))
        if t < updates:
            M = metric_from_gradients(seen, h, alpha, metric, M, rank=options.rank, power=powers[t])
            seen = metric_gram(kernel, X, metric_root(M))
    return found


def first_metric(kernel: Kernel, X: Float[np.ndarray, "n d"], options: RFMOptions) -> np.ndarray:
    """Return the initial metric; raise ValueError if the kernel does not support this kind."""
    check_metric(kernel, options.metric)
    if options.start is None:
        return isotropic_metric(X.shape[1], options.metric, X.dtype)
    return normalize_metric(as_real_array("start", options.start), options.metric)


def select_bandwidth_and_ridge(
    seen: MetricGram, Y: Float[np.ndarray, "n c"], weights: Float[np.ndarray, " n"] | None, bandwidth: float | None,
    ridge: float | None,
) -> tuple[float, float]:  # fmt: skip
    """Return relative bandwidth and relative ridge; those that are None are chosen by leave-one-out."""
    if bandwidth is not None and ridge is not None:
        return bandwidth, ridge
    start = ((bandwidth or 1.0) * seen.default_bandwidth, ridge or FIRST_RIDGE)
    error = leave_one_out(seen.gram, Y, weights)
    (h, rho), _ = coordinate_search(error, start, ridge=ridge is None, bandwidth=bandwidth is None)
    return h / seen.default_bandwidth, rho


class RfmStep(NamedTuple):
    """A fit whose gradients define the next metric.

    Kernel, bandwidth relative to the default one, ridge relative to the mean of k(x, x), power of the AGOP, and the
    share of its noise floor that is subtracted (`prune_metric`). If `turn` is positive, the residuals define the next
    metric instead: they rotate the directions that hold this share of the metric (`metric_from_residuals`).
    """

    kernel: Kernel
    relative_bandwidth: float
    relative_ridge: float
    power: float = 1.0
    floor: float = 0.0
    turn: float = 0.0


def apply_steps(
    steps: Sequence[RfmStep],
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    metric: str,
    *,
    rank: int | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """Return the metric after the given steps (chosen by `estimators.feature_search`)."""
    M = isotropic_metric(X.shape[1], metric, X.dtype) if start is None else normalize_metric(start, metric)
    for step in steps:
        M = truncate_metric(M, step.turn, metric) if step.turn else M
        seen = metric_gram(step.kernel, X, metric_root(M))
        h = step.relative_bandwidth * seen.default_bandwidth
        K = seen.gram(h)
        alpha, _ = ridge_coefficients(K, Y, step.relative_ridge, weights)
        if step.turn:
            M = metric_from_residuals(
                seen, h, alpha, step.relative_ridge * float(np.mean(np.diagonal(K))), metric, M, X, weights
            )
        else:
            M = prune_metric(metric_from_gradients(seen, h, alpha, metric, M, rank=rank, power=step.power), step.floor)
    return M


@runtime_checkable
class HasGradients(Protocol):
    """Rows under a metric that can compute the average gradient outer product of a fit to the first of them."""

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray:
        """Return the average gradient outer product of a fit, or its diagonal."""

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]:
        """Return the derivatives of a fit along Lx at some rows."""


@runtime_checkable
class HasDeviceGradients(HasGradients, Protocol):
    """The same on an accelerator, where one program turns gradients into normal equations."""

    def gradients(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Gradients:
        """Return the fit whose gradients along Lx at some rows a program computes."""


def metric_from_residuals(
    seen: HasGradients, h: float, alpha: np.ndarray, ridge: float, metric: str, before: np.ndarray,
    X: Float[np.ndarray, "m d"], weights: Float[np.ndarray, " m"] | None,
) -> np.ndarray:  # fmt: skip
    """Return the metric with its directions rotated by the residuals ρα/w of the ridge fit alpha to the rows X.

    The metric is unchanged if there are too few rows.
    """
    rows, L = evenly_spaced_rows(len(alpha), ROTATION_ROWS), metric_root(before)
    free = free_directions(L, X.shape[1], len(rows))
    if not free:
        return before
    w = np.ones(len(alpha)) if weights is None else weights
    along = (seen.gradients if isinstance(seen, HasDeviceGradients) else seen.slopes)(h, alpha, rows)
    moved = rotate_directions(L, X[rows], (ridge * alpha / w[:, None])[rows], along, w[rows], free)
    return normalize_metric(metric_of_map(moved), metric)


def metric_from_gradients(
    seen: HasGradients,
    h: float,
    alpha: np.ndarray,
    metric: str,
    before: np.ndarray,
    rank: int | None = None,
    power: float = 1.0,
) -> np.ndarray:
    """Return the next metric: the AGOP of the fit alpha to the first rows, by `metric_from_agop`."""
    return metric_from_agop(seen.agop(h, alpha, metric == "diagonal"), metric, before, rank, power)


def metric_from_agop(
    new: np.ndarray, metric: str, before: np.ndarray, rank: int | None = None, power: float = 1.0
) -> np.ndarray:
    """Turn an AGOP into a metric: divide by the trace, keep the top `rank` directions of a low-rank metric.

    The previous metric is returned if the fit is constant and has no gradient.
    """
    if not (np.isfinite(new).all() and _trace(new) > 0):
        return before
    if metric == "low_rank" and rank is not None and rank < len(new):
        values, vectors = np.linalg.eigh(0.5 * (new + new.T))
        new = dot(vectors[:, -rank:] * values[-rank:], vectors[:, -rank:].T)
    new = normalize_metric(new, metric)
    return new if power == 1 else normalize_metric(metric_power(new, power), metric)


def check_metric(kernel: Kernel, metric: str) -> None:
    """Raise ValueError if the kernel does not support the metric."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}{did_you_mean(str(metric), METRICS)}")
    if not kernel.metrics:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula for linear maps of x, or has a metric already, so it "
            "cannot learn one: use a kernel of inner products (Gaussian, Laplace, Matern, NNGP, NTK) or ProductLaplace"
        )
    if metric not in kernel.metrics:
        raise ValueError(f"{type(kernel).__name__} supports metric={kernel.metrics[0]!r}, got {metric!r}")


def normalize_metric(M: np.ndarray, metric: str) -> np.ndarray:
    """Return M, or its diagonal for a diagonal metric, with trace one."""
    M = np.diag(M) if metric == "diagonal" and M.ndim == 2 else M
    return M / _trace(M)


def prune_metric(M: np.ndarray, floor: float) -> np.ndarray:
    """Subtract `floor` times the median of the diagonal (of the eigenvalues, for a matrix) from M, and clip at zero.

    If few inputs matter, the median is the gradient noise of inputs that do not.
    """
    if floor == 0:
        return M
    values, vectors = (M, None) if M.ndim == 1 else np.linalg.eigh(0.5 * (M + M.T))
    left = np.maximum(values - floor * np.median(values), 0)
    if not left.sum() > 0:
        return M
    left = left / left.sum()
    return left if vectors is None else dot(vectors * left, vectors.T)


def truncate_metric(M: np.ndarray, share: float, metric: str) -> np.ndarray:
    """Return M restricted to the leading directions that hold this share of its trace."""
    return M if share >= 1 else normalize_metric(metric_of_map(leading_directions(metric_root(M), share)), metric)


def leading_directions(L: Map, share: float) -> np.ndarray:
    """Return the last rows of L, which hold at least this share of the trace of LᵀL.

    For a diagonal: its largest lengths, with zeros elsewhere.
    """
    weight = L**2 if L.ndim == 1 else np.sum(L**2, 1)
    order = np.argsort(weight)[::-1]
    count = int(np.searchsorted(np.cumsum(weight[order]), share * weight.sum() * (1 - 1e-12))) + 1
    kept = np.sort(order[:count])
    if L.ndim == 2:
        return L[kept]
    left = np.zeros_like(L)
    left[kept] = L[kept]
    return left


def metric_power(M: np.ndarray, power: float) -> np.ndarray:
    """Return M to a power, by its eigenvalues; entry by entry for a diagonal."""
    if M.ndim == 1:
        return M**power
    values, vectors = np.linalg.eigh(0.5 * (M + M.T))
    return dot(vectors * np.maximum(values, 0) ** power, vectors.T)


def _trace(M: np.ndarray) -> float:
    """Return the trace of a matrix or of a diagonal."""
    return float(M.sum() if M.ndim == 1 else np.trace(M))


def free_directions(L: Map, d: int, n: int) -> int:
    """Return how many directions may rotate: at most UNKNOWNS unknowns, and ten rows for each."""
    if L.ndim == 1:
        return 1 if 10 * d <= n and d <= UNKNOWNS else 0
    return min(len(L), UNKNOWNS // d, n // (10 * d))


def rotate_directions(
    L: Map,
    X: Float[np.ndarray, "n d"],
    residuals: Float[np.ndarray, "n c"],
    slopes: Float[np.ndarray, "n c r"] | Gradients,
    weights: Float[np.ndarray, " n"] | None = None,
    free: int | None = None,
) -> Map:
    """Return L + δL of the least squares problem above.

    `slopes` are the derivatives along the rows of L. The last `free` rows change, all by default (`metric_root` puts
    the largest last); all lengths change if L is diagonal. L is returned unchanged if all slopes vanish.
    """
    n, d = X.shape
    diagonal, free = L.ndim == 1, len(L) if free is None else free
    unknowns = d if diagonal else d * free
    # a shift of all points does not affect the metric
    A, b = _normal(slopes, X - X.mean(0), residuals, np.ones(n) if weights is None else weights, free, diagonal)
    scale = float(np.trace(A)) / unknowns
    if not (np.isfinite(scale) and scale > 0):
        return L
    A[np.diag_indices(unknowns)] += DAMPING * scale
    step = np.linalg.solve(A, b)
    if diagonal:
        return np.maximum(L + step, 0)
    moved = L.copy()
    moved[-free:] += step.reshape(-1, d)
    return moved


def _normal(
    slopes: np.ndarray | Gradients, X: np.ndarray, residuals: np.ndarray, weights: np.ndarray, free: int, diagonal: bool
) -> tuple[Float[np.ndarray, "u u"], Float[np.ndarray, " u"]]:
    """Return the normal equations, computed in blocks of rows on the default device."""
    d = X.shape[1]
    width = None if diagonal else max(free, min(d, UNKNOWNS // d))
    if not (isinstance(slopes, np.ndarray) and devices.is_host()):
        return rotation_equations(slopes, X, residuals, weights, free, width)
    root = np.sqrt(weights)[:, None]
    G, residuals = (slopes if diagonal else slopes[:, :, -free:]) * root[:, :, None], residuals * root
    if residuals.shape[1] >= SEVERAL and not diagonal:
        return _of_several(G, X, residuals)
    unknowns = d * (1 if diagonal else free)
    A, b = np.zeros((unknowns, unknowns)), np.zeros(unknowns)
    rows = max(1, BLOCK // unknowns)
    for c in range(residuals.shape[1]):
        for i in range(0, len(X), rows):
            g, z = G[i : i + rows, c], X[i : i + rows]
            F = g * z if diagonal else (g[:, :, None] * z[:, None]).reshape(len(z), -1)
            A, b = A + dot(F.T, F), b + dot(F.T, residuals[i : i + rows, c])
    return A, b


def _of_several(
    G: Float[np.ndarray, "n c f"], Z: Float[np.ndarray, "n d"], R: Float[np.ndarray, "n c"]
) -> tuple[Float[np.ndarray, "u u"], Float[np.ndarray, " u"]]:
    """Return the normal equations for several outputs.

    A_(kj)(lm) = Σ_i (Σ_c g_ick g_icl) x_ij x_im: the sum over outputs is taken once for each pair of directions, so
    that many outputs cost little more than one.
    """
    f, unknowns = G.shape[2], G.shape[2] * Z.shape[1]
    k, l = np.triu_indices(f)
    pairs = _by_squares(dot(G.swapaxes(1, 2), G)[:, k, l], Z)
    A = pairs[_symmetric(f)].transpose(0, 2, 1, 3).reshape(unknowns, unknowns)
    return A, dot(einsum("icf,ic->if", G, R).T, Z).reshape(-1)


def _by_squares(S: Float[np.ndarray, "n p"], Z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "p d d"]:
    """Return Σ_i s_ip x_ij x_im for every p; the products x_ij x_im are computed once per block of rows."""
    j, m = np.triu_indices(Z.shape[1])
    rows = max(1, BLOCK // len(j))
    starts = range(0, len(Z), rows)
    total = sum(dot(S[i : i + rows].T, Z[i : i + rows, j] * Z[i : i + rows, m]) for i in starts)
    return total[:, _symmetric(Z.shape[1])]


def _symmetric(n: int) -> Int[np.ndarray, "n n"]:
    """Return the position of each entry of a symmetric matrix among those of its upper triangle, row by row."""
    place = np.zeros((n, n), int)
    place[np.triu_indices(n)] = np.arange(n * (n + 1) // 2)
    return np.maximum(place, place.T)
