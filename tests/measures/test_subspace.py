"""Energy, principal angles and overlap against exact geometry and scipy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import subspace_angles

from unlazy.measures.subspace import (
    cosines,
    energy,
    overlap,
    principal_angles,
    row_alignment,
    top_directions,
    top_overlap,
)

EPS = float(jnp.finfo(jnp.float32).eps)


def frame(rng, r, d):
    return np.linalg.qr(rng.normal(size=(d, r)))[0].T


def test_energy_counts_squares():
    U = jnp.eye(2, 4)
    W = jnp.array([[3.0, 0, 4.0, 0], [0, 0, 0, 0], [0, 1.0, 0, 0]])
    assert float(energy(W, U)) == pytest.approx((9 + 1) / 26, rel=4 * EPS)
    np.testing.assert_allclose(row_alignment(W, U), [0.6, 0, 1], rtol=4 * EPS)
    assert float(energy(jnp.zeros((3, 4)), U)) == 0


def test_random_rows_have_energy_r_over_d():
    rng = np.random.default_rng(1)
    W = rng.normal(size=(4_000, 20))
    share = np.sum(W[:, :3] ** 2, 1) / 20  # a row's energy over E‖w‖²: its spread gives the standard error
    got = float(energy(jnp.asarray(W, jnp.float32), jnp.eye(3, 20)))
    assert abs(got - 3 / 20) <= 4 * share.std() / math.sqrt(4_000)


@pytest.mark.parametrize("angle", [0.0, 1e-4, 0.3, 1.0, math.pi / 2])
def test_angles_of_two_planes_that_share_a_line(angle):
    first = jnp.eye(2, 5)
    second = jnp.array([[1.0, 0, 0, 0, 0], [0, math.cos(angle), math.sin(angle), 0, 0]])
    # float32 rows carry an absolute error of eps: angles near 0 and in between come back to a few eps.
    np.testing.assert_allclose(principal_angles(first, second), [0, angle], atol=8 * EPS)
    expected = math.sqrt((1 + math.cos(angle) ** 2) / 2)
    assert float(overlap(first, second)) == pytest.approx(expected, abs=8 * EPS)


@pytest.mark.parametrize(("r", "s"), [(2, 4), (4, 2), (3, 3)])
def test_angles_equal_scipys(x64, r, s):
    rng = np.random.default_rng(2)
    first, second = frame(rng, r, 7), frame(rng, s, 7)
    expected = np.sort(subspace_angles(first.T, second.T))
    np.testing.assert_allclose(principal_angles(jnp.asarray(first), jnp.asarray(second)), expected, atol=1e-14)
    np.testing.assert_allclose(cosines(jnp.asarray(first), jnp.asarray(second)), np.cos(expected), atol=1e-14)


def test_top_directions_find_a_planted_plane():
    rng = np.random.default_rng(3)
    U = frame(rng, 2, 6)
    W = jnp.asarray(rng.normal(size=(50, 2)) @ U, jnp.float32)
    # W has rank 2 up to float32 rounding of its entries, so the angle is of the order of eps·cond(W).
    assert float(top_overlap(W, jnp.asarray(U, jnp.float32))) == pytest.approx(1, abs=20 * EPS)
    assert top_directions(W, 2).shape == (2, 6)
    with pytest.raises(ValueError, match="r must be between"):
        top_directions(W, 7)
