"""Kernels of descriptions: against neural-tangents in float64, by structure, and invalid descriptions."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks import layered
from unlazy.kernels.networks.infinite_width import NNGP, NTK, LayerKernel, nngp_and_ntk
from unlazy.layers import (  # fmt: skip
    Activation,
    Aggregate,
    AvgPool,
    Concatenate,
    Conv,
    ConvLocal,
    ConvTranspose,
    Dense,
    Dropout,
    Erf,
    Flatten,
    Gelu,
    GlobalAvgPool,
    GlobalSumPool,
    Index,
    Layer,
    LayerNorm,
    Product,
    Relu,
    SelfAttention,
    Shape,
    Sum,
    SumPool,
    precompute,
    propagate,
    residual,
    serial,
)
from unlazy.layers import activation as pointwise
from unlazy.layers.protocol.covariance import grid_of
from unlazy.products import product
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import solve
from unlazy.theory.infinite_width.architecture import MLP

DATA = np.load(Path(__file__).parent.parent / "data" / "neural_tangents_layers.npz")
CASES = json.loads(str(DATA["descriptions"]))
PLAIN = {
    layer.__name__: layer for layer in (Relu, Erf, Gelu, Flatten, GlobalAvgPool, GlobalSumPool, LayerNorm, Aggregate)
}
WINDOWED = {layer.__name__: layer for layer in (Conv, ConvLocal, ConvTranspose, AvgPool, SumPool)}
RNG = np.random.default_rng(0)


def described(case):
    """A description from the names in the reference file."""
    words = CASES[case]
    sigmas = words["sigma_w"], words["sigma_b"]

    def read(text):
        kind, *rest = text.split()
        if text.startswith("Residual("):
            return residual(*(read(part.strip()) for part in text[9:-1].split(",")))
        if text.startswith("Parallel("):
            inside, how = text[9:].rsplit(")", 1)
            branches = [tuple(read(part.strip()) for part in branch.split(",")) for branch in inside.split(";")]
            if "multiplied" in how:  # both end in a Dense: only so are the numbers of the reference met (to 3e-15)
                return Product(*((*branch, Dense(*sigmas)) for branch in branches))
            return Concatenate(*branches)
        if kind in WINDOWED:
            window = tuple(map(int, rest[0].split("x")))
            strides = int(rest[rest.index("stride") + 1]) if "stride" in rest else 1
            if kind.endswith("Pool"):
                return WINDOWED[kind](window, strides)
            # transposed ones are circular, whatever the words say: only so are their numbers met (to 8e-16)
            padding = "circular" if kind == "ConvTranspose" else next(word for word in rest if word.isupper())
            return WINDOWED[kind](window, *sigmas, strides=strides, padding=padding)
        if kind == "GlobalSelfAttention":
            # σ_b = 0.1 is not in the words: only so are the numbers of the reference met (to 6e-16)
            return SelfAttention(1.2, 1.1, 0.1, weighing="softmax" if "softmax" in text else "identity")
        if kind == "Dropout":
            return Dropout(words["keep"])
        return Dense(*sigmas) if kind == "Dense" else PLAIN[kind]()

    return serial(*map(read, words["layers"]))


def sides(case, dtype):
    found = [DATA[f"{case}/{name}"].astype(dtype) for name in "XZ"]
    graphs = [DATA.get(f"{case}/pattern_{name}") for name in "XZ"]
    return found if graphs[0] is None else list(zip(found, graphs))


FAST = ("case04_myrtle_like",)


@pytest.mark.slow_cases("case04_myrtle_like")
@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_agrees_with_neural_tangents(case, x64):
    """The bar is 1e-10 of every entry: float64 leaves a million units of rounding for both libraries."""
    for K, name in zip(nngp_and_ntk(described(case), *sides(case, np.float64)), ("nngp", "ntk")):
        np.testing.assert_allclose(K, DATA[f"{case}/{name}"], rtol=1e-10, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_agrees_in_float32(case):
    """1e-5 of √(k(x,x) k(z,z)), 170 units of rounding: inner products, some ten layers and their angles."""
    X, Z = sides(case, np.float32)
    network = described(case)
    for kernel, name in ((NNGP(network), "nngp"), (NTK(network), "ntk")):
        scale = np.sqrt(np.outer(kernel.diag(X), kernel.diag(Z)))
        assert np.max(np.abs(kernel.gram(X, Z) - DATA[f"{case}/{name}"]) / scale) < 1e-5


def test_only_needed_pairs_of_positions_are_kept():
    """No pooling: p = q alone; a pool of 2 after one of 2 reaches 3 positions, a global one all; strides multiply."""
    image = Shape((32, 32), 3)
    tail = (Flatten(), Dense())
    assert [axis.reach for axis in grid_of(serial(Conv(3), "relu", Conv(3), *tail), image)] == [0, 0]
    pools = serial(Conv(3), "relu", AvgPool(2), Conv(3), "relu", AvgPool(2), *tail)
    assert [axis.reach for axis in grid_of(pools, image)] == [3, 3]
    strided = serial(Conv(3, strides=2), "relu", AvgPool(2), *tail)
    assert [axis.reach for axis in grid_of(strided, image)] == [2, 2]
    whole = serial(Conv(3), "relu", GlobalAvgPool(), Dense())
    assert [axis.reach for axis in grid_of(whole, image)] == [None, None]
    circular = serial(Conv(3, padding="circular"), "relu", AvgPool(2), *tail)
    assert [axis.reach for axis in grid_of(circular, image)] == [None, None]
    assert [axis.reach for axis in grid_of(serial(Conv(3), Index(4, slice(0, 8, 2)), *tail), image)] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["case04_myrtle_like", "case07_conv1d_sumpool"])
def test_planes_and_all_pairs_agree(case, x64, monkeypatch):
    """The same sums in another order: 1e-13 is hundreds of roundings for some dozens of terms."""
    network, (X, Z) = described(case), sides(case, np.float64)
    planes = NTK(network).gram(X, Z)
    from unlazy.layers.protocol import position_pairs

    monkeypatch.setattr(
        position_pairs, "kept", lambda sizes, required_pairs: tuple(position_pairs.Axis(n, None) for n in sizes)
    )
    jax.clear_caches()
    np.testing.assert_allclose(NTK(network).gram(X, Z), planes, rtol=1e-13)


@pytest.mark.slow
def test_tiles_change_nothing(x64, monkeypatch):
    """Pair by pair instead of at once, with equal points among them: to the last bits of sums that fuse differently."""
    network = serial(Conv(3, 1.2, 0.3), "relu", GlobalAvgPool(), Dense())
    X = RNG.normal(size=(5, 4, 4, 2))
    Z = np.concatenate([X[1:3], RNG.normal(size=(4, 4, 4, 2))])
    kernel = NTK(network)
    whole = kernel.gram(X, Z)
    monkeypatch.setattr(layered, "TILE_BYTES", 8 * 4**4 * 3)
    jax.clear_caches()
    np.testing.assert_allclose(kernel.gram(X, Z), whole, rtol=1e-13)
    np.testing.assert_array_equal(
        np.asarray(whole)[[1, 2], [0, 1]], kernel.diag(X)[1:3]
    )  # equal points: exactly k(x,x)


@pytest.mark.slow
def test_symmetric_tiles_equal_the_plain_evaluation(x64):
    """17 points: tiles of two, the last overlapping; 70: two strips of 64. To the last bits of sums that fuse apart."""
    network = serial(Dense(1.2, 0.3), residual("erf", Dense(1.0, 0.1)), "relu", Dense())
    kernel = NTK(network)
    X = RNG.normal(size=(70, 3))
    K = np.asarray(kernel.gram(X))
    np.testing.assert_array_equal(K, K.T)
    np.testing.assert_allclose(kernel.gram(X[:17], X[:5]), K[:17, :5], rtol=1e-12)
    np.testing.assert_allclose(kernel.gram(X[:17]), K[:17, :17], rtol=1e-12)
    patient = np.asarray(kernel.gram(X, progress=True))
    np.testing.assert_allclose(patient, K, rtol=1e-12)
    np.testing.assert_array_equal(patient, patient.T)
    np.testing.assert_allclose(kernel.gram(X, X[:66], progress=True), K[:, :66], rtol=1e-12)


def test_a_fully_connected_description_is_the_mlp():
    network = serial(Dense(1.2, 0.1), "erf", Dense(1.1, 0.2), "erf", Dense(1.0, 0.3))
    kernel = NTK(network)
    assert isinstance(kernel, NTK) and kernel.formula is kernel
    assert kernel.network == MLP(2, "erf", (1.2, 1.1, 1.0), (0.1, 0.2, 0.3))
    assert isinstance(LayerKernel(network, (1.0, 0.0, 0.0)), LayerKernel)
    assert isinstance(NTK(serial(Dense(), "relu", LayerNorm(), Dense())), layered.LayeredNTK)


@pytest.mark.slow
def test_layer_kernels_sum_to_the_ntk(x64):
    """Sums of three numbers in another order: a few roundings."""
    network = serial(
        Conv(3, 1.2, 0.3), "relu", residual(Conv(3), "relu", Conv(3, 1.0, 0.1)), Flatten(), Dense(1.0, 0.2)
    )
    X = RNG.normal(size=(3, 4, 4, 2))
    apart = [LayerKernel(network, tuple(float(l == j) for j in range(4))).gram(X) for l in range(4)]
    np.testing.assert_allclose(sum(apart), NTK(network).gram(X), rtol=1e-13)


WRONG = {
    "layer 2, Conv 5 × 5 valid: .*does not fit on 4": (serial(Conv(3), Conv((5, 5), padding="valid")), (2, 4, 4, 1)),
    "layer 1, Conv 3 × 3 × 3 same": (serial(Conv((3, 3, 3)), Flatten()), (2, 4, 4, 1)),
    "ends with 4 × 4 positions": (serial(Conv(3)), (2, 4, 4, 1)),
    "needs positions": (serial(Conv(3), Flatten()), (2, 5)),
    "layer 2, SelfAttention: needs one axis": (serial(Dense(), SelfAttention(), GlobalAvgPool()), (2, 4, 4, 1)),
    "must follow weights": (serial(Dense(), "relu", "relu", LayerNorm(), Dense()), (2, 5)),
    "must be independent and of mean 0": (serial(Dense(), Sum(Activation("relu"), Activation("erf"))), (2, 5)),
    "must be independent, all but one": (serial(Dense(), Product("relu", "erf")), (2, 5)),
    "different positions: 4 × 4 and 2 × 2": (serial(Sum(Conv(3), Conv(3, strides=2)), Flatten()), (2, 4, 4, 1)),
    "has no derivative, so no NTK": (serial(Conv(3), "step", Flatten(), Dense()), (2, 4, 4, 1)),
    "pairs .nodes": (serial(Dense(), Aggregate(), GlobalAvgPool()), (2, 4, 3)),
    "is empty": (serial(Conv(3), "relu", Flatten(), Dense()), (0, 4, 4, 1)),
}  # fmt: skip


@pytest.mark.parametrize("said", WRONG)
def test_errors_name_the_layer(said):
    network, shape = WRONG[said]
    with pytest.raises(ValueError, match=said):
        NTK(network).gram(np.ones(shape))


def test_graphs_of_unequal_size_are_rejected():
    kernel = NTK(serial(Dense(), "relu", Aggregate(), GlobalAvgPool(), Dense()))
    graphs = [{"a": np.ones((n, 2)), "b": np.eye(n)} for n in (3, 4)]
    with pytest.raises(ValueError, match="differ in structure or shape"):
        kernel.gram(graphs)


@pytest.mark.parametrize(
    "wrong",
    [lambda: Conv(0), lambda: Conv(3, padding="full"), lambda: Dense(-1.0), lambda: Dropout(0.0), lambda: serial()],
)
def test_layers_reject_invalid_values(wrong):
    with pytest.raises(ValueError):
        wrong()


@pytest.mark.slow
def test_large_weights_and_deep_chains_stay_finite(x64):
    """σ_w = 1e3 over five layers: Σ near 1e29, whose square float32 does not hold."""
    for activation, dtype in (("relu", "float32"), ("erf", "float32"), ("gelu", "float32")):
        steps = [layer for _ in range(5) for layer in (Conv(3, 1e3, 0.1), activation)]
        X = jnp.asarray(RNG.normal(size=(3, 3, 3, 2)), dtype)
        kernel = NTK(serial(*steps, GlobalAvgPool(), Dense()))
        assert np.isfinite(kernel.gram(X)).all()


@pytest.mark.slow
def test_preparing_points_in_parts_changes_nothing(monkeypatch):
    """Points are prepared independently, so that parts of any size agree; five points in pairs leave a remainder."""
    X = jnp.asarray(np.random.default_rng(3).normal(size=(5, 4, 2)), jnp.float32)
    kernel = NTK(serial(Conv(3, 1.2, 0.1), "relu", GlobalAvgPool(), Dense()))
    whole = kernel.prepare(X).points
    monkeypatch.setattr(layered, "POINT_BYTES", 2 * 4 * 4 * 4)
    parts = kernel.prepare(X).points
    for a, b in zip(jax.tree.leaves(parts), jax.tree.leaves(whole)):
        np.testing.assert_allclose(a, b, rtol=16 * 2.0**-24)  # the same sums, fused differently


def test_slices_of_positions_are_the_whole(monkeypatch):
    """Whatever number of positions is taken at once, seven of them one by one included: the same formula everywhere."""
    sizes = (6, 7, 2, 3), (6, 7, 2, 3), (6, 1, 2, 1), (1, 7, 1, 3)
    sigma, theta, q11, q22 = (RNG.integers(-99, 100, size).astype(float) for size in sizes)  # no sum is rounded

    def of(sigma, theta, q11, q22):
        return sigma * q11 + q22, None if theta is None else theta - q22

    for size in (1, 2 * 7 * 6 * 8, 2**20):  # bytes: one position of six, two, all
        monkeypatch.setattr(pointwise, "SLICE", size)
        for right in (q22, np.repeat(q22, 6, 0)):
            with jax.enable_x64(True):
                given = [jnp.asarray(a) for a in (sigma, theta, q11, right)]
                found, moved = pointwise.sliced(of, *given)
                np.testing.assert_array_equal(found, sigma * q11 + q22)
                np.testing.assert_array_equal(moved, theta - q22)
                assert pointwise.sliced(of, given[0], None, *given[2:])[1] is None


class _Doubled(Layer):
    """Reads its arrays as those of one pair: sums, shapes and the last axis are of positions."""


@propagate.register
def _doubled(layer: _Doubled, state, left, right):
    assert state.sigma.ndim == 2 * len(state.grid) and left.shape == (4,) == right.shape
    mean = jnp.mean(left) * jnp.mean(right)
    return state.each(lambda A: A * mean / jnp.sum(left) / jnp.sum(right) * 4 * A.shape[-1])


@precompute.register
def _sizes(layer: _Doubled, state):
    return jnp.diagonal(state.sigma)


@pytest.mark.slow
def test_a_layer_of_one_pair_is_mapped_over_blocks(x64):
    """4 positions: the layer is the number 4 · 4/16 = 1 times its input, whatever it looks at."""
    X, Z = RNG.normal(size=(5, 4, 2)), RNG.normal(size=(3, 4, 2))
    parts = (Conv(3, 1.2, 0.3), "relu"), (GlobalAvgPool(), Dense())
    for K, plain in zip(nngp_and_ntk(serial(*parts[0], _Doubled(), *parts[1]), X, Z),
                        nngp_and_ntk(serial(*parts[0], *parts[1]), X, Z)):  # fmt: skip
        np.testing.assert_allclose(K, plain, rtol=1e-14)


DROPS = (Dense(1.2, 0.3), "relu", Dropout(0.6), Dense(1.1, 0.2), "relu", Dense())


@pytest.mark.slow
@pytest.mark.parametrize("kernel_of", [NNGP, NTK])
def test_dropout_gives_one_kernel_from_every_call(kernel_of, x64):
    """Equal points have one value, however they are given; before, K(X, X) had the diagonal of a single evaluation.

    All calls evaluate one formula of some hundred operations: 1e-13 is 500 roundings.
    """
    X, v = np.random.default_rng(5).normal(size=(7, 4)), np.random.default_rng(6).normal(size=7)
    kernel = kernel_of(serial(*DROPS))
    K = np.asarray(kernel.gram(X))
    np.testing.assert_allclose(kernel.gram(X, X.copy()), K, rtol=1e-13)
    np.testing.assert_allclose(kernel.gram(X, X[::-1])[:, ::-1], K, rtol=1e-13)
    np.testing.assert_allclose(kernel.gram(X, progress=lambda _: None), K, rtol=1e-13)
    np.testing.assert_allclose(kernel.gram(X, X[:3], progress=lambda _: None), K[:, :3], rtol=1e-13)
    np.testing.assert_allclose(kernel.diag(X), np.diag(K), rtol=1e-13)
    np.testing.assert_allclose(kernel(X[0], X[0]), K[0, 0], rtol=1e-13)
    np.testing.assert_allclose(product(kernel, X).matmul(v), K @ v, rtol=0, atol=1e-13 * np.abs(K).sum(1).max() * 3)
    near = kernel.gram(X, X + 1e-9)  # continuous: the slope is of the order of k/|x|
    np.testing.assert_allclose(near, K, rtol=1e-7)


@pytest.mark.slow
def test_dropout_solvers_and_predictions_agree(x64):
    """One system for all: the fitted values are the predictions, and conjugate gradients find the direct solution.

    Its residual is at most 1e-10 of y, so that with ridge 1 dual coefficients differ by as much.
    """
    X, y = np.random.default_rng(7).normal(size=(30, 4)), np.random.default_rng(8).normal(size=30)
    kernel = NTK(serial(*DROPS))
    direct, iterative = (solve(kernel, X, y, 1.0, method=m, tolerance=1e-10) for m in ("direct", "preconditioned_cg"))
    size = np.linalg.norm(y)
    assert np.linalg.norm(direct.coefficients - iterative.coefficients) <= 2e-10 * size
    fit = decompose(kernel, X).ridge_path(y, 1.0)
    assert np.linalg.norm(fit.fitted - fit.predict(X)) <= 1e-11 * size  # eigenvectors and products of 30 rows


def test_mask_variance_of_a_linear_network(x64):
    """Σ of a single evaluation is Σ/keep after the masks, and so is Θ: the masks add k(x, x)(1/keep - 1)."""
    X = np.random.default_rng(9).normal(size=(5, 4))
    for kernel_of in (NNGP, NTK):
        kernel = kernel_of(serial(Dense(), Dropout(0.8), Dense()))
        np.testing.assert_allclose(kernel.mask_variance(X), kernel.diag(X) * (1 / 0.8 - 1), rtol=1e-13)
        np.testing.assert_allclose(kernel.gram(X), kernel_of(serial(Dense(), Dense())).gram(X), rtol=1e-13)
        assert not np.any(kernel_of(serial(Dense(), LayerNorm(), Dense())).mask_variance(X))


def test_attention_with_positions_by_hand(x64):
    """Σ = Z(x) Σ_0 Z(z)ᵀ with Z(x) = Σ_0(x, x) + σ_p² I, then the mean over tokens: some ten products of 3 terms."""
    X, Z = np.random.default_rng(1).normal(size=(2, 3, 4)), np.random.default_rng(2).normal(size=(3, 3, 4))
    description = serial(SelfAttention(weighing="identity", sigma_position=0.3), GlobalAvgPool(), Dense(1.0))
    mix = [[x @ x.T / 4 + 0.09 * np.eye(3) for x in side] for side in (X, Z)]
    wanted = [[np.mean(A @ (x @ z.T / 4) @ B.T) for z, B in zip(Z, mix[1])] for x, A in zip(X, mix[0])]
    np.testing.assert_allclose(NNGP(description).gram(X, Z), wanted, rtol=1e-12)


def test_normalization_over_all_by_hand(x64):
    """Positions share one variance, the mean over them; epsilon is 1e-12 of it. NNGP of linear layers."""
    X, Z = np.random.default_rng(1).normal(size=(2, 3, 4)), np.random.default_rng(2).normal(size=(3, 3, 4))
    description = serial(Dense(1.3, 0.2), LayerNorm("all"), GlobalAvgPool(), Dense(1.0))
    mean = [[np.mean(1.69 * x @ z.T / 4 + 0.04) for z in Z] for x in X]
    size = [np.sqrt([np.mean(1.69 * np.sum(x * x, 1) / 4 + 0.04) for x in side]) for side in (X, Z)]
    np.testing.assert_allclose(NNGP(description).gram(X, Z), mean / np.outer(*size), rtol=1e-11)


def test_rates_of_weights_and_biases_by_hand(x64):
    """Θ of two linear layers: Σ_l r_l σ_w² Σ_{l-1} + ρ_l σ_b², each times the σ_w² of the layers above."""
    X = np.random.default_rng(1).normal(size=(3, 4))
    S = 1.44 * X @ X.T / 4
    first = 2.0 * S + 3.0 * 0.09
    wanted = 5.0 * 1.21 * (S + 0.09) + 7.0 * 0.04 + 1.21 * first
    layers = Dense(1.2, 0.3, rate=2.0, bias_rate=3.0), Dense(1.1, 0.2, rate=5.0, bias_rate=7.0)
    np.testing.assert_allclose(NTK(serial(*layers)).gram(X), wanted, rtol=1e-13)
    by_conv = serial(Conv((1,), 1.2, 0.3, rate=2.0, bias_rate=3.0), Flatten(), layers[1])
    np.testing.assert_allclose(NTK(by_conv).gram(X[:, None]), wanted, rtol=1e-13)
