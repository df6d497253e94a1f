"""NNGP and NTK between two blocks of points; terms that depend on one point are computed once per point [K7, K8].

The recursions of theory.infinite_width.fully_connected. The variances of all layers, and the terms of the activation's
dual that depend on them, are precomputed per point (`per_point_terms`, leaves n × layers × …) and shared by the tiles
of a Gram matrix. For piecewise linear networks with biases or skips, erf, GELU, and smooth functions without a closed
form.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unlazy.theory.activations import duals
from unlazy.theory.activations.duals import gain_and_kink, slope_below_zero
from unlazy.theory.infinite_width import fully_connected, homogeneous, layer_recursion
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.layer_recursion import LayerMoments, LayerTerm, TermWeights
from unlazy.theory.numerics.geometry import angle_and_gap, covariance, safe_sqrt


class PiecewiseLinearTerms(NamedTuple):
    """Terms of a point in a piecewise linear layer.

    σ_w √g |a|; the unit vector (α, β) after the layer as α, (1 + α)/√2 and the tangent of half its angle, β/(1 + α);
    and |a'|.
    """

    weight: Array
    alpha: Array
    factor: Array
    turn: Array
    after: Array


class SmoothTerms(NamedTuple):
    """Terms of a point in any other layer: the variance before it, and the per-point terms of the dual."""

    q: Array
    dual: Any


def is_supported(network: MLP) -> bool:
    """Whether the network can be evaluated this way.

    Piecewise linear networks without biases and skips are excluded: they are a single polynomial of the angle.
    """
    if slope_below_zero(network.activation) is not None:
        return network.biases or network.skips
    return duals.has_per_point_terms(network.activation)


def values_per_point(network: MLP) -> int:
    """Number of precomputed values per point."""
    linear = slope_below_zero(network.activation) is not None
    return network.depth * (5 if linear else duals.per_point_term_count(network.activation))


def per_point_terms(xx: Float[Array, " n"], network: MLP, tangent: bool) -> PyTree:
    """Terms of every point in every layer, from its squared norm."""
    slope = slope_below_zero(network.activation)
    q = network.sigma_w[0] ** 2 * xx + network.sigma_b[0] ** 2

    def linear(norm: Array, layer: LayerMoments) -> tuple[Array, PiecewiseLinearTerms]:
        gain, _ = gain_and_kink(slope)  # type: ignore[arg-type]
        sw2 = layer.sigma_w**2 * gain
        total = sw2 + layer.skip**2
        after = homogeneous.norm_after(norm * norm, total, layer.sigma_b**2)
        alpha, beta = homogeneous.unit_parts(jnp.sqrt(total) * norm, layer.sigma_b, after)
        return after, PiecewiseLinearTerms(
            jnp.sqrt(sw2) * norm, alpha, (1 + alpha) * math.sqrt(0.5), beta / (1 + alpha), after
        )

    def smooth(q: Array, layer: LayerMoments) -> tuple[Array, SmoothTerms]:
        own, dual = duals.per_point_terms(network.activation, q, tangent)
        return layer.skip**2 * q + layer.sigma_w**2 * own + layer.sigma_b**2, SmoothTerms(q, dual)

    step, start = (smooth, q) if slope is None else (linear, safe_sqrt(q))
    stacked = jax.tree.map(
        lambda *v: jnp.stack([jnp.asarray(w, xx.dtype) for w in v]), *fully_connected.hidden_layers(network)
    )
    found = jax.lax.scan(step, start, stacked)[1]
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), found)


def nngp_and_tangent(
    products: tuple[Array, Array, Array], left: PyTree, right: PyTree, network: MLP, weights: tuple | None,
    bias_weights: tuple | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Σ and Σ_l α_l K_l as in fully_connected.nngp_and_tangent, for a block of pairs.

    Parameters
    ----------
    products : tuple of arrays
        ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩ of the block.
    left, right : pytree
        `per_point_terms` of its rows and columns.
    network : MLP
    weights, bias_weights : tuple of float or None
        Factors of each weight matrix and its biases.

    Returns
    -------
    sigma, tangent : array
    """
    fully_connected.validate_network(network)
    tangent = weights is not None
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [TermWeights(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    state, term = fully_connected.first_layer(*products, network, None)
    theta = layer_recursion.accumulate(layer_recursion.weight_term(term, counts[0]), 0.0)[1]
    linear = slope_below_zero(network.activation) is not None
    pair = state.u if linear else state.q12
    dtype = pair.dtype
    each = jax.tree.map(
        lambda *v: jnp.stack([jnp.asarray(w, dtype) for w in v]),
        *zip(fully_connected.hidden_layers(network), counts[1:]),
    )
    sides = _block_axes(left, 1), _block_axes(right, 0)
    step: Callable = functools.partial(_piecewise_linear_step if linear else _smooth_step, network, tangent)
    carry, at = (pair, jnp.broadcast_to(jnp.asarray(theta, dtype), pair.shape)), (*each, *sides)
    if linear and _all_angles_acute(network):
        carry = step(carry, *jax.tree.map(lambda leaf: leaf[0], at))
        step, at = functools.partial(step, acute=True), jax.tree.map(lambda leaf: leaf[1:], at)
    pair, theta = jax.lax.scan(lambda carry, at: (step(carry, *at), None), carry, at)[0]
    if linear:
        pair = left.after[:, -1, None] * right.after[:, -1] * (1 - pair)
    return pair, theta if tangent else jnp.zeros_like(pair)


def _all_angles_acute(network: MLP) -> bool:
    """Whether φ ≥ 0 and there are no skips: after the first layer all angles are acute."""
    slope = slope_below_zero(network.activation)
    return slope is not None and slope <= 0 and not network.skips


def _block_axes(rows: Any, axis: int) -> Any:
    """Layers first, then the points as a column (axis 1) or a row (axis 0) of the block."""
    return jax.tree.map(lambda leaf: jnp.expand_dims(jnp.swapaxes(leaf, 0, 1), 1 + axis), rows)


def _piecewise_linear_step(
    network: MLP,
    tangent: bool,
    carry: tuple[Array, Array],
    layer: LayerMoments,
    counts: TermWeights,
    left: PiecewiseLinearTerms,
    right: PiecewiseLinearTerms,
    acute: bool = False,
) -> tuple[Array, Array]:
    """The next layer of theory.infinite_width.homogeneous, in u = 1 - cos.

    Half the squared chord of unit vectors, ½(α - α')² + ½(β - β')², is ½(1 + α)(1 + α')(τ - τ')², τ the tangents of
    half their angles.
    """
    u, before = carry
    gain, kink = gain_and_kink(slope_below_zero(network.activation))  # type: ignore[arg-type]
    sw2 = layer.sigma_w**2 * gain
    total = sw2 + layer.skip**2 if network.skips else sw2
    lost, added = angle_and_gap(u, kink / math.pi, acute)
    inner = u - added if kink <= 1 else jnp.maximum(u - added, 0)  # h ≤ πu: only |z| returns to 0, at u = 2
    term = LayerTerm(left.weight * right.weight * (1 - inner), layer.sigma_b**2, total - sw2 * lost)
    after = layer_recursion.accumulate(layer_recursion.weight_term(term, counts), before)[1] if tangent else before
    if network.skips:
        inner = jnp.maximum(u - added * (sw2 / total), 0)
    apart = jnp.square(left.turn - right.turn) * (left.factor * right.factor)
    return left.alpha * right.alpha * inner + apart, after


def _smooth_step(
    network: MLP,
    tangent: bool,
    carry: tuple[Array, Array],
    layer: LayerMoments,
    counts: TermWeights,
    left: SmoothTerms,
    right: SmoothTerms,
) -> tuple[Array, Array]:
    """The next layer from the dual of the per-point terms."""
    q12, before = carry
    value, slope = duals.dual_from_terms(network.activation, covariance(q12, left.q, right.q), left.dual, right.dual)
    sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
    term = LayerTerm(sw2 * value, sb2, skip2 + sw2 * slope)
    after = layer_recursion.accumulate(layer_recursion.weight_term(term, counts), before)[1] if tangent else before
    return skip2 * q12 + term.weights + sb2, after
