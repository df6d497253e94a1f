"""Pooled pairs in memory: what a walk along planes adds to them, and what the next stage reads; indices of both.

`program` walks; `layout` says where pairs lie.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from unlazy.kernels.conv_gpu.layout import PARTS, WAITS, Stage
from unlazy.kernels.conv_gpu.relu_dual import backend, times_plus


class Pooling(NamedTuple):
    """Of a row that is finished: where its pooled pairs lie, and what lies there already."""

    places: list
    """For both kinds of pairs: a mask, indices of cells."""
    before: list
    """For both kinds and every output: what earlier planes have brought."""
    even: Array
    waits: Array
    outs: list

    @classmethod
    def of(cls, stage: Stage, ahead: Any, dx: Any, tile: Any, lane: Array, columns: tuple, outs: list) -> "Pooling":
        """`ahead` is what `pooling_table` says of the row."""
        cells, deep = stage.size // 2, stage.pooled
        apart = cells * cells * lane.size
        done, xodd = (ahead >= 0) & (dx >= 0), dx & 1
        begin = tile * (deep * PARTS * (deep + 1) * apart) + ahead + columns[0] // 2 * lane.size + lane
        places, few = [], few_bits(math.prod(outs[0].shape))
        earlier, ends = [], dx >= stage.across - 1  # beyond the last displacement across is the first
        beyond = jnp.where(ends, 0, (dx + 1) >> 1)
        for D, where, add in ((dx >> 1, done, dx > 0), (beyond, done & (xodd == 1), ends)):
            start = (begin + D * apart) & few
            indices = [start + k * lane.size for k in range((columns[1] - columns[0]) // 2)]
            places.append((jnp.broadcast_to(where, lane.shape), indices))
            mask = jnp.broadcast_to(where & add, lane.shape)
            earlier.append([[backend.load(out.at[index], mask=mask, other=0.0) for index in indices] for out in outs])
        even, waits = (jnp.broadcast_to(v.astype(jnp.float32), lane.shape) for v in (xodd == 0, ahead == WAITS))
        return cls(places, earlier, even, waits, outs)

    def done(self, values: list, held: tuple, interpret: bool) -> tuple:
        """Stores what can be, and gives what waits for the next row."""
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


class Before(NamedTuple):
    """How a stage before left the pairs of a program: how many side by side, in how many tiles; of every lane, which
    tile and where; and where a column begins in a row."""

    pairs: int
    tiles: int
    tile: Any
    lane: Array
    column: Callable[[int], int]


def pooled_before(refs: list, stage: Stage, row: Any, c: int, dy: Any, dx: Any, at: Any, left: Before) -> list:
    """Pooled Σ (and Θ) of a stage before, at row and column c of a plane: the sum of its parts."""
    size, before = stage.size, stage.size + (0 if stage.circular else 1)  # displacements it keeps
    inside, p = remainder(row + size, size), (c + size) % size
    shown = jnp.clip(dx, 0, stage.across - 1)
    # beyond the period the displacement is d - N
    turns = [inside + dy >= stage.down, p + shown >= stage.across]
    live = (turns[0] | (inside + dy < size)) & (turns[1] | (p + shown < size))
    if not stage.circular:
        live = live & (row >= 0) & (row < size)
    Dy = dy - (stage.down - before) * turns[0].astype(jnp.int32)
    Dx = shown - (stage.across - before) * turns[1].astype(jnp.int32)
    start = ((((at * left.tiles * before + Dy) * PARTS) * (before + 1) + Dx) * size + inside) * (size * left.pairs)
    part = (before + 1) * size * size * left.pairs
    start = start + left.column(p) + (left.tile * (before * PARTS * part) + left.lane)
    mask = jnp.broadcast_to(live, left.lane.shape)
    found = []
    for ref in refs:
        parts = [backend.load(ref.at[start + k * part], mask=mask, other=0.0) for k in range(PARTS)]
        found.append((parts[0] + parts[1]) + parts[2])
    return found


def quotient(a: Any, b: int) -> Any:
    """a // b of numbers that are not negative."""
    power = b.bit_length() - 1
    return a >> power if b == 1 << power else lax.div(a, jnp.full_like(a, b))


def remainder(a: Any, b: int) -> Any:
    return a & (b - 1) if b & (b - 1) == 0 else lax.rem(a, jnp.full_like(a, b))


def wrapped(a: Any, b: int) -> Any:
    """a modulo b of numbers from 0 to 2b - 1."""
    return a - b * (a >= b).astype(jnp.int32)


def few_bits(numbers: int) -> int:
    """A mask that keeps every index: what it proves to the compiler lets constant offsets be part of an address."""
    return 2 ** min(30, max(1, int(numbers).bit_length())) - 1
