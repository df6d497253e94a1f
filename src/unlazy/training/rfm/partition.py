"""Tree of half-spaces in the learned metric: for data beyond one kernel matrix, every leaf has its own fit.

Rows are halved along their direction of largest variance under the metric until a leaf is small enough. A leaf is
fitted to its own rows and to the nearest rows across its borders, as many as make all leaves equally large: one shape,
one compilation, and fits that agree at the borders. Splits along learned directions: Beaglehole et al., xRFM (2025).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from unlazy.core.arrays import dot
from unlazy.products.metric_gram import Map

SAMPLE = 5000
"""Largest number of rows used to find a direction of largest variance."""
BORDER = 0.15
"""Number of rows from across the borders, relative to a leaf's own rows."""


class Tree(NamedTuple):
    """Inner node i sends x left if directions[i]·x ≤ thresholds[i]; a child c < 0 is the leaf -1 - c."""

    directions: Float[np.ndarray, "k d"]
    thresholds: Float[np.ndarray, " k"]
    children: Int[np.ndarray, "k 2"]

    def leaf(self, Z: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " n"]:
        """Return the leaf of every row."""
        found = np.full(len(Z), -1 if len(self.thresholds) == 0 else 0)
        inner = np.arange(len(Z)) if len(self.thresholds) else np.arange(0)
        while len(inner):
            node = found[inner]
            right = np.einsum("ij,ij->i", Z[inner], self.directions[node]) > self.thresholds[node]
            found[inner] = self.children[node, right.astype(int)]
            inner = inner[found[inner] >= 0]
        return -1 - found


def partition(
    X: Float[np.ndarray, "n d"], L: Map, most: int, seed: int = 0
) -> tuple[Tree, list[Int[np.ndarray, " m"]]]:
    """Return a tree whose leaves have at most `most` rows, borders included, and the equally many rows of each leaf."""
    n = len(X)
    depth, size = _depth_and_size(n, most)
    directions: list[np.ndarray] = []
    thresholds: list[float] = []
    children: list[list[int]] = []
    leaves: list[np.ndarray] = []
    rng = np.random.default_rng(seed)

    def grow(rows: np.ndarray, far: np.ndarray, level: int) -> int:
        """Return the index of the node for these rows; `far` is how far each row lies outside, in deviations."""
        if level == 0:
            near = np.argpartition(far, size - 1)[:size] if size < n else np.arange(n)
            leaves.append(np.sort(near))
            return -len(leaves)
        direction = _widest(X[rows if len(rows) <= SAMPLE else rng.choice(rows, SAMPLE, replace=False)], L)
        along = dot(X, direction)
        threshold = float(np.median(along[rows]))
        spread = float(along[rows].std()) or 1.0
        node = len(thresholds)
        directions.append(direction)
        thresholds.append(threshold)
        children.append([0, 0])
        outside = (along - threshold) / spread
        left = along[rows] <= threshold
        children[node][0] = grow(rows[left], np.maximum(far, outside), level - 1)
        children[node][1] = grow(rows[~left], np.maximum(far, -outside), level - 1)
        return node

    grow(np.arange(n), np.zeros(n), depth)
    tree = Tree(
        np.reshape(directions, (-1, X.shape[1])),
        np.array(thresholds, X.dtype),
        np.reshape(children, (-1, 2)).astype(int),
    )
    return tree, leaves


def leaf_rows(n: int, most: int) -> int:
    """Return the number of rows of a leaf, borders included, of n rows in leaves of at most `most`."""
    return _depth_and_size(n, most)[1]


def _depth_and_size(n: int, most: int) -> tuple[int, int]:
    depth = 0
    while -(-n // 2**depth) * (1 + (BORDER if depth else 0)) > most:
        depth += 1
    return depth, min(n, int(-(-n // 2**depth) * (1 + (BORDER if depth else 0))))


def _widest(X: Float[np.ndarray, "m d"], L: Map) -> Float[np.ndarray, " d"]:
    """Return u such that u·x is the first principal component of Lx."""
    F = X * L if L.ndim == 1 else dot(X, L.T)
    F = F - F.mean(0)
    first = np.linalg.eigh(dot(F.T, F))[1][:, -1]
    return L * first if L.ndim == 1 else dot(L.T, first)
