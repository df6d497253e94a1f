"""Choice of float32 or float64 within a scope; JAX's global flag is not changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import jax
import jax.numpy as jnp

Precision = Literal["float32", "float64"]


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Run a block of code in float32 or float64.

    Parameters
    ----------
    name : {"float32", "float64"}
        Default float type of new arrays within the block.

    Raises
    ------
    ValueError
        If `name` is neither of the two.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy import precision
    >>> with precision("float64"):
    ...     print(jnp.ones(1).dtype)
    float64
    """
    if name not in ("float32", "float64"):
        raise ValueError(f"precision must be 'float32' or 'float64', got {name!r}")
    with jax.enable_x64(name == "float64"):
        yield


def default_float() -> jnp.dtype:
    """The default float type of new arrays in the current scope."""
    return jnp.result_type(float)  # creates no array: called at every entry point


def unit_roundoff(dtype: object) -> float:
    """Unit roundoff of a float type: 2^-24 for float32, 2^-53 for float64."""
    return float(jnp.finfo(dtype).eps) / 2
