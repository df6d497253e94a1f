"""Gradient flow of two linear layers through its modes, over any number of decades of time [E6].

The state c of theory.spectra.scaling_laws has a Jacobian that is diagonal plus rank one, so a linearly implicit step
costs as much as an explicit one, and steps may grow with time: ROS2, of second order and L-stable (Verwer et al. 1999).
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from unlazy.core.linalg import dot
from unlazy.theory.spectra.scaling_laws import Modes, gain

SHARE = 1 - 1 / math.sqrt(2)
"""Of the step that is implicit: the smaller of the two values that make ROS2 L-stable."""


class Path(NamedTuple):
    """At each of the feature times τ."""

    time: Float[Array, " t"]
    """t = ∫ dτ/(1 + s)."""
    risk: Float[Array, " t"]
    gain: Float[Array, " t"]
    """s."""


def flow(modes: Modes, richness: Real[ArrayLike, ""], feature_times: Real[ArrayLike, " t"]) -> Path:
    """The flow from w = 0 at rising feature times τ > 0, one step to each [E6]; richness 0 is lazy."""
    zero = jnp.zeros_like(modes.pulls)

    def step(state: tuple, tau: Array) -> tuple[tuple, tuple]:
        c, t, s, before = state
        h = tau - before
        f, r, slope = _velocity(modes, c, richness)
        d = 1 - SHARE * h * (r - modes.rates)
        along = SHARE * h * c / d

        def solve(x: Array) -> Array:
            y = x / d
            return y + along * dot(slope, y) / (1 - dot(slope, along))

        first = solve(f)
        second = solve(_velocity(modes, c + h * first, richness)[0] - 2 * first)
        c = c + 1.5 * h * first + 0.5 * h * second
        new = gain(c, richness)
        t = t + h * (1 / (1 + s) + 1 / (1 + new)) / 2
        return (c, t, new, tau), (t, modes.risk(c), new)

    start = (zero, zero[0], zero[0], zero[0])
    return Path(*lax.scan(step, start, jnp.asarray(feature_times, zero.dtype))[1])


def _velocity(modes: Modes, c: Array, richness: Real[ArrayLike, ""]) -> tuple[Array, Array, Array]:
    """dc/dτ, r, and the gradient of r: the Jacobian is diag(r - H) + c ∇rᵀ."""
    off = modes.pulls - modes.rates * c
    s = gain(c, richness)
    scale = (richness / (1 + s)) ** 2
    along = dot(c, off)
    fall = -4 * scale * richness**2 / ((1 + s) * (1 + 2 * s)) * c  # of `scale`, by s' = 2γ²c/(1 + 2s)
    r = scale * along
    return off + r * c, r, scale * (off - modes.rates * c) + along * fall
