"""Covariances of pairs of positions: which pairs are kept, and what windows and linear maps do to them [C1, C2].

For every axis of positions an array has two: (p, q) if all pairs are kept, or (p, δ) if only those with |q - p| ≤ reach
are, q = p + δ. Each displacement is one plane; there is only one (reach 0) if nothing downstream pools. Positions of a
plane outside the axis hold any value, and count as 0. Axes that follow these are carried along.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core.arrays import einsum
from unlazy.core.errors import check_positive_integer, did_you_mean

PADDINGS = ("same", "valid", "circular")


class Window(NamedTuple):
    """A window of `size` points, `dilation` apart, moved by `stride`.

    `low` and `high` points pad the axis, with zeros or (`wraps`) its other end, after `spread` - 1 zeros between its
    points (with circular padding also behind the last one).
    """

    size: int
    stride: int
    dilation: int
    low: int
    high: int
    wraps: bool = False
    spread: int = 1

    def count(self, positions: int) -> int:
        """Number of windows on an axis with this many positions."""
        long = positions * self.spread if self.wraps else (positions - 1) * self.spread + 1
        return (long + self.low + self.high - self.span) // self.stride + 1

    @property
    def span(self) -> int:
        """Distance from the first to the last point, plus one."""
        return (self.size - 1) * self.dilation + 1


def windows(
    positions: tuple[int, ...], size: tuple, stride: tuple, dilation: tuple = (1,), padding: str = "valid"
) -> tuple[Window, ...]:
    """One window per axis; raises ValueError if one does not fit."""
    if not positions:
        raise ValueError(
            "needs positions (pixels, tokens), and these points have none: use Dense, or give points as arrays "
            "(n, positions, channels), images as (n, height, width, channels)"
        )
    sizes, strides, dilations = (_each(what, given, len(positions)) for what, given in
                                 (("window", size), ("strides", stride), ("dilation", dilation)))  # fmt: skip
    return tuple(_window(n, w, s, d, padding) for n, w, s, d in zip(positions, sizes, strides, dilations))


def transposed(positions: tuple[int, ...], size: tuple, stride: tuple, padding: str) -> tuple[Window, ...]:
    """Windows of a transposed convolution: zeros between positions, then windows with stride 1."""
    sizes, strides = (_each(what, given, len(positions)) for what, given in (("window", size), ("strides", stride)))
    found = []
    for n, w, s in zip(positions, sizes, strides):
        if padding == "circular":
            if w - 1 > n * s:
                raise ValueError(f"a circular window of {w} goes round {n * s} positions more than once")
            found.append(Window(w, 1, 1, w - 1, 0, wraps=True, spread=s))
            continue
        total = w + s - 2 if padding == "same" else w + s - 2 + max(w - s, 0)
        low = w - 1 if padding == "valid" or s > w - 1 else math.ceil(total / 2)
        found.append(Window(w, 1, 1, low, total - low, spread=s))
    return tuple(found)


def positive_integers(what: str) -> Callable[[int | Sequence[int]], tuple[int, ...]]:
    """Converter to a tuple of positive integers: one for all axes, or one per axis."""

    def read(given: int | Sequence[int]) -> tuple[int, ...]:
        several = tuple(given) if isinstance(given, Sequence) else (given,)
        return tuple(check_positive_integer(what, v) for v in several)

    return read


def padding_name(*allowed: str) -> Callable[[str], str]:
    """Converter that accepts the allowed padding names in any case."""

    def read(given: str) -> str:
        name = str(given).lower()
        if name not in allowed:
            raise ValueError(f"unknown padding {given!r}{did_you_mean(name, allowed)}")
        return name

    return read


def _each(what: str, given: tuple[int, ...], axes: int) -> tuple[int, ...]:
    if len(given) not in (1, axes):
        raise ValueError(
            f"{what} {given} is for {len(given)} axes of positions, and the points have {axes}: images are (n, height, "
            "width, channels), X[..., None] where there is one channel"
        )
    return given * axes if len(given) == 1 else given


def _window(positions: int, size: int, stride: int, dilation: int, padding: str) -> Window:
    span = (size - 1) * dilation + 1
    if padding == "valid":
        if span > positions:
            raise ValueError(f"a window of {span} does not fit on {positions} positions: use padding='same'")
        return Window(size, stride, dilation, 0, 0)
    total = max((math.ceil(positions / stride) - 1) * stride + span - positions, 0)
    if padding == "circular" and total > positions:
        raise ValueError(f"a circular window of {span} goes round {positions} positions more than once")
    return Window(size, stride, dilation, total // 2, total - total // 2, wraps=padding == "circular")


ALL = 2**30
"""A reach that no axis is longer than."""


class Axis(NamedTuple):
    """Positions of an axis, and how far apart pairs may be; None: all are kept, as (p, q)."""

    size: int
    reach: int | None

    @property
    def pairs(self) -> int:
        """Numbers kept for each p."""
        return self.size if self.reach is None else 2 * self.reach + 1


Grid = tuple[Axis, ...]


def kept(sizes: tuple[int, ...], required_pairs: tuple[int, ...]) -> Grid:
    """The cheaper way to keep what is asked for, axis by axis."""
    return tuple(Axis(n, None if 2 * r + 1 >= n else r) for n, r in zip(sizes, required_pairs))


def sizes(grid: Grid) -> tuple[int, ...]:
    """Number of positions along each axis."""
    return tuple(axis.size for axis in grid)


def products(x: Array, z: Array, grid: Grid) -> Array:
    """Σ_c x_pc z_qc of two points, for the pairs that are kept; of two sets, x_pci and z_qcj, of every i and j."""
    i, j = ("y", "z") if x.ndim > len(grid) + 1 else ("", "")
    left, right, out, letters = "", "", "", iter("abdefghijklmnop")
    for axis in grid:
        p, q = next(letters), next(letters)
        left, out = left + p, out + p + q
        if axis.reach is None:
            right += q
        else:
            index, inside = _planes(axis)
            z = jnp.take(z, index, axis=len(right))
            shape = [1] * z.ndim
            shape[len(right) : len(right) + 2] = inside.shape
            z = z * jnp.asarray(inside.reshape(shape), z.dtype)
            right += p + q
    return einsum(f"{left}c{i},{right}c{j}->{out}{i}{j}", x, z)


def of_left(values: Array, grid: Grid) -> Array:
    """v_p for every pair."""
    for a in range(len(grid)):
        values = jnp.expand_dims(values, 2 * a + 1)
    return values


def of_right(values: Array, grid: Grid) -> Array:
    """v_q for every pair."""
    for a, axis in enumerate(grid):
        if axis.reach:
            values = jnp.take(values, _planes(axis)[0], axis=2 * a)
        else:
            values = jnp.expand_dims(values, 2 * a if axis.reach is None else 2 * a + 1)
    return values


def diagonal(A: Array, grid: Grid) -> Array:
    """The pairs p = q."""
    for a, axis in enumerate(grid):
        if axis.reach is None:
            A = jnp.moveaxis(jnp.diagonal(A, 0, a, a + 1), -1, a)
        else:
            A = A[(*(slice(None),) * (a + 1), axis.reach)]
    return A


def is_diagonal(grid: Grid, A: Array) -> Array:
    """1 where p = q, else 0, in a shape that multiplies A."""
    found = np.ones(())
    for axis in grid:
        one = np.eye(axis.size) if axis.reach is None else np.arange(axis.pairs)[None] == axis.reach
        found = found[..., None, None] * np.broadcast_to(one, (axis.size, axis.pairs))
    return jnp.asarray(found.reshape(found.shape + (1,) * (A.ndim - found.ndim)), A.dtype)


def slid(A: Array, a: int, axis: Axis, window: Window) -> tuple[Array, Axis]:
    """Σ_Δ A_{p+Δ,q+Δ} over the window, on axis a: both positions move together."""
    p, q = 2 * a, 2 * a + 1
    count = window.count(axis.size)
    if axis.reach is None:
        return _summed(_padded(A, {p: window, q: window}), (p, q), window, count), Axis(count, None)
    reach = axis.reach * window.spread // window.stride
    A = _padded(_inside(A, a, axis), {p: window})
    if window.spread > 1:
        A = jax.lax.pad(A, jnp.zeros((), A.dtype), [(0, 0, window.spread - 1 if i == q else 0) for i in range(A.ndim)])
    center = axis.reach * window.spread
    planes = slice(center - reach * window.stride, center + reach * window.stride + 1, window.stride)
    return _summed(A[(*(slice(None),) * q, planes)], (p,), window, count), Axis(count, reach)


def pooled(A: Array, a: int, axis: Axis, window: Window) -> tuple[Array, Axis]:
    """Σ_Δ Σ_Δ' A_{p+Δ,q+Δ'} over the window, on axis a: each position moves on its own."""
    p, q = 2 * a, 2 * a + 1
    count = window.count(axis.size)
    if axis.reach is None:
        A = _padded(A, {p: window, q: window})
        return _summed(_summed(A, (p,), window, count), (q,), window, count), Axis(count, None)
    reach = (axis.reach - (window.size - 1) * window.dilation) // window.stride
    A = _padded(_inside(A, a, axis), {p: window})
    found = []
    for i in range(window.size):
        for j in range(window.size):
            first = axis.reach - reach * window.stride + (j - i) * window.dilation
            planes = slice(first, first + 2 * reach * window.stride + 1, window.stride)
            found.append(_cut(A[(*(slice(None),) * q, planes)], p, i, window, count))
    return functools.reduce(jnp.add, found), Axis(count, reach)


def mapped(A: Array, a: int, M: Array) -> Array:
    """M A Mᵀ on axis a, where all pairs are kept."""
    moved = jnp.moveaxis(A, (2 * a, 2 * a + 1), (-2, -1))
    return jnp.moveaxis(einsum("ip,jq,...pq->...ij", M, M, moved), (-2, -1), (2 * a, 2 * a + 1))


def chosen(A: Array, a: int, axis: Axis, at: range) -> tuple[Array, Axis]:
    """Only the positions of a range on axis a."""
    one = Window(1, at.step, 1, -at.start, at[-1] + 1 - axis.size)
    return slid(A, a, axis, one)


def narrowed(A: Array, a: int, axis: Axis, to: Axis) -> Array:
    """Only the pairs that `to` keeps, on axis a."""
    if axis == to or to.reach is None:
        return A
    if axis.reach is not None:
        first = axis.reach - to.reach
        return jax.lax.slice_in_dim(A, first, first + to.pairs, axis=2 * a + 1)
    index = jnp.asarray(_planes(to)[0].reshape([1] * (2 * a) + [to.size, to.pairs] + [1] * (A.ndim - 2 * a - 2)))
    return jnp.take_along_axis(A, index, axis=2 * a + 1)


def total(A: Array, grid: Grid) -> Array:
    """The sum over all pairs p, q."""
    for a, axis in enumerate(grid):
        A = A if axis.reach is None else _inside(A, a, axis)
    return jnp.sum(A, tuple(range(2 * len(grid))))


def numbers(grid: Grid) -> int:
    """How many a covariance has."""
    return math.prod(axis.size * axis.pairs for axis in grid)


@functools.cache
def _planes(axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """q of every (p, δ), cut to the axis, and whether it was inside."""
    # 32 bits in float32's and in float64's scope: programs that both share must agree
    q = np.arange(axis.size, dtype=np.int32)[:, None]
    q = q + np.arange(-(axis.reach or 0), (axis.reach or 0) + 1, dtype=np.int32)[None]
    return np.clip(q, 0, axis.size - 1), (q >= 0) & (q < axis.size)


def _inside(A: Array, a: int, axis: Axis) -> Array:
    """The same with 0 outside the axis."""
    if axis.reach == 0:
        return A
    shape = [1] * A.ndim
    shape[2 * a : 2 * a + 2] = axis.size, axis.pairs
    return A * jnp.asarray(_planes(axis)[1].reshape(shape), A.dtype)


def _padded(A: Array, axes: dict[int, Window]) -> Array:
    """What the window needs around (and between) the positions of these axes; negative padding cuts."""
    ways = [(axes[i].low, axes[i].high, axes[i].spread - 1) if i in axes else (0, 0, 0) for i in range(A.ndim)]
    if any(window.wraps for window in axes.values()):
        spread = [(0, way[2], way[2]) for way in ways]
        A = jax.lax.pad(A, jnp.zeros((), A.dtype), spread) if any(map(any, spread)) else A
        return jnp.pad(A, [way[:2] for way in ways], mode="wrap")
    return A if not any(map(any, ways)) else jax.lax.pad(A, jnp.zeros((), A.dtype), ways)


def _cut(A: Array, axis: int, j: int, window: Window, count: int) -> Array:
    """The j-th point of every window on an axis."""
    start = j * window.dilation
    return jax.lax.slice_in_dim(A, start, start + (count - 1) * window.stride + 1, window.stride, axis)


def _summed(A: Array, axes: tuple[int, ...], window: Window, count: int) -> Array:
    """The sum over the points of every window, which moves on all these axes at once."""
    found = []
    for j in range(window.size):
        part = A
        for axis in axes:
            part = _cut(part, axis, j, window, count)
        found.append(part)
    return functools.reduce(jnp.add, found)
