"""The code of one warp of `hopper_program`: the planes of one vertical displacement, for a tile of pairs, row by row.

Written for the operations of kernels.conv_gpu.warp, which run on a GPU or on arrays. Rows are processed as in
`triton_program`, which explains the order of planes and the pooling. No column is computed twice: a window takes the
two columns that it lacks from the neighboring lanes.
"""

import itertools
import math
from typing import Any

from unlazy.kernels.conv_gpu.lanes import BLOCK, SIDE, WarpTile
from unlazy.kernels.conv_gpu.layout import PARTS, VECTOR, Stage
from unlazy.kernels.conv_gpu.relu_dual import PLUS, TIMES, TIMES_PLUS, Dual
from unlazy.kernels.conv_gpu.warp import LANES

UNROLL = {False: 2, True: 1}
"""Unrolled iterations: values then stay in their registers. The NTK has too few registers for it."""
LAYER_PARAMETERS = 3
"""Parameters per layer: σ_b², σ_b² times the rate of biases, the rate of weights."""


def run_warp(
    on: Any,
    *,
    stage: Stage,
    channels: int,
    tiles: tuple[int, int],
    warps: int,
    has_previous: bool,
    tangent: bool,
    plain: bool,
) -> None:
    """Run one warp: the planes of one vertical displacement, for a tile of pairs."""
    tile, layers, halo = WarpTile.of(stage.size), stage.layers, stage.halo
    r_tiles = tiles[1] * BLOCK // tile.columns
    count, channels = 2 if tangent else 1, 0 if has_previous else channels
    features = channels + len(layers)
    pairs, each = range(SIDE * SIDE), on.evaluate
    column, group = on.lane & (tile.lanes - 1), on.lane // tile.lanes
    up, beside = group // tile.across, group & (tile.across - 1)
    per_block, row_of_tiles = (BLOCK // tile.rows, BLOCK // tile.columns), warps * -(-r_tiles * stage.down // warps)
    l_tile, item = on.warp // row_of_tiles, on.warp % row_of_tiles
    dy, r_tile = item % stage.down, item // stage.down
    block = l_tile // per_block[0] * tiles[1] + r_tile // per_block[1]
    at = block * math.prod(per_block) + l_tile % per_block[0] * per_block[1] + r_tile % per_block[1]
    numbers = [
        [None if plain else on.read(2, LAYER_PARAMETERS * l + k) for k in range(LAYER_PARAMETERS)]
        for l in range(len(layers))
    ]
    ends = [on.to_float(column >= 1), on.to_float(column < tile.lanes - 1)]
    wide, long = tile.rows * stage.size, tile.columns * stage.size  # values of a feature in a row
    l_first, r_first = l_tile * (stage.plane_rows * features * wide), r_tile * (stage.down * features * long)
    l_start = up * (SIDE * stage.size) + column * VECTOR
    r_start = r_first + beside * (SIDE * stage.size) + column * VECTOR
    r_copy = r_tiles * stage.down * features * long
    near = on.load_on_chip(0, l_first, stage.plane_rows * features * wide)

    def r_place(row: Any, dx: Any) -> Any:
        own = row + dy
        own = own - on.select(own >= stage.down, on.integer(stage.down), on.integer(0))
        dx = on.select(dx < stage.across, dx, on.integer(0))  # steps after the last plane
        return r_start + dx * r_copy + own * (features * long)

    def read(read_left: Any, read_right: Any, feature: int) -> tuple[list, list]:
        """One feature of the images on both sides, for every pair."""
        lefts = [read_left(feature * wide + k * stage.size) for k in range(SIDE)]
        rights = [read_right(feature * long + k * stage.size) for k in range(SIDE)]
        return [lefts[p // SIDE] for p in pairs], [rights[p % SIDE] for p in pairs]

    def down(values: list, sums: list) -> tuple[list, list]:
        """Sums of columns over three rows, and the sums over the last one and two."""
        one, two = sums
        return each(PLUS, values, two), [values, each(PLUS, values, one)]

    def across(row: list) -> list:
        """Sums over windows of three columns."""
        near = each(PLUS, row[::2], row[1::2])
        beyond = [on.neighbor(row[-1], -1, tile.lanes), on.neighbor(row[0], 1, tile.lanes)]
        outer = each(TIMES_PLUS, beyond, ends, [near[0], near[1]])
        return [outer[0], *each(PLUS, near, [row[2], row[1]]), outer[1]]

    def products(row: Any, dx: Any, read_left: Any, here: Any) -> list:
        """Inner products of pixels."""
        of = [read(read_left, on.reader(1, here), f) for f in range(channels)]
        found = []
        for p in pairs:
            total = each(TIMES, of[0][0][p], of[0][1][p])
            for left, right in of[1:]:
                total = each(TIMES_PLUS, left[p], right[p], total)
            found.append([total])
        return found

    before, laid = stage.size + 1, WarpTile.of(2 * stage.size)  # previous stage: displacements, and order of pairs
    i, j = (l_tile % per_block[0] * tile.rows + up * SIDE, r_tile % per_block[1] * tile.columns + beside * SIDE)
    which, lies = laid.pair_position(i, j)
    source = (block * (BLOCK**2 // laid.pairs) + which) * before + dy

    def pooled(row: Any, dx: Any, *_: Any) -> list:
        """Σ (and rate Σ + Θ) of the previous stage, the sum of its parts, scaled."""
        own, scale = row + dy, [on.constant(layers[0].scale)] * len(pairs)
        alive = (row < stage.size) & (dx < stage.across) & ((own >= stage.down) | (own < stage.size))
        found: list = [[[] for _ in range(count)] for _ in pairs]
        for c in range(VECTOR):
            moved = column * VECTOR + c + dx
            turned = moved >= stage.across
            to = on.select(turned, dx - 1, dx)
            live = alive & (turned | (moved < stage.size))
            first = (source * (PARTS * (before + 1)) + to) * stage.size + row
            first = first * (stage.size * laid.pairs) + (
                column * (laid.column_start(VECTOR) - laid.column_start(0)) + lies
            )
            part = (before + 1) * stage.size * stage.size * laid.pairs
            sums = []
            for k in range(count):
                three = [on.masked_read(3 + k, first, live, part * a + laid.column_start(c)) for a in range(PARTS)]
                sums.append(each(TIMES, each(PLUS, each(PLUS, three[0], three[1]), three[2]), scale))
            if tangent and plain:
                sums[1] = each(PLUS, sums[0], sums[1])
            elif tangent:
                sums[1] = each(TIMES_PLUS, sums[0], [numbers[0][2]] * len(pairs), sums[1])
            for p, k in itertools.product(pairs, range(count)):
                found[p][k].append(sums[k][p])
        return found

    def step(carry: tuple) -> tuple:
        (row, dx), (done_row, done_dx), past, state, totals = carry
        here, coming = r_place(row, dx), after(row, dx)
        read_left = near(l_start + row * (features * wide))
        values: list = []
        kept: list[list] = [[] for _ in range(count if has_previous else 1)]
        for p, given in enumerate((pooled if has_previous else products)(row, dx, read_left, here)):
            summed = [down(value, state[0][k][p]) for k, value in enumerate(given)]
            values.append([total for total, _ in summed])
            for of, (_, sums) in zip(kept, summed):
                of.append(sums)
        fresh = [kept]
        for l in range(len(layers)):
            last = l + 1 == len(layers)
            left, right = read(read_left, on.reader(1, past[l]), channels + l)
            scale = (1.0 if stage.last else 1 / 16) if last else layers[l + 1].scale
            dual = Dual(scale, tangent, signed=l == 0 and not has_previous)
            bias, bias_theta, own_rate = numbers[l]
            found: list = []
            sums_of: list[list] = [[] for _ in range(count)]
            for p in pairs:
                windows = [across(v) for v in values[p]]
                if tangent and len(windows) == 1:  # first layer: Θ is Σ up to rates
                    windows.append(windows[0] if plain else each(TIMES, windows[0], [own_rate] * VECTOR))
                if not plain:
                    windows = [each(PLUS, w, [b] * VECTOR) for w, b in zip(windows, (bias, bias_theta))]
                duals = dual.evaluate(each, windows[0], left[p], right[p])
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
        if stage.last:
            totals = added(values, totals, done_row, done_dx)
        else:
            pool(values, done_row, done_dx)
        return coming, after(done_row, done_dx), [here, *past[:-1]], fresh, totals

    def added(values: list, totals: list, row: Any, dx: Any) -> list:
        """Add a row to the sums over all rows."""
        inside = on.to_float((row < stage.size) & (dx >= 0) & (dx < stage.across))
        found = []
        for k in range(count):
            rows = [values[p][k] for p in pairs]
            ends = each(PLUS, each(PLUS, *([r[c] for r in rows] for c in (0, 1))), [r[2] for r in rows])
            whole = each(PLUS, ends, [r[3] for r in rows])
            found.append(each(TIMES_PLUS, whole, [inside] * len(pairs), totals[k]))
        return found

    def after(row: Any, dx: Any) -> tuple:
        turns = row >= stage.plane_rows - 1
        zero = on.integer(0)
        return on.select(turns, zero, row + 1), on.select(turns, dx + 1, dx)

    def pool(values: list, row: Any, dx: Any) -> None:
        """Add a row to its pooled pairs; the first row overwrites what is stored."""
        zero = on.integer(0)
        d = dy - on.select(row + dy >= stage.down, on.integer(stage.down), zero)
        odd, a = d & 1, row & 1
        D = (d + odd * a) >> 1
        D = D + on.select(D < 0, on.integer(stage.pooled), zero)
        part = odd * (on.integer(1) - a - a) + 1
        inside, turned = (row < stage.size) & (dx >= 0) & (dx < stage.across), (dx & 1) == 1
        second = (odd == 0) & (a == 1)  # two rows contribute to the same pairs
        ends = dx >= stage.across - 1  # the displacement after the last one is the first
        cells, even = stage.size // 2, on.to_float(on.logical_not(turned))
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
        return [on.constant(0.0)] * VECTOR

    held = [count if l or has_previous else 1 for l in range(len(layers))]
    state = [[[[nothing(), nothing()] for _ in pairs] for _ in range(k)] for k in held]
    totals = [nothing() for _ in range(count)] if stage.last else []
    past = [r_place(on.integer((-k - 1) % stage.plane_rows), on.integer(0)) for k in range(len(layers))]
    begin = (on.integer(0), on.integer(0)), (on.integer(-halo % stage.plane_rows), on.integer(-1))
    all_steps = stage.across * stage.plane_rows + halo
    turns = -(-all_steps // UNROLL[tangent])

    def several(carry: tuple) -> tuple:
        for _ in range(UNROLL[tangent]):
            carry = step(carry)
        return carry

    here = r_tile < r_tiles
    times = on.select(here, on.integer(turns), on.integer(0))
    *_, totals = on.repeat(times, several, (*begin, past, state, totals))
    for k, total in enumerate(totals):
        on.store(k, ((at * stage.down + dy) * LANES + on.lane) * len(pairs), total, here, on.logical_not(here))
