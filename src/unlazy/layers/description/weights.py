"""Layers with weights: dense, convolutions that share them, and windows that do not [C1]."""

import math
from typing import Any

import equinox as eqx

from unlazy.core.errors import check_positive_integer
from unlazy.layers.description.base import Layer, Shape, sized
from unlazy.layers.description.windows import PADDINGS, Window, padding_name, transposed, whole_numbers, windows
from unlazy.theory.infinite_width.architecture import SQRT2, checked


def _number(what: str) -> Any:
    return lambda value: checked(what, value)


def _width(value: int | None) -> int | None:
    return None if value is None else check_positive_integer("width (channels out)", value)


class Weights(Layer):
    """f = σ_w W h/√fan-in + σ_b b, weights N(0,1), in every position [K6].

    `width` is the number of channels that come out of a finite network; that of the network unless given. `rate` and
    `bias_rate` are layer-wise learning rates: how often weights and biases count in the tangent kernel.
    """

    sigma_w: Any = eqx.field(default=SQRT2, converter=_number("sigma_w"))
    sigma_b: Any = eqx.field(default=0.0, converter=_number("sigma_b"))
    width: int | None = eqx.field(default=None, static=True, converter=_width, kw_only=True)
    rate: Any = eqx.field(default=1.0, converter=_number("rate"), kw_only=True)
    bias_rate: Any = eqx.field(default=1.0, converter=_number("bias_rate"), kw_only=True)

    @property
    def weighs(self) -> bool:
        return True

    def fan_in(self, shape: Shape) -> int | None:
        """Weights that meet in one output; None where that is the width of the network."""
        return shape.channels


class Dense(Weights):
    """Fully connected over channels, the same in every position."""

    def after(self, shape: Shape) -> Shape:
        return Shape(shape.positions, self.width)


class _Windowed(Weights):
    """Weights of a window of positions. One number is for every axis: Conv(3) is 3 × 3 on images."""

    window: tuple[int, ...] = eqx.field(static=True, converter=whole_numbers("the window"), kw_only=True)
    strides: tuple[int, ...] = eqx.field(static=True, converter=whole_numbers("strides"), kw_only=True)
    padding: str = eqx.field(static=True, kw_only=True)

    def __init__(
        self, window: Any, sigma_w: Any = SQRT2, sigma_b: Any = 0.0, *, strides: Any = 1, padding: str = "same",
        width: int | None = None, rate: Any = 1.0, bias_rate: Any = 1.0,
    ):  # fmt: skip
        self.sigma_w, self.sigma_b, self.width, self.rate, self.bias_rate = sigma_w, sigma_b, width, rate, bias_rate
        self.window, self.strides = window, strides
        self.padding = padding_name(*PADDINGS)(padding)

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        """The window of every axis."""
        return windows(positions, self.window, self.strides, padding=self.padding)

    def after(self, shape: Shape) -> Shape:
        over = self.over(shape.positions)
        return Shape(tuple(w.count(n) for w, n in zip(over, shape.positions)), self.width)

    def points(self, shape: Shape) -> int:
        """k, the points of a window."""
        return math.prod(w.size for w in self.over(shape.positions))

    def fan_in(self, shape: Shape) -> int | None:
        return None if shape.channels is None else shape.channels * self.points(shape)

    @property
    def title(self) -> str:
        return f"{type(self).__name__} {sized(self.window)} {self.padding}"


class Conv(_Windowed):
    """Convolution over any number of axes [C1]: f_p = σ_w Σ_Δ W_Δ h_{p+Δ}/√(k · channels) + σ_b b.

    `padding`: same (zeros outside), valid or circular.
    """

    dilation: tuple[int, ...] = eqx.field(static=True, converter=whole_numbers("dilation"), kw_only=True)

    def __init__(
        self, window: Any, sigma_w: Any = SQRT2, sigma_b: Any = 0.0, *, strides: Any = 1, dilation: Any = 1,
        padding: str = "same", width: int | None = None, rate: Any = 1.0, bias_rate: Any = 1.0,
    ):  # fmt: skip
        super().__init__(
            window, sigma_w, sigma_b, strides=strides, padding=padding, width=width, rate=rate, bias_rate=bias_rate
        )
        self.dilation = dilation

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        return windows(positions, self.window, self.strides, self.dilation, self.padding)


class ConvLocal(_Windowed):
    """Windows as in a convolution whose weights and biases are not shared: different positions are independent [C1]."""


class ConvTranspose(_Windowed):
    """Transposed convolution: `strides` - 1 zeros between positions, then a convolution."""

    def over(self, positions: tuple[int, ...]) -> tuple[Window, ...]:
        if not positions:
            raise ValueError("needs positions (pixels, tokens), and these points have none: use Dense")
        return transposed(positions, self.window, self.strides, self.padding)
