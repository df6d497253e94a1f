"""Kernels of infinitely wide fully connected networks as functions of ⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩ [K7, K8, L2].

Σ¹ = σ_w²⟨x,z⟩ + σ_b²,  Σ^l = s²Σ^{l-1} + σ_w² E φ(a)φ(b) + σ_b²,
Θ¹ = Σ¹,  Θ^l = σ_w² E φ(a)φ(b) + σ_b² + Θ^{l-1}(s² + σ_w² E φ'(a)φ'(b)),  (a,b) ~ N(0, Σ^{l-1} at the pair).

The inputs' 1/d belongs to whoever forms the inner products. Lee et al. (2018), Jacot et al. (2018).
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.theory.activations import duals
from unlazy.theory.infinite_width import homogeneous, layer_recursion
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.infinite_width.covariance import covariance
from unlazy.theory.infinite_width.homogeneous import slope_below_zero
from unlazy.theory.infinite_width.layer_recursion import Counts, Layer, Term
from unlazy.theory.numerics.angles import safe_sqrt

Pair = tuple[Float[Array, "*s"], Float[Array, "*s"]]
UNROLLED = 1
"""Networks of up to so many hidden layers are written out, deeper ones are a loop over layers. Written out, XLA's CPU
backend repeats a layer for each use of it: depth 3, erf 1.3 and gelu 2.7 times slower than the loop, ReLU the same.
"""
_WRITTEN_OUT: contextvars.ContextVar[bool] = contextvars.ContextVar("written out", default=False)


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """Every layer is written out in this scope, whatever the depth: for those who translate a formula line by line."""
    before = _WRITTEN_OUT.set(True)
    try:
        yield
    finally:
        _WRITTEN_OUT.reset(before)


def nngp(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Float[Array, "*s"]:
    """Covariance Σ of the output of an infinitely wide network at its random start [K7]."""
    return nngp_and_tangent(xz, xx, zz, network, None, half_chord=half_chord)[0]


def ntk(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Float[Array, "*s"]:
    """Neural tangent kernel Θ = Σ_l K_l [K8]."""
    return nngp_and_ntk(xz, xx, zz, network, half_chord)[1]


def nngp_and_ntk(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None) -> Pair:
    """Σ and Θ in one pass over the layers."""
    return nngp_and_tangent(xz, xx, zz, network, (1.0,) * (network.depth + 1), half_chord=half_chord)


def nngp_and_tangent(
    xz: Array, xx: Array, zz: Array, network: MLP, weights: tuple | None, bias_weights: tuple | None = None,
    half_chord: Array | None = None,
) -> Pair:  # fmt: skip
    """Σ, and Σ_l α_l K_l [L1, L2] with the weights of matrix l counted α_l times and its biases `bias_weights[l]`.

    `half_chord` is ½‖x/|x| - z/|z|‖² where the caller knows it better than ⟨x,z⟩ does (from differences of inputs).
    With `weights` None only Σ is meant, and the second is 0: activations without a derivative then pass.
    """
    check(network)
    slope = slope_below_zero(network.activation)
    plain = slope is not None and not network.biases and not network.skips
    if plain and jnp.result_type(xz) != jnp.float64 and slope is not None:
        u = homogeneous.cosine_gap(xz, xx, zz) if half_chord is None else half_chord
        fast = homogeneous.by_angle_polynomial(u, xx, zz, network, slope, weights or (0.0,) * (network.depth + 1))
        if fast is not None:
            return fast
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [Counts(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    state, term = first(xz, xx, zz, network, half_chord)
    step = functools.partial(_step, network, weights is not None)
    carry = _Carry(state, *_grown(term, counts[0], 0.0))
    if network.depth <= UNROLLED or _WRITTEN_OUT.get():
        for layer, count in zip(hidden(network), counts[1:]):
            carry = step(carry, (layer, count))
    else:
        carry = _looped(step, carry, network, counts)
    return carry.sigma, carry.tangent if weights is not None else jnp.zeros_like(carry.sigma)


class _Carry(NamedTuple):
    """What passes from layer to layer: the pair's state, Σ, and the tangent kernel so far."""

    state: Any
    sigma: Array
    tangent: Array


def _step(network: MLP, tangent: bool, carry: _Carry, at: tuple[Layer, Counts]) -> _Carry:
    state, term = _next(carry.state, at[0], network, tangent)
    sigma, grown = _grown(term, at[1], carry.tangent)
    return _Carry(state, sigma, grown if tangent else carry.tangent)


def _grown(term: Term, counts: Counts, before: Array | float) -> Pair:
    return layer_recursion.add(term, before)[0], layer_recursion.add(layer_recursion.counted(term, counts), before)[1]


def _looped(step: Callable, carry: _Carry, network: MLP, counts: list[Counts]) -> _Carry:
    """The same layers as a loop: unrolled, XLA compiles forty of them for a minute.

    Layers are stacked as arrays, and what is carried keeps one shape and type.
    """
    xs = list(zip(hidden(network), counts[1:]))
    after = jax.eval_shape(step, carry, xs[0])
    dtype = jnp.result_type(*jax.tree.leaves(xs), *jax.tree.leaves(after))
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(v, dtype) for v in leaves]), *xs)
    start = jax.tree.map(lambda v, s: jnp.broadcast_to(jnp.asarray(v, dtype), s.shape), carry, after)
    return jax.lax.scan(lambda c, x: (step(c, x), None), start, stacked)[0]


def hidden(network: MLP) -> list[Layer]:
    """The weight matrices after the first, each with the hidden layer before it; the head has no skip."""
    skips = [network.residual if network.skips else 0.0] * (network.depth - 1) + [0.0]
    return [Layer(*values) for values in zip(network.sigma_w[1:], network.sigma_b[1:], skips)]


def layer_kernels(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None
) -> list[Float[Array, "*s"]]:
    """K_1 … K_{depth+1}, one a weight matrix with its biases: K_l = Σ^l Π_{l'>l} Σ'^{l'}; their sum is the NTK [L2]."""
    check(network)
    state, term = first(xz, xx, zz, network, half_chord)
    kernels = [term.weights + term.bias]
    for layer in hidden(network):
        state, term = _next(state, layer, network, True)
        kernels = layer_recursion.add_apart(term, kernels)
    return kernels


def first(xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None) -> tuple[Any, Term]:
    """The pair's covariance after the first weight matrix, and what that adds."""
    if slope_below_zero(network.activation) is not None:
        return homogeneous.first_layer(xz, xx, zz, network, half_chord)
    sw, sb = network.sigma_w[0], network.sigma_b[0]
    q12, q11, q22 = (sw**2 * q + sb**2 for q in (xz, xx, zz))
    gap = half_chord
    if half_chord is not None and network.biases:
        norms, after = ([sw * safe_sqrt(q) for q in (xx, zz)], [safe_sqrt(q) for q in (q11, q22)])
        gap = homogeneous.gap_with_bias(half_chord, norms, sb, after)
    return covariance(q12, q11, q22, gap), Term(sw**2 * xz, sb**2, 0.0)


def _next(state: Any, layer: Layer, network: MLP, tangent: bool) -> tuple[Any, Term]:
    """One hidden layer and the weight matrix after it; Θ^{l-1} passes with the term's slope."""
    slope = slope_below_zero(network.activation)
    if slope is not None:
        return homogeneous.next_layer(state, layer, slope, network.biases, network.skips)
    value = duals.of(network.activation)[0]
    at, slope_at = duals.both(network.activation, state) if tangent else (value(state), 0.0)
    sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
    term = Term(sw2 * at, sb2, skip2 + sw2 * slope_at)
    q11, q22 = (skip2 * q + sw2 * duals.own(network.activation, q, False)[0] + sb2 for q in (state.q11, state.q22))
    return covariance(skip2 * state.q12 + term.weights + sb2, q11, q22), term


def own(xx: Array, network: MLP, weights: tuple | None, bias_weights: tuple | None = None) -> Pair:
    """Σ(x,x) and Σ_l α_l K_l(x,x): with a smooth activation without a closed form, E φ² straight from its nodes."""
    if not duals.is_smooth(network.activation):
        return nngp_and_tangent(xx, xx, xx, network, weights, bias_weights)
    ones = weights if weights is not None else (0.0,) * (network.depth + 1)
    counts = [Counts(a, b) for a, b in zip(ones, ones if bias_weights is None else bias_weights)]
    q = network.sigma_w[0] ** 2 * xx + network.sigma_b[0] ** 2
    _, term = first(xx, xx, xx, network, None)
    carry = _Carry(q, *_grown(term, counts[0], 0.0))

    def step(carry: _Carry, at: tuple[Layer, Counts]) -> _Carry:
        layer, count = at
        value, slope = duals.own(network.activation, carry.state, weights is not None)
        sw2, sb2, skip2 = layer.sigma_w**2, layer.sigma_b**2, layer.skip**2
        term = Term(sw2 * value, sb2, skip2 + sw2 * slope)
        sigma, grown = _grown(term, count, carry.tangent)
        return _Carry(skip2 * carry.state + term.weights + sb2, sigma, grown if weights is not None else carry.tangent)

    carry = _looped(step, carry, network, counts)
    return carry.sigma, carry.tangent if weights is not None else jnp.zeros_like(carry.sigma)


def check(network: MLP) -> None:
    """A network made without biases or skips cannot be given some later by editing its leaves."""
    late = [s for s in network.sigma_b if not network.biases and isinstance(s, int | float) and s != 0]
    if late or (not network.skips and isinstance(network.residual, int | float) and network.residual != 0):
        raise ValueError(
            f"this network was made without biases or skips but has sigma_b={network.sigma_b}, "
            f"residual={network.residual}; make a new MLP with these values"
        )
