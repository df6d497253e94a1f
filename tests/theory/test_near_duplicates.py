"""One rule for coincident points: equal rows are exactly so in every arithmetic, and points that differ stay apart."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.products.engines import numpy_entries
from unlazy.theory.numerics import near_duplicates


def _products(X, Z):
    return X @ Z.T, np.sum(X * X, 1)[:, None], np.sum(Z * Z, 1)[None, :]


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_rule_does_not_see_the_scale_and_host_and_jax_agree(scale):
    rng = np.random.default_rng(0)
    X = (scale * rng.standard_normal((30, 40))).astype(np.float32)
    Z = X * np.float32(1 + 1e-2)
    Z[::2] = X[::2]
    xz, xx, zz = _products(X, Z)
    snapped = np.asarray(near_duplicates.snap_inner_product(*(jnp.asarray(a) for a in (xz, xx, zz)), 40))
    middle = 0.5 * (xx + zz)
    # a hundredth of the norm is ½ 1e-4 of its square, far above (4 + 2√40) 2^-24 = 1e-6
    np.testing.assert_array_equal(np.diagonal(snapped == middle), np.arange(30) % 2 == 0)
    on_host, squares, _ = numpy_entries.inner_products(X, Z)
    np.testing.assert_array_equal(np.diagonal(on_host)[::2], squares[::2])
    assert not (snapped == middle)[~np.eye(30, dtype=bool)].any()


def test_equal_keys_count_only_where_rounding_allows_it():
    x = jnp.ones((1, 1))
    same = jnp.ones((1, 1), bool)
    floor = near_duplicates.worst_case_floor(3, x.dtype)
    near, far = (
        float(near_duplicates.snap_inner_product(x * (1 - factor * floor), x, x, 3, same)[0, 0]) for factor in (0.5, 4)
    )
    assert near == 1 and far != 1


def test_rows_have_equal_keys_exactly_where_their_bits_agree():
    X = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
    X[1], X[2] = X[0], X[0]
    X[2, 4] = np.nextafter(X[2, 4], np.float32(9))
    X[3], X[4] = 0.0, -0.0
    keys = np.asarray(near_duplicates.row_hashes(jnp.asarray(X)))
    assert keys[0] == keys[1] != keys[2] and keys[3] == keys[4] and len(np.unique(keys)) == 48


def test_ends_of_the_angle():
    unit = float(jnp.finfo(jnp.float32).eps) / 2
    u = jnp.asarray([-unit, 3 * unit, 5 * unit, 2 - 3 * unit, 1.0], jnp.float32)
    np.testing.assert_array_equal(
        np.asarray(near_duplicates.snap_cosine_gap(u)), np.asarray([0, 0, u[2], 2, 1], np.float32)
    )
