"""Matrix products at full precision.

By default, a GPU rounds the factors of a float32 product to tf32 (three digits); on a CPU there is no such choice. All
products of JAX arrays in this package go through this module.
"""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

HIGHEST = jax.lax.Precision.HIGHEST


def dot(first: Any, *others: Any) -> Any:
    """Matrix product A @ B @ C …, from left to right, at the highest precision.

    If all factors are NumPy arrays, NumPy computes the product: no compilation is needed on the host.

    Examples
    --------
    >>> import numpy as np
    >>> print(dot(np.eye(2), np.ones((2, 3)), np.ones(3)))
    [3. 3.]
    """
    return reduce(_pair, others, first)


def einsum(formula: str, *factors: Any) -> Any:
    """Einstein summation at the highest precision; by NumPy if all factors are NumPy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> print(einsum("ij,ij->i", np.ones((2, 3)), np.ones((2, 3))))
    [3. 3.]
    """
    if _on_host(*factors):
        return np.einsum(formula, *factors)
    return jnp.einsum(formula, *factors, precision=HIGHEST)


def vdot(A: Any, B: Any) -> Any:
    """Sum of the elementwise product, Σ A_ij B_ij, at the highest precision."""
    return np.vdot(A, B) if _on_host(A, B) else jnp.vdot(A, B, precision=HIGHEST)


def convolution(
    x: Any, weight: Any, strides: Any, padding: Any, input_dilation: Any, dilation: Any, letters: tuple[str, str, str]
) -> Any:
    """`jax.lax.conv_general_dilated` at the highest precision.

    `input_dilation` dilates x, `dilation` the window; `letters` are the dimension numbers of x, the weights and the
    result.
    """
    return jax.lax.conv_general_dilated(
        x, weight, strides, padding, input_dilation, dilation, letters, precision=HIGHEST
    )


def with_highest_precision(function: Callable) -> Callable:
    """Wrap a user's function so that its matrix products run at the highest precision."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return called


def namespace(*arrays: Any) -> Any:
    """`numpy` if all arrays are NumPy arrays, otherwise `jax.numpy`.

    Examples
    --------
    >>> import numpy as np
    >>> namespace(np.ones(2)).__name__
    'numpy'
    """
    return np if _on_host(*arrays) else jnp


def _pair(A: Any, B: Any) -> Any:
    return np.matmul(A, B) if _on_host(A, B) else jnp.matmul(A, B, precision=HIGHEST)


def _on_host(*arrays: Any) -> bool:
    return all(isinstance(array, np.ndarray) for array in arrays)
