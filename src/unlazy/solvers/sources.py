"""Data that may be larger than memory: arrays, .npy files, Parquet files and anything with a shape and row slices."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unlazy.core.inputs import check_axes, count, gathered, points, real_numbers, refuse_not_finite
from unlazy.core.precision import precision

STRETCH_BYTES = 2**26
"""Rows in float64 read at a time when some of them are picked out of a file."""


class Source:
    """n rows of d numbers, read a range at a time. `whole` is the array itself where it is in memory."""

    matrix = True
    """Whether a point is a row of numbers."""

    def __init__(self, rows: Any, n: int, d: int, whole: Any = None):
        self._rows, self.n, self.d, self.whole = rows, n, d, whole

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start … stop-1 as floats, checked."""
        return finite_floats("X", np.asarray(self._rows[start:stop]), start)

    def take(self, indices: np.ndarray) -> np.ndarray:
        """Rows at increasing indices, reading one stretch of the file at a time."""
        if self.whole is not None:
            return self.whole[indices]
        stretch = max(1, STRETCH_BYTES // (8 * self.d))
        parts = []
        for start in range(0, self.n, stretch):
            inside = indices[(indices >= start) & (indices < start + stretch)]
            if inside.size:
                parts.append(self.rows(start, min(start + stretch, self.n))[inside - start])
        return np.concatenate(parts)

    def blocks(self, size: int) -> Iterator[tuple[int, np.ndarray]]:
        """(first row, rows) from top to bottom."""
        for start in range(0, self.n, size):
            yield start, self.rows(start, min(start + size, self.n))


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
        return np.load(path, mmap_mode="r")
    if path.suffix in (".parquet", ".pq"):
        return ParquetRows(path)
    raise ValueError(f"cannot read {path.name}: inputs come as .npy or .parquet, or as an array")


def _two_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    check_axes("X", shape)
    return shape  # type: ignore[return-value]
