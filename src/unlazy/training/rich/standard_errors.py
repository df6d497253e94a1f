"""Sampled quantities with their standard errors."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, is_concrete

T = TypeVar("T")


class SampledQuantity(NamedTuple):
    """Mean over independent runs and its standard error.

    Attributes
    ----------
    value : array
        Mean over runs.
    error : array of the same shape
        Standard error; infinite for one run.
    """

    value: Float[Matrix, "..."]
    error: Float[Matrix, "..."]


def over_runs(values: Float[Array, "runs ..."]) -> SampledQuantity:
    """Return the mean over the leading axis and its standard error."""
    runs = values.shape[0]
    mean = jnp.mean(values, axis=0)
    if runs == 1:
        return SampledQuantity(mean, jnp.full_like(mean, jnp.inf))
    return SampledQuantity(mean, jnp.std(values, axis=0, ddof=1) / jnp.sqrt(float(runs)))


def on_host(tree: T) -> T:
    """Convert to NumPy arrays, which keep float64 in any precision scope; unchanged while tracing."""
    return jax.tree.map(np.asarray, tree) if is_concrete(tree) else tree
