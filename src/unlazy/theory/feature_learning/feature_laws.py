"""Two formulas for the weights of a trained layer: neural feature ansatz and FACT [E5].

A layer z = W h of a network f, trained on L + ½λ‖W‖²:

    ansatz   Wᵀ W ∝ (E ∇_h f ∇_h fᵀ)^s,          FACT   Wᵀ W = -(1/λ) Wᵀ ∇_W L, symmetrized.

The first is an observation; its power s is 1/2 or 1, or 1/L for L linear layers. The second is the condition
∇_W L + λW = 0 multiplied by Wᵀ: true at every critical point. Radhakrishnan, Beaglehole, Pandit and Belkin (2024);
Boix-Adsera, Mallinar, Simon and Belkin (2025). Weights here are (fan-in, fan-out), the transpose of W.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot, einsum


def input_gradients(
    weights: Sequence[Float[Array, "_ _"]],
    preactivations: Sequence[Float[Array, "n _"]],
    activation: Callable[[Array], Array],
) -> list[Float[Array, "n _"]]:
    """∇_h f of the scalar output at the input h of every layer, first layer first, for every point.

    Parameters
    ----------
    weights : sequence of arrays
        As they multiply h (multipliers included), of shape (fan-in, fan-out).
    preactivations : sequence of arrays
        z of the hidden layers.
    activation : callable

    Returns
    -------
    list of arrays of shape (n, fan-in)
    """
    g = jnp.ones((len(preactivations[0]), 1), preactivations[0].dtype)
    found = []
    for l in range(len(weights) - 1, -1, -1):
        found.append(dot(g, weights[l].T))
        if l:
            z = preactivations[l - 1]
            g = found[-1] * jax.jvp(activation, (z,), (jnp.ones_like(z),))[1]
    return found[::-1]


def ansatz(agops: Sequence[Float[Array, "_ _"]], powers: Sequence[float]) -> list[list[Float[Array, "_ _"]]]:
    """M^s of average gradient outer products M, for every M and every power [E5].

    One batched eigendecomposition of zero-padded matrices: several concurrent ones can block each other on few cores.
    """
    size = max(len(M) for M in agops)
    padded = jnp.stack([jnp.pad(M, (0, size - len(M))) for M in agops])
    values, U = jnp.linalg.eigh(padded)
    values = jnp.maximum(values, 0)
    raised = [einsum("lik,lk,ljk->lij", U, values**s, U) for s in powers]
    return [[R[l, : len(M), : len(M)] for R in raised] for l, M in enumerate(agops)]


def fact(
    weight: Float[Array, "k m"], gradient: Float[Array, "k m"], decay: Float[Array, ""] | float
) -> Float[Array, "k k"]:
    """-(1/2λ)(Wᵀ∇_W L + (Wᵀ∇_W L)ᵀ), with ∇_W L excluding the decay λ [E5]."""
    product = dot(weight, gradient.T)
    return -(product + product.T) / (2 * decay)
