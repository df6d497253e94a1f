"""K @ V by NumPy, with entries from products.engines.numpy_entries: no program is compiled for the shapes at hand."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import concrete
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import numpy_entries
from unlazy.products.engines.base import Product

COLUMNS = 2**13
"""Columns of a block at most."""
ENTRIES = 2**22
"""Entries of a block: NumPy passes over it a few times, so it may leave the cache; more would only take memory."""
TEMPORARIES = 6
"""Arrays of a block's size alive at once."""


class Hosted(Product):
    """K evaluated on the host, block after block, in every product."""

    kernel: Kernel
    left: Float[np.ndarray, "n e"]
    right: Float[np.ndarray, "m e"]
    entries: int = eqx.field(static=True, default=ENTRIES)
    on_host = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[0]

    @property
    def how(self) -> str:
        return "host"

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.left.dtype)

    def block(self, rows: slice, columns: slice) -> Float[np.ndarray, "r c"]:
        """Some entries of K."""
        return _entries(self.kernel)(self.left[rows], self.right[columns])

    def _matmul(self, V: Any) -> Array:
        return _times(self, self.left, self.right, V)

    def _rmatmul(self, U: Any) -> Array:
        return _times(self, self.right, self.left, U)


def hosted(kernel: Kernel, X: Any, Z: Any, memory: int | str | None = None) -> Hosted:
    """Both sides embedded by NumPy; points that the kernel cannot see rightly are refused as everywhere."""
    if numpy_entries.table_of(kernel) is None:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula to evaluate on the host; leave `how` out, which chooses"
        )
    points = np.asarray(X), np.asarray(X if Z is None else Z)
    F, G = sides = numpy_entries.sides(kernel, *points)
    _admit(kernel, points, sides)
    allowed = ENTRIES if memory is None else memory_budget(memory) // (TEMPORARIES * F.itemsize)
    return Hosted(kernel, F, G, max(1, min(ENTRIES, allowed)))


def _times(K: Hosted, left: np.ndarray, right: np.ndarray, V: Any) -> Array:
    entries = _entries(K.kernel)
    if not concrete(V):  # K is known nevertheless: a constant of the program that is being traced
        with jax.ensure_compile_time_eval():
            constant = entries(left, right)
        return dot(constant, V)
    values = np.asarray(V)
    width = min(len(right), COLUMNS)
    rows = max(1, K.entries // width)
    parts = []
    for i in range(0, len(left), rows):
        part = [
            dot(entries(left[i : i + rows], right[j : j + width]), values[j : j + width])
            for j in range(0, len(right), width)
        ]
        parts.append(sum(part[1:], part[0]))
    return jax.device_put(np.concatenate(parts))  # jnp.asarray would compile a copy for each shape


def _entries(kernel: Kernel) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """K of two sides, as a function of them."""
    table = numpy_entries.table_of(kernel)
    assert table is not None
    formula = kernel if kernel.formula is None else kernel.formula.bare
    return lambda left, right: table.of(left, right).entries(formula)


def _admit(kernel: Kernel, points: tuple[np.ndarray, np.ndarray], sides: tuple[np.ndarray, np.ndarray]) -> None:
    """`Kernel.admit`, which compiles a program for every shape, only where something is doubtful: for points of usual
    size whose k(x, x) depends on their norm the two with the smallest and the largest speak for all."""
    if all(_usual(A) for A in (*points, *sides)):
        if kernel.formula is None or kernel.formula.stationary:
            return
        norms = [np.einsum("ij,ij->i", side, side) for side in sides]
        ends = [P[i] for P, of in zip(points, norms) for i in (of.argmin(), of.argmax())]
        try:
            return kernel.admit(jax.device_put(np.stack(ends)))
        except ValueError:
            pass  # said again below, of all points
    kernel.admit(*map(jax.device_put, points))


def _usual(A: np.ndarray) -> bool:
    """Whether squares of the largest number are far from the ends of the floats' range."""
    limits = np.finfo(A.dtype)
    largest = max(A.max(initial=0), -A.min(initial=0))
    return bool(limits.tiny**0.25 <= largest <= limits.max**0.25) or not A.any()
