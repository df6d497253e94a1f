"""Windows that slide over an axis of positions, and their padding."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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


def positive_integers(what: str) -> Any:
    """Converter to a tuple of positive integers: one for all axes, or one per axis."""

    def read(given: int | Sequence[int]) -> tuple[int, ...]:
        several = tuple(given) if isinstance(given, Sequence) else (given,)
        return tuple(check_positive_integer(what, v) for v in several)

    return read


def padding_name(*allowed: str) -> Any:
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
