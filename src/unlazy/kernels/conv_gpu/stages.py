"""Which networks the program of displacement planes can evaluate, and their kernels by it [C1, C2].

Convolutions with ReLU and means of 2 × 2 pixels in any number, the mean of all pixels, a dense layer: as `myrtle`. The
program knows σ_w² = 2 alone. ReLU doubles with its input, so a layer with another σ_w² multiplies all that follows by
f = σ_w²/2: covariances are divided by the product F of these factors so far, and so are biases.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.memory import memory_budget
from unlazy.kernels.conv_gpu import hopper_program, lanes, layout, triton_program
from unlazy.layers import covariance
from unlazy.layers.description import Activation, AvgPool, Conv, Dense, GlobalAvgPool, Layer, Serial, Shape
from unlazy.theory.activations import functions
from unlazy.theory.numerics.angles import safe_sqrt

SIGMA_W2 = 2.0
"""σ_w² of the program."""
LARGEST = 2.0**60
"""Standard deviations from its inverse to this are evaluated: products of two and their inverses are normal float32
numbers. Others give NaN; zeros are welcome."""
WIDEST = 64
"""Pixels on an axis."""
NUMBERS = 2**30
"""In the largest array between two stages: indices of 32 bits, and 4 GiB."""
TEMPORARIES = 8
"""Bytes of the memory's budget for each of these numbers: twice what they take."""
ROWS = 32
"""Images on the left of one run."""
WARP_STAGES = 3
"""Stages that warps may take: all that they can, as was measured on an H200 (Myrtle-10 3.6 µs a pair, with one 3.8)."""
RESIDENT = 4
"""Programs at once on a multiprocessor: each has 64 threads with all the registers that they can have."""
NNGP_TILE, NTK_TILE = layout.Tile(8, 8, 16, 2), layout.Tile(8, 8, 8, 2)
"""What was fastest on an H200 and fits its registers."""
_RELU = functions.activation("relu")


class Plan(NamedTuple):
    """Stages of the program, and which layers of the description its convolutions, activations and the end are."""

    stages: tuple[layout.Stage, ...]
    convolutions: tuple[int, ...]
    activations: tuple[int, ...]
    end: int
    warps: int = 0
    """How many stages, the first ones, are left to warps."""

    def images(self, n: int, m: int, tangent: bool) -> tuple[int, int]:
        """How many on the left and on the right to evaluate at once."""
        first = self.stages[0]
        each = first.down if first.last else layout.PARTS * first.pooled * (first.pooled + 1) * (first.size // 2) ** 2
        tile = NTK_TILE if tangent else NNGP_TILE
        rows = min(ROWS, tile.rows * -(-n // tile.rows))
        room = min(NUMBERS, memory_budget() // (TEMPORARIES * (2 if tangent else 1)))
        most = max(1, room // (each * rows) // tile.columns)
        return min(n, rows), min(m, self._even(most, rows // tile.rows, tangent) * tile.columns)

    def _even(self, most: int, rows: int, tangent: bool) -> int:
        """Tiles on the right, at most so many, that leave the fewest processors idle at the end of the first stage."""
        first, processors = self.stages[0], devices.multiprocessors()

        def share(columns: int) -> float:
            if self.warps:
                programs, slots = math.prod(hopper_program.blocks(first, (rows, columns), tangent)), processors
            else:
                programs, slots = rows * columns * first.down, RESIDENT * processors
            return programs / (-(-programs // slots) * slots)

        return max(range(max(1, most // 2), most + 1), key=lambda c: (share(c), c))


def plan_of(network: Layer, shape: Shape) -> Plan | None:
    """The plan of a description for inputs of this shape, or None where the program does not cover it."""
    if not isinstance(network, Serial) or len(shape.positions) != 2 or shape.positions[0] != shape.positions[1]:
        return None
    steps = network.steps(shape)
    stages: list[layout.Stage] = []
    layers: list[layout.Layer] = []
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
        if window % 2 == 0 or window // 2 > layout.REACH:
            return None
        paddings.add(layer.padding)
        layers.append(layout.Layer(window, SIGMA_W2 / window**2))
        convolutions.append(at)
        after.append(at + 1)
        at += 2
    if not layers or len(paddings) > 1:
        return None
    stages.append(layout.Stage(steps[end][0].positions[0], tuple(layers), "circular" in paddings, last=True))
    circles = [s for s in stages if s.circular and s.across < 2 * s.halo]
    if shape.positions[0] > WIDEST or circles:
        return None
    return Plan(tuple(stages), tuple(convolutions), tuple(after), len(steps) - 1)


def plan_for(network: Layer, inputs: Array) -> Plan | None:
    """The plan where it pays and can run: float32 images on a CUDA GPU with the Triton backend."""
    if triton_program.backend is None or devices.kind() != "gpu" or inputs.dtype != jnp.float32 or inputs.ndim != 4:
        return None
    plan = plan_of(network, Shape(inputs.shape[1:-1], inputs.shape[-1]))
    if plan is None or not devices.is_hopper():
        return plan
    taken = [hopper_program.takes(stage, 0 if k else inputs.shape[-1]) for k, stage in enumerate(plan.stages)]
    count = min(WARP_STAGES, [*taken, False].index(False))
    return plan._replace(warps=count if count and hopper_program.is_lowered() else 0)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def entries(
    plan: Plan, tangent: bool, interpret: bool, network: Any, left: covariance.Side, right: covariance.Side
) -> tuple[Array, Array | None]:
    """Σ and Θ of every pair of two sets of surveyed points; derivatives are those of `propagate.of_block`."""
    n, m = len(left.inputs), len(right.inputs)
    tile = NTK_TILE if tangent else NNGP_TILE
    left, right = (_filled(side, size) for side, size in ((left, tile.rows), (right, tile.columns)))
    factor, at, planes = jnp.float32(1), 0, None
    fine = [_within(jnp.max(jnp.abs(side.inputs), tuple(range(1, side.inputs.ndim)))) for side in (left, right)]
    for step, stage in enumerate(plan.stages):
        numbers: list = []
        deviations: tuple[list, list] = ([], [])
        for k in range(at, at + len(stage.layers)):
            layer = network.layers[plan.convolutions[k]]
            factor = factor * layer.sigma_w**2 / SIGMA_W2
            bias = layer.sigma_b**2 / factor
            numbers.append(jnp.stack([jnp.float32(v) for v in (bias, layer.bias_rate * bias, layer.rate)]))
            for side, found in zip((left, right), deviations):
                found.append(safe_sqrt(side.notes[plan.activations[k]] / factor))
        features = [jnp.stack(found, -1) for found in deviations]
        fine = [ok & _within(found) for ok, found in zip(fine, features)]
        if planes is None:
            channels = left.inputs.shape[-1]
            pixels = (stage.layers[0].scale / channels) ** 0.5
            features[0] = features[0].at[..., 0].multiply(2)  # of a Σ with both signs
            features = [jnp.concatenate([pixels * side.inputs, f], -1) for side, f in zip((left, right), features)]
        first, second = (jnp.moveaxis(f, 0, -1) for f in features)
        if step < plan.warps:
            channels = left.inputs.shape[-1]
            planes = _by_warps(stage, first, second, channels, jnp.stack(numbers), planes, tangent, interpret)
        else:
            planes = triton_program.run(
                stage, layout.left_side(stage, first, tile), layout.right_side(stage, second, tile),
                left.inputs.shape[-1], jnp.stack(numbers), planes, tangent=tangent, tile=tile,
                warps=plan.stages[step - 1].size if step and step == plan.warps else None, interpret=interpret,
            )  # fmt: skip
        at += len(stage.layers)
    dense, all_pairs = network.layers[plan.end], plan.stages[-1].size ** 4
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
def _entries_jvp(plan: Plan, tangent: bool, interpret: bool, primals: tuple, tangents: tuple) -> Any:
    inputs = primals[1].inputs
    grid = covariance.grid_of(primals[0], Shape(inputs.shape[1:-1], inputs.shape[-1]))
    return jax.jvp(lambda net, l, r: covariance.of_block(net, l, r, grid, tangent), primals, tangents)


def _filled(side: covariance.Side, images: int) -> covariance.Side:
    """With images of zeros, so that their number is a multiple."""
    more = -len(side.inputs) % images
    return jax.tree.map(lambda a: jnp.pad(a, ((0, more), *((0, 0),) * (a.ndim - 1))), side) if more else side


def _by_warps(
    stage: layout.Stage, left: Array, right: Array, channels: int, numbers: Array, planes: tuple | None, tangent: bool,
    interpret: bool,
) -> tuple:  # fmt: skip
    """A stage by warps: with less to do where there are no biases and all rates are 1."""
    sides = lanes.left_side(stage, left), lanes.right_side(stage, right)

    def run(plain: bool) -> tuple:
        return hopper_program.run(
            stage, *sides, channels, numbers, planes, tangent=tangent, plain=plain, interpret=interpret
        )

    plain = jnp.all(numbers[:, 0] == 0) & (jnp.all(numbers[:, 2] == 1) | (not tangent))
    return jax.lax.cond(plain, lambda: run(True), lambda: run(False))


def _within(deviations: Array) -> Array:
    """Of every image whether all its sizes (largest pixel, standard deviations) can be multiplied in float32."""
    rows = deviations.reshape(len(deviations), -1)
    return jnp.all((rows == 0) | ((rows > 1 / LARGEST) & (rows < LARGEST)), 1)
