"""Where neurons live and how they are drawn: coordinates that know K^x alone, quasi-random numbers, symmetric sets."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.architecture import MLP
from unlazy.core.errors import check_positive_integer
from unlazy.core.linear import dot
from unlazy.theory.mean_field import embed

SOBOL_DIMENSIONS = 21201
"""Dimensions that SciPy's direction numbers reach."""
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

    Quasi-random: Sobol points with a random shift of each run (Cranley and Patterson 1976), which leaves every mean
    unbiased.
    """
    sets, dims = draws // SYMMETRIC, first + second
    if quasi and dims <= SOBOL_DIMENSIONS:
        points = jnp.asarray(_sobol(sets, dims), dtype)
        shifts = jax.random.uniform(key, (runs, 1, dims), dtype)
        tiny = jnp.finfo(dtype).eps
        rows = jax.scipy.special.ndtri(jnp.clip((points + shifts) % 1.0, tiny, 1 - tiny))
    else:
        rows = jax.random.normal(key, (runs, sets, dims), dtype)
    a, b = rows[..., :first], rows[..., first:]
    return jnp.concatenate([a, a, -a, -a], axis=1), jnp.concatenate([b, -b, b, -b], axis=1)


def _sobol(rows: int, dims: int) -> np.ndarray:
    from scipy.stats import qmc

    # asked for in powers of two, else SciPy warns that the set is not balanced
    return qmc.Sobol(dims, scramble=False).random_base2(max(rows - 1, 1).bit_length())[:rows]
