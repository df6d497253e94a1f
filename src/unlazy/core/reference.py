"""Comparison of programs with float64 on the CPU: the scope of the reference, the error and its bound."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import Points

UNIT = 2.0**-24
"""Unit roundoff of float32."""
UNITS = 64
"""Error of an entry of K in units of float32, relative to the largest entry.

Entries of kernels with a kink at x = z (Laplace, ReLU) turn a rounding error u of an inner product into √u where two
points nearly coincide; elsewhere they lose a few units per layer. Duplicates are exact, so the error is that of
ordinary pairs."""
FUSED = 2.0**-15
"""Further error of fused products: points in two 16-bit parts move ⟨x,z⟩ by 2^-18 |x||z|, the parts of K with several
columns as much, and polynomials of an angle are off by up to 1.2e-5."""


@runtime_checkable
class HasGram(Protocol):
    """A kernel."""

    def gram(self, X: Points, Z: Points | None = None, /) -> Array:
        """Gram matrix K(X, Z), or K(X, X)."""


def product_bound(terms: int, fused: bool = False) -> float:
    """Bound of the error of K @ V relative to |K| @ |V|, for sums of this many terms.

    The error of an entry, and roundings of a sum, which are independent: four standard deviations √terms·u."""
    return (UNITS + 4 * math.sqrt(terms)) * UNIT + (FUSED if fused else 0.0)


def error(found: ArrayLike, wanted: ArrayLike, scale: float | None = None) -> float:
    """Largest deviation relative to `scale`, by default the largest |wanted|; ∞ if a value is not finite."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.abs(found - wanted).max() / (np.abs(wanted).max() if scale is None else scale))


@contextmanager
def float64_on_cpu() -> Iterator[None]:
    """Scope in which JAX computes in float64 on the CPU; on the default device if JAX was started without the CPU."""
    with ExitStack() as scope:
        with suppress(RuntimeError):
            scope.enter_context(jax.default_device(devices.cpu()))
        scope.enter_context(jax.enable_x64(True))
        yield


def float64_gram(kernel: HasGram, X: ArrayLike, Z: ArrayLike | None = None) -> np.ndarray:
    """K(X, Z) in float64; parameters of the kernel are converted."""
    with float64_on_cpu():
        exact = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), kernel)
        points = [None if A is None else jnp.asarray(np.asarray(A), jnp.float64) for A in (X, Z)]
        return np.asarray(exact.gram(*points))
