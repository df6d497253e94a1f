"""Expansions of a function around its start [K10, L8], and the linear one trained in closed form [K3]."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.networks.parametrisation import spread_over
from unlazy.networks.tangent import tangent_kernel

Apply = Callable[[Any, Array], Array]


class Expansion(eqx.Module):
    """Taylor polynomial of f in its parameters around θ_0; itself a function of (parameters, inputs).

    order 1: f(θ_0) + ∇f(θ_0)·δ [K10];  order 2: the same plus ½ δᵀ∇²f(θ_0)δ [L8], δ = θ - θ_0. No Jacobian is formed:
    one forward-mode derivative per order.
    """

    apply: Apply
    start: Any
    order: int = eqx.field(static=True)

    def __call__(self, params: Any, X: Float[Array, "n d"]) -> Float[Array, "n *c"]:
        move = jax.tree.map(jnp.subtract, params, self.start)

        def along(base: Any) -> tuple[Array, Array]:
            return jax.jvp(lambda theta: self.apply(theta, X), (base,), (move,))

        if self.order == 1:
            value, slope = along(self.start)
            return value + slope
        (value, slope), (_, curvature) = jax.jvp(along, (self.start,), (move,))
        return value + slope + curvature / 2


def linearise(apply: Apply, params: Any) -> Expansion:
    """f_lin(θ) = f(θ_0) + ∇f(θ_0)(θ - θ_0) [K10] (Lee et al. 2019). Descent, kernels and measures take it like f."""
    return Expansion(apply, params, 1)


def quadratic_expansion(apply: Apply, params: Any) -> Expansion:
    """Second-order expansion around θ_0 [L8] (Bai, Lee 2020)."""
    return Expansion(apply, params, 2)


def trained_linearisation(
    apply: Apply,
    params: Any,
    X: Float[Array, "n d"],
    y: Float[Array, "n *c"],
    decay: Callable[[Float[Array, " k"]], Float[Array, " k"]],
    rates: Any = 1.0,
) -> Any:
    """Parameters of f_lin after training on ½Σ(f - y)², in closed form: θ = θ_0 + Jᵀ K^-1 (I - D(K)) (y - f_0) [K3].

    `decay` maps eigenvalues of the tangent kernel K to what is left of a residual along them: e^{-λt} for gradient flow
    until t, (1 - ηλ)^s for s steps, 0 for t → ∞. Directions with λ at rounding level stay where they started.
    """
    K = tangent_kernel(apply, params, X, rates=rates)
    size = y.size
    eigenvalues, Q = jnp.linalg.eigh(K.reshape(size, size))
    floor = size * jnp.finfo(K.dtype).eps * eigenvalues[-1]
    inverse = jnp.where(eigenvalues > floor, 1 / jnp.where(eigenvalues > floor, eigenvalues, 1.0), 0.0)
    residual, pull = jax.vjp(lambda theta: y - apply(theta, X), params)
    coefficients = Q @ (inverse * (1 - decay(eigenvalues)) * (Q.T @ residual.ravel()))
    (gradient,) = pull(-coefficients.reshape(residual.shape))
    return jax.tree.map(lambda p, r, g: p + r * g, params, spread_over(rates, params), gradient)
