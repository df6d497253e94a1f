"""The Mosaic program for Hopper GPUs: lowered for the GPU, and run by JAX's interpreter of such programs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core import devices
from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace, Matern
from unlazy.products.fused import fused_product, hopper, hopper_schedule, split_precision, triton
from unlazy.theory.infinite_width.architecture import MLP

pytestmark = pytest.mark.skipif(hopper.backend is None, reason="this JAX has no Mosaic GPU backend")
KERNELS = {
    "gaussian": Gaussian(2.0),
    "laplace": Laplace(2.0),
    "matern": Matern(2.0, 2.5),
    "ntk": NTK(MLP(3)),
    "ntk with biases": NTK(MLP(2, sigma_b=0.3)),
}


@pytest.fixture
def interpreter():
    """Not public in every JAX that has it. Its threads wait forever if the default device is a GPU."""
    if not devices.is_host():
        pytest.skip("here the program itself is run: test_on_the_gpu")
    params = pytest.importorskip("jax._src.pallas.mosaic_gpu.interpret.params")
    return params.InterpretGPUParams()


def _problem(n, m, d):
    rng = np.random.default_rng(n + d)
    X, Z, v = (rng.normal(size=shape).astype(np.float32) for shape in ((n, d), (m, d), (m,)))
    Z[: min(n, m) // 2] = X[: min(n, m) // 2]
    return X, Z, v


def _exact(kernel, X, Z):
    with jax.enable_x64(True):
        return np.asarray(kernel.gram(*(jnp.asarray(a, jnp.float64) for a in (X, Z)), accurate=True))


@pytest.mark.parametrize("name", [pytest.param(k, marks=[] if k == "ntk" else pytest.mark.slow) for k in KERNELS])
def test_every_form_is_lowered_for_the_gpu(name):
    """No GPU is needed to check that the backend supports every operation and layout."""
    kernel = KERNELS[name]
    X, Z, v = _problem(40, 70, 5)
    tile = hopper.HopperTile(z=64)
    call = jax.jit(lambda X, Z, v: fused_product.apply(*fused_product.prepare(kernel, X, Z), v, tile=tile))
    text = call.trace(X, Z, v).lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text


PARTS = {
    "smooth": split_precision.SMOOTH,
    "sharp": split_precision.SHARP,
    "float16": split_precision.FLOAT16,
    "turned": split_precision.ROTATED,
}


@pytest.mark.parametrize("adding", [True, False])
@pytest.mark.parametrize("cut", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(
    "d, width",
    [
        (3, 16),
        pytest.param(12, 16, marks=pytest.mark.slow),
        (13, 16),
        pytest.param(16, 16, marks=pytest.mark.slow),
        pytest.param(18, 16, marks=pytest.mark.slow),
        (19, 32),
        pytest.param(34, 32, marks=pytest.mark.slow),
    ],
)
def test_operands_of_the_tensor_cores(d, width, cut, adding):
    """⟨x,z⟩ of parts and what is added, wherever it lies: exact in float64, as products of their numbers are; three
    parts hold float32."""
    X, Z, _ = _problem(6, 7, d)
    a, b = (-0.5 * (points**2).sum(1) if adding else np.zeros(len(points), np.float32) for points in (X, Z))
    sides = [
        hopper.operands(cut, jnp.asarray(points), jnp.asarray(added) if adding else None, first)
        for points, added, first in zip((X, Z), (a, b), (True, False))
    ]
    for side in sides:
        assert [array.shape[1] for array in side] == [width] * 2 + [16] * (d > width or (adding and width - d < 4))
        assert {array.dtype for array in side} == {jnp.dtype(cut.kind)}
    x, z = ([np.asarray(part, np.float64) for part in cut.split(jnp.asarray(points))] for points in (X, Z))
    want = sum(x[i] @ z[j].T for i, j in cut.dots) + a.astype(np.float64)[:, None] + b
    left, right = ([np.asarray(array, np.float64) for array in side] for side in sides)
    got = sum(x @ z.T for x, z in hopper._products(left, right, cut.dots))
    np.testing.assert_allclose(got, want, atol=2.0**-24 * max(np.abs(a).max(), 1))


@pytest.mark.parametrize(
    "name, n, m, d, cut",
    [
        ("gaussian", 70, 130, 5, hopper.HopperTile(1, 64, 2, 1)),
        pytest.param("gaussian", 130, 800, 15, hopper.HopperTile(1, 64, 2, 2), marks=pytest.mark.slow),
        pytest.param("laplace", 130, 600, 20, hopper.HopperTile(2, 64, 2, 2), marks=pytest.mark.slow),
        pytest.param("ntk", 300, 600, 5, hopper.HopperTile(2, 64, 3, 2), marks=pytest.mark.slow),
        pytest.param("ntk", 40, 300, 100, hopper.HopperTile(1, 128, 3), marks=pytest.mark.slow),
        pytest.param("ntk with biases", 70, 70, 5, hopper.HopperTile(1, 64, 2), marks=pytest.mark.slow),
        pytest.param("ntk with biases", 70, 70, 16, hopper.HopperTile(1, 64, 2), marks=pytest.mark.slow),
        pytest.param("laplace", 70, 70, 18, hopper.HopperTile(1, 64, 2), marks=pytest.mark.slow),
        pytest.param("matern", 70, 70, 5, hopper.HopperTile(1, 64, 1), marks=pytest.mark.slow),
        pytest.param("gaussian", 200, 130, 5, hopper.HopperTile(1, 64, 4, 2), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("columns", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_forms_at_duplicate_points(interpreter, name, n, m, d, cut, columns):
    """Tiles that are not full, several groups and tiles, programs that share them; as near as the other program
    (test_fused)."""
    X, Z, v = _problem(n, m, d)
    if columns:
        v = np.stack([np.roll(v, k) for k in range(columns)], 1)
    kernel = KERNELS[name]
    got = fused_product.apply(*fused_product.prepare(kernel, X, Z), jnp.asarray(v), tile=cut, interpret=interpreter)
    want = np.dot(_exact(kernel, X, Z), v.astype(np.float64))
    assert np.linalg.norm(got - want) <= 3e-5 * np.linalg.norm(want)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "ntk with biases"])
def test_chunks_of_z_one_after_the_other(interpreter, name, monkeypatch):
    """Programs share tiles of rows and come back to them with every chunk; signs and weights are those of all of Z."""
    cut = hopper.HopperTile(1, 64, 2, 4)
    monkeypatch.setattr(hopper_schedule, "CHUNK_BYTES", 2 * hopper.FOLD * cut.z * 96)
    monkeypatch.setattr(hopper_schedule, "MIN_FOLDS", 1)
    X, Z, v = _problem(150, 1100, 5)
    shared = hopper.make_schedule(len(X), len(Z), 5, cut)
    assert shared == (3, 2, 3, 4) and shared.parts == 2  # two, two, one and one fold of three tiles
    got = fused_product.apply(
        *fused_product.prepare(KERNELS[name], X, Z), jnp.asarray(v), tile=cut, interpret=interpreter
    )
    want = np.dot(_exact(KERNELS[name], X, Z), v.astype(np.float64))
    assert np.linalg.norm(got - want) <= 3e-5 * np.linalg.norm(want)


@pytest.mark.slow_cases("1-1-132-1", "39063-64-132-65536", "132-5-132-1", "5-3-4-1", "1-200-132-262144")
@pytest.mark.parametrize("tiles, folds, programs, fold_bytes", [
    (1, 1, 132, 1), (1024, 128, 132, 2**16), (128, 19532, 132, 2**16), (39063, 64, 132, 2**16), (1, 200, 132, 2**18),
    (3, 50, 7, 1), (132, 5, 132, 1), (5, 3, 4, 1), (700, 700, 2, 2**18), (10**5, 3, 132, 2**25),
])  # fmt: skip
def test_programs_cover_every_fold_once(tiles, folds, programs, fold_bytes):
    shared = hopper_schedule.WorkSchedule.build(tiles, folds, fold_bytes, programs)
    assert shared.folds * shared.chunks >= folds > shared.folds * (shared.chunks - 1)
    assert shared.chunks == 1 or shared.shortest >= hopper_schedule.MIN_FOLDS
    ends = np.array([shared.program_range(p) for p in range(shared.programs)])
    assert ends[0, 0] == 0 and ends[-1, 1] == tiles * shared.folds and np.array_equal(ends[1:, 0], ends[:-1, 1])
    lengths = np.diff(ends, axis=1)
    assert lengths.min() == shared.shortest >= 1 and lengths.max() <= shared.shortest + 1
    written = np.zeros((shared.parts, tiles), int)
    for program, (first, last) in enumerate(ends):
        written[int(shared.part(program)), first // shared.folds : (last - 1) // shared.folds + 1] += 1
    assert np.array_equal(written, shared.written())  # no two programs leave the same sums


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_registers_suffice(groups):
    """A multiprocessor has 65,536, given out in eights to the warps of the launch; programs that need more than the
    copying group has given back would wait for ever."""
    at_first = 65536 // (128 * (groups + 1)) // 8 * 8
    assert groups * hopper._registers(groups) + hopper.COPY_REGISTERS <= (groups + 1) * at_first
    assert hopper._registers(groups) % 8 == 0


def test_hopper_gpus_use_the_program_if_jax_can_lower_it(monkeypatch):
    """Checked by lowering it; if JAX cannot, the other program is used, with a warning."""
    monkeypatch.setattr(fused_product.devices, "is_hopper", lambda: True)
    form = fused_product.form_of(Laplace(1.0))
    fused_product._lowers_for_hopper.cache_clear()
    assert fused_product._tile(form, 1, 20, 1) == hopper.default_tile(20, 1)
    assert fused_product._tile(form, 1, 100, 3) == hopper.default_tile(100, 3)
    assert isinstance(fused_product._tile(form, 1, 200, 1), fused_product.TritonTile)
    assert isinstance(fused_product._tile(form, 1, 20, 9), fused_product.TritonTile)
    fused_product._lowers_for_hopper.cache_clear()
    jax.clear_caches()
    monkeypatch.setattr(hopper.backend, "inline_mgpu", None)
    with pytest.warns(UnlazyWarning, match="fall back to the slower program"):
        assert isinstance(fused_product._tile(form, 1, 20, 1), fused_product.TritonTile)
    fused_product._lowers_for_hopper.cache_clear()


@pytest.mark.slow
def test_engines_of_a_gpu_without_triton(monkeypatch):
    """On a Hopper GPU the kernels that the program supports; on others nothing fused."""
    X = jnp.ones((3, 2), jnp.float32)
    monkeypatch.setattr(triton, "backend", None)
    monkeypatch.setattr(fused_product.devices, "kind", lambda: "gpu")
    for hopping in (True, False):
        monkeypatch.setattr(fused_product.devices, "is_hopper", lambda: hopping)  # noqa: B023
        assert fused_product.available(Gaussian(1.0), X) is hopping
    monkeypatch.setattr(fused_product.devices, "is_hopper", lambda: True)
    assert not fused_product.available(Gaussian(1.0), jnp.ones((3, 200), jnp.float32))
    assert fused_product._tile(fused_product.form_of(Gaussian(1.0)), 0, 2, 1) == hopper.HopperTile()


@pytest.mark.skipif(not devices.is_hopper(), reason="no Hopper card here")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "n, m, d", [(1, 1, 1), (70, 130, 5), (1000, 3000, 28), (300, 40_000, 64), (40_000, 300, 100), (200, 3000, 33)]
)
@pytest.mark.parametrize("columns", [None, 3, 20])
def test_on_the_gpu(name, n, m, d, columns):
    """The same where the program is meant to run: few rows and many, of either side, and what ends no tile."""
    X, Z, v = map(jnp.asarray, _problem(n, m, d))
    kernel = KERNELS[name]
    if columns:
        v = jnp.stack([jnp.roll(v, k) for k in range(columns)], 1)
    got = np.asarray(fused_product.matmul(kernel, X, Z, v, tile=hopper.default_tile(d, columns or 1)), np.float64)
    want = np.dot(_exact(kernel, np.asarray(X), np.asarray(Z)), np.asarray(v, np.float64))
    assert np.linalg.norm(got - want) <= 3e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("positive", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("m", [1, 5, 700])
def test_tiles_have_one_sign_each(positive, m):
    """Every number lies in one place, and the signs of tiles are those that the program takes them for."""
    tile, rng = 8, np.random.default_rng(m)
    v = (rng.uniform(0.1, 1, m) * np.where(rng.uniform(size=m) < positive, 1, -1)).astype(np.float32)
    cut = hopper.HopperTile(z=tile)
    _, rows = hopper.padding(hopper.make_schedule(1, m + tile, 1, cut), cut)
    order, (both, rest) = map(np.asarray, fused_product._by_sign(jnp.asarray(v), tile, rows))
    assert sorted(order[order < m]) == list(range(m))
    assert (order[order >= m] == m).all()
    at = np.arange(rows) // tile
    sign = np.where(at < both, 1 - 2 * (at & 1), rest)
    placed = order < m
    assert (np.sign(v[order[placed]]) == sign[placed]).all()


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["zero", "one", "positive", "tiny"])
def test_weights_in_the_exponent_of_a_gaussian(interpreter, weights):
    X, Z, v = _problem(40, 300, 3)
    v = {"zero": 0 * v, "one": (np.arange(300) == 7).astype(np.float32), "positive": np.abs(v), "tiny": v * 1e-30}[
        weights
    ]
    kernel = KERNELS["gaussian"]
    cut = hopper.HopperTile(1, 64, 2)
    got = fused_product.apply(*fused_product.prepare(kernel, X, Z), jnp.asarray(v), tile=cut, interpret=interpreter)
    want = np.dot(_exact(kernel, X, Z), v.astype(np.float64))
    assert np.linalg.norm(got - want) <= 3e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("kernel", [Gaussian(2.0), Laplace(2.0)], ids=["gaussian", "laplace"])
@pytest.mark.parametrize(
    "size, near", [(1.0, True), (1e3, False), (1e-3, "gaussian"), (np.nan, False)], ids=["1", "far", "small", "nan"]
)
def test_near_pairs_are_detected(kernel, size, near, monkeypatch):
    """No NaN does: near pairs may make a number of it. Small points of a kinked kernel have no digits in float16."""
    monkeypatch.setattr(fused_product, "_program", lambda form, near, *_: partial(lambda *_: 1.0 if near else 0.0))
    X = jnp.asarray(_problem(20, 20, 3)[0]).at[7, 1].multiply(size) if size != size else size * _problem(20, 20, 3)[0]
    form = fused_product.form_of(kernel)
    sides = [form.prepare(kernel, jnp.asarray(X)) for _ in range(2)]
    found = fused_product._near_or_far(form, *sides, jnp.ones((20, 1)), hopper.HopperTile(), None)
    assert bool(found) is (near if isinstance(near, bool) else isinstance(kernel, Gaussian))
