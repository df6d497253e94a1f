"""Vectors in float64 where the products are made: NumPy's on the host, whose memory is the device's; else a card's own.

A kernel in float32 wants vectors in float64: what CG subtracts from them it must not have rounded. In a scope of
`precision("float64")` JAX has both types. The kernel's product stays outside of it, in the precision it was built for,
so a step is a few programs; nothing but some numbers for every output crosses to the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.precision import precision
from unlazy.products import Product
from unlazy.products.engines.pairs import Matrix

Vectors = Float[Matrix, "n c"]
Operator = Callable[[Any], Any]


def wide(x: Any) -> Any:
    """x in float64, where products are made."""
    if devices.is_host():
        return np.asarray(x, np.float64)
    with precision("float64"):
        return jnp.asarray(x, jnp.float64)


def narrow(x: Any, dtype: Any) -> Array:
    """x in the precision of a product."""
    if isinstance(x, np.ndarray):
        return jnp.asarray(x, dtype)
    with precision("float64"):
        return x.astype(dtype)


def times(K: Product, V: Any) -> Any:
    """K @ V in the kernel's precision, back in float64: vectors keep digits that a float32 kernel cannot lose."""
    return wide(K.matmul(narrow(V, K.dtype)))


def in_float64(function: Callable) -> Callable:
    """A function of vectors in float64: as it is for NumPy's, a compiled program for a card's."""
    compiled = jax.jit(function)

    def called(*arguments: Any) -> Any:
        if isinstance(arguments[0], np.ndarray):
            return function(*arguments)
        with precision("float64"):
            return compiled(*arguments)

    return called
