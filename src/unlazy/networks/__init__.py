"""Finite networks: functions of parameters and inputs, their expansions and their tangent kernels."""

from unlazy.networks.finite import LayeredNetwork
from unlazy.networks.linearise import Expansion, expand, linearise, quadratic_expansion, trained_linearisation
from unlazy.networks.mlp import Network
from unlazy.networks.parametrisation import Layer, adam_rates, only_layers
from unlazy.networks.tangent import layer_tangent_kernels, tangent_kernel, tangent_product

__all__ = [
    "Expansion", "Layer", "LayeredNetwork", "Network", "adam_rates", "expand", "layer_tangent_kernels", "linearise",
    "only_layers", "quadratic_expansion", "tangent_kernel", "tangent_product", "trained_linearisation",
]  # fmt: skip
