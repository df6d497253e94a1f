"""Layers: network architectures as values, used by finite networks and by infinite-width kernels [C1-C4].

    >>> from unlazy import layers
    >>> description = layers.serial(layers.Conv(3), "relu", layers.GlobalAvgPool(), layers.Dense())

`NNGP`, `NTK`, `LayerKernel` and `Network` take a description. Each layer is one file with its value, its effect on
covariances and its effect on arrays. A custom layer derives from `Layer` and registers functions with `propagate`
(covariances) and `apply` (arrays), and if needed with `required_pairs`, `precompute`, `propagate_point` and
`init_params`.
"""

from unlazy.layers.activation import Activation, Erf, Gelu, Relu
from unlazy.layers.architectures import myrtle
from unlazy.layers.attention import SelfAttention
from unlazy.layers.combine import Concatenate, Identity, Product, Serial, Sum, residual, serial
from unlazy.layers.conv import Conv, ConvLocal, ConvTranspose
from unlazy.layers.dense import Dense, Weights, weighted
from unlazy.layers.graph import Aggregate
from unlazy.layers.normalization import Dropout, LayerNorm
from unlazy.layers.pooling import AvgPool, GlobalAvgPool, GlobalSumPool, SumPool
from unlazy.layers.protocol.base import Layer, Shape
from unlazy.layers.protocol.covariance import (
    State,
    accepts_blocks,
    precompute,
    propagate,
    propagate_point,
    required_pairs,
    variances,
)
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params
from unlazy.layers.reshaping import Flatten, ImageResize, Index

__all__ = [
    "Activation",
    "Aggregate",
    "AvgPool",
    "Concatenate",
    "Context",
    "Conv",
    "ConvLocal",
    "ConvTranspose",
    "Dense",
    "Dropout",
    "Erf",
    "Flatten",
    "Gelu",
    "GlobalAvgPool",
    "GlobalSumPool",
    "Identity",
    "ImageResize",
    "Index",
    "Layer",
    "LayerNorm",
    "Product",
    "Relu",
    "SelfAttention",
    "Serial",
    "Shape",
    "State",
    "Sum",
    "SumPool",
    "Weights",
    "accepts_blocks",
    "apply",
    "init_params",
    "myrtle",
    "precompute",
    "propagate",
    "propagate_point",
    "required_pairs",
    "residual",
    "serial",
    "variances",
    "weighted",
]  # fmt: skip
