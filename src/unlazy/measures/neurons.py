"""Where neurons point: cosines with a feature, clustering of their directions, a picture in the plane [P4, P7]."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import of_any_numbers
from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot

Vectors = Float[Array | np.ndarray, "w d"]


@of_any_numbers
def feature_cosines(W: Float[Array, "w d"], feature: Float[Array, " d"]) -> Float[Array, " w"]:
    """cos(w_j, feature) of every row [P4]; zero for a zero row."""
    inside = dot(W, feature)
    sizes = jnp.linalg.norm(W, axis=1) * jnp.linalg.norm(feature)
    return jnp.where(sizes > 0, inside / jnp.where(sizes > 0, sizes, 1), 0.0)


@of_any_numbers
def pairwise_cosines(W: Float[Array, "w d"]) -> Float[Array, "w w"]:
    """cos(w_i, w_j) of every two rows; zero for a zero row."""
    norms = jnp.linalg.norm(W, axis=1, keepdims=True)
    unit = jnp.where(norms > 0, W / jnp.where(norms > 0, norms, 1), 0.0)
    return jnp.clip(dot(unit, unit.T), -1, 1)


@of_any_numbers
def clustering(W: Float[Array, "w d"]) -> Float[Array, ""]:
    """Median |cos(w_i, w_j)| over pairs of different rows: about 0.67/√d for random directions, 1 for one line.

    Leave out twins that were started alike (one of every antisymmetric pair): they are parallel by construction.
    """
    i, j = jnp.triu_indices(W.shape[0], 1)
    return jnp.median(jnp.abs(pairwise_cosines(W))[i, j])


class ClusteringTest(NamedTuple):
    """Clustering before and after, and the chance of such a rise if training left the directions' law alone."""

    before: float
    after: float
    p_value: float


def clustering_test(before: Vectors, after: Vectors, *, permutations: int = 999, seed: int = 0) -> ClusteringTest:
    """Do neurons cluster more after training? A permutation test with before and after of the same w neurons.

    Null hypothesis: a neuron's direction has the same law before and after, so that exchanging the two for any subset
    of neurons changes nothing. The rise of the mean |cos| of two neurons is compared with its values under random
    exchanges: p = (1 + #{rise at least as large})/(1 + permutations), one-sided, valid at any size. Neurons must be
    independent at the start: give one of every antisymmetric pair. `before` and `after` are medians, as `clustering`.
    """
    check_positive_integer("permutations", permutations)
    if before.shape != after.shape or before.shape[0] < 3:
        raise ValueError(f"give three or more neurons, before and after alike, got {before.shape} and {after.shape}")
    w = before.shape[0]
    both = np.concatenate([np.asarray(before, float), np.asarray(after, float)])
    both /= np.maximum(np.linalg.norm(both, axis=1, keepdims=True), np.finfo(float).tiny)
    C = np.abs(dot(both, both.T))
    np.fill_diagonal(C, 0)
    exchanged = np.random.default_rng(seed).integers(2, size=(permutations, w)).astype(bool)
    taken = np.concatenate([np.zeros((1, w), bool), exchanged])
    first, second = (np.concatenate(pair, 1).astype(float) for pair in ((~taken, taken), (taken, ~taken)))
    rises = np.sum(dot(second, C) * second, 1) - np.sum(dot(first, C) * first, 1)
    pairs = np.triu_indices(w, 1)
    medians = [float(np.median(block[pairs])) for block in (C[:w, :w], C[w:, w:])]
    reached = int(np.sum(rises[1:] >= rises[0] * (1 - 1e-12)))  # the same sum in another order counts as equal
    return ClusteringTest(medians[0], medians[1], (1 + reached) / (1 + permutations))


class Plane(NamedTuple):
    """Points in the plane and how faithful they are: correlation of their distances with the true ones."""

    points: Float[np.ndarray, "w 2"]
    faithful: float


def plane(vectors: Vectors) -> Plane:
    """Multidimensional scaling of cosine distances 1 - cos(w_i, w_j) to two dimensions [P7].

    scikit-learn's SMACOF (stress majorization) from the classical solution, so nothing is random. Two opposite
    clusters end at distance 2, neurons that have nothing in common at distance 1.
    """
    from sklearn.manifold import smacof

    distances = 1 - np.asarray(pairwise_cosines(jnp.asarray(vectors)), float)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    points = smacof(distances, n_components=2, init=_classical(distances), n_init=1, normalized_stress=False)[0]
    i, j = np.triu_indices(len(points), 1)
    apart, true = np.linalg.norm(points[i] - points[j], axis=1), distances[i, j]
    spread = apart.std() * true.std()
    faithful = np.mean((apart - apart.mean()) * (true - true.mean())) / spread if spread > 0 else 1.0
    return Plane(points, float(faithful))


def _classical(distances: np.ndarray) -> np.ndarray:
    """Torgerson's solution: the two leading directions of the doubly centered squared distances."""
    n = len(distances)
    center = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(dot(-0.5 * center, distances**2, center))
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12))
