"""Activation functions: the function, its kinks and its parameter. Gaussian duals are in theory.activations.duals.

Closed forms are looked up by the function object, not by its name. Functions of jax.nn, jax.numpy and jax.scipy.special
are recognized together with their parameters and kinks; any other function is used as it is.
"""

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf

from unlazy.core.errors import did_you_mean


@dataclass(frozen=True)
class ActivationFunction:
    """An elementwise activation function φ.

    Frozen and hashable, so that a network description can be a static argument of jit. Two activation functions are
    equal if their functions, parameters and kinks are, regardless of their names.

    Parameters
    ----------
    name : str
        Used in messages only.
    function : callable
        φ, a function of one array, or of an array and `parameter`.
    kinks : tuple of float, default ()
        Points at which φ or one of its derivatives is discontinuous; quadrature is split there. Ignored for recognized
        functions, whose kinks are known.
    parameter : float, optional
        Slope of a leaky ReLU, degree of a monomial or Hermite polynomial, frequency of sin and cos.
    """

    name: str = field(compare=False)
    function: Callable = field(compare=True, repr=False)
    kinks: tuple[float, ...] = ()
    parameter: float | None = None

    def __post_init__(self) -> None:
        known = KNOWN_FUNCTIONS.get(_require_hashable(self.function))
        if known is None:
            object.__setattr__(self, "kinks", tuple(float(k) for k in self.kinks))
            return
        parameter = known.default if self.parameter is None else self.parameter
        object.__setattr__(self, "parameter", parameter)
        object.__setattr__(self, "kinks", known.kinks_at(parameter))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.function(x, self.parameter) if self.parameter is not None else self.function(x)


def hermite_polynomial(x: jax.Array, degree: float) -> jax.Array:
    """Normalized probabilists' Hermite polynomial He_k/√k!, by its three-term recurrence."""
    previous, current = jnp.zeros_like(x), jnp.ones_like(x)
    for k in range(int(degree)):
        previous, current = current, (x * current - math.sqrt(k) * previous) / math.sqrt(k + 1)
    return current


def relu(x: jax.Array) -> jax.Array:
    """max(x, 0)."""
    return jnp.maximum(x, 0)


def leaky_relu(x: jax.Array, slope: float) -> jax.Array:
    """x for x > 0, slope·x otherwise."""
    return jnp.where(x > 0, x, slope * x)


def step(x: jax.Array) -> jax.Array:
    """1 for x > 0, else 0."""
    return jnp.where(x > 0, 1.0, 0.0).astype(x.dtype)


def truncated_relu(x: jax.Array) -> jax.Array:
    """min(max(x, 0), 1)."""
    return jnp.clip(x, 0, 1)


def exact_gelu(x: jax.Array) -> jax.Array:
    """x Φ(x), with Φ the standard normal distribution function."""
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def sine(x: jax.Array, frequency: float) -> jax.Array:
    """sin(frequency·x)."""
    return jnp.sin(frequency * x)


def cosine(x: jax.Array, frequency: float) -> jax.Array:
    """cos(frequency·x)."""
    return jnp.cos(frequency * x)


def identity(x: jax.Array) -> jax.Array:
    """x."""
    return x


def monomial(x: jax.Array, degree: float) -> jax.Array:
    """x to an integer power."""
    return x ** int(degree)


@dataclass(frozen=True)
class KnownFunction:
    """A recognized function: name, kinks, and keyword and default of its one parameter."""

    name: str
    kinks: tuple[float, ...] = ()
    keyword: str | None = None
    default: float | None = None

    def kinks_at(self, parameter: float | None) -> tuple[float, ...]:
        # squareplus (x + √(x² + b))/2 has a kink only at b = 0
        """Kinks of the function at a value of its parameter."""
        return (0.0,) if self.keyword == "b" and parameter == 0 else self.kinks


_NAMED: dict[str, tuple[Callable, tuple[float, ...], float | None]] = {
    "relu": (relu, (0.0,), None),
    "leaky_relu": (leaky_relu, (0.0,), 0.01),
    "abs": (jnp.abs, (0.0,), None),
    "step": (step, (0.0,), None),
    "truncated_relu": (truncated_relu, (0.0, 1.0), None),
    "erf": (erf, (), None),
    "gelu": (exact_gelu, (), None),
    "sin": (sine, (), 1.0),
    "cos": (cosine, (), 1.0),
    "identity": (identity, (), None),
    "square": (jnp.square, (), None),
    "monomial": (monomial, (), 3),
    "hermite": (hermite_polynomial, (), 2),
    "tanh": (jnp.tanh, (), None),
    "sigmoid": (jax.nn.sigmoid, (), None),
    "softplus": (jax.nn.softplus, (), None),
}
ACTIVATIONS = tuple(_NAMED)
"""Names of the built-in activation functions."""
_JAX_FUNCTIONS: dict[str, tuple[tuple[float, ...], str | None]] = {
    "jax.nn.relu": ((0.0,), None), "jax.nn.leaky_relu": ((0.0,), "negative_slope"), "jax.nn.relu6": ((0.0, 6.0), None),
    "jax.nn.identity": ((), None), "jax.nn.gelu": ((), "approximate"), "jax.nn.silu": ((), None),
    "jax.nn.elu": ((0.0,), "alpha"), "jax.nn.celu": ((0.0,), "alpha"), "jax.nn.selu": ((0.0,), None),
    "jax.nn.mish": ((), None), "jax.nn.log_sigmoid": ((), None), "jax.nn.soft_sign": ((0.0,), None),
    "jax.nn.squareplus": ((), "b"), "jax.nn.sparse_plus": ((-1.0, 1.0), None),
    "jax.nn.sparse_sigmoid": ((-1.0, 1.0), None), "jax.nn.hard_tanh": ((-1.0, 1.0), None),
    "jax.nn.hard_sigmoid": ((-3.0, 3.0), None), "jax.nn.hard_silu": ((-3.0, 3.0), None),
    "jax.nn.tanh": ((), None), "jax.nn.swish": ((), None), "jax.nn.hard_swish": ((-3.0, 3.0), None),
    "jax.numpy.sin": ((), None), "jax.numpy.cos": ((), None), "jax.numpy.absolute": ((0.0,), None),
    "jax.numpy.fabs": ((0.0,), None), "jax.numpy.sign": ((0.0,), None), "jax.numpy.positive": ((), None),
    "jax.numpy.heaviside": ((0.0,), "x2"), "jax.scipy.special.expit": ((), None),
}  # fmt: skip
"""Recognized functions of JAX by qualified name: kinks, and keyword of the one parameter after x."""


def _known_functions() -> dict[Callable, KnownFunction]:
    """Table of all recognized functions, built-in and JAX."""
    found: dict[Callable, KnownFunction] = {}
    for name, (kinks, keyword) in _JAX_FUNCTIONS.items():
        function = _at_address(name)
        if function is None:  # not in this release of JAX
            continue
        default = None if keyword is None else inspect.signature(function).parameters[keyword].default
        found.setdefault(
            function, KnownFunction(name, kinks, keyword, default if isinstance(default, int | float) else None)
        )
    return found | {f: KnownFunction(name, kinks, None, default) for name, (f, kinks, default) in _NAMED.items()}


def _at_address(name: str) -> Callable | None:
    """The object with this qualified name, or None if this release of JAX does not have it."""
    at: Any = jax
    for part in name.split(".")[1:]:
        at = getattr(at, part, None)
    return at


def activation(what: "str | ActivationFunction | Callable", parameter: float | None = None) -> ActivationFunction:
    """Return an activation function, given its name or any function of one array.

    Parameters
    ----------
    what : str, ActivationFunction or callable
        A name in `ACTIVATIONS`, the qualified name of a recognized JAX function such as "jax.nn.silu", or a function.
    parameter : float, optional
        Parameter of the function, by default that of its definition.

    Returns
    -------
    ActivationFunction

    Raises
    ------
    ValueError
        If the name is unknown, the function is not hashable, or it takes no parameter.

    Examples
    --------
    >>> import functools
    >>> import jax
    >>> from unlazy.theory.activations.functions import activation
    >>> activation("leaky_relu", 0.1).parameter
    0.1
    >>> activation(functools.partial(jax.nn.leaky_relu, negative_slope=0.2)).parameter
    0.2
    """
    if isinstance(what, ActivationFunction):
        return what
    if callable(what):
        return _from_function(what, parameter)
    function = _NAMED[what][0] if what in _NAMED else _at_address(what) if what in _JAX_FUNCTIONS else None
    if function is None:
        raise ValueError(f"unknown activation {what!r}{did_you_mean(str(what), _NAMED)}, or pass a function")
    known = KNOWN_FUNCTIONS[function]
    if parameter is not None and known.default is None and known.keyword is None:
        raise ValueError(f"activation {what!r} takes no parameter, got {parameter!r}")
    return ActivationFunction(what, function, parameter=parameter)


def _from_function(function: Callable, parameter: float | None) -> ActivationFunction:
    """ActivationFunction of a callable; a partial of a recognized function becomes its parameter."""
    if isinstance(function, functools.partial) and parameter is None:
        known = KNOWN_FUNCTIONS.get(_require_hashable(function.func))
        if not function.args and not function.keywords:
            return _from_function(function.func, None)
        if known is not None and not function.args and list(function.keywords) == [known.keyword]:
            (value,) = function.keywords.values()
            return ActivationFunction(known.name, function.func, parameter=_scalar_parameter(known, value))
        return ActivationFunction(getattr(function.func, "__name__", "function"), function)
    known = KNOWN_FUNCTIONS.get(_require_hashable(function))
    name = known.name if known is not None else getattr(function, "__name__", "function")
    return ActivationFunction(name, function, parameter=parameter)


def _scalar_parameter(known: KnownFunction, value: object) -> float:
    """The parameter as a Python scalar; raise ValueError if it is traced or not a scalar."""
    if isinstance(value, jax.core.Tracer) or np.ndim(value) != 0:  # type: ignore[arg-type]
        raise ValueError(f"{known.keyword} of {known.name} must be a Python scalar, not traced; got {value!r}")
    return value if isinstance(value, bool | int | float) else np.asarray(value).item()


def _require_hashable(function: Callable) -> Callable:
    """Return the function; raise ValueError if it is not hashable."""
    try:
        hash(function)
    except TypeError:
        raise ValueError(
            f"an activation must be hashable, since compiled programs are cached by it; {type(function).__name__} is "
            "not: pass a plain function"
        ) from None
    return function


KNOWN_FUNCTIONS = _known_functions()
"""Recognized functions: function → KnownFunction."""
