"""Pooled pairs in memory: how a program adds to them, how the next stage reads them, and the indices of both.

`triton_program` computes the planes; `layout` defines where pairs are.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from unlazy.kernels.conv_gpu.layout import PARTS, WAITING, Stage
from unlazy.kernels.conv_gpu.relu_dual import backend, times_plus
from unlazy.kernels.conv_gpu.warp import IntegerValue

Index = TypeVar("Index", Array, np.ndarray, IntegerValue)
"""An integer of a thread, or those of all threads."""


class Pooling(NamedTuple):
    """Where the pooled pairs of a finished row are, and what is stored there already."""

    places: list
    """For both kinds of pairs: a mask, and indices of cells."""
    before: list
    """For both kinds and every output: the sums of earlier planes."""
    even: Array
    waits: Array
    outs: list

    @classmethod
    def of(
        cls, stage: Stage, ahead: Array, dx: Array, tile: Array, lane: Array, columns: tuple, outs: list
    ) -> "Pooling":
        """The pooling of a row; `ahead` is its entry in `pooling_table`."""
        cells, deep = stage.size // 2, stage.pooled
        apart = cells * cells * lane.size
        done, xodd = (ahead >= 0) & (dx >= 0), dx & 1
        begin = tile * (deep * PARTS * (deep + 1) * apart) + ahead + columns[0] // 2 * lane.size + lane
        places, few = [], index_mask(math.prod(outs[0].shape))
        earlier, ends = [], dx >= stage.across - 1  # the displacement after the last one is the first
        beyond = jnp.where(ends, 0, (dx + 1) >> 1)
        for D, where, add in ((dx >> 1, done, dx > 0), (beyond, done & (xodd == 1), ends)):
            start = (begin + D * apart) & few
            indices = [start + k * lane.size for k in range((columns[1] - columns[0]) // 2)]
            places.append((jnp.broadcast_to(where, lane.shape), indices))
            mask = jnp.broadcast_to(where & add, lane.shape)
            earlier.append([[backend.load(out.at[index], mask=mask, other=0.0) for index in indices] for out in outs])
        even, waits = (jnp.broadcast_to(v.astype(jnp.float32), lane.shape) for v in (xodd == 0, ahead == WAITING))
        return cls(places, earlier, even, waits, outs)

    def store(self, values: list, held: tuple, interpret: bool) -> tuple:
        """Store the values that are complete, and return those that wait for the next row."""
        waiting: list = []
        for k, out in enumerate(self.outs):
            for kind, (mask, indices) in enumerate(self.places):
                for x, index in enumerate(indices):
                    e, o = values[2 * x][k], values[2 * x + 1][k]
                    value = o if kind else times_plus(o, self.even, e, interpret)
                    total = value + held[len(waiting)]
                    backend.store(out.at[index], total + self.before[kind][k][x], mask=mask)
                    waiting.append(value * self.waits)
        return tuple(waiting)


class PreviousStage(NamedTuple):
    """How the previous stage stored the pairs of a program.

    Pairs next to each other, number of tiles, tile and position of every lane, and start of a column in a row.
    """

    pairs: int
    tiles: int
    tile: Array | int
    lane: Array
    column_start: Callable[[int], int]


def pooled_before(
    refs: list, stage: Stage, row: Array, c: int, dy: Array, dx: Array, at: Array, left: PreviousStage
) -> list[Array]:
    """Pooled Σ (and Θ) of the previous stage at a row and column c of a plane: the sum of its parts."""
    size, before = stage.size, stage.size + (0 if stage.circular else 1)  # displacements of the previous stage
    inside, p = remainder(row + size, size), (c + size) % size
    shown = jnp.clip(dx, 0, stage.across - 1)
    # beyond the period, the displacement is d - N
    turns = [inside + dy >= stage.down, p + shown >= stage.across]
    live = (turns[0] | (inside + dy < size)) & (turns[1] | (p + shown < size))
    if not stage.circular:
        live = live & (row >= 0) & (row < size)
    Dy = dy - (stage.down - before) * turns[0].astype(jnp.int32)
    Dx = shown - (stage.across - before) * turns[1].astype(jnp.int32)
    start = ((((at * left.tiles * before + Dy) * PARTS) * (before + 1) + Dx) * size + inside) * (size * left.pairs)
    part = (before + 1) * size * size * left.pairs
    start = start + left.column_start(p) + (left.tile * (before * PARTS * part) + left.lane)
    mask = jnp.broadcast_to(live, left.lane.shape)
    found = []
    for ref in refs:
        parts = [backend.load(ref.at[start + k * part], mask=mask, other=0.0) for k in range(PARTS)]
        found.append((parts[0] + parts[1]) + parts[2])
    return found


def quotient(a: Index, b: int) -> Index:
    """a // b for nonnegative a."""
    power = b.bit_length() - 1
    return a >> power if b == 1 << power else lax.div(a, jnp.full_like(a, b))  # type: ignore[arg-type, return-value, type-var]


def remainder(a: Index, b: int) -> Index:
    """a % b for nonnegative a."""
    return a & (b - 1) if b & (b - 1) == 0 else lax.rem(a, jnp.full_like(a, b))  # type: ignore[arg-type, return-value, type-var]


def wrap_index(a: Array, b: int) -> Array:
    """a % b for 0 ≤ a < 2b."""
    return a - b * (a >= b).astype(jnp.int32)


def index_mask(numbers: int) -> int:
    """A mask that keeps every index, and tells the compiler that constant offsets fit into an address."""
    return 2 ** min(30, max(1, int(numbers).bit_length())) - 1
