"""Kernels of infinitely wide fully connected networks as functions of ⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩ [K7, K8, L2].

Σ¹ = σ_w²⟨x,z⟩ + σ_b²,  Σ^l = s²Σ^{l-1} + σ_w² E φ(a)φ(b) + σ_b²,
Θ¹ = Σ¹,  Θ^l = σ_w² E φ(a)φ(b) + σ_b² + Θ^{l-1}(s² + σ_w² E φ'(a)φ'(b)),  (a,b) ~ N(0, Σ^{l-1} at the pair).

The inputs' 1/d belongs to whoever forms the inner products. Lee et al. (2018), Jacot et al. (2018).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.architecture import MLP
from unlazy.theory import duals, homogeneous, numeric_duals
from unlazy.theory.homogeneous import LayerTerm, slope_below_zero

Pair = tuple[Float[Array, "*s"], Float[Array, "*s"]]


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
    terms = layer_terms(xz, xx, zz, network, half_chord, tangent=weights is not None)
    sigma = terms[-1].weights + terms[-1].bias
    tangent = jnp.zeros_like(sigma)
    if weights is not None:
        for term, a, b in zip(terms, weights, weights if bias_weights is None else bias_weights):
            tangent = a * term.weights + b * term.bias + tangent * term.slope
    return sigma, tangent


def layer_kernels(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None
) -> list[Float[Array, "*s"]]:
    """K_1 … K_{depth+1}, one a weight matrix with its biases: K_l = Σ^l Π_{l'>l} Σ'^{l'}; their sum is the NTK [L2]."""
    check(network)
    kernels: list[Array] = []
    for term in layer_terms(xz, xx, zz, network, half_chord):
        kernels = [k * term.slope for k in kernels] + [term.weights + term.bias]
    return kernels


def layer_terms(
    xz: Array, xx: Array, zz: Array, network: MLP, half_chord: Array | None = None, tangent: bool = True
) -> list[LayerTerm]:
    """What each weight matrix adds to Σ^l, and the factor with which Θ^{l-1} passes through layer l."""
    slope = slope_below_zero(network.activation)
    if slope is not None:
        return homogeneous.layer_terms(xz, xx, zz, network, slope, half_chord)
    phi = network.activation
    sw2, sb2 = network.sigma_w[0] ** 2, network.sigma_b[0] ** 2
    q12, q11, q22 = sw2 * xz + sb2, sw2 * xx + sb2, sw2 * zz + sb2
    terms = [LayerTerm(sw2 * xz, sb2, 0.0)]
    for l in range(1, network.depth + 1):
        sw2, sb2 = network.sigma_w[l] ** 2, network.sigma_b[l] ** 2
        skip2 = network.residual**2 if network.skips and l < network.depth else 0.0
        if tangent:
            value, derivative = duals.dual_pair(q12, q11, q22, phi)
            passed = skip2 + sw2 * derivative
        else:
            value, passed = duals.dual(q12, q11, q22, phi), 0.0
        weights = sw2 * value
        terms.append(LayerTerm(weights, sb2, passed))
        if l < network.depth:
            q12 = skip2 * q12 + weights + sb2
            q11, q22 = (skip2 * q + sw2 * duals.dual(q, q, q, phi) + sb2 for q in (q11, q22))
    return terms


def dual_error(network: MLP, xx: Float[Array, " k"]) -> Float[Array, " k"]:
    """Largest relative error that the numerical duals of the network's activation make at any layer; 0 if closed.

    `xx` are squared norms of inputs (after their scaling).
    """
    phi = network.activation
    worst = jnp.zeros_like(xx)
    if duals.has_closed_form(phi):
        return worst
    q = network.sigma_w[0] ** 2 * xx + network.sigma_b[0] ** 2
    for l in range(1, network.depth + 1):
        for derivative in (False, True):
            worst = jnp.maximum(worst, numeric_duals.error_estimate(phi, jnp.sqrt(q), derivative))
        skip2 = network.residual**2
        q = skip2 * q + network.sigma_w[l] ** 2 * duals.dual(q, q, q, phi) + network.sigma_b[l] ** 2
    return worst


def check(network: MLP) -> None:
    """A network made without biases or skips cannot be given some later by editing its leaves."""
    late = [s for s in network.sigma_b if not network.biases and isinstance(s, int | float) and s != 0]
    if late or (not network.skips and isinstance(network.residual, int | float) and network.residual != 0):
        raise ValueError(
            f"this network was made without biases or skips but has sigma_b={network.sigma_b}, "
            f"residual={network.residual}; make a new MLP with these values"
        )
