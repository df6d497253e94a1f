"""Convolutional kernels on the GPU, a stage at a time: displacement planes never leave the chip [C1, C2].

A stage is some convolutions with ReLU on images of one size, then a pooling. Threads are pairs of images, one each. For
every displacement d = q - p a thread walks down the rows of the plane p ↦ Σ_{p,p+d}: a new row comes in at one end,
each layer keeps the sums over the last rows that its window needs, and finished rows leave at the other end, added up
by the pooling. Rows and columns are registers, so sums over windows need no communication.

Displacements d and d - N share a plane, where N is the size plus two: of the N places of an axis the last two are
dead. A dead place has standard deviation 0, for which the dual is 0, which is what zero padding asks for; no plane
has a mask. Circular windows have no dead places. N is even, so both displacements of a plane are even, or odd: pooling
over 2 × 2 pixels sends pairs p, q to P = ⌊p/2⌋, Q = ⌊q/2⌋ with Q - P = d/2, or (d ± 1)/2 by the parity of p.

A Pallas program for its Triton backend; on a CPU it runs in interpret mode, for tests.
"""

import math
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from unlazy.kernels.plane_dual import Dual, backend, times_plus

DEAD = 2
"""Places added to an axis with zeros outside."""
PARTS = 3
"""Planes whose rows meet in one row of pooled pairs; each writes apart, so that the order of sums is one."""
SECTOR = 8
"""Numbers in what is brought from memory at once."""
NEVER = 3e38
"""No pixel and no standard deviation is as large: kernels of larger ones overflow."""


class Tile(NamedTuple):
    """Pairs of a program: rows × columns images, a thread each; `width` columns of pixels, `group` side by side."""

    rows: int = 8
    columns: int = 16
    width: int = 16
    group: int = 4

    @property
    def lanes(self) -> int:
        return self.rows * self.columns


class Layer(NamedTuple):
    """A convolution and ReLU: points of its window on an axis, and σ_w² over all of them."""

    window: int
    scale: float


NUMBERS = 3
"""For every layer, as numbers of the run: σ_b², that times the rate of biases, the rate of weights."""


class Stage(NamedTuple):
    """Layers on size × size pixels, then the mean of 2 × 2 (`last`: of all)."""

    size: int
    layers: tuple[Layer, ...]
    circular: bool = False
    last: bool = False

    @property
    def period(self) -> int:
        return self.size + (0 if self.circular else DEAD)

    @property
    def halo(self) -> int:
        """Pixels that the windows of all layers reach out together."""
        return sum(layer.window // 2 for layer in self.layers)

    @property
    def pooled(self) -> int:
        """Displacements after the pooling."""
        return self.period // 2


def left_side(stage: Stage, features: Array, tile: Tile) -> Array:
    """Rows × columns × features × images as tiles of images × rows × columns × features × images of a tile.

    Features are pixels (of a first stage), then the standard deviation at every layer.
    """
    around = ((2 * stage.halo, stage.halo), (stage.halo, stage.halo), (0, 0), (0, 0))
    return _in_tiles(jnp.pad(features, around, mode="wrap" if stage.circular else "constant"), tile.rows)


def right_side(stage: Stage, features: Array, tile: Tile) -> Array:
    """The same with one period of rows, and columns for every displacement."""
    size, period, halo = stage.size, stage.period, stage.halo
    one = jnp.pad(features, ((0, period - size), (0, period - size), (0, 0), (0, 0)))
    return _in_tiles(jnp.take(one, np.arange(-halo, size + halo + period) % period, axis=1), tile.columns)


def _in_tiles(A: Array, images: int) -> Array:
    return jnp.moveaxis(A.reshape(*A.shape[:-1], A.shape[-1] // images, images), -2, 0)


def ranges(stage: Stage, first: int, last: int) -> list[tuple[int, int]]:
    """Columns that layer 0 (the input), 1, … need, so that the last has first … last."""
    found = [(first, last)]
    for layer in reversed(stage.layers):
        half = layer.window // 2
        low, high = found[0][0] - half, found[0][1] + half
        found.insert(0, (low, high) if stage.circular else (max(low, 0), min(high, stage.size)))
    return found


def run(
    stage: Stage, left: Array, right: Array, channels: int, numbers: Array, planes: tuple | None, *,
    tangent: bool, tile: Tile, interpret: bool = False,
) -> tuple:  # fmt: skip
    """Σ (and Θ) after a stage: pooled planes for the next, or their sums over all pairs of positions.

    `planes` are those of the stage before, or None for a first one, whose input are `channels` pixels.
    """
    n, m = (len(A) * A.shape[-1] for A in (left, right))
    pairs = n * m
    count = 2 if tangent else 1
    cells = stage.size // 2
    if stage.last:
        shape: tuple[int, ...] = (stage.period**2, pairs)
    else:
        shape = (pairs // tile.lanes, stage.pooled * PARTS, stage.pooled * PARTS, cells, cells, tile.lanes)
    found: list = []
    for first in range(0, stage.size, tile.width):
        columns = ranges(stage, first, min(first + tile.width, stage.size))
        inputs = [numbers.reshape(-1), left.reshape(-1), right.reshape(-1), *(p.reshape(-1) for p in planes or ())]
        filled = [] if stage.last else list(found)
        done = pl.pallas_call(
            partial(_body, stage=stage, columns=columns, channels=channels, images=(n, m), tangent=tangent, tile=tile,
                    interpret=interpret, fed=planes is not None),
            grid=(pairs // tile.lanes, stage.period, stage.period),
            out_shape=[jax.ShapeDtypeStruct((math.prod(shape),), jnp.float32)] * count,
            input_output_aliases={len(inputs) + k: k for k in range(len(filled))},
            compiler_params=backend.CompilerParams(num_warps=tile.lanes // 32, num_stages=1),
            interpret=interpret,
            name="convolution_planes",
        )(*inputs, *filled)  # fmt: skip
        if stage.last:
            done = [d.reshape(shape).sum(0) for d in done]
            found = [a + b for a, b in zip(found, done)] if found else done
        else:
            found = done
    return tuple(found) if stage.last else tuple(f.reshape(shape) for f in found)


def _body(
    *refs, stage: Stage, columns: list, channels: int, images: tuple[int, int], tangent: bool, tile: Tile,
    interpret: bool, fed: bool,
) -> None:  # fmt: skip
    """One plane, or some columns of it, for a tile of pairs."""
    count = 2 if tangent else 1
    numbers_ref, left_ref, right_ref, *rest = refs
    plane_refs, outs = rest[: count if fed else 0], rest[-count:]
    n, m = images
    size, period, halo, layers = stage.size, stage.period, stage.halo, stage.layers
    features = (0 if fed else channels) + len(layers)
    tiles = m // tile.columns
    at, dx, dy = (pl.program_id(k) for k in range(3))
    lane = lax.iota(jnp.int32, tile.lanes)
    i, j = _div(lane, tile.columns), _rem(lane, tile.columns)
    pair = at * tile.lanes + lane
    pairs = n * m
    wide = (size + 2 * halo) * features * tile.rows  # numbers in a row of the left array
    long = (size + 2 * halo + period) * features * tile.columns
    ahead = period * -(-2 * halo // period)
    few = _few(max(left_ref.shape[0], right_ref.shape[0]))
    numbers = [[jnp.broadcast_to(numbers_ref[NUMBERS * l + k], (tile.lanes,)) for k in range(NUMBERS)]
               for l in range(len(layers))]  # fmt: skip
    l_tile, r_tile = _div(at, tiles) * (size + 3 * halo), _rem(at, tiles) * period

    def starts(row: Any) -> tuple:
        """Where a row of the plane begins, left and right."""
        l = (l_tile + row + 2 * halo) * wide
        return l, (r_tile + _rem(row + dy + ahead, period)) * long + dx * (features * tile.columns)

    def rows_of(row: Any) -> tuple:
        """Readers of a row of the plane: value f of column c, left and right."""
        l, r = starts(row)
        l, r = (l + i) & few, (r + j) & few

        def read_left(c: int, f: int) -> Array:
            return left_ref[l + ((c + halo) * features + f) * tile.rows]

        def read_right(c: int, f: int) -> Array:
            return right_ref[r + ((c + halo) * features + f) * tile.columns]

        return read_left, read_right

    def touched(row: Any) -> list[Array]:
        """One number of every sector of a row that will be read: the cache near the processor then has it."""
        low, high = columns[0]
        found = []
        for ref, start, images in zip((left_ref, right_ref), starts(row), (tile.rows, tile.columns)):
            first = start + (low + halo) * features * images
            sectors = (high - low) * features * images // SECTOR
            for k in range(0, sectors, tile.lanes):
                at = jnp.minimum(lane + k, sectors - 1) if k + tile.lanes > sectors else lane + k
                found.append(ref[first + at * SECTOR])
        return found

    def input_row(row: Any) -> list[tuple]:
        """Σ (and rate Σ + Θ) of the first layer's window at every column, scaled."""
        layer, (low, high) = layers[0], columns[0]
        if not fed:
            read_left, read_right = rows_of(row)
            found = []
            for c in range(low, high):
                total = read_left(c, 0) * read_right(c, 0)
                for f in range(1, channels):
                    total = times_plus(read_left(c, f), read_right(c, f), total, interpret)
                found.append((total,))
            return found
        places = [_fed(plane_refs, stage, row, c, dy, dx, at, lane) for c in range(low, high)]
        scaled = [[v * layer.scale for v in place] for place in places]
        return [(v[0], v[1] + numbers[0][2] * v[0]) if tangent else (v[0],) for v in scaled]

    def step(k: Any, state: tuple, held: tuple) -> tuple:
        row = k - (halo if stage.circular else 0)
        values = input_row(row)
        kept = []
        base = channels if not fed else 0
        for l, layer in enumerate(layers):
            low = columns[l][0]
            (first, last), half = columns[l + 1], layer.window // 2
            row = row - half
            read_left, read_right = rows_of(row)
            below = layers[l + 1] if l + 1 < len(layers) else None
            # a pooling takes E φφ and Θ E φ'φ' apart
            scale, rate = ((1.0 if stage.last else 1 / 16), None) if below is None else (below.scale, numbers[l + 1][2])
            dual = Dual(scale, tangent, signed=l == 0 and not fed)
            bias, bias_theta, own_rate = numbers[l]
            sums, state = state[: len(values[0])], state[len(values[0]) :]
            out: list = []
            paired: list[dict] = [{} for _ in sums]
            fresh: list = [[[] for _ in range(layer.window - 1)] for _ in sums]
            for start in range(first, last, tile.group):
                group = range(start, min(start + tile.group, last))
                sigma: list = []
                theta: list = []
                for c in group:
                    arrived = []
                    for s in range(len(sums)):
                        h = _window_sum([v[s] for v in values], c - low, half, paired[s])
                        before = [sums[s][w][c - first] for w in range(layer.window - 1)]
                        added = bias_theta if s else bias  # every row brings it once
                        arrived.append(before[-1] + h if before else h + added)
                        for w in range(layer.window - 1):
                            fresh[s][w].append(h + added if w == 0 else before[w - 1] + h)
                    sigma.append(arrived[0])
                    if not tangent:
                        theta.append(None)
                    elif l or fed:
                        theta.append(arrived[1])
                    else:  # the first weights: Θ is Σ, but for rates
                        theta.append(times_plus(arrived[0], own_rate, bias_theta - own_rate * bias, interpret))
                f = base + l
                left, right = [read_left(c, f) for c in group], [read_right(c, f) for c in group]
                out += dual.many(sigma, theta, left, right, rate, interpret)
            kept.extend(fresh)
            values = out
        return tuple(kept), _finish(values, row, held)

    def _finish(values: list, row: Any, held: tuple) -> tuple:
        inside = (row >= 0) & (row < size)
        if stage.last:
            waiting = []
            for k in range(count):
                total = values[0][k]
                for v in values[1:]:
                    total = total + v[k]
                waiting.append(held[k] + jnp.where(inside, total, 0.0))
            return tuple(waiting)
        cells, deep = size // 2, stage.pooled
        safe = jnp.maximum(row, 0)
        Py, a = _div(safe, 2), _rem(safe, 2)
        odd, xodd = _rem(dy, 2), _rem(dx, 2)
        Dy, part = _rem(_div(dy + odd * (2 * a - 1), 2), deep), 1 + odd * (1 - 2 * a)
        one = _div(dx, 2) * PARTS + 1 + xodd
        two = _rem(_div(dx + 1, 2), deep) * PARTS
        even = (1 - xodd).astype(jnp.float32)
        # the first of two rows waits for the second, unless they go to different pairs
        waits = ((1 - odd) * (1 - a)).astype(jnp.float32)
        done = inside & ((odd == 1) | (a == 1))
        begin = ((Dy * PARTS + part) * (PARTS * deep) * cells + Py) * cells + columns[-1][0] // 2
        begin = (at * (PARTS * deep * cells) ** 2 + begin) * tile.lanes + lane
        across = cells * cells * tile.lanes
        waiting = []
        for k, out in enumerate(outs):
            for which, place, where in ((0, one, done), (1, two, done & (xodd == 1))):
                for x in range(0, len(values), 2):
                    e, o = values[x][k], values[x + 1][k]
                    value = o if which else times_plus(o, jnp.broadcast_to(even, o.shape), e, interpret)
                    index = begin + place * across + (x // 2) * tile.lanes
                    mask = jnp.broadcast_to(where, index.shape)
                    backend.store(out.at[index], value + held[len(waiting)], mask=mask)
                    waiting.append(value * waits)
        return tuple(waiting)

    zero = jnp.zeros(tile.lanes, jnp.float32)
    state = []
    for l, layer in enumerate(layers):
        held = count if l or fed else 1
        span = columns[l + 1][1] - columns[l + 1][0]
        state += [[[numbers[l][k]] * span for _ in range(layer.window - 1)] for k in range(held)]
    before = halo if stage.circular else 0

    def next_row(k: Any, carry: tuple) -> tuple:
        leaves, held, touches, seen = carry
        for value in touches:  # they have arrived by now
            seen = jnp.maximum(seen, value)
        touches = touched(jnp.minimum(k + 1 - before, size + halo - 1))
        kept, held = step(k, _unpacked(leaves, state), held)
        return _packed(kept), held, touches, seen

    waiting = (zero,) * (count if stage.last else count * (columns[-1][1] - columns[-1][0]))
    start = _packed(tuple(state)), waiting, touched(jnp.int32(-before)), zero
    _, waiting, _, seen = lax.fori_loop(jnp.int32(0), jnp.int32(size + halo + before), next_row, start)
    if stage.last:
        for out, value in zip(outs, waiting):
            out[(dy * period + dx) * pairs + pair] = value
    # or what was touched would be thought useless
    backend.store(outs[0].at[pair], seen, mask=seen > NEVER)


def _window_sum(row: list, c: int, half: int, paired: dict) -> Array:
    """The sum of a window round place c; neighbours 2k and 2k + 1 are added once for the windows that have both."""
    places, found = [x for x in range(c - half, c + half + 1) if 0 <= x < len(row)], []
    while places:
        x = places.pop(0)
        if x % 2 == 0 and places:
            places.pop(0)
            if x not in paired:
                paired[x] = row[x] + row[x + 1]
            found.append(paired[x])
        else:
            found.append(row[x])
    return reduce(jnp.add, found)


def _div(a: Any, b: int) -> Any:
    """a // b of numbers that are not negative."""
    return lax.div(a, jnp.full_like(a, b))


def _rem(a: Any, b: int) -> Any:
    return lax.rem(a, jnp.full_like(a, b))


def _few(numbers: int) -> int:
    """A mask that keeps every index: what it proves to the compiler lets constant offsets be part of an address."""
    return 2 ** min(30, max(1, int(numbers).bit_length())) - 1


def _packed(state: Any) -> tuple:
    return tuple(jax.tree.leaves(state))


def _unpacked(leaves: tuple, like: list) -> tuple:
    return tuple(jax.tree.unflatten(jax.tree.structure(like), leaves))


def _fed(refs: list, stage: Stage, row: Any, c: int, dy: Any, dx: Any, at: Any, lane: Array) -> list:
    """Pooled Σ (and Θ) of a stage before, at row and column c of a plane: the sum of its parts."""
    size, period = stage.size, stage.period
    before = size + (0 if stage.circular else 1)  # displacements it keeps
    inside, p = _rem(row + size, size), (c + size) % size
    qy, qx = _rem(inside + dy, period), _rem(p + dx, period)
    live = (qy < size) & (qx < size)
    if not stage.circular:
        live = live & (row >= 0) & (row < size)
    Dy, Dx = _rem(qy - inside + before, before), _rem(qx - p + before, before)
    across = size * size * lane.size
    start = ((Dy * before * PARTS + Dx) * PARTS * size + inside) * size + p
    start = (at * (PARTS * before * size) ** 2 + start) * lane.size + lane
    mask = jnp.broadcast_to(live, lane.shape)
    found = []
    for ref in refs:
        sums = []
        for py in range(PARTS):
            parts = [
                backend.load(ref.at[start + (py * before * PARTS + px) * across], mask=mask, other=0.0)
                for px in range(PARTS)
            ]
            sums.append((parts[0] + parts[1]) + parts[2])
        found.append((sums[0] + sums[1]) + sums[2])
    return found
