"""Effective ridge κ, learned modes and bias, estimated from the eigenvalues of one Gram matrix [G1].

For kernel ridge regression with ridge δ on n points, L_i = λ_i/(λ_i + κ) the learned fraction of mode i [G1]:

    κ = 1/tr (K + δ)^{-1},    Σ L_i = n - δ/κ,    n - Σ L_i² = 1/κ'(δ) = (tr (K + δ)^{-1})²/tr (K + δ)^{-2}

the last by differentiating Σ λ_i/(λ_i + κ) + δ/κ = n in κ. The bias Σ (1 - L_i)² v_i² + ς² depends on κ only, and
risk = n·bias/(n - Σ L_i²): a bias measured at one n and δ holds for every other n and δ with the same κ.
(Simon, Dickens, Karkada and DeWeese 2023; Wei, Hu and Steinhardt 2022 for κ and the risk from data [G2].)
"""

from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Real

from unlazy.core.arrays import namespace


class Renormalized(NamedTuple):
    """For every ridge: the effective ridge, and two counts of modes."""

    kappa: Float[Array, " r"] | Float[np.ndarray, " r"]
    """Effective ridge κ."""
    learned: Float[Array, " r"] | Float[np.ndarray, " r"]
    """Σ L_i, the degrees of freedom."""
    spare: Float[Array, " r"] | Float[np.ndarray, " r"]
    """n - Σ L_i²."""


def renormalize(eigenvalues: Float[ArrayLike, " n"], ridges: Float[ArrayLike, " r"]) -> Renormalized:
    """κ, Σ L and n - Σ L² of the population, from the eigenvalues of K(X,X) [G1, G2].

    Parameters
    ----------
    eigenvalues : array of shape (n,)
        NumPy or JAX.
    ridges : array of shape (r,)
        Positive.

    Returns
    -------
    Renormalized
    """
    xp = namespace(eigenvalues)
    values, delta = xp.asarray(eigenvalues), xp.asarray(ridges)
    inverse = 1 / (xp.maximum(values, 0) + delta[:, None])
    trace, squares = inverse.sum(1), xp.square(inverse).sum(1)
    return Renormalized(1 / trace, values.shape[0] - delta * trace, trace**2 / squares)


def bias(risk: Float[ArrayLike, "*s"], spare: Float[ArrayLike, "*s"], n: float) -> Array | np.ndarray:
    """Σ (1 - L_i)² v_i² + ς² = risk·(n - Σ L_i²)/n [G1]."""
    return namespace(risk, spare).asarray(risk) * spare / n


def risk(
    bias: Float[ArrayLike, "*s"], squares: Float[ArrayLike, "*s"], n: Real[ArrayLike, "..."]
) -> Array | np.ndarray:
    """n·bias/(n - Σ L_i²) [G1]; infinite if n is at most Σ L_i²."""
    xp = namespace(bias, squares)
    left = xp.asarray(n) - squares
    return xp.where(left > 0, n * xp.asarray(bias) / xp.where(left > 0, left, 1), xp.inf)
