"""Layer normalization and dropout [C3]."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.errors import did_you_mean
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer
from unlazy.layers.protocol.covariance import State, accepts_blocks, precompute, propagate, propagate_point, variances
from unlazy.layers.protocol.finite_evaluation import Context, apply
from unlazy.theory.numerics.geometry import safe_reciprocal, safe_sqrt


class LayerNorm(Layer):
    """Layer normalization over channels, or over positions and channels [C3].

    Parameters
    ----------
    over : {"channels", "all"}, default "channels"
        Axes over which mean and standard deviation are taken.
    epsilon : float, default 1e-12
        Added to the variance.

    Examples
    --------
    >>> from unlazy import NTK, layers
    >>> kernel = NTK(layers.serial(layers.Dense(), layers.LayerNorm(), "relu", layers.Dense()))
    """

    over: str = eqx.field(default="channels", static=True)
    epsilon: float = eqx.field(default=1e-12, static=True)

    def __check_init__(self) -> None:
        if self.over not in ("channels", "all"):
            raise ValueError(f"unknown over={self.over!r}{did_you_mean(str(self.over), ('channels', 'all'))}")


class Dropout(Layer):
    """Dropout: each entry is kept with probability `keep` and divided by it, independently for every point [C3].

    The kernel of a network with dropout is that of two evaluations with independent masks, also for k(x, x): the
    kernel of the mean over masks. What the masks of a single evaluation add to its variance is noise and not part of
    k(x, x); `mask_variance` of the kernel returns it.

    Parameters
    ----------
    keep : float, default 1
        Probability of keeping an entry.

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Dropout(0.9).keep
    0.9
    """

    stochastic = True

    keep: Any = 1.0

    def __check_init__(self) -> None:
        if isinstance(self.keep, int | float) and not 0 < self.keep <= 1:
            raise ValueError(f"keep is a probability above 0, got {self.keep!r}")


@propagate.register
@accepts_blocks
def _propagate_layer_norm(layer: LayerNorm, state: State, left: Array, right: Array) -> State:
    """Σ_pq/√(Σ_pp(x,x) Σ_qq(z,z)) [C3]."""
    if not state.normal:
        raise ValueError(f"{layer.title} must follow weights (Dense, Conv, …): only there is the mean over channels 0")
    if layer.over == "all":
        axes = tuple(range(len(state.grid)))
        left, right = (jnp.broadcast_to(jnp.mean(v, axes, keepdims=True), v.shape) for v in (left, right))
    first, second = (safe_reciprocal(safe_sqrt(v + layer.epsilon)) for v in (left, right))
    return state.each(
        lambda A: A * position_pairs.of_left(first, state.grid) * position_pairs.of_right(second, state.grid)
    )


@propagate.register
@accepts_blocks
def _propagate_dropout(layer: Dropout, state: State, left: Any, right: Any) -> State:
    """Masks of two evaluations are independent: their covariance stays."""
    return state._replace(normal=False)


@propagate_point.register
def _survey_dropout(layer: Dropout, state: State) -> tuple[State, None]:
    """The variances of one evaluation are divided by the probability to be kept [C3]."""
    same = position_pairs.is_diagonal(state.grid, state.sigma)
    return state.each(lambda A: A + A * same * (1 / layer.keep - 1))._replace(normal=False), None


@apply.register
def _apply_layer_norm(layer: LayerNorm, params: Any, x: Array, context: Context) -> Array:
    axes = -1 if layer.over == "channels" else tuple(range(1, x.ndim))
    centered = x - jnp.mean(x, axes, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered * centered, axes, keepdims=True) + layer.epsilon)


@apply.register
def _apply_dropout(layer: Dropout, params: Any, x: Array, context: Context) -> Array:
    """Without a key nothing is dropped."""
    if context.key is None:
        return x
    return jnp.where(jax.random.bernoulli(context.key, layer.keep, x.shape), x / layer.keep, 0)


@precompute.register
def _precompute_variances(layer: LayerNorm, state: State) -> Array:
    return variances(state)
