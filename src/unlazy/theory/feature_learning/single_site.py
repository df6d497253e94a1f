"""Single-site equations of a deep network of infinite width that learns features [M3], one descent step at a time.

h^l = u^l + Σ_s Ā^{l-1} g^l + γ_0 η Σ_s Δ Φ^{l-1} g^l,   z^l = r^l + Σ_s B̄^l φ(h^l) + γ_0 η Σ_s Δ G^{l+1} φ(h^l),
g = z φ'(h),  u^l ~ GP(0, Φ^{l-1}),  r^l ~ GP(0, G^{l+1}),  Ā^l = E ∂φ(h^l)/∂r^l,  B̄^l = E ∂g^{l+1}/∂u^{l+1}

(Ā is γ_0 η A of theory.md). The equations are causal: in each step the fields are computed layer by layer upward, then
the output, then the gradients downward, from the results of earlier steps, without iteration. Each layer is a set of
Monte Carlo draws, and every E a mean over them. With φ̃ = L⁻¹φ the features whitened over all earlier times and points,
Φ = L Lᵀ, the field is u = L ζ with white noise ζ, and by Stein's lemma E ∂g/∂u · φ = E[g ζᵀ] φ̃: neither φ'' nor an
inverse is needed, and kinks are handled correctly. Directions that add less than `floor` of the variance are dropped,
since they add only noise.

Bordelon and Pehlevan, Self-consistent dynamical field theory of kernel evolution in wide neural networks (2022).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unlazy.core.arrays import dot


class LayerDraws(NamedTuple):
    """Draws of one layer at all times and points; columns of future times are zero."""

    value: Float[Array, "S D"]
    """φ(h)."""
    value_white: Float[Array, "S D"]
    """φ(h), whitened."""
    back: Float[Array, "S Dc"]
    """g of every output; the outputs of a point are adjacent."""
    back_white: Float[Array, "S Dc"]
    """g, whitened."""
    noise: Float[Array, "S D"]
    """ζ of u; empty in the first layer, whose u never changes."""
    back_noise: Float[Array, "S Dc"]
    """ζ of r; empty in the last layer, whose r is the initial head."""


def mean_product(A: Float[Array, "S n"], B: Float[Array, "S D"]) -> Float[Array, "n D"]:
    """E a_i b_j over draws."""
    return dot(A.T, B) / A.shape[0]


def whiten(
    new: Float[Array, "S n"], white: Float[Array, "S D"], column: Int[Array, ""], floor: float | Float[Array, ""]
) -> tuple[Float[Array, "n D"], Float[Array, "S D"]]:
    """Extend a white set by new variables, by Gram–Schmidt, repeated once against rounding.

    Parameters
    ----------
    new : array of shape (S, n)
        Draws of the new variables.
    white : array of shape (S, D)
        Draws of the white set; columns from `column` on are free.
    column : int array
        First free column.
    floor : float
        Directions with less than this share of the mean variance are dropped.

    Returns
    -------
    factor : array of shape (n, D)
        C with new = C w̃.
    white : array of shape (S, D)
        The extended white set w̃.
    """
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


def layer_field(
    fresh: Float[Array, "S n"],
    white: Float[Array, "S B"],
    response: Float[Array, "n B"],
    past: Float[Array, "S D"],
    kernel: Float[Array, "n D"],
) -> Float[Array, "S n"]:
    """Gaussian part, plus response times the white set of the opposite direction, plus the drift Σ_s kernel · past."""
    return fresh + dot(white, response.T) + dot(past, kernel.T)
