"""The first stage by warps of a Hopper GPU: on arrays against the recursion, lowered, and on a GPU [C1, C2]."""

import itertools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import mlir

from oracles_planes import CLOSE, exact, images, network
from unlazy.core import devices
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.conv_gpu import dispatch, hopper_program, lanes, triton_program, warp
from unlazy.kernels.conv_gpu.layout import ConvLayer, Stage, StageInputs
from unlazy.kernels.networks.layered import LayeredNNGP, LayeredNNGPAndNTK
from unlazy.layers import Shape, myrtle
from unlazy.theory.numerics.angle_polynomials import relu_dual_in_versine

needs_backend = pytest.mark.skipif(hopper_program.backend is None, reason="this JAX has no Mosaic GPU backend")
needs_triton = pytest.mark.skipif(triton_program.backend is None, reason="this JAX has no Triton backend for Pallas")


def by_warps(net, X, Z, tangent, count=1):
    X, Z = (jnp.asarray(A, jnp.float32) for A in (X, Z))
    plan = dispatch.plan_of(net, Shape(X.shape[1:-1], X.shape[-1]))._replace(warps=count)
    left, right = (LayeredNNGPAndNTK(net) if tangent else LayeredNNGP(net)).sides(X, Z)
    found = jax.jit(lambda l, r: dispatch.entries(plan, tangent, True, net, l, r))(left.points, right.points)
    return [np.asarray(K, float) for K in found if K is not None]


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly_cases(  # each net of 8 pixels stays once; the next test has 16
    "False-net1-8", "False-net2-8", "False-net3-16", "True-net0-8", "True-net3-16", "True-net4-8"
)  # fmt: skip
@pytest.mark.parametrize("net, size", [
    (network(1, 1), 8), (network(3, 1, sigma_b=0.3), 8), (network(2, 1, sigma_b=0.2, rate=0.5, bias_rate=3.0), 8),
    (network(2, 1, 1), 16), (network(1, 2, rate=0.5), 8),
])  # fmt: skip
@pytest.mark.parametrize("tangent", [False, True])
def test_kernels_are_those_of_the_recursion(net, size, tangent):
    X, Z = images(2, size), images(9, size, seed=1)  # more than one block on the right, none of them full
    X[1] *= 30
    Z[0] = X[0]
    for found, wanted in zip(by_warps(net, X, Z, tangent), exact(net, X, Z)):
        np.testing.assert_allclose(found, wanted, rtol=CLOSE)


@pytest.mark.slow
@pytest.mark.nightly_cases("False-net1-16", "False-net2-16", "True-net1-16", "True-net2-16")
@pytest.mark.parametrize("net, size", [
    (network(1), 8), (network(1, 2), 16), (network(2, 1, sigma_b=0.2, rate=0.5, bias_rate=3.0), 16),
])  # fmt: skip
@pytest.mark.parametrize("tangent", [False, True])
def test_all_stages_by_warps_against_float64(net, size, tangent):
    """All stages by warps: each reads the output of the one before, and the last one sums."""
    X, Z = images(2, size), images(9, size, seed=1)
    Z[0] = X[0]
    count = len(dispatch.plan_of(net, Shape((size, size), 3)).stages)
    for found, wanted in zip(by_warps(net, X, Z, tangent, count), exact(net, X, Z)):
        np.testing.assert_allclose(found, wanted, rtol=CLOSE)


@needs_triton
@pytest.mark.slow
@pytest.mark.nightly
def test_black_images_and_same_patches():
    X = np.zeros((4, 8, 8, 1))
    X[1] = 1
    X[2, :, :4] = 1
    X[3] = 1e-16
    net = network(1, 1)
    for found, wanted in zip(by_warps(net, X, X[:3], True), exact(net, X, X[:3])):
        np.testing.assert_allclose(found, wanted, rtol=CLOSE)


@pytest.mark.slow
def test_a_single_stage_against_sums_in_float64():
    """One layer on 8 × 8 pixels, pooled: all pairs of positions one by one."""
    stage = Stage(8, (ConvLayer(3, 2 / 9),))
    rng = np.random.default_rng(0)
    x, z = (np.maximum(0, rng.normal(size=(8, 8, 1, 8))) for _ in range(2))

    def windows(values):  # Σ over windows of values[p, q]: both positions move together
        moved = np.zeros((10, 10, 10, 10))
        moved[1:9, 1:9, 1:9, 1:9] = values
        return sum(moved[a : a + 8, b : b + 8, a : a + 8, b : b + 8] for a in range(3) for b in range(3))

    def covariance(a, b):
        return windows(np.einsum("ij,kl->ijkl", a, b))

    def deviation(a):
        return np.sqrt(np.einsum("ijij->ij", covariance(a, a)))

    feats = []
    for side, twice in ((x, 2), (z, 1)):
        std = np.stack([deviation(side[:, :, 0, k]) for k in range(8)], -1)
        feats.append(np.concatenate([side, twice * std[:, :, None]], 2))
    left, right = (jnp.asarray(f, jnp.float32) for f in feats)
    given = StageInputs(lanes.left_side(stage, left), lanes.right_side(stage, right), 1, jnp.zeros((1, 3)))
    (found,) = hopper_program.run(stage, given, tangent=False, plain=True, interpret=True)
    tile = lanes.WarpTile.of(8)
    for i, j in ((0, 0), (3, 6), (7, 2)):
        scale = np.einsum("ij,kl->ijkl", deviation(x[:, :, 0, i]), deviation(z[:, :, 0, j]))
        with np.errstate(invalid="ignore", divide="ignore"):
            rho = np.where(scale > 0, np.clip(covariance(x[:, :, 0, i], z[:, :, 0, j]) / scale, -1, 1), 0)
        dual = scale * (np.sqrt(1 - rho**2) + rho * (np.pi - np.arccos(rho))) / (2 * np.pi)
        pooled = dual.reshape(4, 2, 4, 2, 4, 2, 4, 2).mean((1, 3, 5, 7))
        at, pair = tile.pair_position(jnp.int32(i), jnp.int32(j))
        for P, Q in np.ndindex(4, 4):  # rows: of displacement Q - P the sum of three parts
            parts = np.asarray(found)[int(at)].reshape(stage.pooled, 3, stage.pooled + 1, 4, -1).sum(1)
            for p, q in np.ndindex(4, 4):
                value = parts[(Q - P) % stage.pooled, (q - p) % stage.pooled, P, tile.column_start(p) + int(pair)]
                # nine products, sixteen duals: roundings of so many terms, and 1.5e-7 of the polynomial
                assert abs(value - pooled[P, p, Q, q]) <= 60 * 2.0**-24 * max(scale.max(), 1e-30)


def test_the_versine_keeps_its_error_bound():
    x = 1 - np.cos(np.linspace(0, np.pi / 2, 4001))
    angle = np.arccos(1 - x)
    wanted = (np.sin(angle) + (1 - x) * (np.pi - angle)) / np.pi
    found = 1 - x + x * np.sqrt(x) * np.polynomial.Polynomial(relu_dual_in_versine(4))(x)
    assert np.abs(found - wanted).max() <= 7.5e-8


@needs_backend
def test_this_jax_lowers_the_program():
    hopper_program.is_lowered.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnlazyWarning)
        assert hopper_program.is_lowered()


@needs_backend
def test_a_jax_that_cannot_lower_the_program_warns(monkeypatch):
    def refused(*given, **options):
        raise NotImplementedError("changed")

    hopper_program.is_lowered.cache_clear()
    monkeypatch.setattr(hopper_program.backend, "kernel", refused)
    with pytest.warns(UnlazyWarning, match="the slower program"):
        assert not hopper_program.is_lowered()
    hopper_program.is_lowered.cache_clear()


def test_supported_stages():
    first = dispatch.plan_of(myrtle(10), Shape((32, 32), 3)).stages[0]
    assert hopper_program.is_supported(first, 3) and not hopper_program.is_supported(
        first, 20
    )  # 23 features: more than fits on chip
    others = [first._replace(circular=True), first._replace(size=4), first._replace(size=12)]
    others += [first._replace(layers=first.layers * 2), first._replace(layers=(ConvLayer(3, 1.0), ConvLayer(5, 1.0)))]
    assert not any(hopper_program.is_supported(stage, 3) for stage in others)


def test_blocks_fill_the_gpu(monkeypatch):
    monkeypatch.setenv("UNLAZY_MEMORY", "100GB")
    monkeypatch.setattr(dispatch.devices, "multiprocessors", lambda: 132)
    plan = dispatch.plan_of(myrtle(10), Shape((32, 32), 3))._replace(warps=1)
    first = plan.stages[0]
    rows, columns = plan.images(10_000, 10_000, False)
    count = np.prod(hopper_program.blocks(first, (rows // 8, columns // 8), False))
    assert count % 132 == 0 and columns <= 142


def test_neighbors_and_places_on_arrays():
    on = warp.SimulatedWarp(2, [jnp.arange(64.0)], [8])
    value = on.lane.astype(jnp.float32)
    before, after = on.neighbor(value, -1, 8), on.neighbor(value, 1, 8)
    assert before[0, :9].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 8] and after[1, 6:9].tolist() == [7, 7, 9]
    assert [v[0, 5] for v in on.reader(0, on.lane)(2)] == [7, 8, 9, 10]
    on.store(0, on.integer(4), [on.constant(1.0)] * 4, on.lane == 0, on.lane >= 1)
    assert on.outputs[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def shuffled(values, how, clamp):
    """`shfl.sync` by one lane as the PTX manual defines it: `clamp` is the mask of segments and a bound within them."""
    bound, segments = clamp & 31, clamp >> 8 & 31
    found = []
    for lane in range(32):
        limit = (lane & segments) | (bound & ~segments)
        other = lane - 1 if how == "up" else lane + 1
        found.append(values[other if (other >= limit if how == "up" else other <= limit) else lane])
    return found


@needs_backend
def test_lines_of_assembly():
    """What a GPU does with the code of a shuffle is what the simulated warp does; other code by its text."""
    ir = warp.ir
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            on = object.__new__(warp.GpuWarp)
            on._float_type, on._integer_type = ir.F32Type.get(), ir.IntegerType.get_signless(32)
            on._address_type, on.warps_of_block = ir.IntegerType.get_signless(64), 4
            on._vector_type = ir.Type.parse("!llvm.struct<(f32, f32, f32, f32)>")
            value, memory = on.constant(2.0), ir.Type.parse("memref<4096xf32>")
            on.shared = ir.Operation.create("builtin.unrealized_conversion_cast", [memory], [value]).result
            on.inputs, on.thread = [on._begin(on.shared)], on.integer(0)
            for side in (-1, 1):
                for group in (2, 4, 8):
                    on.neighbor(value, side, group)
            on.to_float(on.thread == 0)
            on.load_on_chip(0, on.thread, 1300)
            assert len(on.masked_read(0, on.thread, on.thread == 0, 3)) == len(on.reader(0, on.thread)(5)) == 4
            on.read(0, 7)
            on.outputs = on.inputs
            on.store(0, on.thread, [value] * 4, on.thread == 0, on.thread == 1)
        text = str(module)
    shuffles = re.findall(r"shfl\.sync\.(up|down)\.b32 \$0, \$1, 1, (\d+), (0x\w+);", text)
    simulated, values = warp.SimulatedWarp(1, [], []), jnp.arange(32.0)[None]
    for (how, clamp, members), (side, group) in zip(shuffles, itertools.product((-1, 1), (2, 4, 8)), strict=True):
        assert int(members, 16) == 2**32 - 1
        assert shuffled(range(32), how, int(clamp)) == simulated.neighbor(values, side, group)[0].tolist()
    floats = dict(re.findall(r"(%\w+) = arith\.constant (\S+) : f32", text))
    (ends,) = re.findall(r"arith\.select %\w+, (%\w+), (%\w+) : f32", text)
    assert [float(floats[name]) for name in ends] == [1.0, 0.0]
    # four warps of 32 lanes copy four values each, in three turns of 512
    copies = re.findall(r'"\{ ([^"]*st\.shared[^"]*) \}", "l,l,r"', text)
    assert len(copies) == 1 and "ld.global.nc.v4.f32 {a, b, c, d}, [$0]" in copies[0]
    assert "arith.constant 3 : i32" in text and "arith.constant 512 : i32" in text
    # addresses in bytes; a masked read leaves zeros; what is stored first is overwritten, later values are added
    lines = re.findall(r'"([^"]*)", "([^"]*)"', text)  # code and constraints
    ((code, _),) = [line for line in lines if line[1] == "=&f,=&f,=&f,=&f,l,r"]
    assert code.count("0f00000000;") == 4 and "@p ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4 + 12];" in code
    assert [line for line in lines if line[0].startswith("ld.")] == [
        ("ld.global.nc.v4.f32 {$0, $1, $2, $3}, [$4 + 20];", "=f,=f,=f,=f,l"),
        ("ld.global.nc.f32 $0, [$1 + 28];", "=f,l"),
    ]
    stores = [
        re.search(r"@p (\S+) \[\$4\], \{\$0, \$1, \$2, \$3\};", code)[1] for code, c in lines if c == "f,f,f,f,l,r"
    ]
    assert stores == ["red.global.add.v4.f32", "st.global.v4.f32"] and ("bar.sync 0;", "") in lines


def test_tiles_keep_few_left_images():
    """The left images of a tile are kept on chip; a warp has the pairs of 2 × 2 images for every group of lanes."""
    for size in (8, 16, 32):
        tile = lanes.WarpTile.of(size)
        assert tile.rows <= tile.columns and tile.pairs == 4 * 32 // tile.lanes and tile.lanes == size // 4
        i, j = (k.ravel() for k in np.indices((8, 8)))
        which, place = tile.pair_position(i, j)
        assert len({*zip(which.tolist(), place.tolist())}) == 64  # every pair of a block has its own place


@pytest.mark.skipif(devices.kind() != "gpu" or not devices.is_hopper(), reason="needs a Hopper card")
@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("net", [myrtle(5), network(3, 1, sigma_b=0.2, rate=0.5, bias_rate=3.0)])
@pytest.mark.parametrize("most", [1, 3])
def test_on_a_gpu(net, tangent, most, monkeypatch):
    monkeypatch.setattr(dispatch, "WARP_STAGES", most)
    X, Z = (jnp.asarray(images(n, 32, seed=n), jnp.float32) for n in (9, 13))
    plan = dispatch.plan_for(net, X, tangent)
    assert plan is not None and plan.warps == min(most, len(plan.stages))
    kernel = LayeredNNGPAndNTK(net) if tangent else LayeredNNGP(net)
    found = jax.tree.leaves(kernel.block(*kernel.sides(X, Z)))
    for K, again, wanted in zip(found, jax.tree.leaves(kernel.block(*kernel.sides(X, Z))), exact(net, X, Z)):
        assert np.array_equal(K, again)
        np.testing.assert_allclose(K, wanted, rtol=CLOSE)
