"""Architecture as a value: layers that finite networks and kernels of infinitely wide ones both read [C1-C4].

>>> network = serial(Conv(3), "relu", AvgPool(2), Conv(3), "relu", Flatten(), Dense())
>>> network.after(Shape((8, 8), 3))
Shape(positions=(), channels=None)
"""

from unlazy.layers.description.attention import Aggregate, SelfAttention
from unlazy.layers.description.base import Layer, Shape
from unlazy.layers.description.combine import Concatenate, Identity, Product, Serial, Sum, residual, serial
from unlazy.layers.description.named import myrtle
from unlazy.layers.description.shaping import (
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
from unlazy.layers.description.weights import Conv, ConvLocal, ConvTranspose, Dense, Weights

__all__ = [
    "Activation", "Aggregate", "AvgPool", "Concatenate", "Conv", "ConvLocal", "ConvTranspose", "Dense", "Dropout",
    "Erf", "Flatten", "Gelu", "GlobalAvgPool", "GlobalSumPool", "Identity", "ImageResize", "Index", "Layer",
    "LayerNorm", "Product", "Relu", "SelfAttention", "Serial", "Shape", "Sum", "SumPool", "Weights", "myrtle",
    "residual", "serial",
]  # fmt: skip
