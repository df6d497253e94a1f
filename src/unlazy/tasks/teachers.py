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
from unlazy.theory.activations.functions import Activation
from unlazy.theory.activations.functions import activation as named_activation

KNOWN_DEGREE = 12


class Teacher(RidgeSum):
    """f*(x) = Σ_j a_j σ(w_j·x) [L5], x ~ N(0, I_d), ‖w_j‖ = 1, any activation."""

    W: Float[Array, "r d"]
    heads: Float[Array, " r"]
    activation: Activation = eqx.field(static=True)
    coefficients: tuple[float, ...] = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(
        self, W: Float[Array, "r d"], heads: Float[Array, " r"], activation: Activation,
        noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        self.W, self.heads, self.activation, self.noise = W, heads, activation, noise
        self.d, self.degree = W.shape[1], 4
        found = hermite.coefficients(activation, KNOWN_DEGREE, activation.kinks)
        norm = math.sqrt(hermite.second_moment(activation, activation.kinks))
        self.coefficients = hermite.without_rounding(found, norm)

    def ridges(self, Z: Float[Array, "n r"]) -> Float[Array, "n r"]:
        return self.activation(Z)

    def ridge_coefficients(self) -> Float[np.ndarray, "r k"]:
        return np.tile(self.coefficients, (self.W.shape[0], 1))

    def pair_moments(self, correlation: Float[Array, "r r"]) -> Float[Array, "r r"]:
        return hermite.pair_moment(self.activation, correlation, self.activation.kinks)


def teacher(
    d: int, neurons: int, activation: str | Activation | Callable = "relu", *,
    heads: Float[Array, " r"] | None = None, key: PRNGKeyArray | None = None,
    weights: Float[Array, "r d"] | None = None, orthogonal: bool = True, noise: float = 0.0,
) -> Teacher:  # fmt: skip
    """A teacher with orthonormal neurons (or independent ones on the sphere) and equal heads 1/√r unless given."""
    neurons = check_positive_integer("neurons", neurons)
    W = unit_rows(d, neurons, weights, key, orthogonal)
    if heads is None:
        heads = jnp.ones(neurons, W.dtype) / jnp.sqrt(jnp.asarray(neurons, W.dtype))
    if heads.shape != (neurons,):
        raise ValueError(f"`heads` must have shape ({neurons},), got {heads.shape}")
    return Teacher(W, heads, named_activation(activation), noise)
