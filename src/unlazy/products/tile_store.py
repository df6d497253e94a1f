"""The files of a Gram matrix that is computed tile by tile: what is done survives a kill, and is known to be whole.

A store is a folder. `matrix.npy` is the matrix, at its full size from the start. `tiles` has 32 bytes for every tile:
zeros, or the SHA-256 of the problem, the tile's number and its entries. `problem.json` says whose matrix it is. Entries
of a tile are written first and its sum last, so a kill leaves a tile that is done or one that is not. Claims are locks
on the bytes of `claims`: the system gives them back when a process dies.
"""

import hashlib
import io
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from unlazy.core.files import written_whole
from unlazy.kernels.evaluation.gram_tiles import starts

MATRIX, SUMS, PROBLEM, CLAIMS = "matrix.npy", "tiles", "problem.json", "claims"
DIGEST = 32
"""Bytes of a SHA-256."""
TOLD = ("shape", "tile", "precision", "unlazy")
"""Parts of a problem that say more than a hash."""
CREATION = 2**40
"""The byte of `claims` that is locked while a store is made: beyond those of all tiles."""


@dataclass(frozen=True)
class Grid:
    """Tiles of an n × m matrix; of a `symmetric` one those on and above the diagonal.

    All tiles are computed with one shape, so the last of an axis reaches back; it owns the entries that are left.
    """

    shape: tuple[int, int]
    side: int
    symmetric: bool

    def sides(self) -> tuple[int, int]:
        """Rows and columns of a tile as it is computed."""
        return min(self.side, self.shape[0]), min(self.side, self.shape[1])

    def corners(self) -> list[tuple[int, int]]:
        """Which block of rows and of columns every tile is."""
        rows, columns = (len(starts(n, side)) for n, side in zip(self.shape, self.sides()))
        return [(i, j) for i in range(rows) for j in range(i if self.symmetric else 0, columns)]

    def computed(self, axis: int, block: int) -> int:
        """Where the rows (axis 0) or columns of a block begin as they are computed."""
        return starts(self.shape[axis], self.sides()[axis])[block]

    def owned(self, axis: int, block: int) -> slice:
        """The rows or columns that are this block's own."""
        side = self.sides()[axis]
        return slice(block * side, min((block + 1) * side, self.shape[axis]))


class TileStore:
    """A store open for one problem; a ValueError where it belongs to another."""

    def __init__(self, path: str | Path, grid: Grid, dtype: Any, problem: dict[str, str]):
        self.path, self.grid, self.dtype = Path(path), grid, np.dtype(dtype)
        self.corners = grid.corners()
        self._problem = {**problem, "shape": f"{grid.shape[0]} × {grid.shape[1]}", "tile": str(grid.side)}
        self._identity = hashlib.sha256(json.dumps(self._problem, sort_keys=True).encode()).digest()
        self._refuse_strangers()
        self.path.mkdir(parents=True, exist_ok=True)
        self._claims = open(self.path / CLAIMS, "ab")  # noqa: SIM115 (closed by `close`: locks live as long as it)
        try:
            with self._locked(CREATION, wait=True):
                if not (self.path / PROBLEM).exists():
                    self._create()
                self._check()
            self._matrix, self._sums = ((self.path / name).open("r+b", buffering=0) for name in (MATRIX, SUMS))
        except BaseException:
            self._claims.close()
            raise
        self._first = len(_header(self.grid.shape, self.dtype))
        self._mapped = self.matrix()

    @staticmethod
    def side_of(path: str | Path) -> int | None:
        """The side of the tiles of a store that was begun; None where there is none, or it cannot be read."""
        try:
            return int(json.loads((Path(path) / PROBLEM).read_text())["tile"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Give back files and claims."""
        for file in (self._claims, self._matrix, self._sums):
            file.close()

    def done(self, tile: int) -> bool:
        """Whether a tile is done, as the file says now."""
        return any(self._kept_sum(tile))

    @contextmanager
    def claimed(self, tile: int) -> Iterator[bool]:
        """Whether this process, and no other, has the tile for now."""
        with self._locked(tile, wait=False) as free:
            yield free

    def write(self, tile: int, entries: np.ndarray) -> None:
        """The entries that a tile owns (and of a symmetric matrix their mirror image), then its sum."""
        rows, columns = self._owned(tile)
        entries = np.ascontiguousarray(entries, self.dtype)
        self._put(rows, columns, entries)
        if self.grid.symmetric and rows != columns:
            self._put(columns, rows, np.ascontiguousarray(entries.T))
        self._sums.seek(tile * DIGEST)
        self._sums.write(self._sum(tile, entries))

    def whole(self, tile: int) -> bool:
        """Whether a tile that is done has the entries that were written."""
        rows, columns = self._owned(tile)
        K = self._mapped
        entries = np.ascontiguousarray(K[rows, columns])
        if self._kept_sum(tile) != self._sum(tile, entries):
            return False
        return not self.grid.symmetric or entries.tobytes() == np.ascontiguousarray(K[columns, rows].T).tobytes()

    def matrix(self) -> np.ndarray:
        """The matrix as it lies on the disk, for reading."""
        return np.load(self.path / MATRIX, mmap_mode="r")

    def _owned(self, tile: int) -> tuple[slice, slice]:
        i, j = self.corners[tile]
        return self.grid.owned(0, i), self.grid.owned(1, j)

    def _sum(self, tile: int, entries: np.ndarray) -> bytes:
        return hashlib.sha256(self._identity + tile.to_bytes(8, "little") + entries.tobytes()).digest()

    def _kept_sum(self, tile: int) -> bytes:
        self._sums.seek(tile * DIGEST)
        return self._sums.read(DIGEST)

    def _put(self, rows: slice, columns: slice, entries: np.ndarray) -> None:
        """Row by row through the file: where the disk is full that is an OSError, and through a map it is a crash."""
        for row, values in zip(range(rows.start, rows.stop), entries):
            place = row * self.grid.shape[1] + columns.start
            self._matrix.seek(self._first + place * self.dtype.itemsize)
            _write_all(self._matrix, values.tobytes())

    def _refuse_strangers(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, and a store of a Gram matrix is a folder: name another")
        ours = {MATRIX, SUMS, PROBLEM, CLAIMS}
        found = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        others = sorted(name for name in found if name not in ours and ".partial" not in name)
        if others:
            raise ValueError(
                f"{self.path} holds other things than a Gram matrix ({', '.join(others[:3])}): name a new folder"
            )

    def _size(self) -> int:
        """Bytes of the matrix in its file."""
        return len(_header(self.grid.shape, self.dtype)) + math.prod(self.grid.shape) * self.dtype.itemsize

    def _create(self) -> None:
        size, free = self._size(), shutil.disk_usage(self.path).free
        if size > free:
            raise ValueError(
                f"a Gram matrix of {self._problem['shape']} takes {size / 2**30:.3g} GiB and {self.path} has "
                f"{free / 2**30:.3g} GiB free: name a folder on a larger disk, or use float32"
            )
        with open(self.path / MATRIX, "wb") as file:
            file.write(_header(self.grid.shape, self.dtype))
            file.truncate(size)
        with open(self.path / SUMS, "wb") as file:
            file.truncate(len(self.corners) * DIGEST)
        with written_whole(self.path / PROBLEM) as aside:
            aside.write_text(json.dumps(self._problem, indent=1))

    def _check(self) -> None:
        """The problem is this one and the files have their sizes."""
        path = self.path / PROBLEM
        try:
            kept = dict(json.loads(path.read_text()))
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"{path} cannot be read ({error}): remove the store or name another") from error
        other = [k for k in self._problem if kept.get(k) != self._problem[k]]
        if other:
            said = ", ".join(f"{k} {kept.get(k)}" if k in TOLD else k for k in other)
            raise ValueError(f"{self.path} is the matrix of another problem (different {said}): name another store")
        for name, size in ((MATRIX, self._size()), (SUMS, len(self.corners) * DIGEST)):
            path = self.path / name
            found = path.stat().st_size if path.exists() else 0
            if found != size or (name == MATRIX and not self._begins_well(path)):
                raise ValueError(f"{path} was cut short or altered ({found} bytes of {size}): remove the store")

    def _begins_well(self, path: Path) -> bool:
        header = _header(self.grid.shape, self.dtype)
        with open(path, "rb") as file:
            return file.read(len(header)) == header

    @contextmanager
    def _locked(self, byte: int, wait: bool) -> Iterator[bool]:
        """One byte of `claims`, as long as the block runs. Where the system has no such locks it is always free."""
        try:
            import fcntl
        except ImportError:
            yield True
            return
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, byte)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            with suppress(OSError, ValueError):
                fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, byte)


def _header(shape: tuple[int, int], dtype: np.dtype) -> bytes:
    """What a file of NumPy's begins with."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _write_all(file: IO[bytes], data: bytes) -> None:
    """An unbuffered file may take less than all at once."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
