"""Architecture as a value: layers, read by finite networks and by the kernels of infinitely wide ones [C1-C4].

    >>> from unlazy import layers
    >>> description = layers.serial(layers.Conv(3), "relu", layers.GlobalAvgPool(), layers.Dense())

`NNGP`, `NTK`, `LayerKernel` and `Network` take a description. A layer of your own is one file: a class derived from
`Layer`, and functions registered with `propagate` (covariances) and `apply` (arrays); where it needs them with
`reaches`, `look` or `survey`, and with `start`.
"""

from unlazy.layers.covariance import State, look, of_blocks, propagate, reaches, survey, variances, weighted
from unlazy.layers.description import (
    Activation,
    Aggregate,
    AvgPool,
    Concatenate,
    Conv,
    ConvLocal,
    ConvTranspose,
    Dense,
    Dropout,
    Erf,
    Flatten,
    Gelu,
    GlobalAvgPool,
    GlobalSumPool,
    Identity,
    ImageResize,
    Index,
    Layer,
    LayerNorm,
    Product,
    Relu,
    SelfAttention,
    Serial,
    Shape,
    Sum,
    SumPool,
    Weights,
    myrtle,
    residual,
    serial,
)  # fmt: skip
from unlazy.layers.finite import Context, apply, start

__all__ = [
    "Activation", "Aggregate", "AvgPool", "Concatenate", "Context", "Conv", "ConvLocal", "ConvTranspose", "Dense",
    "Dropout", "Erf", "Flatten", "Gelu", "GlobalAvgPool", "GlobalSumPool", "Identity", "ImageResize", "Index", "Layer",
    "LayerNorm", "Product", "Relu", "SelfAttention", "Serial", "Shape", "State", "Sum", "SumPool", "Weights", "apply",
    "look", "myrtle", "of_blocks", "propagate", "reaches", "residual", "serial", "start", "survey", "variances",
    "weighted",
]  # fmt: skip
