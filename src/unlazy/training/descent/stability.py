"""Largest stable step size: curvature of the loss through the tangent kernel, by power iteration."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from unlazy.core.dataset import Data
from unlazy.core.pytrees import broadcast_over
from unlazy.theory.dynamics.losses import Loss, resolve_loss
from unlazy.theory.finite_width.empirical_ntk import tangent_product
from unlazy.training.descent.trained import Apply


def sharpness(
    apply: Apply,
    params: PyTree,
    data: Data,
    *,
    loss: str | Loss = "squared",
    rates: PyTree = 1.0,
    iterations: int = 30,
    wanted: ArrayLike = True,
) -> Float[Array, ""]:
    """Largest eigenvalue of the Gauss–Newton matrix of the mean loss.

    It equals c λ_max(P^{1/2} Θ P^{1/2}), where c bounds the curvature of the loss, Θ is the tangent kernel with the
    layer-wise rates and P has the weights of the points (1/n each). Power iteration gives a lower bound, within
    1 - λ_2/λ_1 of the eigenvalue after a few steps.

    Parameters
    ----------
    apply, params, data, loss, rates
        As in `descend`.
    iterations : int, default 30
        Steps of power iteration.
    wanted : bool or traced boolean, default True
        If false, nothing is computed (under vmap: if false for all seeds) and the result is zero.

    Returns
    -------
    scalar array
        The eigenvalue.
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
    return resolve_loss(loss).curvature * largest


def stable_step_size(
    apply: Apply,
    params: PyTree,
    data: Data,
    *,
    loss: str | Loss = "squared",
    rates: PyTree = 1.0,
    decay: PyTree = 0.0,
    wanted: ArrayLike = True,
) -> Float[Array, ""]:
    """Return a step size at which plain gradient descent is stable around the parameters.

    It is 1/(λ_max + decay), half of the limit 2/λ_max [K3], so that an eigenvalue underestimated by up to one half
    still gives a stable step.

    Parameters
    ----------
    apply, params, data, loss, rates, decay
        As in `descend`.
    wanted : bool or traced boolean, default True
        If false, nothing is computed and the result is NaN.

    Returns
    -------
    scalar array
        The step size.
    """
    decays = jax.tree.map(lambda r, lam: r * lam, broadcast_over(rates, params), broadcast_over(decay, params))
    largest = jnp.max(jnp.stack([jnp.asarray(value, float) for value in jax.tree.leaves(decays)]))
    curvature = sharpness(apply, params, data, loss=loss, rates=rates, wanted=wanted) + largest
    return jnp.where(jnp.asarray(wanted), 1 / curvature, jnp.nan)
