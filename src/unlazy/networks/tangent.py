"""Tangent kernels of finite networks [K9, L1]: through the layer structure for MLPs, by Jacobians for any function.

The gradient of an MLP's output in W^l is an outer product, g_l(x) h_{l-1}(x)ᵀ, so its kernel is an entrywise product
of two Gram matrices, K_l = (m_w² H Hᵀ + m_b²) ∘ (G Gᵀ) [L1]: n² w work and n w memory, no Jacobian.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import Points, points
from unlazy.core.errors import nearest
from unlazy.core.linalg import dot, einsum
from unlazy.core.pytrees import spread_over
from unlazy.networks.mlp import Network, Parameters
from unlazy.theory.infinite_width.jacobian import jacobian_kernels, tangent_product

__all__ = ["layer_tangent_kernels", "tangent_kernel", "tangent_product"]

OUTPUTS = ("full", "trace", "diagonal")


def tangent_kernel(
    apply: Callable[[Any, Array], Array],
    params: Any,
    X: Points,
    Z: Points | None = None,
    *,
    outputs: str = "full",
    rates: Any = 1.0,
) -> Float[Array, "n ..."]:
    """Θ(x, z) = Σ_θ r_θ ∂f(x)/∂θ ∂f(z)/∂θ [K9] (Jacot et al. 2018; layer structure: Novak et al. 2022).

    `apply` is any function of (parameters, inputs), `params` any tree: arrays of real numbers are differentiated, the
    rest of an Equinox module (functions, settings, None after `eqx.partition`) is held fixed. Inputs may have any shape
    behind their leading axis.

    One scalar output: (n, m). c outputs: full (n, c, m, c), its trace over outputs (n, m) or its diagonal (n, m, c).
    `rates` are layer-wise learning rates (a number, one per layer, or shaped like the parameters): `network.rates`
    gives the kernel that drives training, `only_layers(params, [-1])` random features.

    >>> net = Network(MLP(1, width=64), 3)
    >>> tangent_kernel(net, net.init(key), X, Z).shape
    (60, 5)
    """
    return sum(layer_tangent_kernels(apply, params, X, Z, outputs=outputs, rates=rates))  # type: ignore[return-value]


def layer_tangent_kernels(
    apply: Callable[[Any, Array], Array],
    params: Any,
    X: Points,
    Z: Points | None = None,
    *,
    outputs: str = "full",
    rates: Any = 1.0,
) -> tuple[Float[Array, "n ..."], ...]:
    """K_l of every layer (top-level entry with parameters) one by one [L1, L2]; they sum to `tangent_kernel`."""
    if outputs not in OUTPUTS:
        raise ValueError(f"unknown outputs {outputs!r}{nearest(str(outputs), OUTPUTS)}")
    takes = "matrix" if isinstance(apply, Network) else "tree"
    X, Z = points(X, takes=takes), None if Z is None else points(Z, "Z", takes=takes)
    if not isinstance(apply, Network):
        return jacobian_kernels(apply, params, X, Z, rates, outputs)
    per_layer = spread_over(rates, params)
    left = _sides(apply, params, X)
    right = left if Z is None else _sides(apply, params, Z)
    kernels = []
    for l, ((H, G), (H2, G2)) in enumerate(zip(left, right)):
        multiplier, rate = apply.scales[l].multiplier, per_layer[l]
        forward = multiplier.weight**2 * rate.weight * dot(H, H2.T)
        forward = forward + multiplier.bias**2 * rate.bias
        kernels.append(_hadamard(forward, G, G2, outputs, apply.mlp.outputs))
    return tuple(kernels)


def _sides(network: Network, params: Parameters, X: Float[Array, "n d"]) -> list[tuple[Array, Array | None]]:
    """(what enters layer l, derivative of the outputs in f^l) for every layer; None stands for the head's identity.

    Back-propagation from the outputs: ∂f/∂f^{l-1} = φ'(f^{l-1}) ∘ (m_w Wᵀ ∂f/∂f^l) + s ∂f/∂f^l.
    """
    scales, depth, phi = network.scales, network.mlp.depth, network.mlp.activation
    found = network.preactivations(params, X)[:-1]
    hidden, slopes = zip(*(jax.jvp(phi, (f,), (jnp.ones_like(f),)) for f in found))
    weight = scales[-1].multiplier.weight * params[-1].weight
    G = slopes[-1][:, None, :] * weight.T[None, :, :]
    sides: list[tuple[Array, Array | None]] = [(hidden[-1], None), (X if depth == 1 else hidden[-2], G)]
    for l in range(depth - 1, 0, -1):
        weight = scales[l].multiplier.weight * params[l].weight
        back = dot(G.reshape(-1, G.shape[-1]), weight.T).reshape(*G.shape[:2], -1)
        G = slopes[l - 1][:, None, :] * back + (network.mlp.residual * G if network.mlp.skips else 0)
        sides.append((X if l == 1 else hidden[l - 2], G))
    return sides[::-1]


def _hadamard(A: Float[Array, "n m"], G: Array | None, G2: Array | None, outputs: str, count: int) -> Array:
    """A ∘ (G G2ᵀ) over pairs of outputs, on their diagonal, or traced; G None is the identity (the head)."""
    if G is None or G2 is None:
        if outputs == "full" and count > 1:
            return A[:, None, :, None] * jnp.eye(count, dtype=A.dtype)[None, :, None, :]
        if outputs == "diagonal" and count > 1:
            return jnp.broadcast_to(A[:, :, None], (*A.shape, count))
        return A * count
    (n, c, w), m = G.shape, G2.shape[0]
    if outputs == "diagonal" and c > 1:
        return A[:, :, None] * einsum("icw,jcw->ijc", G, G2)
    if outputs == "full" and c > 1:
        gram = dot(G.reshape(n * c, w), G2.reshape(m * c, w).T)
        return A[:, None, :, None] * gram.reshape(n, c, m, c)
    return A * dot(G.reshape(n, c * w), G2.reshape(m, c * w).T)
