"""Finite networks of descriptions, layer by layer."""

from unlazy.layers.finite import shaping, weights
from unlazy.layers.finite.dispatch import Context, apply, start
from unlazy.layers.finite.network import LayeredNetwork

__all__ = ["Context", "LayeredNetwork", "apply", "shaping", "start", "weights"]
