"""A sampled quantity carries its standard error."""

from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Matrix, concrete

T = TypeVar("T")


class Estimate(NamedTuple):
    """A mean over independent runs and its standard error (infinite for one run)."""

    value: Float[Matrix, "..."]
    error: Float[Matrix, "..."]


def over_runs(values: Float[Array, "runs ..."]) -> Estimate:
    """Mean over the leading axis, and the standard error of that mean."""
    runs = values.shape[0]
    mean = jnp.mean(values, axis=0)
    if runs == 1:
        return Estimate(mean, jnp.full_like(mean, jnp.inf))
    return Estimate(mean, jnp.std(values, axis=0, ddof=1) / jnp.sqrt(float(runs)))


def on_host(tree: T) -> T:
    """The same in NumPy's arrays, which keep float64 in any scope; as it is while tracing."""
    return jax.tree.map(np.asarray, tree) if concrete(tree) else tree
