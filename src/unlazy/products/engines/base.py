"""K(X, Z) as something to multiply by, again and again: stored, by blocks, fused on the GPU, or as the kernel knows."""

import abc
import importlib.util
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Labels, count, float_type
from unlazy.core.linalg import dot
from unlazy.kernels.base import Kernel
from unlazy.products.engines import blocked, dense
from unlazy.products.engines.pairs import as_columns, both_sides, prepared

ACCURATE_ROWS = 64
"""Rows of a stored K turned into float64 at a time; they stay in the cache."""

BLAS_COLUMNS = 2
"""Up to so many columns a symmetric K is read by halves: n = 20,000, one column, 0.050 CPU-seconds against 0.084."""


class Product(eqx.Module):
    """K(X, Z) for `matmul` (K @ V), `rmatmul` (Kᵀ @ U) and `normal` (Kᵀ(K @ V)); V of shape (m,) or (m, c)."""

    on_host: ClassVar[bool] = False
    """Whether NumPy multiplies, or columns go to several devices: they then stay in the host's memory at first."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Rows and columns of K."""

    @property
    @abc.abstractmethod
    def how(self) -> str:
        """One word: own, stored, blocked, fused, sharded or host."""

    @property
    @abc.abstractmethod
    def dtype(self) -> jnp.dtype:
        """Type of the entries."""

    @property
    def bytes(self) -> int:
        """Memory held between products besides the inputs."""
        return 0

    def matmul(self, V: Labels) -> Float[Array, "n *c"]:
        """K(X, Z) @ V."""
        return _on_columns(self, self._matmul, V, self.shape[1], "V")

    def rmatmul(self, U: Labels) -> Float[Array, "m *c"]:
        """K(X, Z)ᵀ @ U."""
        return _on_columns(self, self._rmatmul, U, self.shape[0], "U")

    def normal(self, V: Labels) -> Float[Array, "m *c"]:
        """K(X, Z)ᵀ K(X, Z) @ V."""
        return _on_columns(self, self._normal, V, self.shape[1], "V")

    def accurate(self, V: Float[np.ndarray, "_ c"]) -> Float[np.ndarray, "_ c"]:
        """K @ V with sums in float64 where that is possible: for residuals, of which little is left."""
        return np.asarray(self.matmul(jnp.asarray(V, self.dtype)), np.float64)

    def taken(self, rows: Array, columns: Array | None = None) -> "Product":
        """K(X, Z) at some rows of X, and of Z, for products inside a traced program: nothing is prepared anew."""
        raise ValueError(f"a product that is {self.how} has no rows to take")

    @abc.abstractmethod
    def _matmul(self, V: Array) -> Array: ...

    @abc.abstractmethod
    def _rmatmul(self, U: Array) -> Array: ...

    def _normal(self, V: Any) -> Array:
        return self._rmatmul(self._matmul(V))


def _on_columns(K: Product, verb: Callable[[Any], Any], V: Labels, rows: int, what: str) -> Any:
    """A verb of columns for V of one axis or two. A function: Equinox makes a tree of every method that is called."""
    out = verb(as_columns(V, rows, what, K.dtype, put=not K.on_host))
    shape = out.shape[:1] + np.shape(V)[1:]
    return out if out.shape == shape else out.reshape(shape)


class Stored(Product):
    """K kept in memory: six times faster per pass than recomputing it on the CPU."""

    K: Float[Array, "n m"]
    symmetric: bool = eqx.field(static=True, default=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.K.shape  # type: ignore[return-value]

    @property
    def how(self) -> str:
        return "stored"

    @property
    def dtype(self) -> jnp.dtype:
        return self.K.dtype

    @property
    def bytes(self) -> int:
        return self.K.nbytes

    def accurate(self, V: Float[np.ndarray, "_ c"]) -> Float[np.ndarray, "_ c"]:
        if not devices.is_host():
            return super().accurate(V)
        K = np.asarray(self.K)
        parts = [dot(K[i : i + ACCURATE_ROWS].astype(np.float64), V) for i in range(0, K.shape[0], ACCURATE_ROWS)]
        return np.concatenate(parts)

    def taken(self, rows: Array, columns: Array | None = None) -> "Stored":
        return Stored(self.K[rows] if columns is None else self.K[rows[:, None], columns])

    def _matmul(self, V: Array) -> Array:
        if self.symmetric and V.shape[1] <= BLAS_COLUMNS and devices.is_host():
            return _symmetric_dot(self.K, V)
        return _dot(self.K, V)

    def _rmatmul(self, U: Array) -> Array:
        return _dot(self.K, U) if self.symmetric else _transposed_dot(self.K, U)


class Blocked(Product):
    """K recomputed block by block in every product."""

    kernel: Kernel
    left: Any
    right: Any
    memory: int | None = eqx.field(static=True, default=None)

    @property
    def shape(self) -> tuple[int, int]:
        return count(self.left), count(self.right)

    @property
    def how(self) -> str:
        return "blocked"

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def taken(self, rows: Array, columns: Array | None = None) -> "Blocked":
        return Blocked(self.kernel, rows_of(self.left, rows), rows_of(self.right, columns), self.memory)

    def _matmul(self, V: Array) -> Array:
        return blocked.apply(self.kernel, self.left, self.right, V, self.memory)

    def _rmatmul(self, U: Array) -> Array:
        return blocked.apply(self.kernel, self.right, self.left, U, self.memory)

    def _normal(self, V: Array) -> Array:
        return blocked.normal(self.kernel, self.left, self.right, V, self.memory)


class Own(Product):
    """K never formed: the kernel multiplies by itself (`Kernel.times`)."""

    kernel: Kernel
    left: Any
    right: Any

    @property
    def shape(self) -> tuple[int, int]:
        return count(self.left), count(self.right)

    @property
    def how(self) -> str:
        return "own"

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def taken(self, rows: Array, columns: Array | None = None) -> "Own":
        return Own(self.kernel, rows_of(self.left, rows), rows_of(self.right, columns))

    def _matmul(self, V: Array) -> Array:
        return _times(self.kernel, self.left, self.right, V)

    def _rmatmul(self, U: Array) -> Array:
        return _times(self.kernel, self.right, self.left, U)


class Fused(Product):
    """K recomputed on the chip of a GPU in every product."""

    left: Any  # fused.Side: that module brings Pallas and is imported when used
    right: Any

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.of.points.shape[0], self.right.of.points.shape[0]

    @property
    def how(self) -> str:
        return "fused"

    @property
    def dtype(self) -> jnp.dtype:
        return self.left.of.points.dtype

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.left, self.right)))

    def taken(self, rows: Array, columns: Array | None = None) -> "Fused":
        return Fused(rows_of(self.left, rows), rows_of(self.right, columns))

    def _matmul(self, V: Array) -> Array:
        from unlazy.products.fused import fused_product

        return fused_product.apply(self.left, self.right, V)

    def _rmatmul(self, U: Array) -> Array:
        from unlazy.products.fused import fused_product

        return fused_product.apply(self.right, self.left, U)


def rows_of(side: Any, index: Array | None) -> Any:
    """Some points of a side, all where None: every leaf has one row for each."""
    return side if index is None else jax.tree.map(lambda leaf: leaf[index], side)


def fused_product(kernel: Kernel, X: Any, Z: Any) -> Fused:
    """Put both sides into the kernel's fused form once; every product then shares the same rounded points."""
    from unlazy.products.fused import fused_product

    return Fused(*fused_product.prepared(kernel, X, Z))


def stored(kernel: Kernel, X: Any, Z: Any, memory: int | str | None = None) -> Stored:
    """Form K once; refused where it does not fit the budget."""
    return Stored(dense.gram(kernel, X, Z, memory), Z is None)


def recomputed(kernel: Kernel, X: Any, Z: Any, memory: int | None = None) -> Blocked:
    """Prepare both sides once; K is recomputed in every product."""
    left, right = jax.jit(prepared)(kernel, *both_sides(kernel, X, Z))
    return Blocked(kernel, left, right, memory)


def own_product(kernel: Kernel, X: Any, Z: Any) -> Own:
    """Prepare both sides once for a kernel with a product of its own."""
    if not kernel.has_product:
        raise ValueError(f"{type(kernel).__name__} has no product of its own; leave `how` out, which chooses")
    return Own(kernel, *jax.jit(prepared)(kernel, *both_sides(kernel, X, Z)))


def fused_available(kernel: Kernel, X: Any) -> bool:
    """Whether the GPU's fused product takes this kernel and these inputs."""
    if devices.is_host() or importlib.util.find_spec("unlazy.products.fused.fused_product") is None:
        return False
    from unlazy.products.fused import fused_product

    return fused_product.available(kernel, X)


def _symmetric_dot(K: Array, V: Array) -> Array:
    """K @ V a column at a time, reading one triangle of K (BLAS symv): the pass is bound by memory. Storing only that
    triangle would not help: packed (spmv) or in panels a pass costs as much as one over the whole."""
    from scipy.linalg import blas

    symv = blas.dsymv if K.dtype == jnp.float64 else blas.ssymv
    triangle, columns = np.asarray(K).T, np.asarray(V)
    return jnp.asarray(np.column_stack([symv(1.0, triangle, column) for column in columns.T]))


@jax.jit
def _times(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
    return kernel.times(left, right, V)


@jax.jit
def _dot(K: Array, V: Array) -> Array:
    return dot(K, V)


@jax.jit
def _transposed_dot(K: Array, U: Array) -> Array:
    if U.shape[1] == 1:  # Kᵀu is twenty times slower than uᵀK on the CPU; with more columns they are alike
        return dot(U.T, K).T
    return dot(K.T, U)
