"""Where neurons live and how they are drawn: coordinates that know K^x alone, quasi-random numbers, symmetric sets."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP

SOBOL_DIMENSIONS = 21201
"""Dimensions that SciPy's direction numbers reach."""
BITS = 30
"""Binary digits of a quasi-random number."""
SYMMETRIC = 4
"""Neurons that share one draw: (w, z), (w, -z), (-w, z), (-w, -z). f starts at zero exactly."""


class Coordinates(eqx.Module):
    """Embedded inputs (σ_w x/√d, σ_b) in coordinates of the span of the training points where that is smaller.

    A neuron's weights outside the span never move: cost does not depend on d beyond this.
    """

    network: MLP
    basis: Float[Array, "r e"] | None
    key: PRNGKeyArray

    def embed(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """(σ_w x/√d, σ_b): its inner products are K^x = Σ¹ [K7]."""
        return embed(self.network, X)

    def reduce(self, X: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """E with E Eᵀ = K^x, of points in the span."""
        E = self.embed(X)
        return E if self.basis is None else dot(E, self.basis.T)

    def weights(self, w: Float[Array, "*runs N r"]) -> Float[Array, "*runs N e"]:
        """Neurons in the embedding's own coordinates: parts outside the span are drawn, always the same."""
        if self.basis is None:
            return w
        outside = jax.random.normal(self.key, (*w.shape[:-1], self.basis.shape[1]), w.dtype)
        return dot(w, self.basis) + outside - dot(dot(outside, self.basis.T), self.basis)


def coordinates(network: MLP, X: Float[Array, "n d"], key: PRNGKeyArray) -> Coordinates:
    """Those of the embedding, or of the span of the points where they are fewer."""
    E = embed(network, X)
    basis = jnp.linalg.qr(E.T)[0].T if E.shape[0] < E.shape[1] else None
    return Coordinates(network, basis, key)


def check_draws(draws: int, runs: int) -> None:
    """Draws come in sets of four."""
    check_positive_integer("draws", draws)
    check_positive_integer("runs", runs)
    if draws % SYMMETRIC:
        raise ValueError(f"neurons are drawn in symmetric sets of {SYMMETRIC}, got draws={draws}: take a multiple")


def symmetric_normals(
    key: PRNGKeyArray, runs: int, draws: int, first: int, second: int, quasi: bool, dtype: Any
) -> tuple[Float[Array, "runs N first"], Float[Array, "runs N second"]]:
    """Standard normal rows in two parts, each with both signs of both parts, independent between runs.

    Quasi-random: Sobol points, scrambled anew in each run.
    """
    sets, dims = draws // SYMMETRIC, first + second
    if quasi and dims <= SOBOL_DIMENSIONS:
        rows = _quasi_normals(key, jnp.asarray(_sobol(sets, dims)), runs, jnp.dtype(dtype))
    else:
        rows = jax.random.normal(key, (runs, sets, dims), dtype)
    a, b = rows[..., :first], rows[..., first:]
    return jnp.concatenate([a, a, -a, -a], axis=1), jnp.concatenate([b, -b, b, -b], axis=1)


@partial(jax.jit, static_argnames=("runs", "dtype"))
def _quasi_normals(key: PRNGKeyArray, points: UInt32[Array, "N q"], runs: int, dtype: Any) -> Float[Array, "runs N q"]:
    """One program: the normal quantiles alone are some forty operations."""
    tiny = jnp.finfo(dtype).eps
    uniform = (scrambled(key, points, runs).astype(dtype) + 0.5) / 2**BITS
    return jax.scipy.special.ndtri(jnp.clip(uniform, tiny, 1 - tiny))


def scrambled(key: PRNGKeyArray, points: UInt32[Array, "N q"], runs: int) -> UInt32[Array, "runs N q"]:
    """Random linear maps of the digits of every coordinate, and a random digital shift, for every run.

    Each point is then uniform, so means are unbiased, and the set stays as even as it was: variances fall faster than
    with shifts alone. Matoušek, On the L2-discrepancy for anchored boxes (1998).
    """
    key_map, key_shift = jax.random.split(key)
    shape = (runs, 1, points.shape[1])
    shift = jax.random.bits(key_shift, shape, jnp.uint32) >> (32 - BITS)

    def digit(p: Array, found: Array) -> Array:
        one = jnp.uint32(1)
        above = jax.random.bits(jax.random.fold_in(key_map, p), shape, jnp.uint32) << (p + 1).astype(jnp.uint32)
        row = above | (one << p.astype(jnp.uint32))
        return found | ((jax.lax.population_count(points & row) & one) << p.astype(jnp.uint32))

    zeros = jnp.zeros((runs, *points.shape), jnp.uint32)
    return jax.lax.fori_loop(0, BITS, digit, zeros) ^ shift


def _sobol(rows: int, dims: int) -> np.ndarray:
    """Points as whole numbers of 2^-BITS."""
    from scipy.stats import qmc

    # asked for in powers of two, else SciPy warns that the set is not balanced
    points = qmc.Sobol(dims, scramble=False, bits=BITS).random_base2(max(rows - 1, 1).bit_length())[:rows]
    return (points * 2**BITS).astype(np.uint32)
