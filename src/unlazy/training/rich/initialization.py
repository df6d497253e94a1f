"""Initialization of neurons: coordinates that depend on K^x alone, quasi-random normals, symmetric sets."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from unlazy.core.arrays import dot
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.options import SYMMETRIC

SOBOL_DIMENSIONS = 21201
"""Number of dimensions covered by SciPy's direction numbers."""
BITS = 30
"""Binary digits of a quasi-random number."""


class Coordinates(eqx.Module):
    """Embedded inputs (σ_w x/√d, σ_b), in coordinates of the span of the training points if that is smaller.

    Weights outside the span never move, so the cost does not otherwise depend on d.
    """

    network: MLP
    basis: Float[Array, "r e"] | None
    key: PRNGKeyArray

    def embed(self, X: Float[Array, "n d"]) -> Float[Array, "n e"]:
        """Return (σ_w x/√d, σ_b), whose inner products are K^x = Σ¹ [K7]."""
        return embed(self.network, X)

    def reduce(self, X: Float[Array, "n d"]) -> Float[Array, "n r"]:
        """Return E with E Eᵀ = K^x, for points in the span."""
        E = self.embed(X)
        return E if self.basis is None else dot(E, self.basis.T)

    def weights(self, w: Float[Array, "*runs N r"]) -> Float[Array, "*runs N e"]:
        """Return neurons in the coordinates of the embedding; components outside the span use a fixed key."""
        if self.basis is None:
            return w
        outside = jax.random.normal(self.key, (*w.shape[:-1], self.basis.shape[1]), w.dtype)
        return dot(w, self.basis) + outside - dot(dot(outside, self.basis.T), self.basis)


def coordinates(network: MLP, X: Float[Array, "n d"], key: PRNGKeyArray) -> Coordinates:
    """Return the coordinates of the embedding, or of the span of the points if they are fewer."""
    E = embed(network, X)
    basis = jnp.linalg.qr(E.T)[0].T if E.shape[0] < E.shape[1] else None
    return Coordinates(network, basis, key)


def symmetric_normals(
    key: PRNGKeyArray, runs: int, draws: int, first: int, second: int, quasi: bool, dtype: DTypeLike
) -> tuple[Float[Array, "runs N first"], Float[Array, "runs N second"]]:
    """Draw standard normal rows in two parts, with both signs of both parts, independent between runs.

    Quasi-random rows are Sobol points with a new scrambling in each run.
    """
    sets, dims = draws // SYMMETRIC, first + second
    if quasi and dims <= SOBOL_DIMENSIONS:
        rows = _quasi_normals(key, jnp.asarray(_sobol(sets, dims)), runs, jnp.dtype(dtype))
    else:
        rows = jax.random.normal(key, (runs, sets, dims), dtype)
    a, b = rows[..., :first], rows[..., first:]
    return jnp.concatenate([a, a, -a, -a], axis=1), jnp.concatenate([b, -b, b, -b], axis=1)


@partial(jax.jit, static_argnames=("runs", "dtype"))
def _quasi_normals(
    key: PRNGKeyArray, points: UInt32[Array, "N q"], runs: int, dtype: DTypeLike
) -> Float[Array, "runs N q"]:
    """Return normal quantiles of scrambled points, in one program of some forty operations."""
    tiny = jnp.finfo(dtype).eps
    uniform = (scramble(key, points, runs).astype(dtype) + 0.5) / 2**BITS
    return jax.scipy.special.ndtri(jnp.clip(uniform, tiny, 1 - tiny))


def scramble(key: PRNGKeyArray, points: UInt32[Array, "N q"], runs: int) -> UInt32[Array, "runs N q"]:
    """Apply random linear maps to the digits of every coordinate, and a random digital shift, for every run.

    Each point is then uniform, so means are unbiased, and the set keeps its equidistribution: variances decrease faster
    than with shifts alone. Matoušek, On the L2-discrepancy for anchored boxes (1998).
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
    """Return Sobol points as integers in units of 2^-BITS."""
    from scipy.stats import qmc

    # a power of two, else SciPy warns that the set is not balanced
    points = qmc.Sobol(dims, scramble=False, bits=BITS).random_base2(max(rows - 1, 1).bit_length())[:rows]
    return (points * 2**BITS).astype(np.uint32)
