"""The first stage of a convolutional kernel by warps of a Hopper card: what `plane_program` computes, laid out anew.

A warp takes one displacement down and a tile of pairs of images. Its lanes share the columns of a row, four each, and
every lane has 2 × 2 pairs, so that what is read of an image serves two pairs and no column is computed twice: a window
takes the two columns it lacks from the lanes beside. Rows are walked along as in `plane_program`, which says how planes
follow each other and what pooled pairs get. Warps of a block take displacements that follow each other, and so read the
same rows.

Lanes write the pairs they have side by side: `Tile.order` says which lie where.
"""

import itertools
import math
import warnings
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.plane_dual import PLUS, TIMES, TIMES_PLUS, Dual
from unlazy.kernels.plane_layout import PARTS, VECTOR, Layer, Stage
from unlazy.kernels.plane_machine import LANES, Arrays, Card
from unlazy.kernels.plane_pooling import quotient, remainder

try:  # experimental
    from jax.experimental.pallas import mosaic_gpu as backend
except ImportError:  # pragma: no cover
    backend = None  # type: ignore[assignment]

SIDE = 2
"""Images on each side of the pairs of a lane."""
BLOCK = 8
"""Images on each side of what `stages` pads to: a whole number of tiles."""
LAYERS = 3
"""Layers of a stage up to which registers hold what is kept from row to row."""
ON_CHIP = 220 * 2**10
"""Bytes of the images on the left that a block may keep on chip."""
WARPS = 4
"""Warps of a warpgroup."""
UNROLL = {False: 2, True: 1}
"""Steps side by side: what one leaves for the next then lies where the next wants it. With the NTK registers are too
few."""
NUMBERS = 3
"""For every layer, as numbers of the run: σ_b², that times the rate of biases, the rate of weights."""


class Tile(NamedTuple):
    """Images on the left and on the right whose pairs a warp has, and the lanes that share a row."""

    rows: int
    columns: int
    lanes: int

    @classmethod
    def of(cls, size: int) -> "Tile":
        lanes = size // VECTOR
        groups = LANES // lanes
        rows = 1 << ((groups.bit_length() - 1) // 2)
        return cls(SIDE * rows, SIDE * groups // rows, lanes)

    @property
    def pairs(self) -> int:
        return self.rows * self.columns

    @property
    def across(self) -> int:
        """Lanes beside each other that have other images on the right."""
        return self.columns // SIDE

    def order(self, i: Any, j: Any) -> tuple[Any, Any]:
        """Of image i on the left and j on the right of a block: which tile, and where their pair lies in a row of
        pooled ones."""
        tile = quotient(i, self.rows) * (BLOCK // self.columns) + quotient(j, self.columns)
        i, j = remainder(i, self.rows), remainder(j, self.columns)
        lane = (quotient(i, SIDE) * self.across + quotient(j, SIDE)) * self.lanes
        return tile, (lane * SIDE + remainder(i, SIDE)) * SIDE + remainder(j, SIDE)

    def column(self, c: int) -> int:
        """Where a column of pooled pairs begins in a row of them: every lane has two, which lie apart, so that what
        lanes write at once lies together."""
        return (c % 2 * LANES + c // 2) * SIDE * SIDE


def takes(stage: Stage, channels: int) -> bool:
    """Whether there is a program: rows that lanes can share, windows of three, zeros outside, a pooling at the end, and
    all that is kept fits."""
    known = stage.size in (8, 16, 32) and not stage.circular and not stage.last
    kept = 4 * stage.walk * (channels + len(stage.layers)) * Tile.of(stage.size).rows * stage.size if known else 0
    windows = all(layer.window == 3 for layer in stage.layers) and len(stage.layers) <= LAYERS
    return known and windows and kept <= ON_CHIP


def groups(stage: Stage, tangent: bool) -> int:
    """Warpgroups of a block: the registers of a processor are theirs, 255 or 168 a thread."""
    return 2 if tangent or len(stage.layers) > 2 else 3


def blocks(stage: Stage, tiles: tuple[int, int], tangent: bool) -> tuple[int, int]:
    """Blocks of warps for so many tiles of BLOCK images on the left and on the right, those of the same images on the
    left side by side; a processor has one at a time."""
    tile = Tile.of(stage.size)
    warps = tiles[1] * BLOCK // tile.columns * stage.down
    return tiles[0] * BLOCK // tile.rows, -(-warps // (WARPS * groups(stage, tangent)))


@lru_cache
def is_lowered() -> bool:
    """Whether this JAX takes the program: that backend is experimental and changes. Nothing is compiled."""
    if backend is None:
        return False
    stage = Stage(8, (Layer(3, 1.0),))
    given = [jax.ShapeDtypeStruct((8, 8, 2, BLOCK), jnp.float32)] * 2 + [jax.ShapeDtypeStruct((1, 3), jnp.float32)]

    def alone(left: Array, right: Array, numbers: Array) -> tuple:
        sides = left_side(stage, left), right_side(stage, right)
        return run(stage, *sides, 1, numbers, tangent=False, plain=True)

    try:
        jax.jit(alone).trace(*given).lower(lowering_platforms=("cuda",))
    except Exception as problem:
        warnings.warn(
            f"convolutional kernels on Hopper cards take the slower program: JAX {jax.__version__} refuses the other "
            f"({type(problem).__name__}: {str(problem)[:200]})",
            UnlazyWarning,
            stacklevel=2,
        )
        return False
    return True


def left_side(stage: Stage, features: Array) -> Array:
    """Rows × columns × features × images as tiles × rows × features × images × columns; what a layer needs later lies
    as many rows later."""
    tile, lags = Tile.of(stage.size), _lags(stage, features.shape[2])
    rows = jnp.pad(features, ((0, stage.walk - stage.size), *((0, 0),) * 3))
    rows = jnp.stack([jnp.roll(rows[:, :, f], lag, 0) for f, lag in enumerate(lags)], 1)
    rows = rows.reshape(stage.walk, len(lags), stage.size, -1, tile.rows)
    return jnp.transpose(rows, (3, 0, 1, 4, 2))


def right_side(stage: Stage, features: Array) -> Array:
    """Displacements across × tiles × rows × features × images × columns, which a displacement moves: a row that would
    begin within a line of the cache would take two of them. Nothing lies later."""
    tile = Tile.of(stage.size)
    A = jnp.pad(features, ((0, stage.down - stage.size), (0, stage.across - stage.size), (0, 0), (0, 0)))
    places = (np.arange(stage.across)[:, None] + np.arange(stage.size)[None]) % stage.across
    A = A[:, places].reshape(stage.down, *places.shape, A.shape[2], -1, tile.columns)
    return jnp.transpose(A, (1, 4, 0, 3, 5, 2))


def _lags(stage: Stage, features: int) -> list[int]:
    layers = len(stage.layers)
    return [0] * (features - layers) + [k + 1 for k in range(layers)]


def run(
    stage: Stage, left: Array, right: Array, channels: int, numbers: Array, *, tangent: bool, plain: bool,
    interpret: bool = False,
) -> tuple:  # fmt: skip
    """Pooled Σ (and Θ) for the next stage, as `plane_program.run` but for the order of pairs; `plain`: there are no
    biases, and all rates are 1."""
    tile = Tile.of(stage.size)
    n, m = len(left) * tile.rows, right.shape[1] * tile.columns
    tiles, cells = n * m // tile.pairs, stage.size // 2
    warps = tiles * stage.down
    shape = (tiles, stage.pooled * PARTS, stage.pooled + 1, cells, cells * tile.pairs)
    count, size = 2 if tangent else 1, math.prod(shape)
    per_block, kept = WARPS * groups(stage, tangent), math.prod(left.shape[1:])
    walk = partial(
        _walk, stage=stage, channels=channels, tiles=(n // BLOCK, m // BLOCK), warps=1 if interpret else per_block,
        tangent=tangent, plain=plain,
    )  # fmt: skip
    inputs = [left.reshape(-1), right.reshape(-1), numbers.reshape(-1)]
    if interpret:
        machine = Arrays(warps, inputs, [size] * count)
        walk(machine)
        found = machine.outputs
    else:

        def body(*refs: Any) -> None:
            @backend.inline_mgpu(arg_types=[backend.RefType()] * len(refs))
            def inlined(_: Any, *refs: Any) -> None:
                walk(Card(list(refs[: len(inputs)]), list(refs[len(inputs) : -1]), refs[-1], per_block))

            inlined(*refs)

        found = backend.kernel(
            body, out_type=[jax.ShapeDtypeStruct((size,), jnp.float32)] * count,
            grid=(math.prod(blocks(stage, (n // BLOCK, m // BLOCK), tangent)),), grid_names=("block",),
            num_threads=groups(stage, tangent), thread_name="group", scratch_types=[backend.SMEM((kept,), jnp.float32)],
        )(*inputs)  # fmt: skip
    return tuple(f.reshape(shape) for f in found)


def _walk(
    on: Any, *, stage: Stage, channels: int, tiles: tuple[int, int], warps: int, tangent: bool, plain: bool
) -> None:
    """One warp: the planes of one displacement down, for a tile of pairs."""
    tile, layers, halo = Tile.of(stage.size), stage.layers, stage.halo
    r_tiles = tiles[1] * BLOCK // tile.columns
    count, features = 2 if tangent else 1, channels + len(layers)
    pairs, each = range(SIDE * SIDE), on.each
    column, group = on.lane & (tile.lanes - 1), on.lane // tile.lanes
    up, beside = group // tile.across, group & (tile.across - 1)
    per_block, row_of_tiles = (BLOCK // tile.rows, BLOCK // tile.columns), warps * -(-r_tiles * stage.down // warps)
    l_tile, item = on.warp // row_of_tiles, on.warp % row_of_tiles
    dy, r_tile = item % stage.down, item // stage.down
    at = (l_tile // per_block[0] * tiles[1] + r_tile // per_block[1]) * math.prod(per_block)
    at = at + l_tile % per_block[0] * per_block[1] + r_tile % per_block[1]
    numbers = [[None if plain else on.read(2, NUMBERS * l + k) for k in range(NUMBERS)] for l in range(len(layers))]
    ends = [on.as_number(column >= 1), on.as_number(column < tile.lanes - 1)]
    wide, long = tile.rows * stage.size, tile.columns * stage.size  # numbers of a feature in a row
    l_first, r_first = l_tile * (stage.walk * features * wide), r_tile * (stage.down * features * long)
    l_start = up * (SIDE * stage.size) + column * VECTOR
    r_start = r_first + beside * (SIDE * stage.size) + column * VECTOR
    r_copy = r_tiles * stage.down * features * long
    near = on.keep(0, l_first, stage.walk * features * wide)

    def r_place(row: Any, dx: Any) -> Any:
        own = row + dy
        own = own - on.select(own >= stage.down, on.whole(stage.down), on.whole(0))
        dx = on.select(dx < stage.across, dx, on.whole(0))  # steps after the last plane
        return r_start + dx * r_copy + own * (features * long)

    def read(read_left: Any, read_right: Any, feature: int) -> tuple[list, list]:
        """A feature of the images on both sides, for every pair."""
        lefts = [read_left(feature * wide + k * stage.size) for k in range(SIDE)]
        rights = [read_right(feature * long + k * stage.size) for k in range(SIDE)]
        return [lefts[p // SIDE] for p in pairs], [rights[p % SIDE] for p in pairs]

    def down(values: list, sums: list) -> tuple[list, list]:
        """Columns summed over three rows, and the sums over the last one and two."""
        one, two = sums
        return each(PLUS, values, two), [values, each(PLUS, values, one)]

    def across(row: list) -> list:
        """Windows of three columns."""
        near = each(PLUS, row[::2], row[1::2])
        beyond = [on.neighbour(row[-1], -1, tile.lanes), on.neighbour(row[0], 1, tile.lanes)]
        outer = each(TIMES_PLUS, beyond, ends, [near[0], near[1]])
        return [outer[0], *each(PLUS, near, [row[2], row[1]]), outer[1]]

    def step(carry: tuple) -> tuple:
        (row, dx), (done_row, done_dx), past, state = carry
        here, coming = r_place(row, dx), after(row, dx)
        read_left = near(l_start + row * (features * wide))
        of = [read(read_left, on.reader(1, here), f) for f in range(channels)]
        values, kept = [], []
        for p in pairs:
            total = each(TIMES, of[0][0][p], of[0][1][p])
            for left, right in of[1:]:
                total = each(TIMES_PLUS, left[p], right[p], total)
            total, sums = down(total, state[0][0][p])
            values.append([total])
            kept.append(sums)
        fresh = [[kept]]
        for l in range(len(layers)):
            last = l + 1 == len(layers)
            left, right = read(read_left, on.reader(1, past[l]), channels + l)
            dual = Dual(1 / 16 if last else layers[l + 1].scale, tangent, signed=l == 0)
            bias, bias_theta, own_rate = numbers[l]
            found: list = []
            sums_of: list[list] = [[] for _ in range(count)]
            for p in pairs:
                windows = [across(v) for v in values[p]]
                if tangent and len(windows) == 1:  # the first weights: Θ is Σ, but for rates
                    windows.append(windows[0] if plain else each(TIMES, windows[0], [own_rate] * VECTOR))
                if not plain:
                    windows = [each(PLUS, w, [b] * VECTOR) for w, b in zip(windows, (bias, bias_theta))]
                duals = dual.many(each, windows[0], left[p], right[p])
                first, second, slope = (list(part) for part in zip(*duals))
                value = each(TIMES, first, second)
                if last:
                    found.append([value, *([each(TIMES, windows[1], slope)] if tangent else [])])
                    continue
                total, sums = down(value, state[l + 1][0][p])
                found.append([total])
                sums_of[0].append(sums)
                if tangent:
                    rated = value if plain else each(TIMES, value, [numbers[l + 1][2]] * VECTOR)
                    total, sums = down(each(TIMES_PLUS, windows[1], slope, rated), state[l + 1][1][p])
                    found[-1].append(total)
                    sums_of[1].append(sums)
            if not last:
                fresh.append(sums_of)
            values = found
        pool(values, done_row, done_dx)
        return coming, after(done_row, done_dx), [here, *past[:-1]], fresh

    def after(row: Any, dx: Any) -> tuple:
        turns = row >= stage.walk - 1
        zero = on.whole(0)
        return on.select(turns, zero, row + 1), on.select(turns, dx + 1, dx)

    def pool(values: list, row: Any, dx: Any) -> None:
        """Adds a row to the pooled pairs it belongs to; the first to come finds nothing there."""
        zero = on.whole(0)
        d = dy - on.select(row + dy >= stage.down, on.whole(stage.down), zero)
        odd, a = d & 1, row & 1
        D = (d + odd * (a + a - 1)) >> 1
        D = D + on.select(D < 0, on.whole(stage.pooled), zero)
        part = odd * (on.whole(1) - a - a) + 1
        inside, turned = (row < stage.size) & (dx >= 0) & (dx < stage.across), (dx & 1) == 1
        second = (odd == 0) & (a == 1)  # two rows go to the same pairs
        ends = dx >= stage.across - 1  # beyond the last displacement across is the first
        cells, even = stage.size // 2, on.as_number(on.no(turned))
        begin = (at * (stage.pooled * PARTS) + D * PARTS + part) * (stage.pooled + 1)
        for to, where, add, keeps in (
            (dx >> 1, inside, second | (dx >= 1), True),
            (on.select(ends, zero, (dx + 1) >> 1), inside & turned, second | ends, False),
        ):  # fmt: skip
            start = ((begin + to) * cells + (row >> 1)) * (cells * tile.pairs) + on.lane * len(pairs)
            for k, x in itertools.product(range(count), range(VECTOR // 2)):
                e, o = [values[p][k][2 * x] for p in pairs], [values[p][k][2 * x + 1] for p in pairs]
                total = each(TIMES_PLUS, o, [even] * len(pairs), e) if keeps else o
                on.store(k, start + x * (LANES * len(pairs)), total, where, add)

    def nothing() -> list:
        return [on.number(0.0)] * VECTOR

    state = [[[[nothing(), nothing()] for _ in pairs] for _ in range(count if l else 1)] for l in range(len(layers))]
    past = [r_place(on.whole((-k - 1) % stage.walk), on.whole(0)) for k in range(len(layers))]
    begin = (on.whole(0), on.whole(0)), (on.whole(-halo % stage.walk), on.whole(-1))
    all_steps = stage.across * stage.walk + halo
    turns = -(-all_steps // UNROLL[tangent])

    def several(carry: tuple) -> tuple:
        for _ in range(UNROLL[tangent]):
            carry = step(carry)
        return carry

    here = r_tile < r_tiles
    on.repeat(on.select(here, on.whole(turns), on.whole(0)), several, (*begin, past, state))
