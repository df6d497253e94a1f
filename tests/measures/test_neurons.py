"""Directions of neurons: cosines, clustering and its permutation test, the picture in the plane [P4, P7]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.measures import neurons


def test_cosines_and_zero_rows():
    W = jnp.array([[3.0, 4.0], [0.0, 0.0], [-1.0, 0.0]])
    np.testing.assert_allclose(neurons.feature_cosines(W, jnp.array([2.0, 0.0])), [0.6, 0, -1], atol=1e-6)
    C = np.asarray(neurons.pairwise_cosines(W))
    np.testing.assert_allclose(C, [[1, 0, -0.6], [0, 0, 0], [-0.6, 0, 1]], atol=1e-6)


@pytest.mark.slow
def test_clustering_of_random_directions_and_of_a_line():
    W = jax.random.normal(jax.random.key(0), (200, 100))
    # |cos| is |N(0, 1/100)| to leading order: median 0.0674; 19,900 pairs, so ± 4·0.8/√200 relative at most
    assert abs(float(neurons.clustering(W)) / 0.0674 - 1) < 0.23
    line = jnp.outer(jnp.linspace(-1, 1, 8), jnp.ones(5))
    assert float(neurons.clustering(line)) == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_permutation_test_finds_clustering_and_not_what_is_not_there():
    keys = jax.random.split(jax.random.key(1), 3)
    before, same = (jax.random.normal(k, (30, 20)) for k in keys[:2])
    after = before + 10 * jax.random.normal(keys[2], (1, 20))
    found = neurons.clustering_test(before, after, permutations=199)
    assert found.p_value == 1 / 200 and found.after > 0.9 > found.before
    assert found.before == pytest.approx(float(neurons.clustering(before)), abs=1e-6)
    assert neurons.clustering_test(before, same, permutations=199).p_value > 0.01
    assert neurons.clustering_test(after, before, permutations=199).p_value > 0.9  # one-sided: a fall is no rise
    with pytest.raises(ValueError, match="three or more neurons"):
        neurons.clustering_test(before[:2], after[:2])


def test_p_values_are_uniform_under_the_null():
    """200 tests at level 0.1: a binomial count within 4 standard deviations, 4·√(200·0.09) = 17, of 20."""
    rng = np.random.default_rng(0)
    small = 0
    for i in range(200):
        before, after = rng.standard_normal((2, 8, 6)).astype(np.float32)
        small += neurons.clustering_test(before, after, permutations=19, seed=i).p_value <= 0.1
    assert abs(small - 20) <= 17


def test_plane_shows_two_opposite_clusters():
    u = np.random.default_rng(0).standard_normal(10)
    W = np.concatenate([np.tile(u, (6, 1)), np.tile(-u, (5, 1))]).astype(np.float32)
    drawn = neurons.plane_embedding(W)
    gaps = np.linalg.norm(drawn.points[:, None] - drawn.points[None], axis=2)
    # cosine distances are 0 and 2 to float32 rounding; stress majorization stops at 1e-6 of the squared distances
    np.testing.assert_allclose(gaps[:6, 6:], 2, atol=0.02)
    assert gaps[:6, :6].max() < 0.02 and drawn.fidelity > 0.999
