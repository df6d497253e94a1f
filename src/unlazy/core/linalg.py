"""Matrix products that keep the digits of their type, in one place.

A GPU rounds the factors of a float32 product to tf32 (three digits) unless the product says otherwise; on a CPU there
is nothing to choose. Every product of JAX arrays in this library is made here.
"""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HIGHEST = jax.lax.Precision.HIGHEST


def dot(first: Any, *others: Any) -> Any:
    """A @ B @ C …, from left to right. NumPy's arrays alone stay NumPy's: products on the host need no compilation.

    >>> print(dot(np.eye(2), np.ones((2, 3)), np.ones(3)))
    [3. 3.]
    """
    return reduce(_pair, others, first)


def einsum(formula: str, *factors: Any) -> Any:
    """Sums of products by Einstein's convention.

    >>> print(einsum("ij,ij->i", np.ones((2, 3)), np.ones((2, 3))))
    [3. 3.]
    """
    if _on_host(*factors):
        return np.einsum(formula, *factors)
    return jnp.einsum(formula, *factors, precision=HIGHEST)


def vdot(A: Any, B: Any) -> Any:
    """Σ A_ij B_ij."""
    return np.vdot(A, B) if _on_host(A, B) else jnp.vdot(A, B, precision=HIGHEST)


def convolution(
    x: Any, weight: Any, strides: Any, padding: Any, spread: Any, dilation: Any, letters: tuple[str, str, str]
) -> Any:
    """jax.lax.conv_general_dilated: `spread` dilates x, `dilation` the window, `letters` name the axes of x, of the
    weights and of the result."""
    return jax.lax.conv_general_dilated(x, weight, strides, padding, spread, dilation, letters, precision=HIGHEST)


def with_all_digits(function: Callable) -> Callable:
    """A user's own function, whose products say nothing of digits: they keep those of their type."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return called


def namespace(*arrays: Any) -> Any:
    """NumPy where all are NumPy's arrays, else jax.numpy: for formulas that serve both.

    >>> namespace(np.ones(2)).__name__
    'numpy'
    """
    return np if _on_host(*arrays) else jnp


def _pair(A: Any, B: Any) -> Any:
    return np.matmul(A, B) if _on_host(A, B) else jnp.matmul(A, B, precision=HIGHEST)


def _on_host(*arrays: Any) -> bool:
    return all(isinstance(array, np.ndarray) for array in arrays)
