"""Fully connected layers [K6, K7, K8]."""

from typing import Any

from jaxtyping import Array, PRNGKeyArray

from unlazy.core.linalg import dot
from unlazy.layers.protocol.arrays import Context, apply, init_params, shape_of
from unlazy.layers.protocol.base import Shape
from unlazy.layers.protocol.covariance import State, accepts_blocks, propagate
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.layers.weights import Weights, drawn, multipliers, weighted


class Dense(Weights):
    """Fully connected layer over channels, shared by all positions [K6, K7, K8].

    Parameters
    ----------
    sigma_w : float, default √2
        Standard deviation of the weights, in units of 1/√fan-in.
    sigma_b : float, default 0
        Standard deviation of the biases.
    width : int, optional
        Channels out in a finite network; by default the width of the network.
    rate, bias_rate : float, default 1
        Layer-wise learning rates: factors of the weights and biases in the tangent kernel.

    Examples
    --------
    >>> from unlazy import NTK, layers
    >>> kernel = NTK(layers.serial(layers.Dense(), "relu", layers.Dense()))
    >>> kernel.gram([[1.0, 0.0], [0.0, 1.0]]).shape
    (2, 2)
    """

    def after(self, shape: Shape) -> Shape:
        """Shape after the layer."""
        return Shape(shape.positions, self.width)


@propagate.register
@accepts_blocks
def _propagate_dense(layer: Dense, state: State, left: Any, right: Any) -> State:
    return weighted(layer, state)


@init_params.register
def _start_dense(layer: Dense, key: PRNGKeyArray, shape: Shape, context: Context) -> WeightBias:
    return drawn(layer, key, shape, (shape.channels, layer.width), (layer.width,), context)


@apply.register
def _apply_dense(layer: Dense, params: WeightBias, x: Array, context: Context) -> Array:
    by = multipliers(layer, shape_of(x), context)
    return by.weight * dot(x, params.weight) + by.bias * params.bias
