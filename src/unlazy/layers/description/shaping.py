"""Layers without weights: activations, normalization, and linear maps of positions [C1, C3]."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.errors import nearest
from unlazy.layers.description.base import Layer, Shape, sized
from unlazy.layers.description.windows import Window, padding_name, whole_numbers, windows
from unlazy.theory.activations import functions


class Activation(Layer):
    """φ of every entry: by name, as a function of jax, or any function of one array
    (`theory.activations.functions`)."""

    phi: functions.Activation = eqx.field(static=True)

    def __init__(self, phi: Any, parameter: float | None = None):
        self.phi = functions.activation(phi, parameter)

    @property
    def title(self) -> str:
        return f"Activation {self.phi.name}"


def Relu() -> Activation:
    """max(x, 0)."""
    return Activation("relu")


def Erf() -> Activation:
    """The error function."""
    return Activation("erf")


def Gelu() -> Activation:
    """x Φ(x)."""
    return Activation("gelu")


class LayerNorm(Layer):
    """Subtracts the mean and divides by the standard deviation over channels, or over positions and channels [C3]."""

    over: str = eqx.field(default="channels", static=True)
    epsilon: float = eqx.field(default=1e-12, static=True)

    def __check_init__(self) -> None:
        if self.over not in ("channels", "all"):
            raise ValueError(f"unknown over={self.over!r}{nearest(str(self.over), ('channels', 'all'))}")


class Dropout(Layer):
    """Each entry is kept with probability `keep` and divided by it, else 0, anew for every point [C3]."""

    keep: Any = 1.0

    def __check_init__(self) -> None:
        if isinstance(self.keep, int | float) and not 0 < self.keep <= 1:
            raise ValueError(f"keep is a probability above 0, got {self.keep!r}")


class _Pool(Layer):
    """Sums or means of windows."""

    window: tuple[int, ...] = eqx.field(static=True)
    strides: tuple[int, ...] = eqx.field(static=True)
    padding: str = eqx.field(static=True)

    def __init__(self, window: Any, strides: Any = None, padding: str = "valid"):
        self.window = whole_numbers("the window")(window)
        self.strides = self.window if strides is None else whole_numbers("strides")(strides)
        self.padding = padding_name("same", "valid")(padding)

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        return windows(positions, self.window, self.strides, padding=self.padding)

    def factor(self, positions: tuple[int, ...]) -> float:
        """What a sum over a window is multiplied with."""
        return 1.0

    def after(self, shape: Shape) -> Shape:
        counts = tuple(w.count(n) for w, n in zip(self.over(shape.positions), shape.positions))
        return Shape(counts, shape.channels)

    @property
    def title(self) -> str:
        return f"{type(self).__name__} {sized(self.window)}"


class SumPool(_Pool):
    """Sums over windows, as far apart as they are long unless `strides` says otherwise."""


class AvgPool(_Pool):
    """Means over windows; zeros outside count."""

    def factor(self, positions: tuple[int, ...]) -> float:
        return 1 / math.prod(w.size for w in self.over(positions))


class GlobalSumPool(Layer):
    """The sum over all positions."""

    def factor(self, positions: tuple[int, ...]) -> float:
        return 1.0

    def after(self, shape: Shape) -> Shape:
        if not shape.positions:
            raise ValueError("needs positions (pixels, tokens) to pool over, and these points have none")
        return Shape((), shape.channels)


class GlobalAvgPool(GlobalSumPool):
    """The mean over all positions."""

    def factor(self, positions: tuple[int, ...]) -> float:
        return 1 / math.prod(positions)


class Flatten(Layer):
    """Positions become channels."""

    def after(self, shape: Shape) -> Shape:
        return Shape((), None if shape.channels is None else shape.channels * math.prod(shape.positions))


class ImageResize(Layer):
    """Positions by interpolation (`jax.image.resize`, without antialiasing), another number on every axis."""

    sizes: tuple[int, ...] = eqx.field(static=True, converter=whole_numbers("sizes"))
    method: str = eqx.field(default="linear", static=True)

    def matrices(self, positions: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """The linear map of every axis, out × in."""
        return tuple(_resizing(n, size, self.method) for n, size in zip(positions, self._each(positions)))

    def _each(self, positions: tuple[int, ...]) -> tuple[int, ...]:
        if len(self.sizes) not in (1, len(positions)) or not positions:
            raise ValueError(f"sizes {self.sizes} do not fit points with {len(positions)} axes of positions")
        return self.sizes * len(positions) if len(self.sizes) == 1 else self.sizes

    def after(self, shape: Shape) -> Shape:
        return Shape(self._each(shape.positions), shape.channels)


def _resizing(n: int, size: int, method: str) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.image.resize(jnp.eye(n), (size, n), method, antialias=False))


class Index(Layer):
    """Some positions: a slice for each axis, or a number, which takes the axis away. Axes not named stay whole."""

    at: tuple[int | tuple[int | None, int | None, int | None], ...] = eqx.field(static=True)

    def __init__(self, *at: int | slice):
        # slices have no hash before Python 3.12, and what is static needs one
        self.at = tuple((a.start, a.stop, a.step) if isinstance(a, slice) else int(a) for a in at)
        if any(isinstance(a, slice) and (a.step or 1) < 1 for a in at):
            raise ValueError(f"slices go forward, got {at}")

    @property
    def chosen(self) -> tuple[int | slice, ...]:
        """As given: a slice or a number for each of the first axes."""
        return tuple(slice(*a) if isinstance(a, tuple) else a for a in self.at)

    def ranges(self, positions: tuple[int, ...]) -> tuple[range, ...]:
        """The chosen positions of every axis."""
        if len(self.at) > len(positions):
            raise ValueError(f"{len(self.at)} indices for {len(positions)} axes of positions")
        at = (*self.chosen, *(slice(None),) * (len(positions) - len(self.at)))
        found = tuple(
            range(n)[a] if isinstance(a, slice) else range(n)[a : a + 1 or None] for n, a in zip(positions, at)
        )
        if not all(found):
            raise ValueError(f"index {self.chosen} leaves nothing of {sized(positions)} positions")
        return found

    def dropped(self) -> tuple[int, ...]:
        """Axes that are taken away."""
        return tuple(i for i, a in enumerate(self.at) if isinstance(a, int))

    def after(self, shape: Shape) -> Shape:
        kept = tuple(len(r) for i, r in enumerate(self.ranges(shape.positions)) if i not in self.dropped())
        return Shape(kept, shape.channels)
