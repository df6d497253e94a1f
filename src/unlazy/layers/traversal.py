"""Traversal of descriptions, however nested: list, inspect and change single layers."""

from collections.abc import Callable

import equinox as eqx
import jax

from unlazy.layers.activation import Activation
from unlazy.layers.combine import Serial, _Branches
from unlazy.layers.dense import Dense, Weights
from unlazy.layers.protocol.base import Layer, Shape, is_single, single_layers
from unlazy.theory.infinite_width.architecture import MLP


def changed(network: Layer, change: Callable[[Layer], Layer]) -> Layer:
    """The description with every single layer changed."""
    return jax.tree.map(change, network, is_leaf=is_single)


def with_rates(network: Layer, rates: tuple, bias_rates: tuple) -> Layer:
    """The description with these learning rates of weights and biases, one per layer with weights."""
    wanted = sum(isinstance(layer, Weights) for layer in single_layers(network))
    if not wanted == len(rates) == len(bias_rates):
        raise ValueError(f"{wanted} layers with weights need as many rates, got {len(rates)} and {len(bias_rates)}")
    left = iter(zip(rates, bias_rates))

    def change(layer: Layer) -> Layer:
        if not isinstance(layer, Weights):
            return layer
        rate, bias_rate = next(left)
        return eqx.tree_at(lambda l: (l.rate, l.bias_rate), layer, (layer.rate * rate, layer.bias_rate * bias_rate))

    return changed(network, change)


def with_shapes(network: Layer, shape: Shape) -> list[tuple[Layer, Shape]]:
    """Single layers in the same order, each with its input shape."""
    if isinstance(network, Serial):
        return [found for before, layer in network.steps(shape) for found in with_shapes(layer, before)]
    if isinstance(network, _Branches):
        return [found for branch in network.branches for found in with_shapes(branch, shape)]
    return [(network, shape)]


def as_mlp(network: Layer) -> MLP | None:
    """The network as an MLP if it is one: Dense layers and one activation in turn, all rates 1; else None."""
    layers = single_layers(network)
    if not isinstance(network, Serial) or len(layers) < 3 or len(layers) % 2 == 0:
        return None
    dense, between = layers[::2], layers[1::2]
    if not all(type(l) is Dense for l in dense) or not all(isinstance(l, Activation) for l in between):
        return None
    plain = all(isinstance(r, int | float) and r == 1 for l in dense for r in (l.rate, l.bias_rate))  # type: ignore[attr-defined]
    phi = {l.phi for l in between}  # type: ignore[attr-defined]
    if not plain or len(phi) > 1:
        return None
    sigmas = [tuple(getattr(l, name) for l in dense) for name in ("sigma_w", "sigma_b")]
    return MLP(len(between), phi.pop(), *sigmas)
