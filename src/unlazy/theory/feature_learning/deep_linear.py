"""Deep linear networks of infinite width that learn features, by linear algebra over pairs of (time, point) [M3].

With φ = id the fields of a layer are linear in its Gaussian sources: with C = Ā^{l-1} + γ_0 η Δ Φ^{l-1} and
D = B̄^l + γ_0 η Δ G^{l+1} over earlier times,

h = R (u + C r),  z = S (r + D u),  R = (1 - C D)⁻¹,  S = (1 - D C)⁻¹,

Φ^l = R (Φ^{l-1} + C G^{l+1} Cᵀ) Rᵀ,  G^l = S (G^{l+1} + D Φ^{l-1} Dᵀ) Sᵀ,  Ā^l = R C,  B̄^{l-1} = S D,

and f = diag(R (C G^{L+1} + Φ^{L-1} Dᵀ) Sᵀ)/γ_0 of the last layer. C and D have no entries at equal or later times, so
1 - C D is triangular, and sweeps over the layers reach the fixed point after finitely many.

Bordelon and Pehlevan, Self-consistent dynamical field theory of kernel evolution in wide neural networks (2022).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.theory.feature_learning.mean_field import Scalar


class DeepLinearLayer(NamedTuple):
    """Φ^l, G^l, Ā^l and B̄^{l-1} over pairs of (time, point)."""

    features: Float[Array, "D D"]
    gradients: Float[Array, "D D"]
    up: Float[Array, "D D"]
    down: Float[Array, "D D"]


def deep_linear(
    K: Float[Array, "n n"], y: Float[Array, " n"], depth: int, richness: Scalar, step_size: Scalar, steps: int
) -> tuple[Float[Array, "t n"], Float[Array, "t n n"]]:
    """f and Θ after 0 to `steps` steps of descent on ½ Σ (f - y)², with σ_w = 1 and no biases [M3].

    Parameters
    ----------
    K : array of shape (n, n)
        Gram matrix of the inputs.
    y : array of shape (n,)
        Labels.
    depth : int
        Number of hidden layers.
    richness : float
        γ_0.
    step_size : float
        η.
    steps : int

    Returns
    -------
    f : array of shape (steps + 1, n)
    Theta : array of shape (steps + 1, n, n)
    """
    n, T = K.shape[0], steps + 1
    ones, eye = jnp.ones((T * n, T * n), K.dtype), jnp.eye(T * n, dtype=K.dtype)
    inputs, time = jnp.tile(K, (T, T)), jnp.repeat(jnp.arange(T), n)
    past = richness * step_size * (time[:, None] > time)
    zero = jnp.zeros_like(ones)
    inverse = functools.partial(solve_triangular, lower=True, unit_diagonal=True)

    def sweep(layers: list[DeepLinearLayer], f: Array) -> tuple[list[DeepLinearLayer], Array]:
        pull = past * (jnp.tile(y, T) - f)
        found = []
        for l, below in enumerate([DeepLinearLayer(inputs, ones, zero, zero), *layers[:-1]]):
            above = layers[l + 1] if l + 1 < depth else DeepLinearLayer(ones, ones, zero, zero)
            C, D = below.up + pull * below.features, above.down + pull * above.gradients
            R, S = (inverse(eye - dot(*pair), eye) for pair in ((C, D), (D, C)))
            up, down = dot(R, C), dot(S, D)
            features = dot(dot(R, below.features), R.T) + dot(dot(up, above.gradients), up.T)
            gradients = dot(dot(S, above.gradients), S.T) + dot(dot(down, below.features), down.T)
            found.append(DeepLinearLayer(features, gradients, up, down))
        f = jnp.diag(dot(dot(R, dot(C, above.gradients) + dot(below.features, D.T)), S.T)) / richness
        return found, f

    def unfinished(state: tuple) -> Array:
        return (state[2] > 8 * jnp.finfo(K.dtype).eps) & (state[3] < depth * (T + 1))

    def once(state: tuple) -> tuple:
        layers, f = sweep(state[0], state[1])
        return layers, f, jnp.max(jnp.abs(f - state[1])) / jnp.max(jnp.abs(y)), state[3] + 1

    start = [DeepLinearLayer(inputs, ones, zero, zero)] * depth
    layers, f, _, _ = jax.lax.while_loop(
        unfinished, once, (start, jnp.zeros(T * n, K.dtype), jnp.asarray(jnp.inf, K.dtype), jnp.int32(0))
    )
    Phi, G = ([_same_time(pair, T) for pair in pairs] for pairs in zip(*((l.features, l.gradients) for l in layers)))
    Theta = Phi[-1] + sum(below * g for below, g in zip([K, *Phi[:-1]], G))
    return f.reshape(T, n), Theta


def _same_time(M: Float[Array, "D D"], T: int) -> Float[Array, "t n n"]:
    """Blocks of equal times, of shape (T, n, n)."""
    n, now = M.shape[0] // T, jnp.arange(T)
    return M.reshape(T, n, T, n)[now, :, now]
