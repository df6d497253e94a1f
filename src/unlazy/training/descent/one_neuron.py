"""Online SGD on one neuron, simulated through its overlaps with the target's directions [E1, E2].

Inputs x ~ N(0, I_d), labels y = g(Ux), a neuron a σ(w·x) with ‖w‖ = 1 and the correlation loss -a y σ(w·x). All steps
on one sample move w along x, by c in total; then w is normalized:

    c ← c + η a y σ'(w·x + c‖x‖²),    m = Uw ← (m + c Ux)/√(1 + 2c w·x + c²‖x‖²)

Given m, the distribution of all quantities that enter does not depend on w: Ux ~ N(0, I_r),
w·x = m·Ux + √(1 - ‖m‖²) p, ‖x‖² = ‖Ux‖² + p² + χ²_{d-r-1} with p ~ N(0, 1). The state is therefore r numbers for any d.
χ² is drawn as the cube of a normal variable (Wilson and Hilferty 1931): mean and variance are accurate to 1e-5 and 1e-3
from 13 degrees of freedom on, at a tenth of the cost of an exact draw.
Ben Arous, Gheissari and Jagannath (JMLR 2021); batches used twice: Dandi et al. (2024).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray, Real

from unlazy.core.arrays import dot, is_concrete

CHUNK_SIZE = 256
"""Number of samples drawn at a time."""


class OnlineRule(NamedTuple):
    """Update rule of online SGD."""

    step_size: Real[Array, ""] | float
    """η."""
    repeats: int = 1
    """Steps on each sample."""
    output_step: float = 0.0
    """Step of the output weight on the sample before w moves: a = 1 + output_step·y σ(w·x), reset afterward."""


class OverlapSample(NamedTuple):
    """Quantities of x that enter a step besides m: Ux, a standard normal p, and ‖x‖² outside the span of U and w."""

    latent: Float[Array, " r"]
    beside: Float[Array, ""]
    rest: Float[Array, ""]


def draw(key: PRNGKeyArray, n: int, r: int, d: Real[Array, ""] | int) -> OverlapSample:
    """Draw n samples in d dimensions, r of which the target depends on."""
    latent, beside, rest = jnp.split(jax.random.normal(key, (n, r + 2)), [r, r + 1], axis=1)
    freedom = jnp.asarray(d, latent.dtype) - r - 1
    h = 2 / (9 * freedom)
    return OverlapSample(latent, beside[:, 0], freedom * (1 - h + jnp.sqrt(h) * rest[:, 0]) ** 3)


def update_overlap(
    overlap: Float[Array, " r"], sample: OverlapSample, target: Callable[[Array], Array],
    neuron: Callable[[Array], Array], rule: OnlineRule,
) -> Float[Array, " r"]:  # fmt: skip
    """Return m after one sample; `target` takes (1, r) latent coordinates, `neuron` scalars."""
    outside = jnp.sqrt(jnp.maximum(1 - dot(overlap, overlap), 0.0))
    s = dot(overlap, sample.latent) + outside * sample.beside
    square = dot(sample.latent, sample.latent) + sample.beside**2 + sample.rest
    y = target(sample.latent[None])[0]
    a = 1 + rule.output_step * y * neuron(s)
    slope = jax.grad(neuron)
    c = jnp.zeros_like(s)
    for _ in range(rule.repeats):
        c = c + rule.step_size * a * y * slope(s + c * square)
    return (overlap + c * sample.latent) / jnp.sqrt(1 + 2 * c * s + c**2 * square)


def samples_until(
    start: Float[Array, " r"], level: float, most: Real[Array, ""] | int, target: Callable[[Array], Array],
    neuron: Callable[[Array], Array], rule: OnlineRule, d: Real[Array, ""] | int, *, key: PRNGKeyArray,
) -> Float[Array, ""]:  # fmt: skip
    """Return the number of samples after which ‖m‖ ≥ level for the first time.

    Infinite if `most` samples (rounded up to a multiple of CHUNK_SIZE) do not suffice; NaN if m becomes NaN.
    """
    if is_concrete(d) and not float(d) >= start.shape[0] + 2:
        raise ValueError(f"{start.shape[0]} directions and a neuron need {start.shape[0] + 2} inputs or more, got {d=}")

    def one(state: tuple, sample: OverlapSample) -> tuple[tuple, None]:
        overlap, found, at = state
        overlap = update_overlap(overlap, sample, target, neuron, rule)
        there = dot(overlap, overlap) >= level**2
        return (overlap, jnp.where(there & jnp.isinf(found), at + 1, found), at + 1), None

    def some(state: tuple) -> tuple:
        samples = draw(jax.random.fold_in(key, state[2].astype(int)), CHUNK_SIZE, start.shape[0], d)
        return lax.scan(one, state, samples)[0]

    def going(state: tuple) -> Array:
        return jnp.isinf(state[1]) & (state[2] < most)

    zero = jnp.zeros((), start.dtype)
    overlap, found, _ = lax.while_loop(going, some, (start, zero + jnp.inf, zero))
    return jnp.where(jnp.isinf(found) & jnp.isnan(overlap).any(), jnp.nan, found)
