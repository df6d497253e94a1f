"""Data that may be larger than memory: arrays, .npy files, Parquet files and anything with a shape and row slices."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unlazy.core.arrays import check_axes, count, gathered, points, real_numbers, refuse_not_finite
from unlazy.core.precision import precision
from unlazy.core.threads import ahead

STRETCH_BYTES = 2**26
"""Rows in float64 read at a time when some of them are picked out of a file."""
SEEK_BYTES = 2**19
"""What a disk reads in the time in which it finds a place: half a millisecond at a gigabyte a second."""


class Source:
    """n rows of d numbers, read a range at a time. `whole` is the array itself where it is in memory."""

    matrix = True
    """Whether a point is a row of numbers."""

    def __init__(self, rows: Any, n: int, d: int, whole: Any = None):
        self._rows, self.n, self.d, self.whole = rows, n, d, whole
        self._taken: tuple[np.ndarray, np.ndarray] | None = None

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start … stop-1 as floats, checked."""
        return finite_floats("X", np.asarray(self._rows[start:stop]), start)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Rows at increasing indices: each by itself where they are few and the file can, else one stretch of the file
        at a time. The last rows taken are kept: the same sample is asked for again and again."""
        if self.whole is not None:
            return self.whole[indices]
        if self._taken is None or not np.array_equal(self._taken[0], indices):
            self._taken = indices, self._take(indices)
        return self._taken[1]

    def _take(self, indices: np.ndarray) -> np.ndarray:
        if isinstance(self._rows, NpyRows) and len(indices) * SEEK_BYTES < self._rows.bytes:
            rows = real_numbers("X", self._rows.take(indices))
            for i in np.flatnonzero(~np.isfinite(rows).all(1)):
                refuse_not_finite("X", rows[i : i + 1], int(indices[i]))
            return rows
        stretch = max(1, STRETCH_BYTES // (8 * self.d))

        def picked(start: int) -> np.ndarray:
            inside = indices[(indices >= start) & (indices < start + stretch)]
            return self.rows(start, min(start + stretch, self.n))[inside - start]

        return np.concatenate(list(ahead(picked, (stretch * np.unique(indices // stretch)).tolist())))

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows) from top to bottom; the next are read while the caller is busy with these."""
        starts = range(0, self.n, size)
        if self.whole is not None:
            return ((start, self.rows(start, min(start + size, self.n))) for start in starts)
        return ahead(lambda start: (start, self.rows(start, min(start + size, self.n))), starts)


class TreeSource(Source):
    """n points that are no rows: images, or a tree of arrays with a leading axis; in memory."""

    matrix = False

    def __init__(self, X: Any):
        d = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(X))
        super().__init__(None, count(X), d, X)

    def rows(self, start: int, stop: int) -> Any:
        return jax.tree.map(lambda leaf: leaf[start:stop], self.whole)

    def take(self, indices: np.ndarray) -> Any:
        return jax.tree.map(lambda leaf: leaf[indices], self.whole)


class NpyRows:
    """Row ranges of a .npy file with rows one after another, read into memory of their own: pages of a mapped file
    would stay with the process and count as its memory."""

    def __init__(self, path: Path, mapped: np.memmap):
        self.path, self.shape, self.dtype, self.offset = path, mapped.shape, mapped.dtype, mapped.offset
        self.row = self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def bytes(self) -> int:
        """Of all rows."""
        return self.shape[0] * self.row

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        with open(self.path, "rb", buffering=0) as file:
            self._read(file, start, out)
        return out

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Rows at some places; of the rest of the file nothing is read."""
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
                raise ValueError(f"{self.path} ends before its last row: is it still being written?")
            left = left[count:]


class ParquetRows:
    """Row ranges of a Parquet file; the last row group read is kept."""

    def __init__(self, path: Path, columns: list[str] | None = None):
        from pyarrow import parquet

        self.file = parquet.ParquetFile(path)
        self.columns = columns or list(self.file.schema_arrow.names)
        counts = [self.file.metadata.row_group(i).num_rows for i in range(self.file.metadata.num_row_groups)]
        self.edges = np.concatenate([[0], np.cumsum(counts)])
        self.shape = (int(self.edges[-1]), len(self.columns))
        self._kept: tuple[int, np.ndarray] | None = None

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for g in range(len(self.edges) - 1):
            low, high = max(start, self.edges[g]), min(stop, self.edges[g + 1])
            if low < high:
                parts.append(self._group(g)[low - self.edges[g] : high - self.edges[g]])
        return np.concatenate(parts) if parts else np.empty((0, self.shape[1]))

    def _group(self, g: int) -> np.ndarray:
        if self._kept is None or self._kept[0] != g:
            table = self.file.read_row_group(g, columns=self.columns)
            self._kept = g, np.column_stack([table[c].to_numpy() for c in self.columns])
        return self._kept[1]


def parquet(path: str | Path, columns: list[str]) -> ParquetRows:
    """Some columns of a Parquet file, as inputs: `solve(kernel, parquet("higgs.parquet", features), y, ridge)`."""
    return ParquetRows(Path(path), columns)


def as_source(X: Any, takes: str = "matrix") -> Source:
    """A source from an array, a path (.npy, .parquet) or an object with `shape` and row slices (memmap, Zarr, HDF5).

    Where the kernel takes more than a matrix, also images or a tree of arrays.
    """
    if takes != "matrix" and isinstance(X, list):
        X = gathered(X)
    if takes != "matrix" and not isinstance(X, str | Path) and len(getattr(X, "shape", ())) != 2:
        with precision("float64"):  # nothing is lost on the way in
            tree = jax.tree.map(np.asarray, points(X, takes=takes))
        for leaf in jax.tree.leaves(tree):
            refuse_not_finite("X", leaf)
        return TreeSource(tree)
    if isinstance(X, str | Path):
        X = _open(Path(X))
    on_disk = isinstance(X, np.memmap) or not isinstance(X, np.ndarray | jax.Array | list | tuple)
    if on_disk and hasattr(X, "shape") and hasattr(X, "__getitem__") and not hasattr(X, "to_numpy"):
        n, d = _two_axes(tuple(X.shape))
        return Source(X, n, d)
    array = finite_floats("X", X)
    n, d = _two_axes(array.shape)
    return Source(array, n, d, array)


def finite_floats(what: str, array: Any, first: int = 0) -> np.ndarray:
    """The array as floats; a ValueError that names text, complex numbers, and the first row that is not finite."""
    array = real_numbers(what, array)
    refuse_not_finite(what, array, first)
    return array


def _open(path: Path) -> Any:
    if not path.exists():
        raise ValueError(f"no such file: {path}")
    if path.suffix == ".npy":
        mapped = np.load(path, mmap_mode="r")
        return NpyRows(path, mapped) if mapped.flags.c_contiguous and mapped.dtype.kind in "fiub" else mapped
    if path.suffix in (".parquet", ".pq"):
        return ParquetRows(path)
    raise ValueError(f"cannot read {path.name}: inputs come as .npy or .parquet, or as an array")


def _two_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    check_axes("X", shape)
    return shape  # type: ignore[return-value]
