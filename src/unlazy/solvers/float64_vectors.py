"""Float64 vectors where products are computed: NumPy arrays on the host, JAX arrays on a GPU.

A float32 kernel needs float64 vectors: CG must not round what it subtracts from them. Within `precision("float64")` JAX
supports both types. The product with the kernel stays outside of that scope, in its own precision, so a step is a few
compiled programs; only a few numbers per output reach the host.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.precision import precision
from unlazy.products import KernelOperator
from unlazy.products.engines.pairs import Matrix

Vectors = Float[Matrix, "n c"]
"""One column per output."""
Operator = Callable[[Any], Any]
"""Linear map of vectors."""


def to_float64(x: Any) -> Any:
    """x in float64, on the device that computes products."""
    if devices.is_host():
        return np.asarray(x, np.float64)
    with precision("float64"):
        return jnp.asarray(x, jnp.float64)


def to_dtype(x: Any, dtype: Any) -> Array:
    """x in the precision of a product."""
    if isinstance(x, np.ndarray):
        return jnp.asarray(x, dtype)
    with precision("float64"):
        return x.astype(dtype)


def kernel_matmul(K: KernelOperator, V: Any) -> Any:
    """K @ V computed in the precision of the kernel, returned in float64."""
    return to_float64(K.matmul(to_dtype(V, K.dtype)))


def jit_float64(function: Callable) -> Callable:
    """Decorator for functions of float64 vectors: called directly for NumPy arrays, compiled for JAX arrays."""
    compiled = jax.jit(function)

    def called(*arguments: Any) -> Any:
        if isinstance(arguments[0], np.ndarray):
            return function(*arguments)
        with precision("float64"):
            return compiled(*arguments)

    return called
