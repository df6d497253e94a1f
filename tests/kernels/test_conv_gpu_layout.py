"""Indices of the programs for displacement planes: sums over windows, pooled pairs, arrays of both sides."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.conv_gpu import lanes, layout, pooling, triton_program
from unlazy.kernels.conv_gpu.layout import OUTSIDE, PARTS, VECTOR, WAITING, ConvLayer, PairTile, Stage

STAGES = [
    Stage(8, (ConvLayer(3, 1.0), ConvLayer(5, 1.0))), Stage(6, (ConvLayer(3, 1.0),)), Stage(4, (ConvLayer(1, 1.0),)),
    Stage(8, (ConvLayer(3, 1.0), ConvLayer(5, 1.0)), circular=True),
]  # fmt: skip
names = pytest.mark.parametrize("stage", STAGES, ids=lambda s: f"{s.size}-{s.halo}-{s.circular}")


@pytest.mark.parametrize("divisor", [1, 2, 3, 6, 8])
def test_divisions_of_indices(divisor):
    a = np.arange(40, dtype=np.int32)
    np.testing.assert_array_equal(pooling.quotient(jnp.asarray(a), divisor), a // divisor)
    np.testing.assert_array_equal(pooling.remainder(jnp.asarray(a), divisor), a % divisor)
    once = a[: 2 * divisor]
    np.testing.assert_array_equal(pooling.wrap_index(jnp.asarray(once), divisor), once % divisor)


def test_a_mask_keeps_every_index():
    for numbers in (1, 7, 8, 2**20, 2**29):
        mask = pooling.index_mask(numbers)
        assert mask >= numbers - 1 and mask & (mask + 1) == 0 and mask < 2**30  # all ones, of an int32
    assert pooling.index_mask(2**31) == 2**30 - 1


@pytest.mark.parametrize("half", [0, 1, 2])
def test_windows_share_pairs_of_neighbors(half):
    """Sums of small integers are exact; outside of the row every place counts as the share."""
    row, share = [jnp.float32(v) for v in (3, -1, 4, 1, -5, 9, 2)], jnp.float32(0.5)
    padded, paired = np.concatenate([[0.5] * half, np.array(row), [0.5] * half]), {}
    for c in range(len(row)):
        assert triton_program._window_sum(row, c, half, paired, share) == padded[c : c + 2 * half + 1].sum()
    assert all(x % 2 == 0 and total == row[x] + row[x + 1] for x, total in paired.items()) and bool(paired) == (
        half > 0
    )


@pytest.mark.parametrize("window", [1, 3, 5])
def test_rows_enter_sums_over_windows(window):
    """The sum over the last rows, as if rows of the share had come before; each row adds its own share."""
    share = jnp.full(5, 0.25)
    a, b = np.random.default_rng(0).integers(-4, 5, (2, 9, 5)).astype(np.float32)
    padded, alone = (np.concatenate([np.zeros((window - 1, 5)), v]) for v in (a * b, a))
    ones, twos = [share] * (window - 1), [share] * (window - 1)
    for k, (x, z) in enumerate(zip(jnp.asarray(a), jnp.asarray(b))):
        value, ones = triton_program._summed(x, ones, share)
        np.testing.assert_array_equal(value, alone[k : k + window].sum(0) + 0.25)
        value, twos = triton_program._summed_product(x, z, twos, share, interpret=True)
        np.testing.assert_array_equal(value, padded[k : k + window].sum(0) + 0.25)


def test_columns_in_groups_that_end_where_vectors_do():
    for first, last, aside, vectors in itertools.product((0, 1, 3, 4, 13), (15, 16, 21), (0, 4), (1, 2)):
        groups = triton_program._groups(first, last, aside, vectors)
        assert list(itertools.chain(*groups)) == list(range(first, last))
        assert all((group.stop + aside) % VECTOR == 0 for group in groups[:-1])
        assert all(len(group) <= vectors * VECTOR for group in groups)
        assert all(len(group) == vectors * VECTOR for group in groups[1:-1])


@names
def test_columns_that_a_layer_needs(stage):
    """Those that reach one of the wanted columns through the windows of the later layers."""
    first, last = 2, 4
    found = layout.ranges(stage, first, last)
    wanted = np.arange(-20, 20)[:, None] == np.arange(first, last)
    for k in range(len(stage.layers), -1, -1):
        places = np.flatnonzero(wanted.any(1)) - 20
        if not stage.circular:
            places = places[(places >= 0) & (places < stage.size)]
        assert found[k] == (places[0], places[-1] + 1)
        if k:
            half = stage.layers[k - 1].window // 2
            wanted = sum(np.roll(wanted, shift, 0) for shift in range(-half, half + 1)) > 0


@names
def test_pooled_rows_add_up_where_they_belong(stage):
    """Rows p, q = p + d of one plane go to P = ⌊p/2⌋ of displacement Q - P; no two of them to one place but in turn."""
    lanes_, cells = 32, stage.size // 2
    table = layout.pooling_table(stage, lanes_).reshape(stage.down, stage.plane_rows)
    seen: dict = {}
    for dy, p in np.ndindex(table.shape):
        p, begin = p - stage.lead_rows, table[dy, p]
        q = p + dy - (stage.down if p + dy >= stage.down else 0)
        if not 0 <= p < stage.size:
            assert begin == OUTSIDE != WAITING
        elif not 0 <= q < stage.size:
            continue  # a padded place, where the covariance is zero
        elif (q - p) % 2 == 0 and p % 2 == 0:
            assert begin == WAITING
        else:
            assert begin % (cells * lanes_) == 0
            rest, P = divmod(begin // (cells * lanes_), cells)
            rest, across = divmod(rest, stage.pooled + 1)
            D, part = divmod(rest, PARTS)
            assert (P, across, D) == (p // 2, 0, (q // 2 - p // 2) % stage.pooled) and begin not in seen
            seen[begin] = part
    complete = {}  # every pooled pair of rows gets its three parts, or fewer at the ends of the image
    for begin, part in seen.items():
        complete.setdefault(begin // (cells * lanes_) % cells, []).append(part)
    assert set(complete) == set(range(cells)) and {k for v in complete.values() for k in v} == set(range(PARTS))
    np.testing.assert_array_equal(layout.pooling_table(stage._replace(last=True), lanes_), [0])


@names
def test_arrays_of_both_sides(stage):
    """Padded by zeros or periodically, vectors of four columns; on the right shifted by every displacement."""
    tile, mode = PairTile(2, 3, 16, 2), "wrap" if stage.circular else "constant"
    left, right = (np.random.default_rng(n).normal(size=(stage.size, stage.size, 2, n)) for n in (4, 6))
    found = np.asarray(layout.left_side(stage, jnp.asarray(left, jnp.float32), tile))
    assert found.shape == (2, stage.plane_rows, stage.left_vectors, 2, 2, VECTOR)
    rows = stage.lead_rows, stage.plane_rows - stage.size - stage.lead_rows
    columns = stage.margin, VECTOR * stage.left_vectors - stage.size - stage.margin
    padded = np.pad(left, (rows, columns, (0, 0), (0, 0)), mode=mode).astype(np.float32)
    for t, i, f in np.ndindex(2, 2, 2):
        plane = found[t, :, :, f, i].reshape(stage.plane_rows, -1)
        np.testing.assert_array_equal(plane, padded[:, :, f, 2 * t + i])
    found = np.asarray(layout.right_side(stage, jnp.asarray(right, jnp.float32), tile))
    assert found.shape == (VECTOR, 2, stage.down, stage.right_vectors, 2, 3, VECTOR)
    more = (0, stage.down - stage.size), (0, stage.across - stage.size)
    period = np.pad(right, (*more, (0, 0), (0, 0))).astype(np.float32)
    for shift, t, i, f in np.ndindex(VECTOR, 2, 3, 2):
        moved = np.roll(period[:, :, f, 3 * t + i], stage.margin - shift, 1)
        plane = found[shift, t, :, :, f, i].reshape(stage.down, -1)
        np.testing.assert_array_equal(plane, np.tile(moved, (1, 4))[:, : plane.shape[1]])


@pytest.mark.parametrize("size", [8, 32])
def test_arrays_of_both_sides_for_warps(size):
    """Left rows delayed by one more for every layer, right columns shifted by the displacement, modulo the period."""
    stage, rng = Stage(size, (ConvLayer(3, 1.0), ConvLayer(3, 1.0))), np.random.default_rng(0)
    tile = lanes.WarpTile.of(size)
    features = rng.normal(size=(size, size, 3, 8)).astype(np.float32)
    padded = np.pad(features, ((0, stage.down - size), (0, stage.across - size), (0, 0), (0, 0)))
    left, right = (np.asarray(side(stage, jnp.asarray(features))) for side in (lanes.left_side, lanes.right_side))
    assert left.shape == (8 // tile.rows, stage.plane_rows, 3, tile.rows, size)
    assert right.shape == (stage.across, 8 // tile.columns, stage.down, 3, tile.columns, size)
    for f, lag in ((0, 0), (1, 1), (2, 2)):
        for row, i in itertools.product(range(stage.plane_rows), range(8)):
            delayed = padded[(row - lag) % stage.plane_rows, :size, f, i]
            np.testing.assert_array_equal(left[i // tile.rows, row, f, i % tile.rows], delayed)
    for dx in (0, 1, size // 2, stage.across - 1):
        moved = np.roll(padded, -dx, 1)[:, :size].transpose(2, 3, 0, 1)
        for f, i in itertools.product(range(3), range(8)):
            np.testing.assert_array_equal(right[dx, i // tile.columns, :, f, i % tile.columns], moved[f, i])


@pytest.mark.parametrize("size", [8, 16, 32])
def test_pooled_columns_of_all_pairs_fill_a_row(size):
    tile = lanes.WarpTile.of(size)
    i, j = (k.ravel() for k in np.indices((tile.rows, tile.columns)))
    which, place = tile.pair_position(i, j)
    assert not np.any(which) and tile.across * lanes.SIDE == tile.columns
    places = [tile.column_start(c) + place for c in range(size // 2)]
    np.testing.assert_array_equal(np.sort(np.ravel(places)), np.arange(tile.pairs * size // 2))
