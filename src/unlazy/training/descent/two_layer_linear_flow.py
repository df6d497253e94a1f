"""Gradient flow of two linear layers in terms of its modes, over many decades of time [E6].

The state c of theory.spectra.scaling_laws has a Jacobian that is diagonal plus rank one, so a linearly implicit step
costs as much as an explicit one, and steps can grow with time: ROS2, second order and L-stable (Verwer et al. 1999).
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from unlazy.core.arrays import dot
from unlazy.theory.spectra.scaling_laws import PowerLawModes, kernel_gain

IMPLICIT_SHARE = 1 - 1 / math.sqrt(2)
"""Implicit share γ of the step: the smaller of the two values for which ROS2 is L-stable."""


class LinearFlowPath(NamedTuple):
    """Time, risk and gain at each of the feature times τ."""

    time: Float[Array, " t"]
    """t = ∫ dτ/(1 + s)."""
    risk: Float[Array, " t"]
    gain: Float[Array, " t"]
    """The gain s."""


def flow(modes: PowerLawModes, richness: Real[ArrayLike, ""], feature_times: Real[ArrayLike, " t"]) -> LinearFlowPath:
    """Integrate the flow from w = 0, one step to each feature time [E6].

    Parameters
    ----------
    modes : Modes
        Rates and pulls of the modes.
    richness : float
        γ; 0 is lazy training.
    feature_times : array of shape (t,)
        Increasing feature times τ > 0.

    Returns
    -------
    LinearFlowPath
        Time, risk and gain at every feature time.
    """
    zero = jnp.zeros_like(modes.pulls)

    def step(state: tuple, tau: Array) -> tuple[tuple, tuple]:
        c, t, s, before = state
        h = tau - before
        f, r, slope = _velocity(modes, c, richness)
        d = 1 - IMPLICIT_SHARE * h * (r - modes.rates)
        along = IMPLICIT_SHARE * h * c / d

        def solve(x: Array) -> Array:
            y = x / d
            return y + along * dot(slope, y) / (1 - dot(slope, along))

        first = solve(f)
        second = solve(_velocity(modes, c + h * first, richness)[0] - 2 * first)
        c = c + 1.5 * h * first + 0.5 * h * second
        new = kernel_gain(c, richness)
        t = t + h * (1 / (1 + s) + 1 / (1 + new)) / 2
        return (c, t, new, tau), (t, modes.risk(c), new)

    start = (zero, zero[0], zero[0], zero[0])
    return LinearFlowPath(*lax.scan(step, start, jnp.asarray(feature_times, zero.dtype))[1])


def _velocity(modes: PowerLawModes, c: Array, richness: Real[ArrayLike, ""]) -> tuple[Array, Array, Array]:
    """Return dc/dτ, r and the gradient of r: the Jacobian is diag(r - H) + c ∇rᵀ."""
    off = modes.pulls - modes.rates * c
    s = kernel_gain(c, richness)
    scale = (richness / (1 + s)) ** 2
    along = dot(c, off)
    fall = -4 * scale * richness**2 / ((1 + s) * (1 + 2 * s)) * c  # derivative of `scale`, by s' = 2γ²c/(1 + 2s)
    r = scale * along
    return off + r * c, r, scale * (off - modes.rates * c) + along * fall
