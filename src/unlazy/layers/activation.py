"""Elementwise activations: φ of every entry, and its Gaussian dual [C1, K7, K8]."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from unlazy.core import devices
from unlazy.layers.protocol import position_pairs
from unlazy.layers.protocol.base import Layer
from unlazy.layers.protocol.covariance import State, accepts_blocks, precompute, propagate, variances
from unlazy.layers.protocol.finite_evaluation import Context, apply
from unlazy.theory.activations import duals, functions
from unlazy.theory.numerics.geometry import covariance, is_near_duplicate, rounding_floor

SLICE = 2**17
"""Bytes of a covariance whose dual is evaluated at once on the CPU."""


SUMMED = 64
"""Terms of Σ whose roundings may make a pair of equal positions look different: channels times a window, and more."""


class Activation(Layer):
    """Elementwise activation φ.

    Parameters
    ----------
    phi : str, callable or ActivationFunction
        A name ("relu", "erf", "gelu", …), a function of jax, or any elementwise function of one array.
    parameter : float, optional
        Parameter of a named activation, for example the slope of "leaky_relu".

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Activation("relu").title
    'Activation relu'
    """

    phi: functions.ActivationFunction = eqx.field(static=True)

    def __init__(self, phi: Any, parameter: float | None = None):
        self.phi = functions.activation(phi, parameter)

    @property
    def title(self) -> str:
        """Name of the layer in messages."""
        return f"Activation {self.phi.name}"


def Relu() -> Activation:
    """ReLU activation max(x, 0).

    Returns
    -------
    Activation
        The layer.

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Relu().title
    'Activation relu'
    """
    return Activation("relu")


def Erf() -> Activation:
    """Error function activation.

    Returns
    -------
    Activation
        The layer.

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Erf().title
    'Activation erf'
    """
    return Activation("erf")


def Gelu() -> Activation:
    """GELU activation x Φ(x), with the exact normal distribution function.

    Returns
    -------
    Activation
        The layer.

    Examples
    --------
    >>> from unlazy import layers
    >>> layers.Gelu().title
    'Activation gelu'
    """
    return Activation("gelu")


@propagate.register
@accepts_blocks
def _propagate_activation(layer: Activation, state: State, left: Array, right: Array) -> State:
    """Σ → E φφ, Θ → Θ E φ'φ', entry by entry."""
    if not state.normal:
        raise ValueError(
            f"{layer.title} must follow weights (Dense, Conv, …), perhaps normalized or added: only there are channels "
            "Gaussian"
        )
    q11, q22 = position_pairs.of_left(left, state.grid), position_pairs.of_right(right, state.grid)
    theta = state.theta if state.theta is None else jnp.broadcast_to(state.theta, state.sigma.shape)
    sigma, theta = sliced(functools.partial(_dual, layer), state.sigma, theta, q11, q22)
    return state._replace(sigma=sigma, theta=theta, normal=False)


def _dual(layer: Activation, sigma: Array, theta: Any, q11: Array, q22: Array) -> tuple[Array, Any]:
    middle = 0.5 * (q11 + q22)
    close = is_near_duplicate(middle - sigma, middle, rounding_floor(SUMMED, sigma.dtype))
    q12 = sigma + jax.lax.stop_gradient(jnp.where(close, middle - sigma, 0))
    pair = covariance(q12, q11, q22)
    if theta is None:
        return duals.dual_functions(layer.phi)[0](pair), None
    value, slope = duals.dual_and_derivative(layer.phi, pair)
    return value, theta * slope


def sliced(of: Callable, sigma: Array, theta: PyTree, q11: Array, q22: Array) -> PyTree:
    """Evaluate of(Σ, Θ, q11, q22) by slices of the first axis on the CPU, at once elsewhere.

    XLA fuses elementwise work with the window sums that follow and would evaluate the dual again for each point of a
    window. On the CPU it ignores optimization barriers but keeps the results of a loop; slices also stay in the cache.
    """
    some = _at_once(sigma) if sigma.ndim and devices.is_host() else None
    if some is None or some == len(sigma):
        return jax.lax.optimization_barrier(of(sigma, theta, q11, q22))
    first = (sigma, theta, q11) if len(q22) == 1 else (sigma, theta, q11, q22)
    first = jax.tree.map(lambda a: a.reshape(len(a) // some, some, *a.shape[1:]), first)
    found = jax.lax.map(lambda part: of(*part, *((q22,) if len(part) == 3 else ())), first)
    return jax.tree.map(lambda a: a.reshape(sigma.shape), found)


def _at_once(sigma: Array) -> int:
    """Positions of the first axis to take at once: a divisor of their number, so that one program serves all."""
    n = len(sigma)
    limit = max(1, SLICE * n // max(1, sigma.size * sigma.dtype.itemsize))
    return max(d for d in range(1, n + 1) if n % d == 0 and d <= limit)


@apply.register
def _apply_activation(layer: Activation, params: Any, x: Array, context: Context) -> Array:
    return layer.phi(x)


@precompute.register
def _precompute_variances(layer: Activation, state: State) -> Array:
    return variances(state)
