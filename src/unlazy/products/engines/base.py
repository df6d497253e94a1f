"""Linear operators for K(X, Z): stored, computed block by block, fused on the GPU, or with the kernel's own product."""

import abc
import dataclasses
import importlib.util
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Labels, Matrix, Points, Side, dot, float_type, n_points
from unlazy.kernels.base import Kernel
from unlazy.products.engines import blocked
from unlazy.products.engines.blocked import as_columns, prepared_sides

FLOAT64_ROWS = 64
"""Rows of a stored K converted to float64 at a time, so that they stay in the cache."""

SYMV_COLUMNS = 2
"""Use BLAS symv, which reads one triangle of K, up to this many columns: 0.050 instead of 0.084 CPU seconds for one
column at n = 20,000."""


class KernelOperator(eqx.Module):
    """Abstract linear operator for the kernel matrix K(X, Z) of shape (n, m).

    Built by `product`, which chooses the engine. All products take a vector or a matrix of column vectors.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.kernels import Linear
    >>> from unlazy.products import KernelOperator, product
    >>> K = product(Linear(), np.array([[1.0, 0.0], [1.0, 2.0]]))
    >>> isinstance(K, KernelOperator), K.shape
    (True, (2, 2))
    >>> K.matmul(np.array([1.0, 1.0])).tolist()
    [2.0, 6.0]
    """

    on_host: ClassVar[bool] = False
    """Whether column vectors stay in host memory: NumPy multiplies them, or they are sharded over several devices."""
    engine: eqx.AbstractClassVar[str]
    """Name of the engine: "custom", "stored", "blocked", "fused", "sharded" or "numpy"."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """Shape (n, m) of K."""

    @property
    @abc.abstractmethod
    def dtype(self) -> jnp.dtype:
        """Data type of the entries."""

    @property
    def bytes(self) -> int:
        """Memory kept between products besides the inputs, in bytes."""
        return 0

    def matmul(self, V: Labels) -> Float[Array, " n *c"]:
        """Compute K(X, Z) @ V.

        Parameters
        ----------
        V : array of shape (m,) or (m, c)
            One or several vectors.

        Returns
        -------
        array of shape (n,) or (n, c)
            The product.

        Raises
        ------
        ValueError
            If V does not have m rows.
        """
        return _on_columns(self, self._matmul, V, self.shape[1], "V")

    def rmatmul(self, U: Labels) -> Float[Array, " m *c"]:
        """Compute K(X, Z)ᵀ @ U.

        Parameters
        ----------
        U : array of shape (n,) or (n, c)
            One or several vectors.

        Returns
        -------
        array of shape (m,) or (m, c)
            The product.

        Raises
        ------
        ValueError
            If U does not have n rows.
        """
        return _on_columns(self, self._rmatmul, U, self.shape[0], "U")

    def normal(self, V: Labels) -> Float[Array, " m *c"]:
        """Compute K(X, Z)ᵀ K(X, Z) @ V, with one evaluation of each entry where the engine supports it.

        Parameters
        ----------
        V : array of shape (m,) or (m, c)
            One or several vectors.

        Returns
        -------
        array of shape (m,) or (m, c)
            The product.

        Raises
        ------
        ValueError
            If V does not have m rows.
        """
        return _on_columns(self, self._normal, V, self.shape[1], "V")

    def matmul_float64(self, V: Float[np.ndarray, "_ c"]) -> Float[np.ndarray, "_ c"]:
        """Compute K @ V, accumulated in float64 where the engine supports it.

        Intended for residuals, which lose digits to cancellation.

        Parameters
        ----------
        V : float64 array of shape (m, c)
            Column vectors.

        Returns
        -------
        float64 NumPy array of shape (n, c)
            The product.
        """
        return np.asarray(self.matmul(jnp.asarray(V, self.dtype)), np.float64)

    def select_rows(self, rows: Array, columns: Array | None = None) -> "KernelOperator":
        """Return the operator restricted to some rows and columns of K; works inside traced programs.

        Parameters
        ----------
        rows : integer array
            Indices into X.
        columns : integer array, optional
            Indices into Z; all by default.

        Returns
        -------
        KernelOperator
            Operator of the same engine. The points are not prepared again.

        Raises
        ------
        ValueError
            If the engine does not support row selection.
        """
        raise ValueError(f"the {self.engine!r} engine does not support select_rows")

    @abc.abstractmethod
    def _matmul(self, V: Matrix) -> Array: ...

    @abc.abstractmethod
    def _rmatmul(self, U: Matrix) -> Array: ...

    def _normal(self, V: Matrix) -> Array:
        return self._rmatmul(self._matmul(V))


def _on_columns(K: KernelOperator, verb: Callable[[Matrix], Array], V: Labels, rows: int, what: str) -> Array:
    """Apply `verb` to V as a matrix of columns. Not a method, since Equinox builds a pytree for every method call."""
    out = verb(as_columns(V, rows, what, K.dtype, put=not K.on_host))
    shape = out.shape[:1] + np.shape(V)[1:]
    return out if out.shape == shape else out.reshape(shape)


class PreparedOperator(KernelOperator):
    """K given by its two prepared sides."""

    left: eqx.AbstractVar[Side]
    right: eqx.AbstractVar[Side]

    @property
    def shape(self) -> tuple[int, int]:
        return n_points(self.left), n_points(self.right)

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def select_rows(self, rows: Array, columns: Array | None = None) -> "PreparedOperator":
        return dataclasses.replace(self, left=take_rows(self.left, rows), right=take_rows(self.right, columns))


class StoredOperator(KernelOperator):
    """K kept in memory: on the CPU a product is six times faster than recomputing the entries."""

    engine = "stored"
    K: Float[Array, "n m"]
    symmetric: bool = eqx.field(static=True, default=False)

    @property
    def shape(self) -> tuple[int, int]:
        return self.K.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> jnp.dtype:
        return self.K.dtype

    @property
    def bytes(self) -> int:
        return self.K.nbytes

    def matmul_float64(self, V: Float[np.ndarray, "_ c"]) -> Float[np.ndarray, "_ c"]:
        if not devices.is_host():
            return super().matmul_float64(V)
        K = np.asarray(self.K)
        parts = [dot(K[i : i + FLOAT64_ROWS].astype(np.float64), V) for i in range(0, K.shape[0], FLOAT64_ROWS)]
        return np.concatenate(parts)

    def select_rows(self, rows: Array, columns: Array | None = None) -> "StoredOperator":
        return StoredOperator(self.K[rows] if columns is None else self.K[rows[:, None], columns])

    def _matmul(self, V: Matrix) -> Array:
        if self.symmetric and V.shape[1] <= SYMV_COLUMNS and devices.is_host():
            return _symmetric_dot(self.K, V)
        return _dot(self.K, V)

    def _rmatmul(self, U: Matrix) -> Array:
        return _dot(self.K, U) if self.symmetric else _transposed_dot(self.K, U)


class BlockedOperator(PreparedOperator):
    """K recomputed block by block in every product."""

    engine = "blocked"
    kernel: Kernel
    left: Side
    right: Side
    memory: int | None = eqx.field(static=True, default=None)

    def _matmul(self, V: Matrix) -> Array:
        return blocked.apply(self.kernel, self.left, self.right, V, self.memory)

    def _rmatmul(self, U: Matrix) -> Array:
        return blocked.apply(self.kernel, self.right, self.left, U, self.memory)

    def _normal(self, V: Matrix) -> Array:
        return blocked.normal(self.kernel, self.left, self.right, V, self.memory)


class CustomOperator(PreparedOperator):
    """K is never formed: the kernel implements the product (`Kernel.matmul_prepared`)."""

    engine = "custom"
    kernel: Kernel
    left: Side
    right: Side

    def _matmul(self, V: Matrix) -> Array:
        return _times(self.kernel, self.left, self.right, V)

    def _rmatmul(self, U: Matrix) -> Array:
        return _times(self.kernel, self.right, self.left, U)


class FusedOperator(PreparedOperator):
    """K recomputed on chip by a fused GPU program in every product."""

    engine = "fused"
    left: Side  # fused_product.FusedSide; that module imports Pallas and is loaded lazily
    right: Side

    @property
    def bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves((self.left, self.right)))

    def _matmul(self, V: Matrix) -> Array:
        from unlazy.products.fused import fused_product

        return fused_product.apply(self.left, self.right, V)

    def _rmatmul(self, U: Matrix) -> Array:
        from unlazy.products.fused import fused_product

        return fused_product.apply(self.right, self.left, U)


def take_rows(side: Side, index: Array | None) -> Side:
    """Select points of a prepared side (all if `index` is None); every leaf has one row per point."""
    return side if index is None else jax.tree.map(lambda leaf: leaf[index], side)


def blocked_operator(kernel: Kernel, X: Points, Z: Points | None = None, memory: int | None = None) -> BlockedOperator:
    """Prepare both sides once; K is recomputed block by block in every product, within `memory` bytes."""
    return BlockedOperator(kernel, *prepared_sides(kernel, X, Z), memory)


def fused_available(kernel: Kernel, X: Points) -> bool:
    """Whether the fused GPU product supports this kernel and these inputs."""
    if devices.is_host() or importlib.util.find_spec("unlazy.products.fused.fused_product") is None:
        return False
    from unlazy.products.fused import fused_product

    return fused_product.available(kernel, X)


def _symmetric_dot(K: Array, V: Matrix) -> Array:
    """K @ V column by column with BLAS symv, which reads one triangle of K; the product is memory-bound. Storing only
    the triangle would not help: packed (spmv) or in panels it is as slow as reading all of K."""
    from scipy.linalg import blas

    symv = blas.dsymv if K.dtype == jnp.float64 else blas.ssymv
    triangle, columns = np.asarray(K).T, np.asarray(V)
    return jnp.asarray(np.column_stack([symv(1.0, triangle, column) for column in columns.T]))


@jax.jit
def _times(kernel: Kernel, left: Side, right: Side, V: Array) -> Array:
    return kernel.matmul_prepared(left, right, V)


@jax.jit
def _dot(K: Array, V: Array) -> Array:
    return dot(K, V)


@jax.jit
def _transposed_dot(K: Array, U: Array) -> Array:
    if U.shape[1] == 1:  # Kᵀu is 20 times slower than uᵀK on the CPU; with more columns both are equal
        return dot(U.T, K).T
    return dot(K.T, U)
