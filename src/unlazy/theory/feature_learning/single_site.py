"""One neuron of each layer of a deep network of infinite width that learns features [M3], a step of descent at a time.

h^l = u^l + Σ_s Ā^{l-1} g^l + γ_0 η Σ_s Δ Φ^{l-1} g^l,   z^l = r^l + Σ_s B̄^l φ(h^l) + γ_0 η Σ_s Δ G^{l+1} φ(h^l),
g = z φ'(h),  u^l ~ GP(0, Φ^{l-1}),  r^l ~ GP(0, G^{l+1}),  Ā^l = E ∂φ(h^l)/∂r^l,  B̄^l = E ∂g^{l+1}/∂u^{l+1}

(Ā is γ_0 η A of theory.md). The equations are causal: at a step the layers' fields are found upward, then the output,
then the gradients downward, from what all earlier steps left, so nothing is iterated. Each layer is a set of draws,
and every E a mean over them. With φ̃ = L⁻¹φ the features whitened over all earlier times and points, Φ = L Lᵀ, the
field is u = L ζ with white noise ζ, and by Stein's lemma E ∂g/∂u · φ = E[g ζᵀ] φ̃: neither φ'' nor an inverse is
needed, and kinks are right. Directions that add less than `floor` of the variance are left out: they add only noise.

Bordelon and Pehlevan, Self-consistent dynamical field theory of kernel evolution in wide neural networks (2022).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unlazy.core.linalg import dot


class Site(NamedTuple):
    """Draws of one layer at all times and points; columns of times to come are zero."""

    value: Float[Array, "S D"]
    """φ(h)."""
    value_white: Float[Array, "S D"]
    back: Float[Array, "S Dc"]
    """g, of every output; those of a point side by side."""
    back_white: Float[Array, "S Dc"]
    noise: Float[Array, "S D"]
    """ζ behind u; empty in the first layer, whose u never changes."""
    back_noise: Float[Array, "S Dc"]
    """ζ behind r; empty in the last, whose r is the head's start."""


def mean_product(A: Float[Array, "S n"], B: Float[Array, "S D"]) -> Float[Array, "n D"]:
    """E a_i b_j over draws."""
    return dot(A.T, B) / A.shape[0]


def whiten(
    new: Float[Array, "S n"], white: Float[Array, "S D"], column: Int[Array, ""], floor: float | Float[Array, ""]
) -> tuple[Float[Array, "n D"], Float[Array, "S D"]]:
    """The factor C of new = C w̃ and the white set w̃ with what is new in it, by Gram–Schmidt, twice for its rounding."""
    known = mean_product(new, white)
    rest = new - dot(white, known.T)
    again = mean_product(rest, white)
    rest = rest - dot(white, again.T)
    sizes, Q = jnp.linalg.eigh(mean_product(rest, rest))
    kept = sizes > floor * jnp.mean(jnp.square(new))
    roots = jnp.where(kept, jnp.sqrt(jnp.where(kept, sizes, 1)), 0)
    fresh = dot(rest, Q) * jnp.where(kept, 1 / jnp.where(kept, roots, 1), 0)
    place = (jnp.zeros_like(column), column)
    factor = jax.lax.dynamic_update_slice(known + again, Q * roots, place)
    return factor, jax.lax.dynamic_update_slice(white, fresh, place)


def field(
    fresh: Float[Array, "S n"],
    white: Float[Array, "S B"],
    response: Float[Array, "n B"],
    past: Float[Array, "S D"],
    kernel: Float[Array, "n D"],
) -> Float[Array, "S n"]:
    """Gaussian part, response times the white set of what goes the other way, and the drift: Σ_s kernel · past."""
    return fresh + dot(white, response.T) + dot(past, kernel.T)
