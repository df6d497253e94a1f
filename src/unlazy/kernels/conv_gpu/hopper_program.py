"""Stages of a convolutional kernel on Hopper GPUs: the computation of `triton_program` with another layout.

A warp has one vertical displacement and a tile of pairs of images (kernels.conv_gpu.warp_loop); `lanes` defines how its
lanes share them. The warps of a block have consecutive displacements, and so read the same rows; the left images are
kept in shared memory. It is a Mosaic GPU program; on a CPU it runs on arrays, for tests.
"""

import math
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import mosaic
from unlazy.kernels.conv_gpu.lanes import BLOCK, SIDE, WarpTile, left_side, right_side
from unlazy.kernels.conv_gpu.layout import PARTS, ConvLayer, Stage, StageInputs
from unlazy.kernels.conv_gpu.warp import LANES, GpuWarp, SimulatedWarp
from unlazy.kernels.conv_gpu.warp_loop import run_warp

try:  # experimental
    from jax.experimental.pallas import mosaic_gpu as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

MAX_LAYERS = 3
"""Largest number of layers of a stage for which the state between rows fits into registers."""
SHARED_MEMORY_BYTES = 220 * 2**10
"""Bytes of left images that a block may keep in shared memory."""
WARPS_PER_GROUP = 4
"""Warps of a warpgroup."""


def is_supported(stage: Stage, channels: int) -> bool:
    """Whether the program supports a stage.

    Sizes that lanes can share, windows of three pixels, zero padding, and enough registers and shared memory. A later
    stage has no `channels`.
    """
    known = stage.size in (8, 16, 32) and not stage.circular
    kept = (
        4 * stage.plane_rows * (channels + len(stage.layers)) * WarpTile.of(stage.size).rows * stage.size
        if known
        else 0
    )
    windows = all(layer.window == 3 for layer in stage.layers) and len(stage.layers) <= MAX_LAYERS
    return known and windows and kept <= SHARED_MEMORY_BYTES


def groups(stage: Stage, tangent: bool) -> int:
    """Warpgroups of a block: they share the registers of a processor, 255 or 168 per thread."""
    return 2 if tangent or len(stage.layers) > 2 else 3


def blocks(stage: Stage, tiles: tuple[int, int], tangent: bool) -> tuple[int, int]:
    """Blocks of warps for a number of left and right tiles of BLOCK images.

    Blocks of the same left images are next to each other; a processor runs one block at a time.
    """
    tile = WarpTile.of(stage.size)
    warps = tiles[1] * BLOCK // tile.columns * stage.down
    return tiles[0] * BLOCK // tile.rows, -(-warps // (WARPS_PER_GROUP * groups(stage, tangent)))


@lru_cache
def is_lowered() -> bool:
    """Whether this version of JAX compiles the program."""
    if backend is None:
        return False
    stage = Stage(8, (ConvLayer(3, 1.0),))
    shapes = [jax.ShapeDtypeStruct((8, 8, 2, BLOCK), jnp.float32)] * 2 + [jax.ShapeDtypeStruct((1, 3), jnp.float32)]

    def alone(left: Array, right: Array, numbers: Array) -> tuple:
        given = StageInputs(left_side(stage, left), right_side(stage, right), 1, numbers)
        return run(stage, given, tangent=False, plain=True)

    return mosaic.can_lower(lambda: jax.jit(alone).trace(*shapes), "convolutional kernels")


def run(stage: Stage, given: StageInputs, *, tangent: bool, plain: bool, interpret: bool = False) -> tuple[Array, ...]:
    """Pooled Σ (and Θ) for the next stage, or their sums over all pairs of positions.

    As `triton_program.run`, with another order of pairs. `plain`: there are no biases, and all rates are 1.
    """
    left, right, channels, numbers, planes = given
    tile = WarpTile.of(stage.size)
    n, m = len(left) * tile.rows, right.shape[1] * tile.columns
    tiles, cells = n * m // tile.pairs, stage.size // 2
    warps = tiles * stage.down
    shape: tuple[int, ...] = (tiles, stage.pooled * PARTS, stage.pooled + 1, cells, cells * tile.pairs)
    if stage.last:
        shape = (n * m // BLOCK**2, BLOCK**2 // tile.pairs, stage.down, LANES // tile.lanes, tile.lanes, SIDE * SIDE)
    count, size = 2 if tangent else 1, math.prod(shape)
    per_block, kept = WARPS_PER_GROUP * groups(stage, tangent), math.prod(left.shape[1:])
    program = partial(
        run_warp, stage=stage, channels=channels, tiles=(n // BLOCK, m // BLOCK), warps=1 if interpret else per_block,
        has_previous=planes is not None, tangent=tangent, plain=plain,
    )  # fmt: skip
    inputs = [a.reshape(-1) for a in (left, right, numbers, *(planes or ()))]
    if interpret:
        machine = SimulatedWarp(warps, inputs, [size] * count)
        program(machine)
        found = machine.outputs
    else:

        def body(*refs: Any) -> None:
            @backend.inline_mgpu(arg_types=[backend.RefType()] * len(refs))
            def inlined(_: Any, *refs: Any) -> None:
                program(GpuWarp(list(refs[: len(inputs)]), list(refs[len(inputs) : -1]), refs[-1], per_block))

            inlined(*refs)

        launch = backend.kernel(
            body, out_type=[jax.ShapeDtypeStruct((size,), jnp.float32)] * count,
            grid=(math.prod(blocks(stage, (n // BLOCK, m // BLOCK), tangent)),), grid_names=("block",),
            num_threads=groups(stage, tangent), thread_name="group", scratch_types=[backend.SMEM((kept,), jnp.float32)],
        )  # fmt: skip
        found = mosaic.one_at_a_time(launch)(*inputs)
    if not stage.last:
        return tuple(f.reshape(shape) for f in found)
    which, place = tile.pair_position(*np.divmod(np.arange(BLOCK**2), BLOCK))
    order = which * tile.pairs + place // (tile.lanes * SIDE * SIDE) * SIDE * SIDE + place % (SIDE * SIDE)
    return tuple(f.reshape(shape).sum((2, 4)).reshape(shape[0], -1)[:, order].reshape(-1) for f in found)
