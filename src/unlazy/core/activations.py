"""Activations by name: the function, where it kinks, and its parameter. Their Gaussian duals are theory.duals."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.scipy.special import erf

from unlazy.core.errors import nearest


@dataclass(frozen=True)
class Activation:
    """An elementwise function φ. Frozen and hashable, so that a network description can be a static argument.

    `kinks` are the points where φ or φ' jumps: quadrature splits there. `parameter` is the slope of a leaky ReLU,
    the degree of a monomial or Hermite polynomial, the frequency of sin and cos.
    """

    name: str
    function: Callable = field(compare=True, repr=False)
    kinks: tuple[float, ...] = ()
    parameter: float | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.function(x, self.parameter) if self.parameter is not None else self.function(x)


def _hermite(x: jax.Array, degree: float) -> jax.Array:
    """Normalised probabilists' Hermite polynomial He_k/√k! by its three-term recurrence."""
    previous, current = jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(int(degree)):
        previous, current = current, (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
    return current


def _relu(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0)


def _leaky_relu(x: jax.Array, slope: float) -> jax.Array:
    return jnp.where(x > 0, x, slope * x)


def _step(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0, 1.0, 0.0).astype(x.dtype)


def _truncated_relu(x: jax.Array) -> jax.Array:
    return jnp.clip(x, 0, 1)


def _gelu(x: jax.Array) -> jax.Array:
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def _sin(x: jax.Array, frequency: float) -> jax.Array:
    return jnp.sin(frequency * x)


def _cos(x: jax.Array, frequency: float) -> jax.Array:
    return jnp.cos(frequency * x)


def _identity(x: jax.Array) -> jax.Array:
    return x


def _monomial(x: jax.Array, degree: float) -> jax.Array:
    return x ** int(degree)


_TABLE: dict[str, tuple[Callable, tuple[float, ...], float | None]] = {
    "relu": (_relu, (0.0,), None),
    "leaky_relu": (_leaky_relu, (0.0,), 0.01),
    "abs": (jnp.abs, (0.0,), None),
    "step": (_step, (0.0,), None),
    "truncated_relu": (_truncated_relu, (0.0, 1.0), None),
    "erf": (erf, (), None),
    "gelu": (_gelu, (), None),
    "sin": (_sin, (), 1.0),
    "cos": (_cos, (), 1.0),
    "identity": (_identity, (), None),
    "square": (jnp.square, (), None),
    "monomial": (_monomial, (), 3),
    "hermite": (_hermite, (), 2),
    "tanh": (jnp.tanh, (), None),
    "sigmoid": (jax.nn.sigmoid, (), None),
    "softplus": (jax.nn.softplus, (), None),
}
ACTIVATIONS = tuple(_TABLE)


def activation(what: "str | Activation | Callable", parameter: float | None = None) -> Activation:
    """An activation from its name, or from any function of one array.

    >>> activation("leaky_relu", 0.1).parameter
    0.1
    """
    if isinstance(what, Activation):
        return what
    if callable(what):
        return Activation(getattr(what, "__name__", "function"), what)
    if what not in _TABLE:
        raise ValueError(f"unknown activation {what!r}{nearest(str(what), _TABLE)}, or pass a function")
    function, kinks, default = _TABLE[what]
    if parameter is not None and default is None:
        raise ValueError(f"activation {what!r} takes no parameter, got {parameter!r}")
    return Activation(what, function, kinks, default if parameter is None else parameter)
