"""Architecture as a value: layers that finite networks and kernels of infinitely wide ones both read [C1-C4].

>>> network = serial(Conv(3), "relu", AvgPool(2), Conv(3), "relu", Flatten(), Dense())
>>> network.after(Shape((8, 8), 3))
Shape(positions=(), channels=None)
"""

from unlazy.core.layers.attention import Aggregate, SelfAttention
from unlazy.core.layers.base import Layer, Shape
from unlazy.core.layers.combine import Concatenate, Identity, Product, Serial, Sum, residual, serial
from unlazy.core.layers.named import myrtle
from unlazy.core.layers.shaping import (
    Activation,
    AvgPool,
    Dropout,
    Erf,
    Flatten,
    Gelu,
    GlobalAvgPool,
    GlobalSumPool,
    ImageResize,
    Index,
    LayerNorm,
    Relu,
    SumPool,
)  # fmt: skip
from unlazy.core.layers.weights import Conv, ConvLocal, ConvTranspose, Dense, Weights

__all__ = [
    "Activation", "Aggregate", "AvgPool", "Concatenate", "Conv", "ConvLocal", "ConvTranspose", "Dense", "Dropout",
    "Erf", "Flatten", "Gelu", "GlobalAvgPool", "GlobalSumPool", "Identity", "ImageResize", "Index", "Layer",
    "LayerNorm", "Product", "Relu", "SelfAttention", "Serial", "Shape", "Sum", "SumPool", "Weights", "myrtle",
    "residual", "serial",
]  # fmt: skip
