"""Finite networks f(parameters, inputs), their Taylor expansions and their tangent kernels."""

from unlazy.layers.finite_network import LayeredNetwork
from unlazy.layers.protocol.parametrization import WeightBias, adam_rates, only_layers
from unlazy.networks.linearization import Expansion, expand, linearize, quadratic_expansion, trained_linearization
from unlazy.networks.mlp import Network
from unlazy.networks.tangent import layer_tangent_kernels, tangent_kernel, tangent_product

__all__ = [
    "Expansion",
    "LayeredNetwork",
    "Network",
    "WeightBias",
    "adam_rates",
    "expand",
    "layer_tangent_kernels",
    "linearize",
    "only_layers",
    "quadratic_expansion",
    "tangent_kernel",
    "tangent_product",
    "trained_linearization",
]  # fmt: skip
