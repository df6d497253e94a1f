"""float32 and float64, chosen in a scope; JAX's global flag is never touched."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import jax
import jax.numpy as jnp

Precision = Literal["float32", "float64"]


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Run a block of code in float32 or float64.

    >>> import jax.numpy as jnp
    >>> with precision("float64"):
    ...     print(jnp.ones(1).dtype)
    float64
    """
    if name not in ("float32", "float64"):
        raise ValueError(f"precision must be 'float32' or 'float64', got {name!r}")
    with jax.enable_x64(name == "float64"):
        yield


def default_float() -> jnp.dtype:
    """The float type new arrays get in the current scope."""
    return jnp.result_type(float)  # no array is made: doors ask at every call


def rounding(dtype: object) -> float:
    """Unit of rounding of a float type: 2^-24 for float32, 2^-53 for float64."""
    return float(jnp.finfo(dtype).eps) / 2
