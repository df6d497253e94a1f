"""Rotation of the directions of a metric by a Gauss–Newton step.

The average gradient outer product finds which directions matter, but gradients lie in the directions that the previous
fit could see, so a small error of a direction persists. The residuals determine a better map L, to first order, by

    y_i - f(x_i) ≈ Σ_kj ∂_k f(Lx_i) x_ij δL_kj,

with ∂_k the derivative along (Lx)_k: least squares in δL, as efficient as an estimator that knows the link (the
refinement of outer products of gradients by minimum average variance, Xia, Tong, Li and Zhu, JRSS B 2002).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from unlazy.core import devices
from unlazy.core.linalg import dot, einsum
from unlazy.core.precision import precision
from unlazy.products.metric_gram import Map

UNKNOWNS = 1200
"""Largest number of entries of L that change in one step; the directions of largest weight are chosen."""
DAMPING = 1e-4
"""Added to the diagonal of the normal equations, relative to its mean; undetermined entries stay unchanged."""
BLOCK = 2**22
"""Number of array entries computed at a time."""
SEVERAL = 4
"""Number of outputs from which the sum over outputs is taken first."""


def free_directions(L: Map, d: int, n: int) -> int:
    """Return how many directions may rotate: at most UNKNOWNS unknowns, and ten rows for each."""
    if L.ndim == 1:
        return 1 if 10 * d <= n and d <= UNKNOWNS else 0
    return min(len(L), UNKNOWNS // d, n // (10 * d))


def rotate_directions(
    L: Map,
    X: Float[np.ndarray, "n d"],
    residuals: Float[np.ndarray, "n c"],
    slopes: Float[np.ndarray, "n c f"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Map:
    """Return L + δL of the least squares problem above.

    `slopes` are the derivatives along the last rows of L (`metric_root` puts the largest last), which are the ones that
    change; all lengths change if L is diagonal. L is returned unchanged if all slopes vanish.
    """
    n, d = X.shape
    diagonal = L.ndim == 1
    unknowns = d if diagonal else d * slopes.shape[2]
    w = np.ones(n) if weights is None else np.sqrt(weights)
    # a shift of all points does not affect the metric
    A, b = _normal(slopes * w[:, None, None], X - X.mean(0), residuals * w[:, None], unknowns, diagonal)
    scale = float(np.trace(A)) / unknowns
    if not (np.isfinite(scale) and scale > 0):
        return L
    A[np.diag_indices(unknowns)] += DAMPING * scale
    step = np.linalg.solve(A, b)
    if diagonal:
        return np.maximum(L + step, 0)
    moved = L.copy()
    moved[-slopes.shape[2] :] += step.reshape(-1, d)
    return moved


def _normal(
    slopes: np.ndarray, X: np.ndarray, residuals: np.ndarray, unknowns: int, diagonal: bool
) -> tuple[Float[np.ndarray, "u u"], Float[np.ndarray, " u"]]:
    """Return the normal equations, computed in blocks of rows on the default device."""
    with precision("float64"):
        xp = np if devices.is_host() else jnp
        G, Z, R = xp.asarray(slopes), xp.asarray(X), xp.asarray(residuals)
        if R.shape[1] >= SEVERAL and not diagonal:
            return _of_several(G, Z, R)
        A, b = xp.zeros((unknowns, unknowns)), xp.zeros(unknowns)
        rows = max(1, BLOCK // unknowns)
        for c in range(R.shape[1]):
            for i in range(0, len(X), rows):
                g, z = G[i : i + rows, c], Z[i : i + rows]
                F = g * z if diagonal else (g[:, :, None] * z[:, None]).reshape(len(z), -1)
                A, b = A + dot(F.T, F), b + dot(F.T, R[i : i + rows, c])
        return np.array(A), np.array(b)


def _of_several(
    G: Float[Any, "n c f"], Z: Float[Any, "n d"], R: Float[Any, "n c"]
) -> tuple[Float[np.ndarray, "u u"], Float[np.ndarray, " u"]]:
    """Return the normal equations for several outputs.

    A_(kj)(lm) = Σ_i (Σ_c g_ick g_icl) x_ij x_im: the sum over outputs is taken once for each pair of directions, so
    that many outputs cost little more than one.
    """
    f, unknowns = G.shape[2], G.shape[2] * Z.shape[1]
    k, l = np.triu_indices(f)
    pairs = np.asarray(_by_squares(dot(G.swapaxes(1, 2), G)[:, k, l], Z))
    A = pairs[_symmetric(f)].transpose(0, 2, 1, 3).reshape(unknowns, unknowns)
    return A, np.array(dot(einsum("icf,ic->if", G, R).T, Z)).reshape(-1)


def _by_squares(S: Float[Any, "n p"], Z: Float[Any, "n d"]) -> Float[Any, "p d d"]:
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
