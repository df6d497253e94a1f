"""Kernels of convolutional networks on a GPU, one stage at a time: displacement planes never leave the chip [C1, C2].

A stage is a number of convolutions with ReLU on images of one size, followed by a pooling. Every thread has one pair of
images. A displacement plane is the covariance p ↦ Σ_{p,p+d} for one displacement d = q - p. A thread processes a plane
row by row: a new row enters, each layer keeps the sums over the last rows that its window needs, and finished rows are
added up by the pooling. Rows and columns are in registers, so that sums over windows need no communication. The planes
of one vertical displacement and all horizontal displacements are processed one after the other in one loop, with the
zeros of the padding between two images (for circular windows each plane instead starts some rows early).

Displacements d and d - N share a plane, where N is the size plus a few padded places. A padded place has standard
deviation 0, for which the dual is 0, as zero padding requires; no plane needs a mask. Circular windows have no padded
places. Horizontally N is even, so that both displacements of a plane are even, or both odd: pooling over 2 × 2 pixels
maps pairs p, q to P = ⌊p/2⌋, Q = ⌊q/2⌋ with Q - P = d/2, or (d ± 1)/2 by the parity of p. Contributions to pooled pairs
from three horizontal displacements are added in memory by the one thread that processes them; those from three vertical
displacements are stored separately, so that the order of summation is fixed.

This is a Pallas program for the Triton backend; on a CPU it runs in interpret mode, for tests.
"""

import math
from functools import partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array

from unlazy.kernels.conv_gpu import lanes
from unlazy.kernels.conv_gpu.layout import PARTS, VECTOR, PairTile, Stage, StageInputs, pooling_table, ranges
from unlazy.kernels.conv_gpu.pooling import (
    Pooling,
    PreviousStage,
    index_mask,
    pooled_before,
    quotient,
    remainder,
    wrap_index,
)
from unlazy.kernels.conv_gpu.relu_dual import Dual, backend, on_arrays, on_triton, times_plus

SECTOR = 8
"""Values that are loaded from memory at once."""
NEVER = 3e38
"""Larger than any pixel or standard deviation: kernels of larger ones overflow."""
LAYER_PARAMETERS = 3
"""Parameters per layer: σ_b², σ_b² times the rate of biases, the rate of weights."""


def run(
    stage: Stage, given: StageInputs, *, tangent: bool, tile: PairTile, warps: int | None = None,
    interpret: bool = False,
) -> tuple[Array, ...]:  # fmt: skip
    """Σ (and Θ) after a stage: pooled planes for the next stage, or their sums over all pairs of positions.

    `warps` is the image size of the previous stage if `hopper_program` ran it.
    """
    left, right, channels, numbers, planes = given
    n, m = len(left) * tile.rows, right.shape[1] * tile.columns
    pairs = n * m
    count = 2 if tangent else 1
    cells = stage.size // 2
    if stage.last:
        shape: tuple[int, ...] = (stage.down, pairs)
    else:
        shape = (pairs // tile.lanes, stage.pooled * PARTS, stage.pooled + 1, cells, cells, tile.lanes)
    found: list = []
    for first in range(0, stage.size, tile.width):
        columns = ranges(stage, first, min(first + tile.width, stage.size))
        table = jnp.asarray(pooling_table(stage, tile.lanes), jnp.int32)
        inputs = [a.reshape(-1) for a in (numbers, table, left, right, *(planes or ()))]
        filled = [] if stage.last else list(found)
        done = pl.pallas_call(
            partial(_body, stage=stage, columns=columns, channels=channels, images=(n, m), tangent=tangent, tile=tile,
                    interpret=interpret, has_previous=planes is not None, warps=warps),
            grid=(pairs // tile.lanes, stage.down),
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
    if stage.last:
        return tuple(found)
    return tuple(f.reshape(shape) for f in found)


class _Place(NamedTuple):
    """Start of a row of both images, for every thread."""

    left: Array
    right: Array


def _body(
    *refs, stage: Stage, columns: list, channels: int, images: tuple[int, int], tangent: bool, tile: PairTile,
    interpret: bool, has_previous: bool, warps: int | None,
) -> None:  # fmt: skip
    """The planes of one vertical displacement, or some columns of them, for a tile of pairs."""
    count = 2 if tangent else 1
    numbers_ref, pooling_ref, left_ref, right_ref, *rest = refs
    plane_refs, outs = rest[: count if has_previous else 0], rest[-count:]
    n, m = images
    size, halo, layers = stage.size, stage.halo, stage.layers
    features = (0 if has_previous else channels) + len(layers)
    tiles = m // tile.columns
    at, dy = (pl.program_id(k) for k in range(2))
    lane = lax.iota(jnp.int32, tile.lanes)
    i, j = quotient(lane, tile.columns), remainder(lane, tile.columns)
    pair = at * tile.lanes + lane
    pairs = n * m
    wide = stage.left_vectors * features * tile.rows  # vectors in a row of the left array
    long = stage.right_vectors * features * tile.columns
    few = index_mask(max(left_ref.shape[0], right_ref.shape[0]) // VECTOR)
    quad = lax.broadcasted_iota(jnp.int32, (tile.lanes, VECTOR), 1)
    numbers = [[jnp.broadcast_to(numbers_ref[LAYER_PARAMETERS * l + k], (tile.lanes,)) for k in range(LAYER_PARAMETERS)]
               for l in range(len(layers))]  # fmt: skip
    # every column of a window adds its share of the biases
    shares = [[b / layer.window for b in of[:2]] for layer, of in zip(layers, numbers)]
    l_tile, r_tile = quotient(at, tiles), remainder(at, tiles)

    def place(row: Array, dx: Array) -> _Place:
        own = row + dy + stage.down * -(-stage.lead_rows // stage.down)
        own = remainder(own, stage.down) if stage.circular else wrap_index(own, stage.down)
        shift, steps = remainder(dx, VECTOR), quotient(dx, VECTOR)
        l = (l_tile * stage.plane_rows + row + stage.lead_rows) * wide
        r = ((shift * tiles + r_tile) * stage.down + own) * long + steps * (features * tile.columns)
        return _Place(l + i, r + j)

    def reader(ref: Any, start: Array, images: int) -> Any:
        """A function that reads feature f at column c of a row, together with its neighbors."""
        base, kept = ((start & few) * VECTOR)[:, None] + quad, {}

        def read(c: int, f: int) -> Array:
            k, at = divmod(c + stage.margin, VECTOR)
            if (k, f) not in kept:
                vector = ref[base + (k * features + f) * images * VECTOR]
                kept[k, f] = [v.reshape(tile.lanes) for v in lax.split(vector, (1,) * VECTOR, 1)]
            return kept[k, f][at]

        return read

    def rows_of(at: _Place) -> tuple:
        return reader(left_ref, at.left, tile.rows), reader(right_ref, at.right, tile.columns)

    def touched(at: _Place) -> list[Array]:
        """One value of every sector of a row that will be read, which brings the row into the L1 cache."""
        first, last = (columns[0][0] + stage.margin) // VECTOR, -(-(columns[0][1] + stage.margin) // VECTOR)
        found = []
        for ref, start, own, images in ((left_ref, at.left, i, tile.rows), (right_ref, at.right, j, tile.columns)):
            sectors = (last - first) * features * images * VECTOR // SECTOR
            mine = jnp.minimum(lane, sectors - 1) if sectors < tile.lanes else lane
            begin = ((start - own) & few) * VECTOR + mine * SECTOR
            for k in range(0, sectors, tile.lanes):
                more = max(0, min(k, sectors - tile.lanes))
                found.append(ref[begin + (first * features * images * VECTOR + more * SECTOR)])
        return found

    def input_row(at: _Place, row: Any, dx: Any, sums: list) -> tuple[list, list]:
        """Scaled Σ (and rate Σ + Θ) of the first layer at every column, summed over rows, and the sums to keep."""
        layer, (low, high) = layers[0], columns[0]
        read_left, read_right = rows_of(at)
        scale, rate = jnp.full(tile.lanes, layer.scale, jnp.float32), numbers[0][2]
        found = []
        for c in range(low, high):
            if not has_previous:
                total = read_left(c, 0) * read_right(c, 0)
                for f in range(1, channels):
                    total = times_plus(read_left(c, f), read_right(c, f), total, interpret)
                values = [total]
            else:
                values = [v * scale for v in pooled_before(plane_refs, stage, row, c, dy, dx, program_of, before)]
                if tangent:
                    values[1] = times_plus(values[0], rate, values[1], interpret)
            found.append([_summed(v, of[c - low], share) for v, of, share in zip(values, sums, shares[0])])
        return [[v[0] for v in each] for each in found], [[each[s][1] for each in found] for s in range(len(sums))]

    program_of, each = at, on_arrays if interpret else on_triton
    before = PreviousStage(tile.lanes, 1, 0, lane, lambda c: c * tile.lanes)
    if warps is not None:
        laid = lanes.WarpTile.of(warps)
        before = PreviousStage(laid.pairs, tile.lanes // laid.pairs, *laid.pair_position(i, j), laid.column_start)

    def step(row: Any, dx: Any, past: list[_Place], state: tuple, held: tuple) -> tuple:
        """Process one row; `past` are the places of this row and the previous ones."""
        done_row, done_dx = row - halo, dx
        for _ in range(-(-halo // stage.plane_rows)):
            turn = (done_row < -stage.lead_rows).astype(jnp.int32)
            done_row, done_dx = done_row + stage.plane_rows * turn, done_dx - turn
        early = count if has_previous else 1
        of_layer = [list(state[k : k + count]) for k in range(early, len(state), count)]
        of_layer = [list(state[:early]), *of_layer]
        values, fresh = input_row(past[0], row, dx, of_layer[0])
        kept, lag = [*fresh], 0
        base = channels if not has_previous else 0
        pooling = None
        for l, layer in enumerate(layers):
            low = columns[l][0]
            (first, last), half = columns[l + 1], layer.window // 2
            lag += half
            read_left, read_right = rows_of(past[lag])
            below = layers[l + 1] if l + 1 < len(layers) else None
            # pooling needs E φφ and Θ E φ'φ' separately
            scale = (1.0 if stage.last else 1 / 16) if below is None else below.scale
            if below is None and not stage.last:
                ahead = pooling_ref[dy * stage.plane_rows + done_row + stage.lead_rows]
                pooling = Pooling.of(stage, ahead, done_dx, program_of, lane, columns[-1], outs)
            dual = Dual(scale, tangent, signed=l == 0 and not has_previous)
            bias, bias_theta, own_rate = numbers[l]
            out: list = []
            paired: list[dict] = [{} for _ in values[0]]
            fresh = [[] for _ in range(count)]
            for group in _groups(first, last, stage.margin, tile.vectors):
                windows = [[_window_sum([v[s] for v in values], c - low, half, paired[s], shares[l][s])
                            for s in range(len(values[0]))] for c in group]  # fmt: skip
                f = base + l
                left, right = [read_left(c, f) for c in group], [read_right(c, f) for c in group]
                duals = dual.evaluate(each, [w[0] for w in windows], left, right)
                for c, window, (a, b, slope) in zip(group, windows, duals):
                    if tangent and len(window) == 1:  # first layer: Θ is Σ up to rates
                        window.append(times_plus(window[0], own_rate, bias_theta - own_rate * bias, interpret))
                    if below is None:
                        out.append([a * b, *([window[1] * slope] if tangent else [])])
                        continue
                    sums, share = [of[c - first] for of in of_layer[l + 1]], shares[l + 1]
                    down, keep = _summed_product(a, b, sums[0], share[0], interpret)
                    out.append([down])
                    fresh[0].append(keep)
                    if tangent:
                        rate = numbers[l + 1][2]
                        value = keep[0] if keep else down  # includes a share of the bias
                        rated = times_plus(value, rate, -rate * share[0], interpret)
                        down, keep = _summed(times_plus(window[1], slope, rated, interpret), sums[1], share[1])
                        out[-1].append(down)
                        fresh[1].append(keep)
            kept.extend(fresh if below is not None else [])
            values = out
        if pooling is not None:
            return tuple(kept), pooling.store(values, held, interpret)
        inside, totals = (done_row >= 0) & (done_row < size) & (done_dx >= 0), []
        for k in range(count):
            total = reduce(jnp.add, [v[k] for v in values])
            totals.append(held[k] + jnp.where(inside, total, 0.0))
        return tuple(kept), tuple(totals)

    zero = jnp.zeros(tile.lanes, jnp.float32)
    state = []
    for l, layer in enumerate(layers):
        held = count if l or has_previous else 1
        span = columns[l][1] - columns[l][0]
        # as if padded rows had come before
        state += [[[shares[l][k]] * (layer.window - 1) for _ in range(span)] for k in range(held)]

    def next_row(_: Any, carry: tuple) -> tuple:
        leaves, held, touches, seen, past, (row, dx) = carry
        for value in touches:  # the loads have completed by now
            seen = jnp.maximum(seen, value)
        turn = (row == stage.plane_rows - stage.lead_rows - 1).astype(jnp.int32)
        coming = row + 1 - stage.plane_rows * turn, jnp.minimum(dx + turn, stage.across)
        here = place(coming[0], jnp.minimum(coming[1], stage.across - 1))
        touches = touched(here)
        kept, held = step(row, dx, past, _unpacked(leaves, state), held)
        return _packed(kept), held, touches, seen, [here, *past[:-1]], coming

    waiting = (zero,) * (count if stage.last else count * (columns[-1][1] - columns[-1][0]))
    begin = [(jnp.int32(-k % stage.plane_rows - stage.lead_rows), jnp.int32(0)) for k in range(halo + 1)]
    past = [place(*b) for b in begin]
    start = _packed(tuple(state)), waiting, touched(past[0]), zero, past, begin[0]
    steps = stage.across * stage.plane_rows + halo
    _, waiting, _, seen, *_ = lax.fori_loop(jnp.int32(0), jnp.int32(steps), next_row, start)
    if stage.last:
        for out, value in zip(outs, waiting):
            out[dy * pairs + pair] = value
    # otherwise the compiler would remove the loads as unused
    backend.store(outs[0].at[pair], seen, mask=seen > NEVER)


def _summed(value: Array, sums: list, share: Array) -> tuple[Array, list]:
    """The sum over the rows of a window, and the partial sums for the next row: over one row, two, ….

    The first row of a sum adds its share of the bias.
    """
    if not sums:
        return value + share, []
    found = [s + value for s in (*sums[::-1], share)]
    return found[0], found[:0:-1]


def _summed_product(a: Array, b: Array, sums: list, share: Array, interpret: bool) -> tuple[Array, list]:
    """`_summed` of a product; the longest sum comes first, so that its register is free for the next."""
    found = [times_plus(a, b, s, interpret) for s in (*sums[::-1], share)]
    return found[0], found[:0:-1]


def _groups(first: int, last: int, aside: int, vectors: int) -> list[range]:
    """Columns first … last in groups of `vectors` vectors."""
    step = vectors * VECTOR
    edges = [first, *range(-(-(first + aside + 1) // VECTOR) * VECTOR - aside + step - VECTOR, last, step), last]
    return [range(a, b) for a, b in pairwise(edges)]


def _window_sum(row: list, c: int, half: int, paired: dict, share: Array) -> Array:
    """The sum of a window around column c; neighbors 2k and 2k + 1 are added once for all windows that contain both.

    Places outside add their share of the bias.
    """
    places, found = [x for x in range(c - half, c + half + 1) if 0 <= x < len(row)], []
    outside = 2 * half + 1 - len(places)
    while places:
        x = places.pop(0)
        if x % 2 == 0 and places:
            places.pop(0)
            if x not in paired:
                paired[x] = row[x] + row[x + 1]
            found.append(paired[x])
        else:
            found.append(row[x])
    found += [share * outside] if outside else []
    return reduce(jnp.add, found)


def _packed(state: Any) -> tuple:
    """State as a flat tuple."""
    return tuple(jax.tree.leaves(state))


def _unpacked(leaves: tuple, like: list) -> tuple:
    """State from a flat tuple."""
    return tuple(jax.tree.unflatten(jax.tree.structure(like), leaves))
