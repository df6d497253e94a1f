"""Data that may exceed memory: arrays, .npy files, Parquet files and any object with a shape and row slices."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import ArrayLike

from unlazy.core.arrays import (
    Points,
    as_points,
    as_real_array,
    check_axes,
    check_finite,
    n_points,
    precision,
    stack_points,
)
from unlazy.core.threads import prefetch

READ_BYTES = 2**26
"""Bytes of float64 rows read at a time when scattered rows are selected from a file."""
SEEK_BYTES = 2**19
"""Bytes a disk reads in the time of one seek: half a millisecond at one gigabyte per second."""


@runtime_checkable
class Rows(Protocol):
    """An object with row slices: an array, a memmap, a Zarr or HDF5 array, a file."""

    def __getitem__(self, rows: slice, /) -> ArrayLike: ...


class Source:
    """n rows of d numbers, read a range at a time.

    Attributes
    ----------
    n, d : int
        Number of rows and columns.
    array : array or None
        The data itself if it is in memory.
    is_matrix : bool
        Whether a point is a row of numbers.
    """

    is_matrix = True
    """Whether a point is a row of numbers."""

    def __init__(self, rows: Rows, n: int, d: int, array: Points = None):
        self._rows, self.n, self.d, self.array = rows, n, d, array
        self._cached_rows: tuple[np.ndarray, np.ndarray] | None = None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start … stop-1 as floats, validated."""
        return finite_floats("X", np.asarray(self._rows[start:stop]), start)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Rows at increasing indices.

        Few rows of a .npy file are read one by one, otherwise one range of the file at a time. The last selection is
        cached: the same sample is requested repeatedly.
        """
        if self.array is not None:
            return self.array[indices]
        if self._cached_rows is None or not np.array_equal(self._cached_rows[0], indices):
            self._cached_rows = indices, self._read_rows(indices)
        return self._cached_rows[1]

    def _read_rows(self, indices: np.ndarray) -> np.ndarray:
        """Read the rows without the cache."""
        if isinstance(self._rows, NpyRows) and len(indices) * SEEK_BYTES < self._rows.bytes:
            rows = as_real_array("X", self._rows.take(indices))
            for i in np.flatnonzero(~np.isfinite(rows).all(1)):
                check_finite("X", rows[i : i + 1], int(indices[i]))
            return rows
        stretch = max(1, READ_BYTES // (8 * self.d))

        def picked(start: int) -> np.ndarray:
            inside = indices[(indices >= start) & (indices < start + stretch)]
            return self.rows(start, min(start + stretch, self.n))[inside - start]

        return np.concatenate(list(prefetch(picked, (stretch * np.unique(indices // stretch)).tolist())))

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """Iterate over (first row, rows) from top to bottom; the next block is read while the caller uses this one."""
        starts = range(0, self.n, size)
        if self.array is not None:
            return ((start, self.rows(start, min(start + size, self.n))) for start in starts)
        return prefetch(lambda start: (start, self.rows(start, min(start + size, self.n))), starts)


class TreeSource(Source):
    """n points that are not rows: images, or a pytree of arrays with a leading axis; in memory."""

    is_matrix = False

    def __init__(self, X: Points):
        self.n, self.array = n_points(X), X
        self.d = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(X))

    def rows(self, start: int, stop: int) -> Points:
        """Points start … stop-1."""
        return jax.tree.map(lambda leaf: leaf[start:stop], self.array)

    def take(self, indices: np.ndarray) -> Points:
        """Points at the indices."""
        return jax.tree.map(lambda leaf: leaf[indices], self.array)


class NpyRows:
    """Row ranges of a C-contiguous .npy file, read into new arrays.

    Pages of a memory-mapped file would count as memory of the process.
    """

    def __init__(self, path: Path, mapped: np.memmap):
        self.path, self.shape, self.dtype, self.offset = path, mapped.shape, mapped.dtype, mapped.offset
        self.row = self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def bytes(self) -> int:
        """Size of all rows in bytes."""
        return self.shape[0] * self.row

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as file:
            self._read(file, start, out)
        return out

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Rows at the given indices; nothing else is read."""
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for i, index in enumerate(indices):
                self._read(file, int(index), out[i : i + 1])
        return out

    def _read(self, file: Any, start: int, out: np.ndarray) -> None:
        file.seek(self.offset + start * self.row)
        left = memoryview(out.data).cast("B") if out.size else memoryview(b"")
        while len(left):
            count = file.readinto(left)
            if not count:
                raise ValueError(f"{self.path} ends before its last row; it may still be being written")
            left = left[count:]


class ParquetRows:
    """Row ranges of a Parquet file; the last row group read is cached."""

    def __init__(self, path: Path, columns: list[str] | None = None):
        from pyarrow import parquet

        self.file = parquet.ParquetFile(path)
        self.columns = columns or list(self.file.schema_arrow.names)
        counts = [self.file.metadata.row_group(i).num_rows for i in range(self.file.metadata.num_row_groups)]
        self.edges = np.concatenate([[0], np.cumsum(counts)])
        self.shape = (int(self.edges[-1]), len(self.columns))
        self._cached_group: tuple[int, np.ndarray] | None = None

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for g in range(len(self.edges) - 1):
            low, high = max(start, self.edges[g]), min(stop, self.edges[g + 1])
            if low < high:
                parts.append(self._group(g)[low - self.edges[g] : high - self.edges[g]])
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]))

    def _group(self, g: int) -> np.ndarray:
        if self._cached_group is None or self._cached_group[0] != g:
            table = self.file.read_row_group(g, columns=self.columns)
            self._cached_group = g, np.column_stack([table[c].to_numpy() for c in self.columns])
        return self._cached_group[1]


def parquet(path: str | Path, columns: list[str]) -> ParquetRows:
    """Selected columns of a Parquet file, as inputs of `solve`.

    Parameters
    ----------
    path : str or Path
        The file.
    columns : list of str
        Names of the columns, in order.

    Returns
    -------
    ParquetRows
        An object with `shape` and row slices: `solve(kernel, parquet("higgs.parquet", features), y, ridge)`.
    """
    return ParquetRows(Path(path), columns)


def as_source(X: Points, takes: str = "matrix") -> Source:
    """Source from an array, a path (.npy, .parquet) or an object with `shape` and row slices (memmap, Zarr, HDF5).

    If the kernel accepts more than a matrix, X may also be images or a pytree of arrays.
    """
    if takes != "matrix" and isinstance(X, list):
        X = stack_points(X)
    if takes != "matrix" and not isinstance(X, str | Path) and len(getattr(X, "shape", ())) != 2:
        with precision("float64"):  # keep full precision
            tree = jax.tree.map(np.asarray, as_points(X, input_kind=takes))
        for leaf in jax.tree.leaves(tree):
            check_finite("X", leaf)
        return TreeSource(tree)
    if isinstance(X, str | Path):
        X = _open(Path(X))
    on_disk = isinstance(X, np.memmap) or not isinstance(X, np.ndarray | jax.Array | list | tuple)
    if on_disk and hasattr(X, "shape") and hasattr(X, "__getitem__") and not hasattr(X, "to_numpy"):
        n, d = _matrix_shape(tuple(X.shape))
        return Source(X, n, d)
    array = finite_floats("X", X)
    n, d = _matrix_shape(array.shape)
    return Source(array, n, d, array)


def finite_floats(what: str, array: Points, first: int = 0) -> np.ndarray:
    """The array as floats; raise ValueError for text, complex numbers and non-finite rows."""
    array = as_real_array(what, array)
    check_finite(what, array, first)
    return array


def _open(path: Path) -> Any:
    """Open a .npy or .parquet file."""
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.suffix == ".npy":
        mapped = np.load(path, mmap_mode="r")
        return NpyRows(path, mapped) if mapped.flags.c_contiguous and mapped.dtype.kind in "fiub" else mapped
    if path.suffix in (".parquet", ".pq"):
        return ParquetRows(path)
    raise ValueError(f"cannot read {path.name}: pass a .npy or .parquet file, or an array")


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Validate that the shape has two axes."""
    check_axes("X", shape)
    return shape  # type: ignore[return-value]
