"""K @ V with NumPy, with entries from products.engines.numpy_entries: nothing is compiled per shape."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import is_concrete
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import numpy_entries
from unlazy.products.engines.base import KernelOperator

COLUMNS = 2**13
"""Maximum number of columns of a block."""
ENTRIES = 2**22
"""Entries of a block. NumPy makes several passes over it anyway, so it may exceed the cache; more only costs memory."""
TEMPORARIES = 6
"""Arrays of a block's size alive at once."""


class NumpyOperator(KernelOperator):
    """K evaluated with NumPy, block by block, in every product."""

    kernel: Kernel
    left: Float[np.ndarray, "n e"]
    right: Float[np.ndarray, "m e"]
    entries: int = eqx.field(static=True, default=ENTRIES)
    on_host = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[0], self.right.shape[0]

    @property
    def engine(self) -> str:
        return "numpy"

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.left.dtype)

    def block(self, rows: slice, columns: slice) -> Float[np.ndarray, "r c"]:
        """A block of entries of K."""
        return _entries(self.kernel)(self.left[rows], self.right[columns])

    def _matmul(self, V: Any) -> Array:
        return _matmul_blocks(self, self.left, self.right, V)

    def _rmatmul(self, U: Any) -> Array:
        return _matmul_blocks(self, self.right, self.left, U)


def numpy_operator(kernel: Kernel, X: Any, Z: Any, memory: int | str | None = None) -> NumpyOperator:
    """Embed both sides with NumPy and validate the points."""
    if numpy_entries.entry_table(kernel) is None:
        raise ValueError(
            f"{type(kernel).__name__} has no entry formula that NumPy could evaluate; omit `engine` to choose one "
            "automatically"
        )
    points = np.asarray(X), np.asarray(X if Z is None else Z)
    F, G = sides = numpy_entries.embed_sides(kernel, *points)
    _validate(kernel, points, sides)
    allowed = ENTRIES if memory is None else memory_budget(memory) // (TEMPORARIES * F.itemsize)
    return NumpyOperator(kernel, F, G, max(1, min(ENTRIES, allowed)))


def _matmul_blocks(K: NumpyOperator, left: np.ndarray, right: np.ndarray, V: Any) -> Array:
    entries = _entries(K.kernel)
    if not is_concrete(V):  # K itself is known and becomes a constant of the program being traced
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
    """Function that evaluates K for two embedded sides."""
    table = numpy_entries.entry_table(kernel)
    assert table is not None
    formula = kernel if kernel.formula is None else kernel.formula.bare
    return lambda left, right: table.from_rows(left, right).entries(formula)


def _validate(kernel: Kernel, points: tuple[np.ndarray, np.ndarray], sides: tuple[np.ndarray, np.ndarray]) -> None:
    """Call `Kernel.validate`, which compiles for every shape, only when needed. For points of moderate size whose
    k(x, x) depends on the norm, the points of smallest and largest norm are enough."""
    if all(_moderate(A) for A in (*points, *sides)):
        if kernel.formula is None or kernel.formula.stationary:
            return
        norms = [np.einsum("ij,ij->i", side, side) for side in sides]
        ends = [P[i] for P, of in zip(points, norms) for i in (of.argmin(), of.argmax())]
        try:
            return kernel.validate(jax.device_put(np.stack(ends)))
        except ValueError:
            pass  # raised again below for all points
    kernel.validate(*map(jax.device_put, points))


def _moderate(A: np.ndarray) -> bool:
    """Whether the square of the largest value neither overflows nor underflows, with a wide margin."""
    limits = np.finfo(A.dtype)
    largest = max(A.max(initial=0), -A.min(initial=0))
    return bool(limits.tiny**0.25 <= largest <= limits.max**0.25) or not A.any()
