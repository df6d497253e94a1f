"""One rule for duplicates: equal rows have distance 0 in every arithmetic, and different points a positive one."""

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.products.engines import numpy_engine
from unlazy.theory.numerics import geometry


def _products(X, Z):
    return X @ Z.T, np.sum(X * X, 1)[:, None], np.sum(Z * Z, 1)[None, :]


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_rule_is_scale_invariant_and_host_and_jax_agree(scale):
    rng = np.random.default_rng(0)
    X = (scale * rng.standard_normal((30, 40))).astype(np.float32)
    Z = X * np.float32(1 + 1e-2)
    Z[::2] = X[::2]
    xz, xx, zz = _products(X, Z)
    snapped = np.asarray(geometry.snap_inner_product(*(jnp.asarray(a) for a in (xz, xx, zz)), 40))
    middle = 0.5 * (xx + zz)
    # a hundredth of the norm is ½ 1e-4 of its square, far above (4 + 2√40) 2^-24 = 1e-6
    np.testing.assert_array_equal(np.diagonal(snapped == middle), np.arange(30) % 2 == 0)
    on_host, squares, _ = numpy_engine.inner_products(X, Z)
    np.testing.assert_array_equal(np.diagonal(on_host)[::2], squares[::2])
    assert not (snapped == middle)[~np.eye(30, dtype=bool)].any()


def test_equal_keys_count_only_where_rounding_allows_it():
    x = jnp.ones((1, 1))
    same = jnp.ones((1, 1), bool)
    floor = geometry.worst_case_floor(3, x.dtype)
    near, far = (
        float(geometry.snap_inner_product(x * (1 - factor * floor), x, x, 3, same)[0, 0]) for factor in (0.5, 4)
    )
    assert near == 1 and far != 1


def test_rows_have_equal_keys_if_and_only_if_their_bits_agree():
    X = np.random.default_rng(0).standard_normal((50, 5)).astype(np.float32)
    X[1], X[2] = X[0], X[0]
    X[2, 4] = np.nextafter(X[2, 4], np.float32(9))
    X[3], X[4] = 0.0, -0.0
    keys = np.asarray(geometry.row_hashes(jnp.asarray(X)))
    assert keys[0] == keys[1] != keys[2] and keys[3] == keys[4] and len(np.unique(keys)) == 48


def test_ends_of_the_angle():
    unit = float(jnp.finfo(jnp.float32).eps) / 2
    u = jnp.asarray([-unit, 3 * unit, 5 * unit, 2 - 3 * unit, 1.0], jnp.float32)
    np.testing.assert_array_equal(np.asarray(geometry.snap_cosine_gap(u)), np.asarray([0, 0, u[2], 2, 1], np.float32))


def test_fits_keep_the_accuracy_that_their_degrees_promise():
    """2e-8 and 1e-15 of A(v) = arccos(1-v)/√v and of R; evaluating a polynomial of degree 19 adds some units."""
    v = np.linspace(1e-6, 1, 4001)
    theta = 2 * np.arcsin(np.sqrt(v / 2))
    # sin θ - θ cos θ cancels at small angles: its series there, the next term below 1e-16 of it at θ < 0.2
    series = theta**3 / 3 * (1 - theta**2 / 10 + theta**4 / 280 - theta**6 / 15120 + theta**8 / 1330560)
    gap = np.where(theta < 0.2, series, np.sin(theta) - theta * np.cos(theta))
    for degree, allowed in ((7, 2e-8), (19, 4e-15)):
        a, r = (np.polynomial.Polynomial(c)(v) for c in geometry._coefficients(degree))
        assert np.abs(a * np.sqrt(v) / theta - 1).max() < allowed
        assert np.abs(r * v**1.5 / gap - 1).max() < max(allowed, 1e-12)  # the difference itself loses 1e-16/θ²


@pytest.mark.parametrize("ratio", [1.0, 2.0, 5.0, 1e3])
def test_gap_and_distance_of_points_of_different_norm(ratio, x64):
    x, z = np.array([0.6, -0.3, 1.1]), ratio * np.array([0.4, 0.9, -0.2])
    xz, xx, zz = (jnp.asarray(float(v)) for v in (x @ z, x @ x, z @ z))
    gap = 1 - x @ z / np.linalg.norm(x) / np.linalg.norm(z)
    np.testing.assert_allclose(geometry.cosine_gap(xz, xx, zz), gap, rtol=1e-14)
    for known in (None, jnp.asarray(gap)):
        pair = geometry.covariance(xz, xx, zz, known)
        np.testing.assert_allclose([pair.gap, pair.distance], [gap, np.sum((x - z) ** 2)], rtol=1e-13)
        assert (float(pair.q12), float(pair.q11), float(pair.q22)) == (float(xz), float(xx), float(zz))


def test_floors_are_the_stated_numbers_of_roundings():
    """Four roundings and two per √d in half units; in the worst case two per coordinate and eight."""
    for dtype, unit in ((np.float32, 2.0**-24), (np.float64, 2.0**-53)):
        assert geometry.rounding_floor(0, dtype) == 4 * unit and geometry.rounding_floor(9, dtype) == 10 * unit
        assert geometry.worst_case_floor(9, dtype) == 26 * unit


@pytest.mark.parametrize("d", [1, 5, 100])
def test_distances_of_close_points_in_float64(d, x64):
    """‖x-z‖² and 1 - cos θ of rows a billionth apart, against sums with 64 bits.

    What is left of a row after b bits is 2^{1-b} of its largest coordinate; its products with the row round by 2^-53,
    in four sums. Half of that over the squared norm is left of 1 - cos θ, and as much from the difference of norms.
    """
    rng = np.random.default_rng(d)
    X = rng.normal(size=(6, d)) * 10.0 ** np.arange(-2, 4)[:, None]
    X[1] = np.abs(X[1]) * 1e-4
    X[1, 0] = -10.0  # the largest coordinate of a row may be negative
    Z = X * (1 + 1e-9 * rng.normal(size=(6, d)))
    Z[0] = X[0]
    far, chord = (np.diagonal(v) for v in geometry.split_distances(jnp.asarray(X), jnp.asarray(Z)))
    x, z = X.astype(np.longdouble), Z.astype(np.longdouble)
    wanted, size = np.sum((x - z) ** 2, 1), np.sum(x * x, 1)
    n1, n2 = (np.sqrt(np.sum(v * v, 1)) for v in (x, z))
    half_chord = np.maximum(wanted - (n1 - n2) ** 2, 0) / (2 * n1 * n2)
    bits = (49 - int(np.ceil(np.log2(d)))) // 2
    unit = 4 * 2.0 ** (1 - bits - 53)
    assert np.all(np.abs(far - wanted) <= unit * size) and np.all(np.abs(chord - half_chord) <= unit)
    assert far[0] == chord[0] == 0 and np.all(far[1:] > 10 * unit * size[1:])
