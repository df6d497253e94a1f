"""Points in parts for the tensor cores: what products of parts are off by, against float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.products.fused.fused_forms import GaussianForm, MaternForm
from unlazy.products.fused.split_precision import FLOAT16, ROTATED, SHARP, SMOOTH

U16, U8 = 2.0**-11, 2.0**-8
"""What rounding to float16 and to bfloat16 takes at most."""
SIN = math.sqrt(1 - ROTATED.cos**2)
BOUNDS = {
    "smooth": (SMOOTH, 2 * U8 * U8 + U8**2),  # lo rounded, of either point, and lo·lo
    "sharp": (SHARP, 2 * U8 * U8),
    "float16": (FLOAT16, 2 * U16 * U16 + U16**2),
    # s rounded, whose size is that of x sin φ and what u is off by over it; and what is across, of both points
    "turned": (ROTATED, 2 * U16 * SIN * (SIN + U16 / SIN) + (U16 / SIN) ** 2),
}


def _float64(parts):
    return [np.asarray(part, np.float64) for part in parts]


@pytest.mark.parametrize("parts, bound", BOUNDS.values(), ids=BOUNDS)
def test_products_of_parts_have_rounding_errors_only(parts, bound):
    """Of every coordinate, and on average far less: signs are either's."""
    rng = np.random.default_rng(0)
    x, z = (rng.normal(size=(20_000, 1)).astype(np.float32) for _ in range(2))
    left, right = (_float64(parts.split(jnp.asarray(a))) for a in (x, z))
    exact = x.astype(np.float64) * z
    off = sum(left[i] * right[j] for i, j in parts.dots) - exact
    smallest = parts.smallest * (np.abs(x) + np.abs(z)) / SIN  # numbers below the normal ones
    assert (np.abs(off) <= bound * np.abs(exact) + smallest).all()
    assert abs(off.mean()) <= 4 * off.std() / math.sqrt(len(off))


def test_rotated_parts_form_valid_points():
    """With their own norms, distances are those of some points: 0 of a point to itself, and no Gram matrix of them has
    a negative eigenvalue."""
    X = np.random.default_rng(1).normal(size=(60, 2)).astype(np.float32)
    X[30:] = X[:30] + 1e-4
    first, second = _float64(ROTATED.split(jnp.asarray(X)))
    squares = (first**2).sum(1) + (second**2).sum(1)
    products = np.dot(first, first.T) + np.dot(second, second.T)
    K = np.exp2(products - 0.5 * squares[:, None] - 0.5 * squares)
    np.testing.assert_allclose(np.diag(K), 1, atol=1e-14)
    assert np.linalg.eigvalsh(K)[0] > -1e-13


def test_norms_are_those_of_the_same_parts():
    """Also in a compiled program, where steps are fused: a part that was rounded to its other neighbor in one of two
    places would show as 10^-6. Squares of what is left of a coordinate are a 64th of its own, and round some times."""
    X = np.random.default_rng(1).normal(size=(500, 32)).astype(np.float32)
    first, second = _float64(ROTATED.split(jnp.asarray(X)))
    size = (X.astype(np.float64) ** 2).sum(1)
    wanted = 0.5 * (size - (first**2).sum(1) - (second**2).sum(1))
    for excess in (ROTATED.norm_correction, jax.jit(ROTATED.norm_correction)):
        found = np.asarray(excess(jnp.asarray(X)), np.float64)
        assert (np.abs(found - wanted) <= 32 * 2.0**-24 * size / 64).all()
    assert SMOOTH.norm_correction(jnp.asarray(X)) is None


@pytest.mark.slow_cases("100")
@pytest.mark.parametrize("d", [1, 3, 32, 100])
def test_near_gaussians_err_by_less_than_1e_5(d):
    """K as a whole, points as far out as the form allows on average, some of them neighbors."""
    near, rng = GaussianForm().near, np.random.default_rng(d)
    X, Z = (rng.normal(size=(n, d)) for n in (64, 4000))
    Z[:64] = X + 1e-3 * rng.normal(size=(64, d))
    X, Z = (jnp.asarray(math.sqrt(near.mean / (a**2).sum(1).mean()) * a, jnp.float32) for a in (X, Z))
    K = np.exp2(-0.5 * ((np.asarray(X, np.float64)[:, None] - np.asarray(Z, np.float64)) ** 2).sum(-1))
    (x, s), (z, r) = (_float64(near.parts.split(a)) for a in (X, Z))
    a, b = (-0.5 * ((p**2).sum(1) + (q**2).sum(1)) for p, q in ((x, s), (z, r)))
    error = np.exp2(np.dot(x, z.T) + np.dot(s, r.T) + a[:, None] + b) - K
    assert np.linalg.norm(error) <= 1e-5 * np.linalg.norm(K)


def test_near_points_of_kinked_kernels_have_floats_of_their_size():
    """-½|x|² of the farthest is a float16 number, and powers of two of what pairs have are normal ones."""
    near = MaternForm(0.5).near
    assert near.most / 2 < float(jnp.finfo(jnp.float16).max)
    assert near.powers.least == -math.sqrt(2 * near.most) > -125


@pytest.mark.parametrize("length", [0.3, 1.0, 60.0])
@pytest.mark.parametrize("d", [2, 12, 32])
def test_float16_distance_of_a_point_to_itself_is_below_the_floor(d, length):
    """What products and norms of parts leave of no distance is within the floor of the form, sums and all, though
    single numbers of float16 are as large as it where points are small."""
    form, rng = MaternForm(0.5), np.random.default_rng(d)
    kernel = type("K", (), {"length": 2 * math.log2(math.e)})  # x' = x
    X = rng.normal(size=(2000, d))
    X = jnp.asarray(length * X / np.linalg.norm(X, axis=1, keepdims=True), jnp.float32)
    X = X * jnp.asarray(10 ** rng.uniform(-4, 0, (2000, 1)), jnp.float32)
    side = form.prepare(kernel, X)
    (hi, lo), a = _float64(FLOAT16.split(side.points)), np.asarray(side.added, np.float64)
    left = -((hi * hi).sum(1) + 2 * (hi * lo).sum(1) + 2 * a)
    cuts = (math.ceil(d / 16) + 1) * 2.0**-23 * (hi * hi).sum(1)  # by the tensor cores: a unit of each sum
    (floor,) = form.numbers(side, FLOAT16)
    assert (np.abs(left) + cuts <= np.asarray(floor, np.float64)).all()
