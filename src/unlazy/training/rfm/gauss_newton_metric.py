"""The directions of a metric, turned by a Gauss-Newton step.

The average gradient outer product finds which directions matter, but gradients only live in the directions the fit
before could see, so one that is a little off stays so. What residuals show of a better map is linear in small changes,

    y_i - f(x_i) ≈ Σ_kj ∂_k f(Lx_i) x_ij δL_kj,

with ∂_k the derivative along (Lx)_k: least squares in δL, as efficient as any estimate that knows the link (the
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
"""Entries of L that move at once: the directions of largest weight, so many as this allows."""
DAMPING = 1e-4
"""Added to the diagonal of the normal equations, in units of its mean: what residuals say nothing of stays."""
BLOCK = 2**22
"""Numbers held at once."""
SEVERAL = 4
"""Outputs from which on they are summed first."""


def free_directions(L: Map, d: int, n: int) -> int:
    """How many directions may turn: ten rows for each unknown, and no more unknowns than UNKNOWNS."""
    if L.ndim == 1:
        return 1 if 10 * d <= n and d <= UNKNOWNS else 0
    return min(len(L), UNKNOWNS // d, n // (10 * d))


def turned(
    L: Map,
    X: Float[np.ndarray, "n d"],
    residuals: Float[np.ndarray, "n c"],
    slopes: Float[np.ndarray, "n c f"],
    weights: Float[np.ndarray, " n"] | None = None,
) -> Map:
    """L + δL of the least squares above, for its last rows (`root` puts the largest last), or for all lengths where L
    is diagonal; `slopes` are the derivatives along them. L itself where nothing slopes."""
    n, d = X.shape
    diagonal = L.ndim == 1
    unknowns = d if diagonal else d * slopes.shape[2]
    w = np.ones(n) if weights is None else np.sqrt(weights)
    # a shift of all points is none of the metric's business
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
    """The normal equations, blocks of rows at a time, on whatever computes here."""
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
    """A_(kj)(lm) = Σ_i (Σ_c g_ick g_icl) x_ij x_im: outputs meet in what slopes say of two directions, so that many of
    them cost little more than one."""
    f, unknowns = G.shape[2], G.shape[2] * Z.shape[1]
    k, l = np.triu_indices(f)
    pairs = np.asarray(_by_squares(dot(G.swapaxes(1, 2), G)[:, k, l], Z))
    A = pairs[_symmetric(f)].transpose(0, 2, 1, 3).reshape(unknowns, unknowns)
    return A, np.array(dot(einsum("icf,ic->if", G, R).T, Z)).reshape(-1)


def _by_squares(S: Float[Any, "n p"], Z: Float[Any, "n d"]) -> Float[Any, "p d d"]:
    """Σ_i s_ip x_ij x_im of many p: the products x_ij x_im of a block of rows once for all of them."""
    j, m = np.triu_indices(Z.shape[1])
    rows = max(1, BLOCK // len(j))
    starts = range(0, len(Z), rows)
    total = sum(dot(S[i : i + rows].T, Z[i : i + rows, j] * Z[i : i + rows, m]) for i in starts)
    return total[:, _symmetric(Z.shape[1])]


def _symmetric(n: int) -> Int[np.ndarray, "n n"]:
    """Where every entry of a symmetric matrix stands among those of its upper triangle, row after row."""
    place = np.zeros((n, n), int)
    place[np.triu_indices(n)] = np.arange(n * (n + 1) // 2)
    return np.maximum(place, place.T)
