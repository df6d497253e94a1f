"""Finite networks: functions of parameters and inputs, their expansions and their tangent kernels."""

from unlazy.layers.finite import LayeredNetwork
from unlazy.layers.parametrization import Layer, adam_rates, only_layers
from unlazy.networks.linearization import Expansion, expand, linearize, quadratic_expansion, trained_linearization
from unlazy.networks.mlp import Network
from unlazy.networks.tangent import layer_tangent_kernels, tangent_kernel, tangent_product

__all__ = [
    "Expansion", "Layer", "LayeredNetwork", "Network", "adam_rates", "expand", "layer_tangent_kernels", "linearize",
    "only_layers", "quadratic_expansion", "tangent_kernel", "tangent_product", "trained_linearization",
]  # fmt: skip
