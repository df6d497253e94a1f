"""The fused program against float64, interpreted where there is no GPU: every form, coincident points, odd shapes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.products.fused import fused_product, triton
from unlazy.products.fused.fused_forms import AngleForm, EntryForm, GaussianForm, LayersForm, MaternForm, form_of
from unlazy.products.fused.split_precision import split
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics.geometry import half_precision_floor

KERNELS = {
    "gaussian": (Gaussian(2.0), GaussianForm),
    "laplace": (Laplace(2.0), MaternForm),
    "matern": (Matern(2.0, 2.5), MaternForm),
    "ntk": (NTK(MLP(3)), AngleForm),
    "leaky nngp": (NNGP(MLP(2, "leaky_relu")), AngleForm),
    "ntk with biases": (NTK(MLP(2, sigma_b=0.3)), LayersForm),
    "nngp with biases": (NNGP(MLP(2, sigma_b=[0.1, 0.2, 0.3])), LayersForm),
    "residual ntk": (NTK(MLP(2, residual=1.0)), EntryForm),
    "sum": (Gaussian(1.0) + 0.5 * Laplace(2.0), EntryForm),
}
TILE = fused_product.TritonTile(x=32, z=32)
INTERPRET = jax.default_backend() != "gpu"


def _problem(n, m, d, c):
    rng = np.random.default_rng(n + d)
    X, Z = rng.normal(size=(n, d)).astype(np.float32), rng.normal(size=(m, d)).astype(np.float32)
    shared = min(n, m) // 2
    Z[:shared] = X[:shared]
    return X, Z, rng.normal(size=(m, c)).astype(np.float32)


def _exact(kernel, X, Z, V):
    with jax.enable_x64(True):
        X, Z, V = (jnp.asarray(a, jnp.float64) for a in (X, Z, V))
        return np.asarray(kernel.gram(X, Z, accurate=True) @ V)


@pytest.mark.slow_cases(
    "1-gaussian",
    "1-laplace",
    "1-leaky nngp",
    "1-matern",
    "1-nngp with biases",
    "1-ntk with biases",
    "1-ntk",
    "1-residual ntk",
    "1-sum",
    "3-laplace",
    "3-leaky nngp",
    "3-matern",
    "3-nngp with biases",
    "3-ntk with biases",
    "3-ntk",
    "3-residual ntk",
    "3-sum",
)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("c", [1, 3])
def test_every_form_at_duplicate_points(name, c):
    kernel, form = KERNELS[name]
    X, Z, V = _problem(40, 70, 5, c)
    assert isinstance(form_of(kernel), form)
    got = fused_product.matmul(kernel, jnp.asarray(X), jnp.asarray(Z), jnp.asarray(V), tile=TILE, interpret=INTERPRET)
    want = _exact(kernel, X, Z, V)
    # Points rounded to two bfloat16 halves move ⟨x,z⟩ by 2^-18 |x||z| = 4e-6; K's own halves with several columns as
    # much again. Kernels here change by at most their value per unit of relative ⟨x,z⟩, times 3 where |x|/h is large.
    assert np.linalg.norm(got - want) <= 3e-5 * np.linalg.norm(want)


@pytest.mark.slow_cases("33-65-3", "40-40-100", "64-32-64")
@pytest.mark.parametrize("n, m, d", [(1, 1, 1), (33, 65, 3), (64, 32, 64), (40, 40, 100)])
def test_odd_shapes_and_streamed_width(n, m, d):
    X, Z, V = _problem(n, m, d, 1)
    kernel = Gaussian(float(d) ** 0.5)
    got = fused_product.matmul(
        kernel, jnp.asarray(X), jnp.asarray(Z), jnp.asarray(V[:, 0]), tile=TILE, interpret=INTERPRET
    )
    want = _exact(kernel, X, Z, V[:, 0])
    assert got.shape == (n,) and np.linalg.norm(got - want) <= 2e-5 * np.linalg.norm(want)


def test_splits_of_the_long_side_sum_to_the_product():
    X, Z, V = _problem(32, 256, 4, 1)
    whole, cut = (
        fused_product.matmul(
            Laplace(1.0),
            *map(jnp.asarray, (X, Z, V)),
            tile=fused_product.TritonTile(32, 32, splits=s),
            interpret=INTERPRET,
        )
        for s in (1, 4)
    )
    # the same 256 terms in another order: 256 units of rounding of their absolute sum at worst
    np.testing.assert_allclose(whole, cut, atol=256 * 2**-24 * np.abs(V).sum())


def test_long_sums_are_accurate():
    """32,768 points in 1,024 tiles: without compensation the sum of 1,024 numbers of one sign drifts by some hundred
    roundings; with it, one rounding of the sum and those inside a tile (5 levels of a tree over 32 numbers) remain."""
    rng = np.random.default_rng(0)
    X, Z = np.zeros((1, 2), np.float32), np.full((32_768, 2), 1e-3, np.float32)
    V = rng.uniform(0.05, 0.15, 32_768).astype(np.float32)
    tile = fused_product.TritonTile(x=32, z=32, splits=1)
    got = fused_product.matmul(Gaussian(1e3), *map(jnp.asarray, (X, Z, V)), tile=tile, interpret=INTERPRET)
    want = np.sum(V, dtype=np.float64)  # K = 1 to 1e-12
    assert abs(float(got[0]) - want) <= 7 * 2**-24 * want


@pytest.mark.slow_cases("ntk with biases")
@pytest.mark.parametrize("name", ["gaussian", "ntk with biases"])
def test_the_transposed_product_is_of_the_same_matrix(name):
    """Inputs far from the origin, so that centering matters. Entries agree to the rounding of sums in another order,
    and an entry that crosses from one number of two bfloat16 halves to the next moves by that spacing, 2^-16 of it."""
    X, Z, _ = _problem(32, 64, 5, 1)
    left, right = fused_product.prepare(KERNELS[name][0], jnp.asarray(X) + 3, jnp.asarray(Z) + 3)
    K = fused_product.apply(left, right, jnp.eye(64), tile=TILE, interpret=INTERPRET)
    K_transposed = fused_product.apply(right, left, jnp.eye(32), tile=TILE, interpret=INTERPRET)
    np.testing.assert_allclose(K, K_transposed.T, atol=(64 * 2**-24 + 2**-16) * float(K.max()))


def test_split_parts_hold_sixteen_bits():
    A = jnp.asarray(np.random.default_rng(0).normal(size=(50, 50)), jnp.float32)
    hi, lo = split(A)
    assert hi.dtype == lo.dtype == jnp.bfloat16
    difference = np.abs(np.asarray(A, np.float64) - np.asarray(hi, np.float64) - np.asarray(lo, np.float64))
    assert (difference <= 2.0**-17 * np.abs(A)).all() and np.abs(np.asarray(lo, np.float64)).max() > 0


def test_float16_halves_hold_more_of_unit_vectors():
    """22 digits, or 2^-25 where that is more: halves may be subnormal numbers, down to 2^-24."""
    A = np.random.default_rng(0).normal(size=(50, 50)).astype(np.float32)
    A = np.asarray(A / np.linalg.norm(A, axis=1, keepdims=True), np.float32)
    A[0] *= 1e-4  # all that is below 2^-14 is in the second half
    hi, lo = (np.asarray(half, np.float64) for half in jax.jit(lambda A: split(A, 2, jnp.float16))(A))
    assert (np.abs(A.astype(np.float64) - hi - lo) <= np.maximum(2.0**-22 * np.abs(A), 2.0**-25)).all()


@pytest.mark.slow_cases(
    "2-leaky nngp",
    "2-ntk with biases",
    "40-leaky nngp",
    "2-nngp with biases",
    "40-ntk with biases",
    "40-ntk",
    "2-ntk",
)
@pytest.mark.parametrize("name", ["ntk", "leaky nngp", "ntk with biases", "nngp with biases"])
@pytest.mark.parametrize("d", [2, 40])
def test_networks_are_exact_at_equal_and_opposite_points(name, d):
    """K(x, x) and K(x, -x) one by one: their square roots of angles would show a rounding of 2^-18 as 2^-9."""
    X, _, _ = _problem(32, 32, d, 1)
    kernel = KERNELS[name][0]
    for Z in (X, -X):
        got = fused_product.matmul(kernel, *map(jnp.asarray, (X, Z)), jnp.eye(32), tile=TILE, interpret=INTERPRET)
        want = np.diag(_exact(kernel, X, Z, np.eye(32)))
        # the polynomials' 6e-6, two halves of K (2^-17), and some roundings
        assert np.abs(np.diag(got) - want).max() <= 2e-5 * np.abs(np.diag(_exact(kernel, X, X, np.eye(32)))).max()


@pytest.mark.slow_cases("biases-5", "ntk-10", "nngp-4")
@pytest.mark.parametrize(
    "kernel",
    [
        NTK(MLP(5, sigma_b=0.1)),
        pytest.param(NTK(MLP(12, sigma_b=0.1)), marks=pytest.mark.slow),
        NTK(MLP(1)),
        NTK(MLP(3)),
        NNGP(MLP(4)),
        NTK(MLP(10)),
    ],
    ids=["biases-5", "biases-12", "ntk-1", "ntk-3", "nngp-4", "ntk-10"],
)
def test_networks_are_exact_at_equal_points(kernel):
    """Rounding that lowers a cosine of 1, here by most of what it can, must not show: K(x, x) is exact."""
    X, _, _ = _problem(300, 300, 16, 1)
    form, depth = form_of(kernel), kernel.network.depth
    side, _ = fused_product._prepared(form, kernel, jnp.asarray(X), jnp.asarray(X))
    t = jnp.sum(side.points * side.points, 1)
    value = form.formula(t * (1 - 0.6 * half_precision_floor(17)), side.rows, side.rows)
    np.testing.assert_array_equal(value, form.formula(t, side.rows, side.rows))
    found = value * side.scale**2 + (0 if side.apart is None else side.apart**2)
    want = np.einsum("ii->i", _exact(kernel, X, X, np.eye(300)))
    # eight roundings per layer: factors and sums of the recursion, or of the sums and coefficients of a polynomial
    np.testing.assert_allclose(found, want, rtol=8 * (depth + 1) * 2**-24)


def test_split_parts_of_a_tile_are_accurate_under_any_compiler():
    """A compiler may take a cast to bfloat16 and back for nothing; the second half would then be zero (error 2^-9)."""
    K = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    K[0, :4] = 0, 1, -1, 2.0**-100
    hi, lo = (np.asarray(half, np.float64) for half in jax.jit(triton._halves)(K))
    assert (np.abs(K - hi - lo) <= 2.0**-17 * np.abs(K)).all() and np.abs(lo).max() > 0


def test_only_gpus_use_the_fused_path_and_other_kernels_are_rejected():
    from unlazy.kernels.base import Kernel

    class Plain(Kernel):
        def gram(self, X, Z=None, accurate=False):
            return jnp.ones((X.shape[0], X.shape[0]))

        def diag(self, X):
            return jnp.ones(X.shape[0])

    X = jnp.ones((3, 2), jnp.float32)
    assert fused_product.available(Gaussian(1.0), X) == (jax.default_backend() == "gpu")
    with pytest.raises(ValueError, match="Plain has no entry formula"):
        fused_product.matmul(Plain(), X, X, jnp.ones((3, 1)))
    assert form_of(RationalQuadratic(1.0, 2.0)) is not None


def test_kernels_that_cannot_be_fused_are_not_fused():
    """Tables of a numerical dual cannot travel into a fused program; folded constants would become such tables."""
    assert form_of(NTK(MLP(1, "tanh"))) is None and form_of(NTK(MLP(1, "gelu"))) is not None
    assert not fused_product._evaluates_constants()
    with jax.ensure_compile_time_eval():
        assert fused_product._evaluates_constants()
    assert jax.jit(lambda x: x if not fused_product._evaluates_constants() else 0 * x)(1.0) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_very_deep_networks_are_not_fused():
    """A function of the angle that falls within a hundredth of it has no short polynomial; its NNGP has one."""
    assert form_of(NTK(MLP(100))) is None and form_of(NNGP(MLP(100))) is not None
    assert form_of(NTK(MLP(50))).polynomials.error <= 6e-6


@pytest.mark.parametrize("stretch", [30.0, 1e4])
def test_gaussians_of_points_many_bandwidths_apart(stretch):
    """K is 1 where points are the same and nothing elsewhere; exponents of the second case round by more than 1."""
    rng = np.random.default_rng(0)
    X, Z = (stretch * rng.normal(size=(n, 5)).astype(np.float32) for n in (20, 50))
    Z[:10] = X[:10]
    v = rng.normal(size=50).astype(np.float32)
    found = fused_product.matmul(
        Gaussian(1.0), X, Z, jnp.asarray(v), tile=fused_product.TritonTile(16, 16), interpret=True
    )
    np.testing.assert_allclose(found, np.where(np.arange(20) < 10, v[:20], 0), atol=4 * 2.0**-24)
