"""Are these draws from that Gaussian? Whitened moments, and a bound for the largest of many z-scores [K5]."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from unlazy.core.linalg import dot


def whiten(
    draws: Float[Array, "s q"], mean: Float[Array, " q"], covariance: Float[Array, "q q"]
) -> Float[Array, "s q"]:
    """Draws as they would be independent standard normals if they came from N(mean, covariance)."""
    L = jnp.linalg.cholesky(covariance)
    return solve_triangular(L, (draws - mean).T, lower=True).T


def moments(whitened: Float[Array, "s q"]) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
    """First and second moments over the draws: zero and the identity in expectation."""
    return whitened.mean(0), dot(whitened.T, whitened) / whitened.shape[0]


def z_scores(first: np.ndarray, second: np.ndarray, draws: int) -> np.ndarray:
    """Standard normal scores of q means and q(q+1)/2 second moments of `draws` whitened draws.

    Variances are χ² over their count, made normal by the cube root (Wilson & Hilferty 1931), so that the far tail,
    where a maximum over many scores lives, is right too.
    """
    width = 2 / (9 * draws)
    variances = (np.cbrt(np.diag(second)) - (1 - width)) / np.sqrt(width)
    products = second[np.triu_indices(len(second), 1)] * np.sqrt(draws)
    return np.concatenate([first * np.sqrt(draws), variances, products])


def largest_allowed(count: int, chance: float = 1e-4) -> float:
    """What the largest |z| of `count` scores exceeds with at most this chance (Bonferroni)."""
    from scipy.stats import norm

    return float(norm.isf(chance / (2 * count)))


def largest_allowed_t(count: int, freedom: int, chance: float = 1e-4) -> float:
    """The same for Student's t with this many degrees of freedom: scores whose standard error was measured too."""
    from scipy.stats import t

    return float(t.isf(chance / (2 * count), freedom))
