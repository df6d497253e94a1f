"""Two-layer teacher networks on Gaussian inputs [L5]."""

import math
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.tasks.ridge_sums import RidgeSum, unit_rows
from unlazy.theory.activations import hermite
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.functions import activation as named_activation

KNOWN_DEGREE = 12
"""Largest Hermite degree stored of the activation."""


class Teacher(RidgeSum):
    """Teacher network f*(x) = Σ_j a_j σ(w_j·x) [L5], x ~ N(0, I_d), ‖w_j‖ = 1, any activation.

    Parameters
    ----------
    W : array of shape (r, d)
        Unit rows w_j.
    heads : array of shape (r,)
        Readout weights a_j.
    activation : activation function
        The activation σ.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import Teacher, teacher
    >>> relu = teacher(3, 2, "relu").activation
    >>> task = Teacher(jnp.eye(2, 3), jnp.array([1.0, -2.0]), relu)
    >>> task.target(jnp.array([[3.0, 1.0, 0.0], [-1.0, 1.0, 0.0]])).tolist()
    [1.0, -2.0]
    """

    W: Float[Array, "r d"]
    heads: Float[Array, " r"]
    activation: ActivationFunction = eqx.field(static=True)
    coefficients: tuple[float, ...] = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(
        self, W: Float[Array, "r d"], heads: Float[Array, " r"], activation: ActivationFunction,
        noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        self.W, self.heads, self.activation, self.noise = W, heads, activation, noise
        self.d, self.degree = W.shape[1], 4
        found = hermite.coefficients(activation, KNOWN_DEGREE, activation.kinks)
        norm = math.sqrt(hermite.second_moment(activation, activation.kinks))
        self.coefficients = hermite.without_rounding(found, norm)

    def ridges(self, Z: Float[Array, "n r"]) -> Float[Array, "n r"]:
        """Return σ(z_j)."""
        return self.activation(Z)

    def ridge_coefficients(self) -> Float[np.ndarray, "r k"]:
        """Return the Hermite coefficients of σ, once per neuron."""
        return np.tile(self.coefficients, (self.W.shape[0], 1))

    def pair_moments(self, correlation: Float[Array, "r r"]) -> Float[Array, "r r"]:
        """Return E σ(w_i·x) σ(w_j·x) for the correlations ⟨w_i, w_j⟩."""
        return hermite.pair_moment(self.activation, correlation, self.activation.kinks)


def teacher(
    d: int, neurons: int, activation: str | ActivationFunction | Callable = "relu", *,
    heads: Float[Array, " r"] | None = None, key: PRNGKeyArray | None = None,
    weights: Float[Array, "r d"] | None = None, orthogonal: bool = True, noise: float = 0.0,
) -> Teacher:  # fmt: skip
    """Create a two-layer teacher network.

    Parameters
    ----------
    d : int
        Input dimension.
    neurons : int
        Number of neurons r.
    activation : str, activation or callable, default "relu"
        The activation σ.
    heads : array of shape (r,), optional
        Readout weights; 1/√r each by default.
    key : PRNG key, optional
        Draws random neurons; the first coordinate axes by default.
    weights : array of shape (r, d), optional
        Unit rows w_j.
    orthogonal : bool, default True
        Whether drawn neurons are orthonormal; otherwise independent and uniform on the sphere.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    Teacher
        The task.

    Raises
    ------
    ValueError
        If a shape does not match, the rows of `weights` do not have norm 1, or `key` is missing.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import teacher
    >>> task = teacher(10, 3, "relu", key=jax.random.key(0))
    >>> task.W.shape, task.sample(jax.random.key(1), 5).y.shape
    ((3, 10), (5,))
    """
    neurons = check_positive_integer("neurons", neurons)
    W = unit_rows(d, neurons, weights, key, orthogonal)
    if heads is None:
        heads = jnp.ones(neurons, W.dtype) / jnp.sqrt(jnp.asarray(neurons, W.dtype))
    if heads.shape != (neurons,):
        raise ValueError(f"`heads` must have shape ({neurons},), got {heads.shape}")
    return Teacher(W, heads, named_activation(activation), noise)
