"""Directions of neurons: cosines with a feature, clustering, embedding in the plane [P4, P7]."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import accepts_array_likes, dot
from unlazy.core.errors import check_positive_integer

Vectors = Float[Array | np.ndarray, "w d"]


@accepts_array_likes
def feature_cosines(W: Float[Array, "w d"], feature: Float[Array, " d"]) -> Float[Array, " w"]:
    """Cosine cos(w_j, feature) of every row of W [P4].

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.
    feature : array of shape (d,)
        Direction to compare with.

    Returns
    -------
    array of shape (w,)
        Zero for a zero row.

    Examples
    --------
    >>> from unlazy.measures import feature_cosines
    >>> feature_cosines([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], [1.0, 0.0]).tolist()
    [1.0, 0.0, -1.0]
    """
    inside = dot(W, feature)
    sizes = jnp.linalg.norm(W, axis=1) * jnp.linalg.norm(feature)
    return jnp.where(sizes > 0, inside / jnp.where(sizes > 0, sizes, 1), 0.0)


@accepts_array_likes
def pairwise_cosines(W: Float[Array, "w d"]) -> Float[Array, "w w"]:
    """Cosines cos(w_i, w_j) of all pairs of rows.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.

    Returns
    -------
    array of shape (w, w)
        Zero for a zero row.

    Examples
    --------
    >>> from unlazy.measures import pairwise_cosines
    >>> pairwise_cosines([[2.0, 0.0], [0.0, 3.0]]).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    norms = jnp.linalg.norm(W, axis=1, keepdims=True)
    unit = jnp.where(norms > 0, W / jnp.where(norms > 0, norms, 1), 0.0)
    return jnp.clip(dot(unit, unit.T), -1, 1)


@accepts_array_likes
def clustering(W: Float[Array, "w d"]) -> Float[Array, ""]:
    """Median |cos(w_i, w_j)| over pairs of different rows.

    About 0.67/√d for random directions, 1 if all neurons lie on one line. Of neurons that are initialized in
    antisymmetric pairs pass only one of each pair, since the two are parallel by construction.

    Parameters
    ----------
    W : array of shape (w, d)
        Weights, one row per neuron.

    Returns
    -------
    scalar array

    Examples
    --------
    >>> from unlazy.measures import clustering
    >>> float(clustering([[1.0, 0.0], [2.0, 0.0], [-3.0, 0.0]]))
    1.0
    >>> float(clustering([[1.0, 0.0], [0.0, 1.0]]))
    0.0
    """
    i, j = jnp.triu_indices(W.shape[0], 1)
    return jnp.median(jnp.abs(pairwise_cosines(W))[i, j])


class ClusteringTest(NamedTuple):
    """Result of `clustering_test`.

    Attributes
    ----------
    before, after : float
        Median |cos| over pairs of neurons.
    p_value : float
        Probability of such an increase if training did not change the distribution of directions.
    """

    before: float
    after: float
    p_value: float


def clustering_test(before: Vectors, after: Vectors, *, permutations: int = 999, seed: int = 0) -> ClusteringTest:
    """Permutation test of whether neurons cluster more after training than before.

    Null hypothesis: the direction of a neuron has the same distribution before and after, so that exchanging the two
    for any subset of neurons changes nothing. The increase of the mean |cos| of two neurons is compared with its values
    under random exchanges: p = (1 + #{increase at least as large})/(1 + permutations), one-sided, valid at any size.

    Parameters
    ----------
    before, after : array of shape (w, d)
        Weights of the same neurons. Neurons must be independent at initialization: of every antisymmetric pair pass
        one.
    permutations : int, default 999
        Number of random exchanges.
    seed : int, default 0
        Seed of the random exchanges.

    Returns
    -------
    ClusteringTest

    Raises
    ------
    ValueError
        If there are fewer than three neurons or the shapes differ.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import clustering_test
    >>> rng = np.random.default_rng(0)
    >>> before = rng.normal(size=(20, 10))
    >>> after = before + np.array([5.0] + [0.0] * 9)  # all neurons move in one direction
    >>> result = clustering_test(before, after)
    >>> result.after > result.before, result.p_value
    (True, 0.001)
    """
    check_positive_integer("permutations", permutations)
    if before.shape != after.shape or before.shape[0] < 3:
        raise ValueError(
            f"expected three or more neurons, in equal shapes before and after; got {before.shape} and {after.shape}"
        )
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
    reached = int(np.sum(rises[1:] >= rises[0] * (1 - 1e-12)))  # sums that differ only by rounding count as equal
    return ClusteringTest(medians[0], medians[1], (1 + reached) / (1 + permutations))


class PlaneEmbedding(NamedTuple):
    """Result of `plane_embedding`.

    Attributes
    ----------
    points : array of shape (w, 2)
    fidelity : float
        Correlation of the distances in the plane with the original ones.
    """

    points: Float[np.ndarray, "w 2"]
    fidelity: float


def plane_embedding(vectors: Vectors) -> PlaneEmbedding:
    """Embed neurons in the plane by multidimensional scaling of the cosine distances 1 - cos(w_i, w_j) [P7].

    Uses scikit-learn's SMACOF (stress majorization) initialized at the classical solution, so the result is
    deterministic. Opposite clusters end at distance 2, orthogonal neurons at distance 1.

    Parameters
    ----------
    vectors : array of shape (w, d)
        Weights, one row per neuron.

    Returns
    -------
    PlaneEmbedding

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.measures import plane_embedding
    >>> W = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    >>> embedding = plane_embedding(W)
    >>> embedding.points.shape
    (3, 2)
    >>> round(float(np.linalg.norm(embedding.points[0] - embedding.points[2])), 3)
    2.0
    """
    from sklearn.manifold import smacof

    distances = 1 - np.asarray(pairwise_cosines(jnp.asarray(vectors)), float)
    distances = (distances + distances.T) / 2
    np.fill_diagonal(distances, 0)
    points = smacof(distances, n_components=2, init=_classical(distances), n_init=1, normalized_stress=False)[0]
    i, j = np.triu_indices(len(points), 1)
    apart, true = np.linalg.norm(points[i] - points[j], axis=1), distances[i, j]
    spread = apart.std() * true.std()
    fidelity = np.mean((apart - apart.mean()) * (true - true.mean())) / spread if spread > 0 else 1.0
    return PlaneEmbedding(points, float(fidelity))


def _classical(distances: np.ndarray) -> np.ndarray:
    """Classical (Torgerson) scaling: two leading directions of the doubly centered squared distances."""
    n = len(distances)
    center = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(dot(-0.5 * center, distances**2, center))
    return vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12))
