"""Quadratic models: the network with square activation [L6], and any two-layer network to second order [L8]."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.core.precision import default_float
from unlazy.theory.activations.functions import Activation
from unlazy.theory.activations.functions import activation as named_activation


class QuadraticNetwork(eqx.Module):
    """f(x) = Σ_r s_r (w_r·x)², s_r = ±1 in turn and frozen: xᵀMx with M = Σ_r s_r w_r w_rᵀ [L6].

    Least Σ‖w_r‖² for a given M is ‖M‖_*, so weight decay is the nuclear norm. Called as f(W, X), W of shape (w, d).
    """

    width: int = eqx.field(static=True)

    def __check_init__(self):
        check_positive_integer("width", self.width)

    @property
    def signs(self) -> Float[Array, " w"]:
        return alternating(self.width)

    def init(self, key: PRNGKeyArray, inputs: int, scale: float = 0.1) -> Float[Array, "w d"]:
        """Small Gaussian rows, ‖w_r‖ ≈ scale."""
        inputs = check_positive_integer("inputs (dimension of x)", inputs)
        return jax.random.normal(key, (self.width, inputs), default_float()) * (scale / inputs**0.5)

    def matrix(self, W: Float[Array, "w d"]) -> Float[Array, "d d"]:
        """M with f(x) = xᵀMx."""
        return dot(W.T * self.signs.astype(W.dtype), W)

    def __call__(self, W: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return dot(jnp.square(dot(X, W.T)), self.signs.astype(X.dtype))


class SecondOrder(eqx.Module):
    """A two-layer network around its start W_0, term by term, as a function of the moves δ_r of its neurons [L8].

    f(W_0 + δ) ≈ Σ a_r σ(w_r·x) + Σ a_r σ'(w_r·x)(δ_r·x) + ½ Σ a_r σ''(w_r·x)(δ_r·x)²

    The same values as `quadratic_expansion` of the network, with the parts apart: the linear part is odd in δ, the
    rest even. Bai and Lee, Beyond linearization (ICLR 2020).
    """

    W0: Float[Array, "w d"]
    a: Float[Array, " w"]
    activation: Activation = eqx.field(static=True)

    def parts(
        self, delta: Float[Array, "w d"], X: Float[Array, "n d"]
    ) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, " n"]]:
        """The value at the start, the linear and the quadratic part."""
        z, move = dot(X, self.W0.T), dot(X, delta.T)
        slope = _derivative(self.activation)
        a = self.a.astype(z.dtype)
        return (
            dot(self.activation(z), a),
            dot(slope(z) * move, a),
            dot(_derivative(slope)(z) * jnp.square(move), a) / 2,
        )

    def linear(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """f(W_0) and the linear part: the tangent model."""
        start, linear, _ = self.parts(delta, X)
        return start + linear

    def even(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """f(W_0) and the quadratic part: the mean over independent random signs of the moves."""
        start, _, quadratic = self.parts(delta, X)
        return start + quadratic

    def __call__(self, delta: Float[Array, "w d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
        start, linear, quadratic = self.parts(delta, X)
        return start + linear + quadratic


def second_order(W0: Float[Array, "w d"], a: Float[Array, " w"], activation: str | Activation) -> SecondOrder:
    """The second-order model of x → Σ_r a_r σ(w_r·x); the activation needs a second derivative somewhere."""
    chosen = named_activation(activation)
    if chosen.kinks:
        raise ValueError(f"{chosen.name!r} has no second derivative at its kinks; take softplus, square, gelu or tanh")
    if a.shape != W0.shape[:1]:
        raise ValueError(f"`a` needs one entry per neuron, {W0.shape[0]}, got {a.shape}")
    return SecondOrder(W0, a, chosen)


def fourth_power_norm(W: Float[Array, "w d"]) -> Float[Array, ""]:
    """‖W‖_{2,4}^4 = Σ_r ‖w_r‖⁴ [L8]: on moves it is to the quadratic part what ‖·‖² is to the linear one."""
    return jnp.sum(jnp.square(jnp.sum(jnp.square(W), 1)))


def alternating(width: int) -> Float[Array, " w"]:
    """+1, -1, +1, …"""
    return jnp.where(jnp.arange(width) % 2 == 0, 1.0, -1.0)


def _derivative(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Elementwise derivative by one forward-mode pass."""
    return lambda z: jax.jvp(function, (z,), (jnp.ones_like(z),))[1]
