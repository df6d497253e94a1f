"""Expansions of a function around its start [K10, L8], and the linear one trained in closed form [K3]."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import Labels, Points, count, labels, points
from unlazy.core.errors import check_positive_integer
from unlazy.core.pytrees import split, spread_over
from unlazy.networks.tangent import tangent_kernel
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.infinite_width.jacobian import of_parameters
from unlazy.theory.numerics.divided_differences import DESCENT, FLOW
from unlazy.theory.numerics.matrix_functions import MatrixFunction, spectrum_of

Apply = Callable[[Any, Array], Array]


class Expansion(eqx.Module):
    """Taylor polynomial of f in its parameters around θ_0; itself a function of (parameters, inputs).

    order 1: f(θ_0) + ∇f(θ_0)·δ [K10];  order 2: the same plus ½ δᵀ∇²f(θ_0)δ [L8], δ = θ - θ_0;  order k: with all terms
    d^j/dt^j f(θ_0 + tδ)/j! up to k. No Jacobian is formed: one forward-mode derivative per order.
    """

    apply: Apply
    start: Any
    order: int = eqx.field(static=True)

    def __call__(self, params: Any, X: Points) -> Float[Array, "n ..."]:
        X = points(X, takes="tree")
        f, start = of_parameters(self.apply, self.start)
        move = jax.tree.map(jnp.subtract, split(params)[0], start)

        def along(base: Any) -> tuple[Array, Array]:
            return jax.jvp(lambda theta: f(theta, X), (base,), (move,))

        if self.order == 1:
            value, slope = along(start)
            return value + slope
        if self.order == 2:
            (value, slope), (_, curvature) = jax.jvp(along, (start,), (move,))
            return value + slope + curvature / 2
        terms = derivatives(lambda t: f(jax.tree.map(lambda p, d: p + t * d, start, move), X), self.order)
        return sum(term / math.factorial(j) for j, term in enumerate(terms))  # type: ignore[return-value]


def derivatives(line: Callable[[Array], Array], order: int) -> tuple[Array, ...]:
    """line and its derivatives up to an order, at 0: forward mode in forward mode."""

    def up_to(k: int) -> Callable[[Array], tuple[Array, ...]]:
        if k == 0:
            return lambda t: (line(t),)

        def grown(t: Array) -> tuple[Array, ...]:
            values, slopes = jax.jvp(up_to(k - 1), (t,), (jnp.ones_like(t),))
            return (*values, slopes[-1])

        return grown

    return up_to(order)(jnp.zeros(()))


def linearize(apply: Apply, params: Any) -> Expansion:
    """f_lin(θ) = f(θ_0) + ∇f(θ_0)(θ - θ_0) [K10] (Lee et al. 2019). Descent, kernels and measures take it like f.

    >>> net = Network(MLP(1, width=64), 3)
    >>> params = net.init(key)
    >>> bool(jnp.allclose(linearize(net, params)(params, X), net(params, X), rtol=1e-5))
    True
    """
    return Expansion(apply, params, 1)


def quadratic_expansion(apply: Apply, params: Any) -> Expansion:
    """Second-order expansion around θ_0 [L8] (Bai, Lee 2020)."""
    return Expansion(apply, params, 2)


def expand(apply: Apply, params: Any, order: int = 1) -> Expansion:
    """Taylor polynomial of any order around θ_0, itself a function of (parameters, inputs) [K10, L8]."""
    return Expansion(apply, params, check_positive_integer("order", order))


def trained_linearization(
    apply: Apply,
    params: Any,
    X: Points,
    y: Labels,
    *,
    time: float | None = None,
    step_size: Any = None,
    steps: int | None = None,
    rates: Any = 1.0,
) -> Any:
    """Parameters of f_lin after training on ½Σ(f - y)², in closed form: θ = θ_0 + R Jᵀ c(K) (y - f_0(X)) [K3].

    Gradient flow until `time` (infinity allowed) or `steps` steps of `step_size`; c(λ) = (1 - e^{-λt})/λ or
    (1 - (1 - ηλ)^s)/λ on the eigenvalues of the tangent kernel K = J R Jᵀ, R the layer-wise rates.
    """
    if (time is None) == (step_size is None) or (step_size is None) != (steps is None):
        raise ValueError(f"give either time, or step_size and steps; got {time=}, {step_size=}, {steps=}")
    X = points(X, takes="tree")
    y = labels(y, count(X))
    K = tangent_kernel(apply, params, X, rates=rates)
    spectrum, raw = spectrum_of(K.reshape(y.size, y.size))
    way, given = (FLOW, [time]) if time is not None else (DESCENT, [step_size, steps])
    c = MatrixFunction(
        way, spectrum, tuple(jnp.asarray(v, K.dtype) for v in given), spectral_filters.rounding_floor(raw)
    )
    f, start = of_parameters(apply, params)
    f0, pull = jax.vjp(lambda theta: f(theta, X), start)
    alpha = spectral_filters.coefficients(spectrum.eigenvectors, c, (y - f0).ravel())
    (gradient,) = pull(alpha.reshape(f0.shape))
    moved = jax.tree.map(lambda p, r, g: p + r * g, start, spread_over(rates, start), gradient)
    return eqx.combine(moved, split(params)[1])
