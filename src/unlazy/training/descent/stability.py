"""How large a step may be: the curvature of the loss through the tangent kernel, by power iteration."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.data import Data
from unlazy.core.pytrees import spread_over
from unlazy.theory.infinite_width.jacobian import tangent_product
from unlazy.training.descent.losses import Loss, loss_named


def sharpness(
    apply: Callable[[Any, Array], Array],
    params: Any,
    data: Data,
    *,
    loss: str | Loss = "squared",
    rates: Any = 1.0,
    iterations: int = 30,
    wanted: Any = True,
) -> Float[Array, ""]:
    """Largest eigenvalue of the Gauss–Newton matrix of the mean loss, c λ_max(P^{1/2} Θ P^{1/2}): c bounds the loss's
    curvature, Θ is the tangent kernel with the layer-wise rates, P the points' weights (1/n each).

    Power iteration on products with Θ: never above the truth, and within 1 - λ_2/λ_1 of it after a few steps. Where
    `wanted` is false nothing is computed, under vmap too unless one of the seeds wants it, and the result is zero.
    """
    weights = jnp.ones(data.n, data.X.dtype) if data.weights is None else data.weights
    shape = jax.eval_shape(apply, params, data.X)
    root = jnp.sqrt(weights / weights.sum()).reshape(-1, *(1,) * (len(shape.shape) - 1)).astype(shape.dtype)

    def unfinished(carry: tuple[Array, Array, Array]) -> Array:
        return jnp.asarray(wanted) & (carry[0] < iterations)

    def apply_once(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        i, v, _ = carry
        v = root * tangent_product(apply, params, data.X, root * v, rates=rates)
        size = jnp.linalg.norm(v.ravel())
        return i + 1, v / jnp.where(size > 0, size, 1), size

    start = jax.random.normal(jax.random.key(0), shape.shape, shape.dtype)
    start = start / jnp.linalg.norm(start.ravel())
    largest = jax.lax.while_loop(unfinished, apply_once, (jnp.int32(0), start, jnp.zeros((), shape.dtype)))[2]
    return loss_named(loss).curvature * largest


def stable_step_size(
    apply: Callable[[Any, Array], Array],
    params: Any,
    data: Data,
    *,
    loss: str | Loss = "squared",
    rates: Any = 1.0,
    decay: Any = 0.0,
    wanted: Any = True,
) -> Float[Array, ""]:
    """A step size at which plain gradient descent is stable around these parameters: 1/(λ_max + decay), half the limit
    2/λ_max [K3], so that an eigenvalue estimated up to half too small still gives a stable step. NaN where not
    `wanted`."""
    decays = jax.tree.map(lambda r, lam: r * lam, spread_over(rates, params), spread_over(decay, params))
    largest = jnp.max(jnp.stack([jnp.asarray(value, float) for value in jax.tree.leaves(decays)]))
    curvature = sharpness(apply, params, data, loss=loss, rates=rates, wanted=wanted) + largest
    return jnp.where(jnp.asarray(wanted), 1 / curvature, jnp.nan)
