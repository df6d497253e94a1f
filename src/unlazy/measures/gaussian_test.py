"""Test whether draws come from a given Gaussian: whitened moments and a bound on the largest z-score [K5]."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from unlazy.core.arrays import dot


def whiten(
    draws: Float[Array, "s q"], mean: Float[Array, " q"], covariance: Float[Array, "q q"]
) -> Float[Array, "s q"]:
    """Whiten draws: independent standard normals if they come from N(mean, covariance).

    Parameters
    ----------
    draws : array of shape (s, q)
    mean : array of shape (q,)
    covariance : array of shape (q, q)

    Returns
    -------
    array of shape (s, q)
    """
    L = jnp.linalg.cholesky(covariance)
    return solve_triangular(L, (draws - mean).T, lower=True).T


def moments(whitened: Float[Array, "s q"]) -> tuple[Float[Array, " q"], Float[Array, "q q"]]:
    """First and second moments over the draws; zero and the identity in expectation.

    Parameters
    ----------
    whitened : array of shape (s, q)

    Returns
    -------
    first : array of shape (q,)
    second : array of shape (q, q)
    """
    return whitened.mean(0), dot(whitened.T, whitened) / whitened.shape[0]


def z_scores(first: np.ndarray, second: np.ndarray, draws: int) -> np.ndarray:
    """Standard normal scores of the q means and q(q+1)/2 second moments of whitened draws.

    Variances are χ² variables divided by their degrees of freedom; the cube root makes them normal (Wilson and Hilferty
    1931) far into the tail, which the maximum over many scores probes.

    Parameters
    ----------
    first : array of shape (q,)
    second : array of shape (q, q)
        As returned by `moments`.
    draws : int
        Number of draws.

    Returns
    -------
    array of shape (q + q(q+1)/2,)
    """
    width = 2 / (9 * draws)
    variances = (np.cbrt(np.diag(second)) - (1 - width)) / np.sqrt(width)
    products = second[np.triu_indices(len(second), 1)] * np.sqrt(draws)
    return np.concatenate([first * np.sqrt(draws), variances, products])


def max_z_threshold(count: int, chance: float = 1e-4) -> float:
    """Threshold that the largest |z| of `count` scores exceeds with probability at most `chance` (Bonferroni)."""
    from scipy.stats import norm

    return float(norm.isf(chance / (2 * count)))


def max_t_threshold(count: int, freedom: int, chance: float = 1e-4) -> float:
    """As `max_z_threshold` for Student's t with `freedom` degrees of freedom: scores with estimated standard errors."""
    from scipy.stats import t

    return float(t.isf(chance / (2 * count), freedom))
