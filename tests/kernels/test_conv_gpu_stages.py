"""Convolutional kernels by the program of displacement planes, interpreted, against the recursion [C1, C2]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles_planes import CLOSE, exact, images, network
from unlazy.kernels.conv_gpu import dispatch, layout, relu_dual, triton_program
from unlazy.kernels.networks.layered import LayeredNNGP, LayeredNNGPAndNTK
from unlazy.layers import (
    AvgPool,
    Conv,
    Dense,
    Flatten,
    GlobalAvgPool,
    LayerNorm,
    Shape,
    SumPool,
    myrtle,
    residual,
    serial,
)  # fmt: skip
from unlazy.layers.protocol.covariance import PointCovariances
from unlazy.theory.numerics.angle_polynomials import relu_duals_in_cosine

needs_triton = pytest.mark.skipif(triton_program.backend is None, reason="this JAX has no Triton backend for Pallas")


_CONVOLUTIONS = [Conv(3, 1.3 - 0.1 * k, 0.1 + 0.1 * k, rate=0.5 + k, bias_rate=3.0 - k / 2) for k in range(4)]
VARIED = serial(*[f for conv in _CONVOLUTIONS for f in (conv, "relu")], GlobalAvgPool(), Dense(1.1, 0.3, rate=0.8))
"""Four layers with parameters of their own."""


def by_program(net, X, Z, tangent):
    X, Z = (np.asarray(A, np.float32) for A in (X, Z))
    plan = dispatch.plan_of(net, Shape(X.shape[1:-1], X.shape[-1]))
    kernel = LayeredNNGPAndNTK(net) if tangent else LayeredNNGP(net)
    left, right = kernel.sides(jnp.asarray(X, jnp.float32), jnp.asarray(Z, jnp.float32))
    found = dispatch.entries(plan, tangent, True, net, left.points, right.points)
    return [np.asarray(K, float) for K in found if K is not None]


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize("wide", [False, True])
def test_tiles_that_are_not_full(wide):
    X, Z = images(2, 3, 1), images(3, 3, 1, seed=1)
    net = network(1)
    with jax.enable_x64(wide):
        found = by_program(net, X, Z, False)[0]
    np.testing.assert_allclose(found, exact(net, X, Z)[0], rtol=CLOSE)


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly_cases("net0-8", "net1-16", "net4-8", "net7-18", "net9-8")  # as the others, and compile for longer
@pytest.mark.parametrize("net, size", [
    (network(3, 1, sigma_b=0.3), 8), (network(1, 1, 2), 16), (network(2), 5),
    (network(2, 1, padding="circular", sigma_b=0.3), 8), (network(1, 1, padding="circular", window=5), 8),
    (network(1, 1, sigma_b=0.2, rate=0.5, bias_rate=3.0), 4), (network(1, 1, window=1, sigma_b=0.4), 4),
    (network(1, window=5), 18), (VARIED, 2), (network(2, 1, window=5, sigma_b=0.2), 8),
])  # fmt: skip
def test_both_kernels_are_those_of_the_recursion(net, size):
    X, Z = images(2, size), images(3, size, seed=1)
    X[1] *= 30
    wanted = exact(net, X, Z)
    for found, right in zip([*by_program(net, X, Z, True), *by_program(net, X, Z, False)], [*wanted, wanted[0]]):
        np.testing.assert_allclose(found, right, rtol=CLOSE)


@needs_triton
@pytest.mark.slow
def test_same_patches_black_images_and_sizes_out_of_range():
    X = np.zeros((5, 4, 4, 1))
    X[1] = 1
    X[2, :, :2] = 1
    X[3], X[4] = 1e-16, 1e-19  # the variance of the last is below float32's normal numbers: zero on some machines
    net = network(1, 1)
    (sigma, theta), wanted = by_program(net, X, X[:3], True), exact(net, X, X[:3])
    np.testing.assert_allclose(sigma[:4], wanted[0][:4], rtol=CLOSE)
    np.testing.assert_allclose(theta[:4], wanted[1][:4], rtol=CLOSE)
    assert np.isnan(sigma[4]).all() and np.isnan(theta[4]).all()


def test_supported_networks(monkeypatch):
    shape = Shape((32, 32), 3)
    plan = dispatch.plan_of(myrtle(10), shape)
    assert [(s.size, len(s.layers), s.last) for s in plan.stages] == [(32, 3, False), (16, 3, False), (8, 3, True)]
    monkeypatch.setenv("UNLAZY_MEMORY", "100GB")
    monkeypatch.setattr(dispatch.devices, "multiprocessors", lambda: 132)
    # 3 · 17 · 18 · 16² numbers a pair: 142 images in 2^30; 4 · 16 tiles by 33 displacements fill 132 · 4 places 4 times
    assert plan.images(10_000, 10_000, False) == (32, 128) and plan.images(3, 5, True) == (3, 5)
    monkeypatch.setenv("UNLAZY_MEMORY", "4GB")
    assert plan.images(10_000, 10_000, False) == (32, 64)  # 8 bytes each: 71.4 images, 64 fill the GPU
    conv = Conv(3)
    others = [
        serial(conv, "relu", Flatten(), Dense()), serial(conv, "erf", GlobalAvgPool(), Dense()),
        serial(Conv(3, strides=2), "relu", GlobalAvgPool(), Dense()), serial(Conv(2), "relu", GlobalAvgPool(), Dense()),
        serial(Conv(3, padding="valid"), "relu", GlobalAvgPool(), Dense()),
        serial(conv, "relu", SumPool(2), conv, "relu", GlobalAvgPool(), Dense()),
        serial(conv, "relu", AvgPool(3), conv, "relu", GlobalAvgPool(), Dense()),
        serial(conv, LayerNorm(), "relu", GlobalAvgPool(), Dense()),
        serial(Conv((3, 5)), "relu", GlobalAvgPool(), Dense()),
        serial(Conv(7), "relu", GlobalAvgPool(), Dense()),  # reaches beyond the dead places
        serial(conv, "relu", AvgPool(2), Conv(3, padding="circular"), "relu", GlobalAvgPool(), Dense()),
        serial(conv, residual(serial("relu", conv)), "relu", GlobalAvgPool(), Dense()),
        serial(conv, "relu", AvgPool(2), GlobalAvgPool(), Dense()),  # the last stage has no layer
    ]  # fmt: skip
    assert [dispatch.plan_of(net, shape) for net in others] == [None] * len(others)
    for big in (Shape((32, 28), 3), Shape((14, 14), 1)):
        assert dispatch.plan_of(myrtle(5), big) is None


def test_plans_say_where_layers_are_and_what_wraps():
    for padding in ("same", "circular"):
        plan = dispatch.plan_of(network(2, 1, padding=padding), Shape((8, 8), 3))
        assert [stage.circular for stage in plan.stages] == [padding == "circular"] * 2
        assert [stage.last for stage in plan.stages] == [False, True]
        assert plan.convolutions == (0, 2, 5) and plan.activations == (1, 3, 6) and plan.end == 8
        np.testing.assert_allclose([layer.scale for stage in plan.stages for layer in stage.layers], [2 / 9] * 3)


def test_the_smallest_network_has_one_layer():
    plan = dispatch.plan_of(network(1), Shape((4, 4), 3))
    assert (plan.convolutions, plan.activations, plan.end, len(plan.stages)) == ((0,), (1,), 3, 1)


def test_deviations_whose_products_are_in_range():
    """Between 2^-60 and 2^60, so that products of two and their inverses are normal float32; zeros are fine."""
    sizes = jnp.asarray([0.0, 1.0, 1e17, 1e-17, 1e19, 1e-19], jnp.float32)
    both = jnp.stack([sizes, jnp.ones(6)], 1)
    assert dispatch._in_range(both).tolist() == [True, True, True, True, False, False]


def test_which_networks_use_the_program(monkeypatch):
    """float32 images on a GPU, if JAX has the backend and the engine is allowed and right."""
    asked, images_, net = [], jnp.zeros((2, 4, 4, 3), jnp.float32), network(1, 1)

    def usable(engine, case, verdict):
        asked.append((engine, case))
        return engine != "conv_mosaic"

    monkeypatch.setattr(dispatch.triton_program, "backend", object())
    monkeypatch.setattr(dispatch.engines, "usable", usable)
    monkeypatch.setattr(dispatch.devices, "is_hopper", lambda: False)
    monkeypatch.setattr(dispatch.devices, "kind", lambda: "cpu")
    assert dispatch.plan_for(net, images_, True) is None and not asked
    monkeypatch.setattr(dispatch.devices, "kind", lambda: "gpu")
    plan = dispatch.plan_for(net, images_, True)
    assert plan == dispatch.plan_of(net, Shape((4, 4), 3)) and plan.warps == 0
    assert dispatch.plan_for(net, images_, False) == plan
    assert asked == [("conv_triton", "NTK"), ("conv_triton", "NNGP")]
    for other in (images_[0], images_.astype(jnp.float16), jnp.zeros((2, 4, 8, 3), jnp.float32)):
        assert dispatch.plan_for(net, other, True) is None
    monkeypatch.setattr(dispatch.engines, "usable", lambda *given: False)
    assert dispatch.plan_for(net, images_, True) is None
    monkeypatch.setattr(dispatch.triton_program, "backend", None)
    monkeypatch.setattr(dispatch.engines, "usable", lambda *given: True)
    assert dispatch.plan_for(net, images_, True) is None


@pytest.mark.parametrize("lowered, usable, warps", [
    (True, ("conv_mosaic", "conv_triton"), 1), (True, ("conv_mosaic",), None), (True, ("conv_triton",), 0),
    (False, ("conv_mosaic", "conv_triton"), 0),
])  # fmt: skip
def test_leading_stages_run_by_warps_on_hopper(lowered, usable, warps, monkeypatch):
    """Of 16 and 8 pixels the second has a window of five, which only the other program supports."""
    net = serial(Conv(3), "relu", AvgPool(2), Conv(5), "relu", GlobalAvgPool(), Dense())
    monkeypatch.setattr(dispatch.triton_program, "backend", object())
    monkeypatch.setattr(dispatch.engines, "usable", lambda engine, case, verdict: engine in usable)
    monkeypatch.setattr(dispatch.devices, "kind", lambda: "gpu")
    monkeypatch.setattr(dispatch.devices, "is_hopper", lambda: True)
    monkeypatch.setattr(dispatch.hopper_program, "is_lowered", lambda: lowered)
    plan = dispatch.plan_for(net, jnp.zeros((2, 16, 16, 3), jnp.float32), True)
    assert (None if plan is None else plan.warps) == warps
    # 200 channels do not fit on chip: no stage by warps, as each needs the one before
    wide = dispatch.plan_for(net, jnp.zeros((2, 16, 16, 200), jnp.float32), True)
    assert (None if wide is None else wide.warps) == (0 if "conv_triton" in usable else None)


@pytest.mark.parametrize("engine, warps", [("conv_triton", 0), ("conv_mosaic", 2)])
def test_a_program_alone_has_all_stages(engine, warps, monkeypatch):
    def entries(plan, tangent, interpret, net, left, right):
        assert (plan.warps, len(plan.stages), tangent, interpret) == (warps, 2, True, True)
        return left.inputs.sum(), right.inputs.sum()

    monkeypatch.setattr(dispatch, "entries", entries)
    net = network(1, 1)
    sides = (PointCovariances(jnp.ones((n, 4, 4, 3)), {}, jnp.ones(n), None) for n in (2, 3))
    found = dispatch._run_alone(engine, True, net, *sides, interpret=True)
    assert [float(v) for v in found] == [96.0, 144.0]


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("tangent", [False, True])
def test_what_goes_to_a_program_and_what_comes_back(tangent, monkeypatch):
    """One stage of two layers whose pairs a stand-in numbers: factors, biases and rates, every pair in its place.

    Layers with σ_w² = 1.69 multiply all that follows by 1.69/2; the padded images of incomplete tiles are cut off.
    """
    net, size, counts = network(2, sigma_b=0.3, rate=0.5, bias_rate=3.0), 4, (9, 17)
    plan, tile = dispatch.plan_of(net, Shape((size, size), 2)), dispatch.NTK_TILE if tangent else dispatch.NNGP_TILE
    rng, given = np.random.default_rng(0), []

    def run(stage, inputs, **options):
        given.append((stage, inputs, options))
        l, r, i, j = np.indices((2, 3, tile.rows, tile.columns))
        numbered = jnp.asarray((1000.0 * (l * tile.rows + i) + r * tile.columns + j).ravel(), jnp.float32)
        return (numbered, 2 * numbered)[: 1 + tangent]

    monkeypatch.setattr(triton_program, "run", run)
    sides = []
    for n in counts:
        notes = {at: jnp.asarray(rng.uniform(1, 2, (n, size, size)), jnp.float32) for at in plan.activations}
        sides.append(PointCovariances(jnp.asarray(rng.normal(size=(n, size, size, 2)), jnp.float32), notes, None, None))
    left = sides[0]._replace(inputs=sides[0].inputs.at[3, 1, 2, 0].set(1e19))  # out of range: NaN
    found = dispatch.entries(plan, tangent, True, net, left, sides[1])
    ((stage, inputs, options),) = given
    assert (stage, inputs.channels, inputs.planes) == (plan.stages[0], 2, None)
    assert options == {"tangent": tangent, "tile": tile, "warps": None, "interpret": True}
    factors = 0.845 ** np.arange(1, 3)
    wanted = [[0.09 / f, 3 * 0.09 / f, 0.5] for f in factors]
    np.testing.assert_allclose(inputs.numbers, wanted, rtol=1e-6)
    for k, (side, twice) in enumerate(zip(sides, (2, 1))):
        image, f = 5, [np.sqrt(np.asarray(side.notes[at][5]) / v) for at, v in zip(plan.activations, factors)]
        features = np.concatenate(
            [np.asarray(side.inputs[image]) / 3, twice * f[0][..., None], f[1][..., None]], -1
        )  # scale 2/9 of two channels: each side has a root of 1/9
        padded = np.moveaxis(np.repeat(features[None], 24 if k else 16, 0), 0, -1)
        laid = (layout.right_side if k else layout.left_side)(stage, jnp.asarray(padded, jnp.float32), tile)
        ours = (inputs.right if k else inputs.left)[(slice(None),) * k + (image // tile.rows,)]
        at = image % tile.rows
        axis = laid.ndim - 2
        same = jnp.take(laid, 0, axis=k)
        np.testing.assert_allclose(jnp.take(ours, at, axis=axis - 1), jnp.take(same, at, axis=axis - 1), rtol=1e-6)
    numbered = (1000.0 * np.arange(9)[:, None] + np.arange(17)) * factors[1] / size**4
    sigma = 1.21 * numbered + 0.09
    sigma[3] = np.nan
    np.testing.assert_allclose(found[0], sigma, rtol=1e-5)
    if tangent:
        theta = 0.5 * 1.21 * numbered + 3 * 0.09 + 1.21 * 2 * numbered
        theta[3] = np.nan
        np.testing.assert_allclose(found[1], theta, rtol=1e-5)
    else:
        assert found[1] is None


@pytest.mark.slow
def test_derivatives_are_those_of_the_recursion_alone():
    """Of the recursion on the same prepared points: no program is run, so the numbers are equal but for their order."""
    X, Z = (jnp.asarray(images(2, 4, seed=s), jnp.float32) for s in range(2))
    net = network(1, 1)
    plan = dispatch.plan_of(net, Shape((4, 4), 3))
    left, right = LayeredNNGPAndNTK(net).sides(X, Z)

    def by_program(side):
        return dispatch.entries(plan, True, True, net, side.points, right.points)

    def by_recursion(side):
        return LayeredNNGPAndNTK(net).block(side, right)

    def directions(leaf):
        return (
            jnp.ones_like(leaf) if jnp.issubdtype(leaf.dtype, jnp.floating) else np.zeros(leaf.shape, jax.dtypes.float0)
        )

    moved = jax.tree.map(directions, left)
    for found, wanted in zip(*(jax.jvp(f, (left,), (moved,)) for f in (by_program, by_recursion))):
        for a, b in zip(found, wanted):
            np.testing.assert_allclose(a, b, rtol=CLOSE)


def test_polynomials_keep_their_error_bounds():
    rho = np.linspace(-1, 1, 4001)
    w, angle = np.sqrt(1 - rho**2), np.pi - np.arccos(rho)
    value, slope = (w + rho * angle) / (2 * np.pi), angle / (2 * np.pi)
    G, Q = relu_duals_in_cosine(6)[0], relu_duals_in_cosine(7)[1]
    assert np.abs(rho / 4 + np.polynomial.Polynomial(G)(w) - value).max() <= 1.55e-7
    assert np.abs(1 / 4 + rho * np.polynomial.Polynomial(Q)(w) - slope).max() <= 1.05e-7


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("signed", [False, True])
def test_dual_of_relu_by_single_instructions(tangent, signed):
    """E φφ and E φ'φ' of ReLU, times a scale, at every correlation; polynomials good to 1.5e-7 and some roundings."""
    rho = np.linspace(-1 if signed else 0, 1, 201)
    rho[-1] = 1 - 2.0**-23  # 1 - ρ² is below the rounding of 64 terms: equal positions, whose derivative is exactly ½
    left, right, scale = 0.7, 3.0, 2 / 9
    sides = [(1 + signed) * jnp.full(201, left, jnp.float32)], [jnp.full(201, right, jnp.float32)]
    dual = relu_dual.Dual(scale, tangent, signed)
    ((a, b, slope),) = dual.evaluate(relu_dual.on_arrays, [jnp.asarray(rho * left * right, jnp.float32)], *sides)
    angle = np.arccos(rho)
    value = left * right * (np.sin(angle) + (np.pi - angle) * rho) / (2 * np.pi)
    np.testing.assert_allclose(a * b, scale * value, rtol=0, atol=8e-7 * scale * left * right)
    if tangent:
        # without the threshold it would be off by √(2 · 2^-23)/(2π) = 8e-5
        assert abs(slope[-1] / scale - 0.5) < 4e-7
        # at ρ = ±1 the derivative has a root: rounding of ρ, 2^-23, gives √(2 · 2^-23)/(2π)
        inner = slice(2, -2) if signed else slice(0, -2)
        wanted = scale * ((np.pi - angle) / (2 * np.pi))[inner]
        np.testing.assert_allclose(slope[inner], wanted, rtol=0, atol=4e-6 * scale)
        dead = dual.evaluate(relu_dual.on_arrays, [jnp.zeros(1)], [jnp.zeros(1)], [jnp.ones(1)])
        assert float(dead[0][1][0]) == float(dead[0][2][0]) == 0
    else:
        assert slope is None


@pytest.mark.parametrize("signed", [False, True])
def test_positions_count_as_equal_below_the_rounding_of_64_terms(signed):
    """1 - ρ² of half the threshold has the derivative ½ of equal positions, of twice that ½ - √(1 - ρ²)/(2π)."""
    apart = np.array([0.5, 2.0]) * 64 * 2.0**-24
    rho = jnp.asarray(np.sqrt(1 - apart), jnp.float32)
    dual = relu_dual.Dual(1.0, True, signed)
    one = jnp.ones(2, jnp.float32)
    ((_, _, slope),) = dual.evaluate(relu_dual.on_arrays, [rho], [(1 + signed) * one], [one])
    # ρ has 24 bits: 1 - ρ² is off by 2^-23 of 7.6e-6 at the most, and Q by 1e-7
    wanted = 0.5 - np.array([0, np.sqrt(apart[1])]) / (2 * np.pi)
    np.testing.assert_allclose(slope, wanted, atol=1e-5)
    assert abs(wanted[1] - 0.5) > 4e-4


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly
def test_derivatives_are_those_of_the_recursion():
    X, Z = (jnp.asarray(images(2, 4, seed=s), jnp.float32) for s in range(2))
    net = network(1, 1)
    plan = dispatch.plan_of(net, Shape((4, 4), 3))

    def total(X, through):
        left, right = LayeredNNGPAndNTK(net).sides(X, Z)
        if through:
            return sum(K.sum() for K in dispatch.entries(plan, True, True, net, left.points, right.points))
        return sum(K.sum() for K in LayeredNNGPAndNTK(net).block(left, right))

    found, wanted = (jax.grad(total)(X, through) for through in (True, False))
    np.testing.assert_allclose(
        found, wanted, rtol=1e-4, atol=1e-6 * np.abs(wanted).max()
    )  # the same program, reordered


@needs_triton
@pytest.mark.parametrize("tangent", [False, True])
def test_the_program_can_be_lowered_for_a_gpu(tangent):
    net, shape = network(1, 1), jax.ShapeDtypeStruct((8, 4, 4, 3), jnp.float32)
    plan = dispatch.plan_of(net, Shape((4, 4), 3))

    def run(X):
        side = LayeredNNGPAndNTK(net).prepare(X).points
        return dispatch.entries(plan, tangent, False, net, side, side)

    text = jax.jit(run).trace(shape).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("convolution_planes") >= 2
