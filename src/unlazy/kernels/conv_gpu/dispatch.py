"""Which networks the GPU programs for displacement planes can evaluate, and the kernels computed with them [C1, C2].

Supported are any number of convolutions with ReLU and means of 2 × 2 pixels, then the mean of all pixels and a dense
layer, as in `myrtle`. The programs assume σ_w² = 2. ReLU is homogeneous, so that a layer with another σ_w² multiplies
everything after it by f = σ_w²/2: covariances and biases are divided by the product F of these factors so far.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core import devices, engines
from unlazy.core.devices import memory_budget
from unlazy.kernels.conv_gpu import first_check, hopper_program, lanes, layout, triton_program
from unlazy.layers import Activation, AvgPool, Conv, Dense, GlobalAvgPool, Layer, Serial, Shape, Weights
from unlazy.layers.protocol import covariance
from unlazy.theory.activations import functions
from unlazy.theory.numerics.geometry import safe_sqrt

SIGMA_W2 = 2.0
"""σ_w² that the programs assume."""
MAX_DEVIATION = 2.0**60
"""Standard deviations from the inverse of this up to this are supported: products of two and their inverses are normal
float32 numbers. Others give NaN; zero is allowed.
"""
MAX_SIZE = 64
"""Largest number of pixels on an axis."""
MAX_ENTRIES = 2**30
"""Entries of the largest array between two stages: 32-bit indices, and 4 GiB."""
TEMPORARIES = 8
"""Bytes of the memory budget per entry: twice what it takes."""
MAX_ROWS = 32
"""Left images of one run."""
WARP_STAGES = 3
"""Stages that `hopper_program` may run: as many as it supports, by measurement on an H200 (Myrtle-10 takes 3.6 µs per
pair, 3.8 µs with one stage).
"""
RESIDENT = 4
"""Programs that run at once on a multiprocessor: each has 64 threads with the maximal number of registers."""
NNGP_TILE, NTK_TILE = layout.PairTile(8, 8, 16, 2), layout.PairTile(8, 8, 8, 2)
"""The fastest tiles on an H200 that fit its registers."""
_RELU = functions.activation("relu")


class ConvPlan(NamedTuple):
    """Stages of a network, and the indices of its convolutions, activations and final layer in the description."""

    stages: tuple[layout.Stage, ...]
    convolutions: tuple[int, ...]
    activations: tuple[int, ...]
    end: int
    warps: int = 0
    """Number of stages, from the first, that `hopper_program` runs."""

    def images(self, n: int, m: int, tangent: bool) -> tuple[int, int]:
        """Numbers of left and right images to evaluate at once."""
        first = self.stages[0]
        each = first.down if first.last else layout.PARTS * first.pooled * (first.pooled + 1) * (first.size // 2) ** 2
        tile = NTK_TILE if tangent else NNGP_TILE
        rows = min(MAX_ROWS, tile.rows * -(-n // tile.rows))
        budget = min(MAX_ENTRIES, memory_budget() // (TEMPORARIES * (2 if tangent else 1)))
        most = max(1, budget // (each * rows) // tile.columns)
        return min(n, rows), min(m, self._even(most, rows // tile.rows, tangent) * tile.columns)

    def _even(self, most: int, rows: int, tangent: bool) -> int:
        """Number of right tiles, at most `most`, that leaves the fewest processors idle after the first stage."""
        first, processors = self.stages[0], devices.multiprocessors()

        def share(columns: int) -> float:
            if self.warps:
                programs, slots = math.prod(hopper_program.blocks(first, (rows, columns), tangent)), processors
            else:
                programs, slots = rows * columns * first.down, RESIDENT * processors
            return programs / (-(-programs // slots) * slots)

        return max(range(max(1, most // 2), most + 1), key=lambda c: (share(c), c))


def plan_of(network: Layer, shape: Shape) -> ConvPlan | None:
    """The plan of a description for inputs of this shape, or None if it is not supported."""
    if not isinstance(network, Serial) or len(shape.positions) != 2 or shape.positions[0] != shape.positions[1]:
        return None
    steps = network.steps(shape)
    stages: list[layout.Stage] = []
    layers: list[layout.ConvLayer] = []
    convolutions, after = [], []
    paddings = set()
    at, end = 0, len(steps) - 2
    if end < 2 or not isinstance(steps[-1][1], Dense) or type(steps[-2][1]) is not GlobalAvgPool:
        return None
    while at < end:
        before, layer = steps[at]
        if isinstance(layer, AvgPool) and layers:
            if set(layer.window) != {2} or set(layer.strides) != {2} or before.positions[0] % 2:
                return None
            stages.append(layout.Stage(before.positions[0], tuple(layers), "circular" in paddings))
            layers, at = [], at + 1
            continue
        following = steps[at + 1][1]
        if type(layer) is not Conv or not isinstance(following, Activation) or following.phi != _RELU:
            return None
        if layer.padding == "valid" or {*layer.strides, *layer.dilation} != {1} or len(set(layer.window)) > 1:
            return None
        window = layer.window[0]
        if window % 2 == 0 or window // 2 > layout.MAX_REACH:
            return None
        paddings.add(layer.padding)
        layers.append(layout.ConvLayer(window, SIGMA_W2 / window**2))
        convolutions.append(at)
        after.append(at + 1)
        at += 2
    if not layers or len(paddings) > 1:
        return None
    stages.append(layout.Stage(steps[end][0].positions[0], tuple(layers), "circular" in paddings, last=True))
    circles = [s for s in stages if s.circular and s.across < 2 * s.halo]
    if shape.positions[0] > MAX_SIZE or circles:
        return None
    return ConvPlan(tuple(stages), tuple(convolutions), tuple(after), len(steps) - 1)


def plan_for(network: Layer, inputs: Array, tangent: bool) -> ConvPlan | None:
    """The plan if it can run and is faster: float32 images on a CUDA GPU with the Triton backend. None otherwise."""
    if triton_program.backend is None or devices.kind() != "gpu" or inputs.dtype != jnp.float32 or inputs.ndim != 4:
        return None
    plan = plan_of(network, Shape(inputs.shape[1:-1], inputs.shape[-1]))
    if plan is None:
        return None
    if devices.is_hopper():
        taken = [
            hopper_program.is_supported(stage, 0 if k else inputs.shape[-1]) for k, stage in enumerate(plan.stages)
        ]
        count = min(WARP_STAGES, [*taken, False].index(False))
        by_warps = count and hopper_program.is_lowered() and _usable("conv_mosaic", tangent)
        plan = plan._replace(warps=count if by_warps else 0)
    return plan if plan.warps == len(plan.stages) or _usable("conv_triton", tangent) else None


def _usable(engine: str, tangent: bool) -> bool:
    """Whether a program may run: it is allowed, and right on this device."""
    case = "NTK" if tangent else "NNGP"
    return engines.usable(engine, case, lambda: first_check.verdict(tangent, partial(_run_alone, engine, tangent)))


def _run_alone(
    engine: str,
    tangent: bool,
    network: Serial,
    left: covariance.PointCovariances,
    right: covariance.PointCovariances,
    interpret: bool = False,
) -> tuple[Array, Array | None]:
    """Σ and Θ of all pairs, with all stages in one program."""
    plan = plan_of(network, Shape(left.inputs.shape[1:-1], left.inputs.shape[-1]))
    assert plan is not None
    plan = plan._replace(warps=len(plan.stages) if engine == "conv_mosaic" else 0)
    return jax.jit(partial(entries, plan, tangent, interpret))(network, left, right)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def entries(
    plan: ConvPlan,
    tangent: bool,
    interpret: bool,
    network: Serial,
    left: covariance.PointCovariances,
    right: covariance.PointCovariances,
) -> tuple[Array, Array | None]:
    """Σ and Θ of every pair of two sets of prepared points; derivatives are those of `layers.protocol.covariance`."""
    n, m = len(left.inputs), len(right.inputs)
    tile = NTK_TILE if tangent else NNGP_TILE
    left, right = (_pad_images(side, size) for side, size in ((left, tile.rows), (right, tile.columns)))
    factor, at = jnp.float32(1), 0
    planes: tuple[Array, ...] | None = None
    fine = [_in_range(jnp.max(jnp.abs(side.inputs), tuple(range(1, side.inputs.ndim)))) for side in (left, right)]
    for step, stage in enumerate(plan.stages):
        numbers: list = []
        deviations: tuple[list, list] = ([], [])
        for k in range(at, at + len(stage.layers)):
            layer = network.layers[plan.convolutions[k]]
            assert isinstance(layer, Weights)
            factor = factor * layer.sigma_w**2 / SIGMA_W2
            bias = layer.sigma_b**2 / factor
            numbers.append(jnp.stack([jnp.float32(v) for v in (bias, layer.bias_rate * bias, layer.rate)]))
            for side, found in zip((left, right), deviations):
                found.append(safe_sqrt(side.notes[plan.activations[k]] / factor))
        features = [jnp.stack(found, -1) for found in deviations]
        fine = [ok & _in_range(found) for ok, found in zip(fine, features)]
        if planes is None:
            channels = left.inputs.shape[-1]
            pixels = (stage.layers[0].scale / channels) ** 0.5
            features[0] = features[0].at[..., 0].multiply(2)  # Σ has both signs: see `Dual`
            features = [jnp.concatenate([pixels * side.inputs, f], -1) for side, f in zip((left, right), features)]
        first, second = (jnp.moveaxis(f, 0, -1) for f in features)
        given = layout.StageInputs(first, second, left.inputs.shape[-1], jnp.stack(numbers), planes)
        if step < plan.warps:
            given = given._replace(left=lanes.left_side(stage, first), right=lanes.right_side(stage, second))
            planes = _run_by_warps(stage, given, tangent, interpret)
        else:
            given = given._replace(
                left=layout.left_side(stage, first, tile), right=layout.right_side(stage, second, tile)
            )
            before = plan.stages[step - 1].size if step and step == plan.warps else None
            planes = triton_program.run(stage, given, tangent=tangent, tile=tile, warps=before, interpret=interpret)
        at += len(stage.layers)
    dense, all_pairs = network.layers[plan.end], plan.stages[-1].size ** 4
    assert isinstance(dense, Weights)
    known = fine[0][:, None] & fine[1][None, :]

    def matrix(values: Array) -> Array:
        shape = len(fine[0]) // tile.rows, len(fine[1]) // tile.columns, tile.rows, tile.columns
        K = values.reshape(shape).transpose(0, 2, 1, 3).reshape(known.shape) * (factor / all_pairs)
        return jnp.where(known, K, jnp.nan)[:n, :m]

    means = [matrix(p) for p in planes or ()]
    weights, bias = dense.sigma_w**2 * means[0], dense.sigma_b**2
    if not tangent:
        return weights + bias, None
    return weights + bias, dense.rate * weights + dense.bias_rate * bias + dense.sigma_w**2 * means[1]


@entries.defjvp
def _entries_jvp(plan: ConvPlan, tangent: bool, interpret: bool, primals: tuple, tangents: tuple) -> tuple:
    inputs = primals[1].inputs
    grid = covariance.grid_of(primals[0], Shape(inputs.shape[1:-1], inputs.shape[-1]))
    return jax.jvp(lambda net, l, r: covariance.of_block(net, l, r, grid, tangent), primals, tangents)


def _pad_images(side: covariance.PointCovariances, images: int) -> covariance.PointCovariances:
    """Pad a side with zero images to a multiple of `images`."""
    more = -len(side.inputs) % images
    return jax.tree.map(lambda a: jnp.pad(a, ((0, more), *((0, 0),) * (a.ndim - 1))), side) if more else side


def _run_by_warps(stage: layout.Stage, given: layout.StageInputs, tangent: bool, interpret: bool) -> tuple[Array, ...]:
    """Run a stage with `hopper_program`; it has less to do without biases and if all rates are 1."""

    def run(plain: bool) -> tuple[Array, ...]:
        return hopper_program.run(stage, given, tangent=tangent, plain=plain, interpret=interpret)

    numbers = given.numbers
    plain = jnp.all(numbers[:, 0] == 0) & (jnp.all(numbers[:, 2] == 1) | (not tangent))
    return jax.lax.cond(plain, lambda: run(True), lambda: run(False))


def _in_range(deviations: Array) -> Array:
    """For every image, whether its largest pixel and standard deviations can be multiplied in float32."""
    rows = deviations.reshape(len(deviations), -1)
    return jnp.all((rows == 0) | ((rows > 1 / MAX_DEVIATION) & (rows < MAX_DEVIATION)), 1)
