"""NNGP and NTK of blocks of pairs, where what depends on one point alone is computed once a point [K7, K8].

The recursions of theory.infinite_width.fully_connected with the variances of all layers, and what an activation's dual
makes of them, brought along by the points (`of_points`, leaves n × layers × …): tiles of a Gram matrix share them. For
piecewise linear networks with biases or skips, erf, GELU, and smooth functions without a closed form.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.theory.activations import duals
from unlazy.theory.infinite_width import fully_connected, homogeneous, layer_recursion
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.covariance import covariance
from unlazy.theory.infinite_width.homogeneous import slope_below_zero
from unlazy.theory.infinite_width.layer_recursion import Counts, Layer, Term
from unlazy.theory.numerics.angles import angle_and_gap, safe_sqrt


class Linear(NamedTuple):
    """Of a piecewise linear layer: σ_w √g |a|, the unit vector (α, β) after it as α, (1 + α)/√2 and the tangent of half
    its angle β/(1 + α), and |a'|."""

    weight: Array
    alpha: Array
    factor: Array
    turn: Array
    after: Array


class Smooth(NamedTuple):
    """Of another layer: the variance before it, and what its dual makes of that."""

    q: Array
    dual: Any


def suited(network: MLP) -> bool:
    """Whether this is a way to evaluate it. Without biases and skips piecewise linear networks are one polynomial."""
    if slope_below_zero(network.activation) is not None:
        return network.biases or network.skips
    return duals.has_rows(network.activation)


def numbers(network: MLP) -> int:
    """How many a point brings."""
    linear = slope_below_zero(network.activation) is not None
    return network.depth * (5 if linear else duals.row_numbers(network.activation))


def of_points(xx: Float[Array, " n"], network: MLP, tangent: bool) -> Any:
    """What every point brings to every layer, from its squared norm."""
    slope = slope_below_zero(network.activation)
    q = network.sigma_w[0] ** 2 * xx + network.sigma_b[0] ** 2

    def linear(norm: Array, layer: Layer) -> tuple[Array, Linear]:
        gain, _ = homogeneous.gain_and_kink(slope)  # type: ignore[arg-type]
        sw2 = layer.sigma_w**2 * gain
        total = sw2 + layer.skip**2
        after = homogeneous.norm_after(norm * norm, total, layer.sigma_b**2)
        alpha, beta = homogeneous.unit_parts(jnp.sqrt(total) * norm, layer.sigma_b, after)
        return after, Linear(jnp.sqrt(sw2) * norm, alpha, (1 + alpha) * math.sqrt(0.5), beta / (1 + alpha), after)

    def smooth(q: Array, layer: Layer) -> tuple[Array, Smooth]:
        own, dual = duals.row(network.activation, q, tangent)
        return layer.skip**2 * q + layer.sigma_w**2 * own + layer.sigma_b**2, Smooth(q, dual)

    step, start = (smooth, q) if slope is None else (linear, safe_sqrt(q))
    stacked = jax.tree.map(
        lambda *v: jnp.stack([jnp.asarray(w, xx.dtype) for w in v]), *fully_connected.hidden(network)
    )
    found = jax.lax.scan(step, start, stacked)[1]
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), found)


def nngp_and_tangent(
    products: tuple[Array, Array, Array], left: Any, right: Any, network: MLP, weights: tuple | None,
    bias_weights: tuple | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Σ and Σ_l α_l K_l as in theory.infinite_width.fully_connected, of ⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩ and what the points
    bring."""
    fully_connected.check(network)
    tangent = weights is not None
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [Counts(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    state, term = fully_connected.first(*products, network, None)
    theta = layer_recursion.add(layer_recursion.counted(term, counts[0]), 0.0)[1]
    linear = slope_below_zero(network.activation) is not None
    pair = state.u if linear else state.q12
    dtype = pair.dtype
    each = jax.tree.map(
        lambda *v: jnp.stack([jnp.asarray(w, dtype) for w in v]), *zip(fully_connected.hidden(network), counts[1:])
    )
    sides = _along(left, 1), _along(right, 0)
    step: Callable = functools.partial(_linear if linear else _smooth, network, tangent)
    carry, at = (pair, jnp.broadcast_to(jnp.asarray(theta, dtype), pair.shape)), (*each, *sides)
    if linear and _positive(network):
        carry = step(carry, *jax.tree.map(lambda leaf: leaf[0], at))
        step, at = functools.partial(step, acute=True), jax.tree.map(lambda leaf: leaf[1:], at)
    pair, theta = _looped(step, carry, at)
    if linear:
        pair = left.after[:, -1, None] * right.after[:, -1] * (1 - pair)
    return pair, theta if tangent else jnp.zeros_like(pair)


def _looped(step: Callable, carry: tuple[Array, Array], at: tuple) -> tuple[Array, Array]:
    """One step a layer. The two are carried as one complex number: XLA's CPU backend writes one array in a loop over
    its entries, and would evaluate a layer once for each of two."""

    def one(both: Array, at: tuple) -> tuple[Array, None]:
        return jax.lax.complex(*step((jnp.real(both), jnp.imag(both)), *at)), None

    both = jax.lax.scan(one, jax.lax.complex(*carry), at)[0]
    return jnp.real(both), jnp.imag(both)


def _positive(network: MLP) -> bool:
    """Whether φ ≥ 0 and nothing else is added: after the first layer all angles are acute."""
    slope = slope_below_zero(network.activation)
    return slope is not None and slope <= 0 and not network.skips


def _along(rows: Any, axis: int) -> Any:
    """Layers first, then the points as a column (axis 1) or a row (axis 0) of the block."""
    return jax.tree.map(lambda leaf: jnp.expand_dims(jnp.swapaxes(leaf, 0, 1), 1 + axis), rows)


def _linear(
    network: MLP, tangent: bool, carry: tuple[Array, Array], layer: Layer, counts: Counts, left: Linear, right: Linear,
    acute: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """theory.infinite_width.homogeneous' next layer, in u = 1 - cos.

    Half the squared chord of unit vectors, ½(α - α')² + ½(β - β')², is ½(1 + α)(1 + α')(τ - τ')², τ the tangents of
    half their angles.
    """
    u, before = carry
    gain, kink = homogeneous.gain_and_kink(slope_below_zero(network.activation))  # type: ignore[arg-type]
    sw2 = layer.sigma_w**2 * gain
    total = sw2 + layer.skip**2 if network.skips else sw2
    lost, added = angle_and_gap(u, kink / math.pi, acute)
    inner = u - added if kink <= 1 else jnp.maximum(u - added, 0)  # h ≤ πu: only |z| reaches 0 again, at u = 2
    term = Term(left.weight * right.weight * (1 - inner), layer.sigma_b**2, total - sw2 * lost)
    after = layer_recursion.add(layer_recursion.counted(term, counts), before)[1] if tangent else before
    if network.skips:
        inner = jnp.maximum(u - added * (sw2 / total), 0)
    apart = jnp.square(left.turn - right.turn) * (left.factor * right.factor)
    return left.alpha * right.alpha * inner + apart, after


def _smooth(
    network: MLP, tangent: bool, carry: tuple[Array, Array], layer: Layer, counts: Counts, left: Smooth, right: Smooth
) -> tuple[Array, Array]:
    q12, before = carry
    value, slope = duals.of_rows(network.activation, covariance(q12, left.q, right.q), left.dual, right.dual)
    sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
    term = Term(sw2 * value, sb2, skip2 + sw2 * slope)
    after = layer_recursion.add(layer_recursion.counted(term, counts), before)[1] if tangent else before
    return skip2 * q12 + term.weights + sb2, after
