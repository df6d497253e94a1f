"""Quadratic models: networks with square activation [L6] and two-layer networks to second order [L8]."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import default_float, dot
from unlazy.core.errors import check_positive_integer
from unlazy.theory.activations.functions import ActivationFunction
from unlazy.theory.activations.functions import activation as named_activation


class QuadraticNetwork(eqx.Module):
    """Two-layer network with square activation and frozen readout weights ±1 [L6].

    f(x) = Σ_r s_r (w_r·x)² = xᵀMx with M = Σ_r s_r w_r w_rᵀ and alternating signs s_r. The smallest Σ‖w_r‖² for a given
    M is ‖M‖_*, so weight decay acts as the nuclear norm. Evaluated as f(W, X) with W of shape (w, d).

    Parameters
    ----------
    width : int
        Number of neurons.
    """

    width: int = eqx.field(static=True)

    def __check_init__(self):
        check_positive_integer("width", self.width)

    @property
    def signs(self) -> Float[Array, " w"]:
        """Readout weights +1, -1, +1, …."""
        return alternating(self.width)

    def init(self, key: PRNGKeyArray, inputs: int, scale: float = 0.1) -> Float[Array, "w d"]:
        """Draw small Gaussian rows with ‖w_r‖ ≈ scale."""
        inputs = check_positive_integer("inputs (dimension of x)", inputs)
        return jax.random.normal(key, (self.width, inputs), default_float()) * (scale / inputs**0.5)

    def matrix(self, W: Float[Array, "w d"]) -> Float[Array, "d d"]:
        """Return M with f(x) = xᵀMx."""
        return dot(W.T * self.signs.astype(W.dtype), W)

    def __call__(self, W: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f at the rows of X."""
        return dot(jnp.square(dot(X, W.T)), self.signs.astype(X.dtype))


class SecondOrder(eqx.Module):
    """Second-order expansion of a two-layer network around W_0, term by term [L8].

    A function of the displacements δ_r of the neurons:

    f(W_0 + δ) ≈ Σ a_r σ(w_r·x) + Σ a_r σ'(w_r·x)(δ_r·x) + ½ Σ a_r σ''(w_r·x)(δ_r·x)²

    It has the values of `quadratic_expansion` of the network, with the terms available separately: the linear term is
    odd in δ, the others are even. Bai and Lee, Beyond linearization (ICLR 2020).

    Parameters
    ----------
    W0 : array of shape (w, d)
        First-layer weights at initialization.
    a : array of shape (w,)
        Readout weights.
    activation : Activation
        Activation σ with a second derivative.
    """

    W0: Float[Array, "w d"]
    a: Float[Array, " w"]
    activation: ActivationFunction = eqx.field(static=True)

    def parts(
        self, delta: Float[Array, "w d"], X: Float[Array, "n d"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
        """Return the value at initialization, the linear term and the quadratic term."""
        z, move = dot(X, self.W0.T), dot(X, delta.T)
        slope = _derivative(self.activation)
        a = self.a.astype(z.dtype)
        return (
            dot(self.activation(z), a),
            dot(slope(z) * move, a),
            dot(_derivative(slope)(z) * jnp.square(move), a) / 2,
        )

    def linear(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return f(W_0) plus the linear term: the tangent model."""
        start, linear, _ = self.parts(delta, X)
        return start + linear

    def even(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Return f(W_0) plus the quadratic term: the mean over independent random signs of the displacements."""
        start, _, quadratic = self.parts(delta, X)
        return start + quadratic

    def __call__(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate the sum of all three terms."""
        start, linear, quadratic = self.parts(delta, X)
        return start + linear + quadratic


def second_order(W0: Float[Array, "w d"], a: Float[Array, " w"], activation: str | ActivationFunction) -> SecondOrder:
    """Build the second-order model of x → Σ_r a_r σ(w_r·x).

    Parameters
    ----------
    W0 : array of shape (w, d)
        First-layer weights at initialization.
    a : array of shape (w,)
        Readout weights.
    activation : str or Activation
        Activation without kinks.

    Returns
    -------
    SecondOrder
        The expansion as a function of (δ, X).

    Raises
    ------
    ValueError
        If the activation has kinks or `a` does not have one entry per neuron.
    """
    chosen = named_activation(activation)
    if chosen.kinks:
        raise ValueError(f"{chosen.name!r} has no second derivative at its kinks; use softplus, square, gelu or tanh")
    if a.shape != W0.shape[:1]:
        raise ValueError(f"`a` needs one entry per neuron, {W0.shape[0]}, got {a.shape}")
    return SecondOrder(W0, a, chosen)


def fourth_power_norm(W: Float[Array, "w d"]) -> Float[Array, ""]:
    """‖W‖_{2,4}^4 = Σ_r ‖w_r‖⁴ [L8]: the analog for the quadratic term of ‖·‖² for the linear one."""
    return jnp.sum(jnp.square(jnp.sum(jnp.square(W), 1)))


def alternating(width: int) -> Float[Array, " w"]:
    """Return +1, -1, +1, …."""
    return jnp.where(jnp.arange(width) % 2 == 0, 1.0, -1.0)


def _derivative(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the elementwise derivative, computed by one forward-mode pass."""
    return lambda z: jax.jvp(function, (z,), (jnp.ones_like(z),))[1]
