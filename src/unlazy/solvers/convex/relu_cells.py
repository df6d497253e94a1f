"""Exact maximization of |Σ_i u_i ReLU(w·x_i)| on the sphere, by enumerating the cells into which the points divide it.

On a cell (a fixed set S of points with w·x_i > 0) the function is g_S·w, g_S = Σ_{i∈S} u_i x_i, so a maximum lies at
g_S/‖g_S‖, or on an edge w ⟂ x_i at the projection of g_S orthogonal to x_i, or at a vertex w ⟂ x_i, x_j. Every cell and
every edge has a vertex, so enumerating the n(n-1) vertices and the activity of the points that cross there visits all
of them. For d = 2 the vertices are w ⟂ x_i, and there are no edges.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Cells(NamedTuple):
    """The vertices of the arrangement, the points that cross at each, and which other points are active there."""

    X: Float[np.ndarray, "n d"]
    vertices: Float[np.ndarray, "v d"]
    crossing: Int[np.ndarray, "v e"]
    active: Bool[np.ndarray, "v n"]


def arrangement_cells(X: Float[np.ndarray, "n d"]) -> Cells:
    """The cells of n points in general position in two or three dimensions."""
    n, d = X.shape
    if d == 2:
        crossing = np.arange(n)[:, None]
        normal = np.stack([-X[:, 1], X[:, 0]], 1)
    elif d == 3:
        i, j = np.triu_indices(n, 1)
        crossing, normal = np.stack([i, j], 1), np.cross(X[i], X[j])
    else:
        raise ValueError(f"cells can be enumerated in 2 or 3 dimensions only, got d = {d}: there are n^(d-1) of them")
    size = np.linalg.norm(normal, axis=1)
    good = size > 1e-12 * np.max(np.sum(X**2, 1))  # parallel points have no vertex
    normal, crossing = normal[good] / size[good, None], crossing[good]
    vertices, crossing = np.concatenate([normal, -normal]), np.concatenate([crossing, crossing])
    active = vertices @ X.T > 0
    np.put_along_axis(active, crossing, False, axis=1)
    return Cells(X, vertices, crossing, active)


def candidate_maxima(
    arrangement: Cells, u: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "c d"], Float[np.ndarray, " c"]]:
    """Unit vectors that include every local maximum of |Σ u_i ReLU(w·x_i)|, and the signed sum at each."""
    X, V, crossing, active = arrangement
    base = active @ (u[:, None] * X)
    pulls = [u[m, None] * X[m] for m in crossing.T]
    found = [V]
    for bits in product((0, 1), repeat=len(pulls)):
        g = base + sum(b * p for b, p in zip(bits, pulls))
        found.append(g)
        if len(pulls) == 2:
            found += [_remove_component(g, X[crossing[:, e]]) for e in (0, 1) if not bits[e]]
    C = np.concatenate(found)
    size = np.linalg.norm(C, axis=1)
    C = C[size > 1e-14] / size[size > 1e-14, None]
    C = np.concatenate([C, -C])
    return C, np.maximum(C @ X.T, 0) @ u


def _remove_component(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    """g without its component along x, row by row."""
    return g - x * (np.sum(g * x, 1) / np.sum(x * x, 1))[:, None]
