"""A sampled quantity carries its standard error."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Estimate(NamedTuple):
    """A mean over independent runs and its standard error (infinite for one run)."""

    value: Float[Array, "..."]
    error: Float[Array, "..."]


def over_runs(values: Float[Array, "runs ..."]) -> Estimate:
    """Mean over the leading axis, and the standard error of that mean."""
    runs = values.shape[0]
    mean = jnp.mean(values, axis=0)
    if runs == 1:
        return Estimate(mean, jnp.full_like(mean, jnp.inf))
    return Estimate(mean, jnp.std(values, axis=0, ddof=1) / jnp.sqrt(float(runs)))
