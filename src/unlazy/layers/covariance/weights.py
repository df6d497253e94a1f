"""Weights: dense, convolution, transposed and local ones [C1, K7, K8].

Σ' = σ_w²/k Σ_Δ V_{p+Δ,q+Δ} + σ_b²,   Θ' = r σ_w²/k Σ_Δ V_{p+Δ,q+Δ} + r_b σ_b² + σ_w²/k Σ_Δ Θ_{p+Δ,q+Δ}, r the rates.
"""

from typing import Any

from unlazy.layers.covariance import position_pairs
from unlazy.layers.covariance.state import State, of_blocks, propagate, reaches
from unlazy.layers.description import Conv, ConvLocal, ConvTranspose, Dense, Shape, Weights


def weighted(layer: Weights, state: State) -> State:
    """σ_w² and σ_b², of a state whose windows have been averaged."""
    weights, bias = layer.sigma_w**2 * state.sigma, layer.sigma_b**2
    theta = state.theta
    if theta is not None:
        theta = layer.rate * weights + layer.bias_rate * bias + layer.sigma_w**2 * theta
    return state._replace(sigma=weights + bias, theta=theta, channels=layer.width, normal=True)


@propagate.register
@of_blocks
def _dense(layer: Dense, state: State, left: Any, right: Any) -> State:
    return weighted(layer, state)


@propagate.register(Conv)
@propagate.register(ConvTranspose)
@of_blocks
def _convolution(layer: Conv | ConvTranspose, state: State, left: Any, right: Any) -> State:
    shape = state.shape
    k = layer.points(shape)
    summed = state.along(position_pairs.slid, layer.over(shape.positions))
    return weighted(layer, summed.each(lambda A: A / k))


@propagate.register
@of_blocks
def _local(layer: ConvLocal, state: State, left: Any, right: Any) -> State:
    """As a convolution, but positions that differ have nothing in common."""
    shape = state.shape
    k = layer.points(shape)
    summed = state.along(position_pairs.slid, layer.over(shape.positions)).each(lambda A: A / k)
    same = position_pairs.is_diagonal(summed.grid, summed.sigma)
    return weighted(layer, summed).each(lambda A: A * same)


@reaches.register(Conv)
@reaches.register(ConvLocal)
@reaches.register(ConvTranspose)
def _reaches(layer: Any, shape: Shape, out: tuple[int, ...]) -> tuple[int, ...]:
    """Both positions of a pair move together: planes stay apart [C2]. Round a circle the ends of an axis are near."""
    found = []
    for window, reach in zip(layer.over(shape.positions), out):
        if window.wraps and reach > 0:
            found.append(position_pairs.ALL)
        else:
            found.append(min(-(-reach * window.stride // window.spread), position_pairs.ALL))
    return tuple(found)
