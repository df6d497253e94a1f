"""The convex ReLU network: least squares with the ℓ1 norm over all neurons of the sphere, with a certificate [L6].

    min_ρ  ½ Σ_i (f(x_i) - y_i)² + λ ∫|dρ(w)|,   f(x) = ∫ ReLU(w·x) dρ(w),  ‖w‖ = 1.

Conditional gradients (Frank–Wolfe): with the residual u = y - f, the next neuron maximizes |Σ_i u_i ReLU(w·x_i)|. That
step is NP-hard in general; in two and three dimensions it is exact (solvers.convex.relu_cells). Every round refits all
weights (non-negative least squares with a linear term), then moves each neuron to the best point of its cell and merges
neurons of one cell, which never increases the norm. Bach (2017); Denoyelle et al., The sliding Frank–Wolfe algorithm
(2019).
"""

import math

import equinox as eqx
import numpy as np
from jaxtyping import Float

from unlazy.core.arrays import Points, as_real_array, check_axes, dot
from unlazy.core.errors import check_positive_integer
from unlazy.core.results import Evidence, FitDescription
from unlazy.solvers.convex.relu_cells import Cells, arrangement_cells, candidate_maxima

_NEURONS_PER_ROUND = 8
"""Neurons added per round."""
_GRAM_JITTER = 1e-12
"""Added to the Gram matrix of the neurons, relative to its largest diagonal entry."""


class ConvexNetwork(eqx.Module):
    """ReLU network f(x) = Σ_j a_j ReLU(w_j·x), ‖w_j‖ = 1, with its certificate.

    Attributes
    ----------
    W : array of shape (k, d)
        The neurons w_j.
    a : array of shape (k,)
        The weights a_j.
    objective : float
        Value of the objective.
    gap : float
        (primal - dual)/primal: the objective is within this share of the optimum.
    rounds : int
        Number of rounds.
    converged : bool
        Whether `gap` is at most `tolerance`.
    tolerance : float
        The requested gap.
    """

    W: Float[np.ndarray, "k d"]
    a: Float[np.ndarray, " k"]
    objective: float
    gap: float
    rounds: int
    converged: bool
    tolerance: float = math.inf
    """The requested gap."""

    def predict(self, Z: Points) -> Float[np.ndarray, " m"]:
        """Evaluate f at the rows of Z."""
        rows = as_real_array("Z", Z)
        check_axes("Z", rows.shape)
        return np.maximum(dot(rows, self.W.T), 0) @ self.a

    def __call__(self, X: Points) -> Float[np.ndarray, " m"]:
        """Evaluate f at the rows of X."""
        return self.predict(X)

    @property
    def evidence(self) -> Evidence:
        """The duality gap as evidence."""
        description = FitDescription("min ½‖f(X) - y‖² + λ∫|dρ| [L6]", "conditional gradients")
        return Evidence(self.gap, self.tolerance, steps=self.rounds, description=description)

    @property
    def variation_norm(self) -> float:
        """∫|dρ|: the norm of F1."""
        return float(np.abs(self.a).sum())


def convex_relu_network(
    X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], *, penalty: float, tolerance: float = 1e-6,
    max_rounds: int = 400,
) -> ConvexNetwork:  # fmt: skip
    """Fit the convex ReLU network in float64, for d = 2 or 3 [L6].

    Parameters
    ----------
    X : array of shape (n, d)
        Points in general position.
    y : array of shape (n,)
        Labels.
    penalty : float
        λ above, positive.
    tolerance : float, default 1e-6
        Relative duality gap at which to stop.
    max_rounds : int, default 400
        Maximum number of rounds.

    Returns
    -------
    ConvexNetwork
        The network with its duality gap.

    Raises
    ------
    ValueError
        If `penalty` is not positive or d is not 2 or 3.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.solvers import convex_relu_network
    >>> X = np.random.default_rng(0).normal(size=(20, 2))
    >>> y = np.maximum(X[:, 0], 0)  # one neuron
    >>> fit = convex_relu_network(X, y, penalty=1e-3)
    >>> fit.converged, bool(np.allclose(fit.predict(X), y, atol=1e-2))
    (True, True)
    """
    X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
    check_positive_integer("max_rounds", max_rounds)
    if not penalty > 0:
        raise ValueError(f"penalty must be positive, got {penalty}; use 1e-4·n for labels without noise")
    arrangement = arrangement_cells(X)
    W, signs, a = np.zeros((0, X.shape[1])), np.zeros(0), np.zeros(0)
    rounds, gap, objective = 0, np.inf, np.inf
    for rounds in range(max_rounds + 1):
        residual = y - (np.maximum(X @ W.T, 0) * signs) @ a
        candidates, values = candidate_maxima(arrangement, residual)
        objective = float(0.5 * residual @ residual + penalty * a.sum())
        gap = (objective - _dual(y, residual, float(np.abs(values).max()), penalty)) / max(objective, 1e-300)
        if gap <= tolerance or rounds == max_rounds:
            break
        fresh, fresh_signs = _new_neurons(arrangement, residual, candidates, values, W, signs, penalty)
        W, signs = np.concatenate([W, fresh]), np.concatenate([signs, fresh_signs])
        a = _fit_weights(np.maximum(X @ W.T, 0) * signs, y, penalty, np.concatenate([a, np.zeros(len(fresh))]))
        W, signs, a = _merge_neurons(X, W[a > 0], signs[a > 0], a[a > 0])
    return ConvexNetwork(W, signs * a, objective, float(gap), rounds, bool(gap <= tolerance), tolerance)


def _dual(y: np.ndarray, u: np.ndarray, largest: float, penalty: float) -> float:
    """max yᵀv - ½‖v‖² over multiples v = su with |Σ v_i ReLU(w·x_i)| ≤ λ for every w; the maximum is `largest`."""
    size = float(u @ u)
    s = min(float(y @ u) / size if size > 0 else 0.0, penalty / largest if largest > 0 else 1.0)
    return s * float(y @ u) - 0.5 * s * s * size


def _new_neurons(
    arrangement: Cells, u: np.ndarray, C: np.ndarray, values: np.ndarray, W: np.ndarray, signs: np.ndarray,
    penalty: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The best few candidates that are not neighbors, and for each neuron the best point of its cell."""
    chosen: list[int] = []
    for k in np.argsort(-np.abs(values))[:400]:
        if abs(values[k]) < penalty or len(chosen) == _NEURONS_PER_ROUND:
            break
        if all(C[k] @ C[q] < 0.999 or values[k] * values[q] < 0 for q in chosen):
            chosen.append(int(k))
    moved, kept = _moved_neurons(arrangement.X, u, W, signs)
    return np.concatenate([C[chosen], moved]), np.concatenate([np.sign(values[chosen]), kept])


def _moved_neurons(X: np.ndarray, u: np.ndarray, W: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each neuron the best points of its cell, of the cell behind its nearest edge, and of that edge."""
    if not len(W):
        return W, signs
    heights = X @ W.T
    nearest = np.abs(heights).argmin(0)
    x, v = X[nearest], u[nearest, None]
    off = ((heights > 1e-12) * u[:, None]).T @ X
    off = off - np.where(heights[nearest, np.arange(len(W))] > 1e-12, 1, 0)[:, None] * v * x
    edge = off - x * (np.sum(off * x, 1) / np.sum(x * x, 1))[:, None]
    moved = np.concatenate([off, off + v * x, edge]) * np.tile(signs, 3)[:, None]
    size = np.linalg.norm(moved, axis=1)
    return moved[size > 0] / size[size > 0, None], np.tile(signs, 3)[size > 0]


def _fit_weights(Phi: np.ndarray, y: np.ndarray, penalty: float, a: np.ndarray) -> np.ndarray:
    """min ½‖Φa - y‖² + λΣa over a ≥ 0 by active sets (Lawson and Hanson 1974), started from a feasible a."""
    G, c, inside, useless = Phi.T @ Phi, Phi.T @ y - penalty, a > 0, np.zeros(len(a), bool)
    # Neurons may be linearly dependent: Σa then decreases along a line on which the fit is constant, until one of them
    # is zero. A jitter far below the tolerance makes that line a long finite step.
    G[np.diag_indices_from(G)] += _GRAM_JITTER * np.diagonal(G).max(initial=0)
    for _ in range(5 * len(a) + 20):
        slope = np.where(inside | useless, -np.inf, c - G @ a)
        if slope.max(initial=-np.inf) <= 1e-10 * np.abs(c).max(initial=1e-300):
            break
        entering, inside = int(slope.argmax()), inside.copy()
        inside[entering] = True
        while inside.any():
            aim = np.zeros(len(a))
            aim[inside] = np.linalg.solve(G[np.ix_(inside, inside)], c[inside])
            out = inside & (aim <= 0)
            if not out.any():
                a = aim
                break
            a = a + np.min(a[out] / np.maximum(a[out] - aim[out], 1e-300)) * (aim - a)
            # the blocking neuron leaves, the entering one may stay
            inside = inside & ~(out & (a <= 1e-14 * max(a.max(), 1e-300)))
            a = np.where(inside, a, 0.0)
        useless[entering] = not inside[entering]  # duplicates of an active neuron enter and leave due to rounding
    return a


def _merge_neurons(
    X: np.ndarray, W: np.ndarray, signs: np.ndarray, a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merge neurons of one sign and the same active points into one neuron of no larger weight."""
    groups: dict[tuple, list[int]] = {}
    for k, pattern in enumerate((X @ W.T > 1e-12).T):
        groups.setdefault((pattern.tobytes(), signs[k]), []).append(k)
    sums = np.array([a[k] @ W[k] for k in groups.values()]).reshape(-1, X.shape[1])
    size = np.linalg.norm(sums, axis=1)
    return sums / size[:, None], np.array([sign for _, sign in groups]), size
