"""Kernels of infinitely wide fully connected networks as functions of ⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩ [K7, K8, L2].

Σ¹ = σ_w²⟨x,z⟩ + σ_b²,  Σ^l = s²Σ^{l-1} + σ_w² E φ(a)φ(b) + σ_b²,
Θ¹ = Σ¹,  Θ^l = σ_w² E φ(a)φ(b) + σ_b² + Θ^{l-1}(s² + σ_w² E φ'(a)φ'(b)),  (a,b) ~ N(0, Σ^{l-1} at the pair).

The factor 1/d of the inputs is applied by the caller, who forms the inner products. Lee et al. (2018), Jacot et al.
(2018).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from unlazy.theory.activations import duals
from unlazy.theory.activations.duals import slope_below_zero
from unlazy.theory.infinite_width import homogeneous, layer_recursion
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.layer_recursion import LayerMoments, LayerTerm, TermWeights
from unlazy.theory.numerics.geometry import cosine_gap, covariance, safe_sqrt

Pair = tuple[Float[Array, "*s"], Float[Array, "*s"]]
MAX_UNROLLED_DEPTH = 1
"""Networks with at most this many hidden layers are unrolled, deeper ones are a loop over layers. If unrolled, XLA's
CPU backend recomputes a layer for each use: at depth 3, erf is 1.3 and gelu 2.7 times slower than the loop, ReLU the
same.
"""


def nngp(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Float[Array, "*s"]:
    """Covariance Σ of the output of an infinitely wide network at initialization (NNGP kernel) [K7].

    Parameters
    ----------
    xz, xx, zz : array
        ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; shapes broadcast.
    network : MLP
    half_chord : array, optional
        ½‖x/|x| - z/|z|‖², if known more accurately than from ⟨x,z⟩.

    Returns
    -------
    array
    """
    return nngp_and_tangent(xz, xx, zz, network, None, half_chord=half_chord)[0]


def ntk(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Float[Array, "*s"]:
    """Neural tangent kernel Θ = Σ_l K_l [K8]; parameters as in `nngp`."""
    return nngp_and_ntk(xz, xx, zz, network, half_chord)[1]


def nngp_and_ntk(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Pair:
    """Σ and Θ in one pass over the layers; parameters as in `nngp`."""
    return nngp_and_tangent(xz, xx, zz, network, (1.0,) * (network.depth + 1), half_chord=half_chord)


def nngp_and_tangent(
    xz: Array, xx: Array, zz: Array, network: MLP, weights: tuple | None, bias_weights: tuple | None = None,
    half_chord: Array | None = None, unroll: bool = False,
) -> Pair:  # fmt: skip
    """Σ and Σ_l α_l K_l [L1, L2].

    Parameters
    ----------
    xz, xx, zz : array
        ⟨x,z⟩, ⟨x,x⟩ and ⟨z,z⟩; shapes broadcast.
    network : MLP
    weights : tuple of float, or None
        Factors α_l of the weights of each matrix. None computes Σ only, with a second result of zero: activations
        without a derivative are then allowed.
    bias_weights : tuple of float, optional
        Factors of the biases, by default `weights`.
    half_chord : array, optional
        ½‖x/|x| - z/|z|‖², if known more accurately than from ⟨x,z⟩ (from differences of inputs).
    unroll : bool, default False
        Write out all layers regardless of depth, for fused programs, which translate the jaxpr and have no loop.

    Returns
    -------
    sigma, tangent : array
    """
    validate_network(network)
    slope = slope_below_zero(network.activation)
    plain = slope is not None and not network.biases and not network.skips
    if plain and jnp.result_type(xz) != jnp.float64 and slope is not None:
        u = cosine_gap(xz, xx, zz) if half_chord is None else half_chord
        fast = homogeneous.kernels_by_polynomial(u, xx, zz, network, slope, weights or (0.0,) * (network.depth + 1))
        if fast is not None:
            return fast
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [TermWeights(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    state, term = first_layer(xz, xx, zz, network, half_chord)
    step = functools.partial(_step, network, weights is not None)
    carry = _Carry(state, *_accumulate(term, counts[0], 0.0))
    if network.depth <= MAX_UNROLLED_DEPTH or unroll:
        for layer, count in zip(hidden_layers(network), counts[1:]):
            carry = step(carry, (layer, count))
    else:
        carry = _scan_layers(step, carry, network, counts)
    return carry.sigma, carry.tangent if weights is not None else jnp.zeros_like(carry.sigma)


class _Carry(NamedTuple):
    """Loop state: state of the pair, Σ, and the tangent kernel so far."""

    state: Any
    sigma: Array
    tangent: Array


def _step(network: MLP, tangent: bool, carry: _Carry, at: tuple[LayerMoments, TermWeights]) -> _Carry:
    """One hidden layer."""
    state, term = _next_layer(carry.state, at[0], network, tangent)
    sigma, grown = _accumulate(term, at[1], carry.tangent)
    return _Carry(state, sigma, grown if tangent else carry.tangent)


def _accumulate(term: LayerTerm, counts: TermWeights, before: Array | float) -> Pair:
    """Σ, and the tangent kernel with weighted terms."""
    return layer_recursion.accumulate(term, before)[0], layer_recursion.accumulate(
        layer_recursion.weight_term(term, counts), before
    )[1]


def _scan_layers(step: Callable, carry: _Carry, network: MLP, counts: list[TermWeights]) -> _Carry:
    """The same layers as a loop: XLA takes a minute to compile forty unrolled ones.

    Layers are stacked as arrays, and the carry keeps one shape and dtype.
    """
    xs = list(zip(hidden_layers(network), counts[1:]))
    after = jax.eval_shape(step, carry, xs[0])
    dtype = jnp.result_type(*jax.tree.leaves(xs), *jax.tree.leaves(after))
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(v, dtype) for v in leaves]), *xs)
    start = jax.tree.map(lambda v, s: jnp.broadcast_to(jnp.asarray(v, dtype), s.shape), carry, after)
    return jax.lax.scan(lambda c, x: (step(c, x), None), start, stacked)[0]


def hidden_layers(network: MLP) -> list[LayerMoments]:
    """The weight matrices after the first, each with the hidden layer before it; the head has no skip."""
    skips = [network.residual if network.skips else 0.0] * (network.depth - 1) + [0.0]
    return [LayerMoments(*values) for values in zip(network.sigma_w[1:], network.sigma_b[1:], skips)]


def layer_kernels(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None
) -> list[Float[Array, "*s"]]:
    """K_1 … K_{depth+1}, one per weight matrix with its biases; their sum is the NTK [L2].

    K_l = Σ^l Π_{l'>l} Σ'^{l'}; parameters as in `nngp`.
    """
    validate_network(network)
    state, term = first_layer(xz, xx, zz, network, half_chord)
    kernels = [term.weights + term.bias]
    for layer in hidden_layers(network):
        state, term = _next_layer(state, layer, network, True)
        kernels = layer_recursion.accumulate_per_layer(term, kernels)
    return kernels


def first_layer(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None) -> tuple[PyTree, LayerTerm]:
    """Covariance of the pair after the first weight matrix, and the term of that matrix."""
    if slope_below_zero(network.activation) is not None:
        return homogeneous.first_layer(xz, xx, zz, network, half_chord)
    sw, sb = network.sigma_w[0], network.sigma_b[0]
    q12, q11, q22 = (sw**2 * q + sb**2 for q in (xz, xx, zz))
    gap = half_chord
    if half_chord is not None and network.biases:
        norms, after = ([sw * safe_sqrt(q) for q in (xx, zz)], [safe_sqrt(q) for q in (q11, q22)])
        gap = homogeneous.gap_with_bias(half_chord, norms, sb, after)
    return covariance(q12, q11, q22, gap), LayerTerm(sw**2 * xz, sb**2, 0.0)


def _next_layer(state: Any, layer: LayerMoments, network: MLP, tangent: bool) -> tuple[Any, LayerTerm]:
    """One hidden layer and the weight matrix after it; Θ^{l-1} is multiplied by the term's slope."""
    slope = slope_below_zero(network.activation)
    if slope is not None:
        return homogeneous.next_layer(state, layer, slope, network.biases, network.skips)
    value = duals.dual_functions(network.activation)[0]
    at, slope_at = duals.dual_and_derivative(network.activation, state) if tangent else (value(state), 0.0)
    sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
    term = LayerTerm(sw2 * at, sb2, skip2 + sw2 * slope_at)
    q11, q22 = (
        skip2 * q + sw2 * duals.diagonal_dual(network.activation, q, False)[0] + sb2 for q in (state.q11, state.q22)
    )
    return covariance(skip2 * state.q12 + term.weights + sb2, q11, q22), term


def diagonal_kernels(xx: Array, network: MLP, weights: tuple | None, bias_weights: tuple | None = None) -> Pair:
    """Σ(x,x) and Σ_l α_l K_l(x,x); for a smooth activation without a closed form E φ² by direct quadrature."""
    if not duals.is_smooth_without_closed_form(network.activation):
        return nngp_and_tangent(xx, xx, xx, network, weights, bias_weights)
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [TermWeights(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    q = network.sigma_w[0] ** 2 * xx + network.sigma_b[0] ** 2
    _, term = first_layer(xx, xx, xx, network, None)
    carry = _Carry(q, *_accumulate(term, counts[0], 0.0))

    def step(carry: _Carry, at: tuple[LayerMoments, TermWeights]) -> _Carry:
        layer, count = at
        value, slope = duals.diagonal_dual(network.activation, carry.state, weights is not None)
        sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
        term = LayerTerm(sw2 * value, sb2, skip2 + sw2 * slope)
        sigma, grown = _accumulate(term, count, carry.tangent)
        return _Carry(skip2 * carry.state + term.weights + sb2, sigma, grown if weights is not None else carry.tangent)

    carry = _scan_layers(step, carry, network, counts)
    return carry.sigma, carry.tangent if weights is not None else jnp.zeros_like(carry.sigma)


def validate_network(network: MLP) -> None:
    """Raise ValueError if a network constructed without biases or skips has been given some by editing its leaves."""
    late = [s for s in network.sigma_b if not network.biases and isinstance(s, int | float) and s != 0]
    if late or (not network.skips and isinstance(network.residual, int | float) and network.residual != 0):
        raise ValueError(
            f"this network was constructed without biases or skips but has sigma_b={network.sigma_b}, "
            f"residual={network.residual}; construct a new MLP with these values"
        )
