"""Finite networks of descriptions, layer by layer."""

from unlazy.networks.finite import shaping, weights
from unlazy.networks.finite.network import LayeredNetwork
from unlazy.networks.finite.parts import Context, apply, start

__all__ = ["Context", "LayeredNetwork", "apply", "shaping", "start", "weights"]
