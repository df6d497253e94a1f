"""Recursive feature machines [D11]: fit, take the average gradient outer product (AGOP), see the inputs through it, fit
again; for every kernel of inner products, and with a diagonal metric for the ℓ1 (product) Laplace kernel.

    α = (K_M + ρI)⁻¹ y,   M ← AGOP(f)/tr AGOP(f),   K_M(x, z) = k(M^½ x/h, M^½ z/h).

Bandwidth h and ridge ρ are chosen anew at every iterate by closed-form leave-one-out. M is normalized by its trace, so
nothing depends on the scale of the labels. Radhakrishnan, Beaglehole, Pandit and Belkin (Science 2024).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from unlazy.core.errors import nearest
from unlazy.core.linalg import dot
from unlazy.core.results import Evidence
from unlazy.kernels.base import Kernel
from unlazy.products.metric_gram import Map, cross, view
from unlazy.solvers.ridge.intercept import coefficients
from unlazy.theory.numerics.bandwidth import some_rows
from unlazy.training.rfm.bandwidth_and_ridge import descend, leave_one_out
from unlazy.training.rfm.gauss_newton_metric import free_directions, turned

METRICS = ("full", "diagonal", "low_rank")
FIRST_RIDGE = 1e-3
TURNING = 8000
"""Rows whose residuals turn directions."""


class Iterate(NamedTuple):
    """One round: the metric it saw the inputs through, and the fit f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h)."""

    matrix: Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]
    """M with trace one, or its diagonal."""
    map: Map
    """L with M = LᵀL."""
    bandwidth: float
    relative_ridge: float
    """In units of the mean of k(x, x)."""
    alpha: Float[np.ndarray, "n c"]
    intercept: Float[np.ndarray, " c"]
    centers: Float[np.ndarray, "n d"] | None = None
    """Where not all training rows are (`machine.recursive_features` of very many)."""
    evidence: Evidence | None = None
    """How the fit was found; None: by one factorization."""

    def predict(
        self, kernel: Kernel, X: Float[np.ndarray, "n d"], Z: Float[np.ndarray, "m d"]
    ) -> Float[np.ndarray, "m c"]:
        """f at the rows of Z, for the kernel and the training rows it was fitted with."""
        centers = X if self.centers is None else self.centers
        return cross(kernel, Z, centers, self.map, self.bandwidth) @ self.alpha + self.intercept


def isotropic(d: int, metric: str, dtype: Any = np.float64) -> np.ndarray:
    """The metric before anything was learned: the identity over d, or its diagonal."""
    return np.full(d, 1 / d, dtype) if metric == "diagonal" else np.eye(d, dtype=dtype) / d


def root(matrix: np.ndarray) -> Map:
    """L with LᵀL = M, one row per direction. Directions at the rounding of the largest are left out."""
    if matrix.ndim == 1:
        return np.sqrt(np.maximum(matrix, 0))
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    keep = values > values[-1] * len(values) * np.finfo(matrix.dtype).eps
    return np.sqrt(values[keep])[:, None] * vectors.T[keep]


def squared(L: Map) -> np.ndarray:
    """M = LᵀL, or its diagonal."""
    return L**2 if L.ndim == 1 else dot(L.T, L)


def learn(
    kernel: Kernel,
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    *,
    metric: str = "full",
    updates: int = 5,
    rank: int | None = None,
    relative_ridge: float | None = None,
    relative_bandwidth: float | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
    power: float | Sequence[float] = 1.0,
    start: np.ndarray | None = None,
) -> list[Iterate]:
    """All iterates, the plain kernel first. `kernel` has bandwidth one: inputs are divided by h instead.

    `relative_bandwidth` is a multiple of the usual one (median distance, or root mean square norm), which every metric
    sets anew; `relative_ridge` is in units of the mean of k(x, x). What is None is chosen by leave-one-out before the
    first update, and kept: later the metric has seen the labels, and leave-one-out would not know. M is AGOP to the
    `power`, one number or one per update: below 1 the metric sharpens slowly, and directions get time to turn before
    others are lost. `start` is a metric to begin with, such as W¹ᵀW¹ of Algorithm 1.
    """
    check_metric(kernel, metric)
    M = isotropic(X.shape[1], metric, X.dtype) if start is None else normalized(start, metric)
    seen = view(kernel, X, root(M))
    place = ((relative_bandwidth or 1.0) * seen.usual, FIRST_RIDGE if relative_ridge is None else relative_ridge)
    if relative_bandwidth is None or relative_ridge is None:
        error = leave_one_out(seen.gram, Y, weights)
        place, _ = descend(error, place, ridge=relative_ridge is None, bandwidth=relative_bandwidth is None)
    factor, rho = place[0] / seen.usual, place[1]
    powers = every_power(power, updates)
    found = []
    for t in range(updates + 1):
        h = factor * seen.usual
        alpha, intercept = coefficients(seen.gram(h), Y, rho, weights)
        found.append(Iterate(M, seen.map, h, rho, alpha, intercept))
        if t < updates:
            M = updated(seen, h, alpha, metric, M, rank=rank, power=powers[t])
            seen = view(kernel, X, root(M))
    return found


def every_power(power: float | Sequence[float], updates: int) -> list[float]:
    """One power for each update."""
    powers = [float(power)] * updates if isinstance(power, int | float) else [float(p) for p in power]
    if len(powers) != updates:
        raise ValueError(f"{updates} updates need as many powers, got {len(powers)}")
    return powers


class Step(NamedTuple):
    """A fit whose gradients make the next metric: kernel, bandwidth in units of the usual one, ridge in units of the
    mean of k(x, x), the power of the AGOP, and how much of its noise floor is taken off (`pruned`). Where `turn` is
    positive its residuals make it instead: they turn the directions that hold this share of the metric (`turning`)."""

    kernel: Kernel
    relative_bandwidth: float
    relative_ridge: float
    power: float = 1.0
    floor: float = 0.0
    turn: float = 0.0


def follow(
    steps: Sequence[Step],
    X: Float[np.ndarray, "n d"],
    Y: Float[np.ndarray, "n c"],
    metric: str,
    *,
    rank: int | None = None,
    weights: Float[np.ndarray, " n"] | None = None,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """The metric after these steps, chosen elsewhere (`estimators.feature_search`)."""
    M = isotropic(X.shape[1], metric, X.dtype) if start is None else normalized(start, metric)
    for step in steps:
        M = narrowed(M, step.turn, metric) if step.turn else M
        seen = view(step.kernel, X, root(M))
        h = step.relative_bandwidth * seen.usual
        K = seen.gram(h)
        alpha, _ = coefficients(K, Y, step.relative_ridge, weights)
        if step.turn:
            M = by_residuals(
                seen, h, alpha, step.relative_ridge * float(np.mean(np.diagonal(K))), metric, M, X, weights
            )
        else:
            M = pruned(updated(seen, h, alpha, metric, M, rank=rank, power=step.power), step.floor)
    return M


@runtime_checkable
class HasGradients(Protocol):
    """Rows under a metric that know the average gradient outer product of a fit to the first of them."""

    def agop(self, h: float, alpha: Float[np.ndarray, "m c"], diagonal: bool) -> np.ndarray: ...

    def slopes(self, h: float, alpha: Float[np.ndarray, "m c"], rows: np.ndarray) -> Float[np.ndarray, "p c r"]: ...


def by_residuals(
    seen: HasGradients, h: float, alpha: np.ndarray, ridge: float, metric: str, before: np.ndarray,
    X: Float[np.ndarray, "m d"], weights: Float[np.ndarray, " m"] | None,
) -> np.ndarray:  # fmt: skip
    """The metric with its directions turned by the residuals ρα/w of the ridge fit alpha to the rows X; the one before
    where these are too few."""
    rows, L = some_rows(len(alpha), TURNING), root(before)
    free = free_directions(L, X.shape[1], len(rows))
    if not free:
        return before
    w = np.ones(len(alpha)) if weights is None else weights
    along = seen.slopes(h, alpha, rows)
    along = along if L.ndim == 1 else along[:, :, -free:]
    moved = turned(L, X[rows], (ridge * alpha / w[:, None])[rows], along, w[rows])
    return normalized(squared(moved), metric)


def updated(
    seen: HasGradients,
    h: float,
    alpha: np.ndarray,
    metric: str,
    before: np.ndarray,
    rank: int | None = None,
    power: float = 1.0,
) -> np.ndarray:
    """The next metric: AGOP of the fit alpha to the first rows, `sharpened`."""
    return sharpened(seen.agop(h, alpha, metric == "diagonal"), metric, before, rank, power)


def sharpened(
    new: np.ndarray, metric: str, before: np.ndarray, rank: int | None = None, power: float = 1.0
) -> np.ndarray:
    """An AGOP as a metric: over its trace, of the top `rank` directions where it is low rank; the one before where the
    fit is constant: no gradient."""
    if not (np.isfinite(new).all() and _trace(new) > 0):
        return before
    if metric == "low_rank" and rank is not None and rank < len(new):
        values, vectors = np.linalg.eigh(0.5 * (new + new.T))
        new = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    new = normalized(new, metric)
    return new if power == 1 else normalized(raised(new, power), metric)


def check_metric(kernel: Kernel, metric: str) -> None:
    """A ValueError for a metric this kernel cannot have."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}{nearest(str(metric), METRICS)}")
    if not kernel.metrics:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula of linear maps of x, or a metric already, and so none to "
            "learn: use a kernel of inner products (Gaussian, Laplace, Matern, NNGP, NTK) or ProductLaplace"
        )
    if metric not in kernel.metrics:
        raise ValueError(f"{type(kernel).__name__} takes metric={kernel.metrics[0]!r}, got {metric!r}")


def normalized(M: np.ndarray, metric: str) -> np.ndarray:
    """M, or its diagonal where that is the metric, with trace one."""
    M = np.diag(M) if metric == "diagonal" and M.ndim == 2 else M
    return M / _trace(M)


def pruned(M: np.ndarray, floor: float) -> np.ndarray:
    """M less `floor` times the median of its diagonal (of its eigenvalues, where it is a matrix), nothing below zero.

    Where few inputs matter the median is what gradients show of inputs that do not.
    """
    if floor == 0:
        return M
    values, vectors = (M, None) if M.ndim == 1 else np.linalg.eigh(0.5 * (M + M.T))
    left = np.maximum(values - floor * np.median(values), 0)
    if not left.sum() > 0:
        return M
    left = left / left.sum()
    return left if vectors is None else (vectors * left) @ vectors.T


def narrowed(M: np.ndarray, share: float, metric: str) -> np.ndarray:
    """M of the directions alone that hold this share of it."""
    return M if share >= 1 else normalized(squared(heaviest(root(M), share)), metric)


def heaviest(L: Map, share: float) -> np.ndarray:
    """The last rows of L, which hold at least this share of the trace of LᵀL; of a diagonal its largest lengths, zeros
    elsewhere."""
    weight = L**2 if L.ndim == 1 else np.sum(L**2, 1)
    order = np.argsort(weight)[::-1]
    count = int(np.searchsorted(np.cumsum(weight[order]), share * weight.sum() * (1 - 1e-12))) + 1
    kept = np.sort(order[:count])
    if L.ndim == 2:
        return L[kept]
    left = np.zeros_like(L)
    left[kept] = L[kept]
    return left


def raised(M: np.ndarray, power: float) -> np.ndarray:
    """M to a power, by its eigenvalues; a diagonal entry by entry."""
    if M.ndim == 1:
        return M**power
    values, vectors = np.linalg.eigh(0.5 * (M + M.T))
    return (vectors * np.maximum(values, 0) ** power) @ vectors.T


def _trace(M: np.ndarray) -> float:
    return float(M.sum() if M.ndim == 1 else np.trace(M))
