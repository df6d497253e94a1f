"""On-disk storage of a Gram matrix that is computed tile by tile, resumable after a kill and protected by checksums.

A store is a folder. `matrix.npy` is the matrix, allocated at full size. `tiles` has 32 bytes per tile: zeros, or the
SHA-256 of the problem, the tile index and the entries. `problem.json` identifies the problem. The entries of a tile are
written before its checksum, so a killed process leaves every tile either finished or unfinished. Processes claim tiles
by locking bytes of `claims`; the operating system releases the locks when a process dies.
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

from unlazy.core.files import atomic_write
from unlazy.kernels.gram_blocks import tile_offsets

MATRIX, SUMS, PROBLEM, CLAIMS = "matrix.npy", "tiles", "problem.json", "claims"
DIGEST = 32
"""Bytes of a SHA-256 digest."""
SHOWN_FIELDS = ("shape", "tile", "precision", "unlazy")
"""Fields of a problem whose values are shown in error messages; the others are hashes."""
CREATION_LOCK = 2**40
"""The byte of `claims` that is locked while a store is created, beyond the bytes of all tiles."""


@dataclass(frozen=True)
class TileGrid:
    """Tiles of an n × m matrix; only those on and above the diagonal if it is `symmetric`.

    All tiles are computed with one shape, so the last tile of an axis overlaps the previous one; it owns only the
    remaining entries.
    """

    shape: tuple[int, int]
    side: int
    symmetric: bool

    def sides(self) -> tuple[int, int]:
        """Rows and columns of a computed tile."""
        return min(self.side, self.shape[0]), min(self.side, self.shape[1])

    def corners(self) -> list[tuple[int, int]]:
        """Block row and block column of every tile."""
        rows, columns = (len(tile_offsets(n, side)) for n, side in zip(self.shape, self.sides()))
        return [(i, j) for i in range(rows) for j in range(i if self.symmetric else 0, columns)]

    def computed_start(self, axis: int, block: int) -> int:
        """First computed row (axis 0) or column (axis 1) of a block."""
        return tile_offsets(self.shape[axis], self.sides()[axis])[block]

    def owned(self, axis: int, block: int) -> slice:
        """Rows or columns that the block owns."""
        side = self.sides()[axis]
        return slice(block * side, min((block + 1) * side, self.shape[axis]))


class TileStore:
    """An open store for one problem; raises ValueError if the folder belongs to another problem."""

    def __init__(self, path: str | Path, grid: TileGrid, dtype: Any, problem: dict[str, str]):
        self.path, self.grid, self.dtype = Path(path), grid, np.dtype(dtype)
        self.corners = grid.corners()
        self._problem = {**problem, "shape": f"{grid.shape[0]} × {grid.shape[1]}", "tile": str(grid.side)}
        self._identity = hashlib.sha256(json.dumps(self._problem, sort_keys=True).encode()).digest()
        self._check_folder()
        self.path.mkdir(parents=True, exist_ok=True)
        self._claims = open(self.path / CLAIMS, "ab")  # noqa: SIM115 (closed by `close`; the locks last as long as the file is open)
        try:
            with self._locked(CREATION_LOCK, wait=True):
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
    def tile_side(path: str | Path) -> int | None:
        """Tile side of an existing store; None if there is no store or it cannot be read."""
        try:
            return int(json.loads((Path(path) / PROBLEM).read_text())["tile"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Close all files and release all claims."""
        for file in (self._claims, self._matrix, self._sums):
            file.close()

    def is_done(self, tile: int) -> bool:
        """Whether a tile is finished according to the file."""
        return any(self._stored_checksum(tile))

    @contextmanager
    def claim(self, tile: int) -> Iterator[bool]:
        """Try to claim a tile; yields whether this process has it."""
        with self._locked(tile, wait=False) as free:
            yield free

    def write(self, tile: int, entries: np.ndarray) -> None:
        """Write the entries that a tile owns (and their transpose if symmetric), then the checksum."""
        rows, columns = self._owned(tile)
        entries = np.ascontiguousarray(entries, self.dtype)
        self._put(rows, columns, entries)
        if self.grid.symmetric and rows != columns:
            self._put(columns, rows, np.ascontiguousarray(entries.T))
        self._sums.seek(tile * DIGEST)
        self._sums.write(self._checksum(tile, entries))

    def is_intact(self, tile: int) -> bool:
        """Whether the entries of a finished tile match its checksum."""
        rows, columns = self._owned(tile)
        K = self._mapped
        entries = np.ascontiguousarray(K[rows, columns])
        if self._stored_checksum(tile) != self._checksum(tile, entries):
            return False
        return not self.grid.symmetric or entries.tobytes() == np.ascontiguousarray(K[columns, rows].T).tobytes()

    def matrix(self) -> np.ndarray:
        """The matrix, memory-mapped for reading."""
        return np.load(self.path / MATRIX, mmap_mode="r")

    def _owned(self, tile: int) -> tuple[slice, slice]:
        i, j = self.corners[tile]
        return self.grid.owned(0, i), self.grid.owned(1, j)

    def _checksum(self, tile: int, entries: np.ndarray) -> bytes:
        return hashlib.sha256(self._identity + tile.to_bytes(8, "little") + entries.tobytes()).digest()

    def _stored_checksum(self, tile: int) -> bytes:
        self._sums.seek(tile * DIGEST)
        return self._sums.read(DIGEST)

    def _put(self, rows: slice, columns: slice, entries: np.ndarray) -> None:
        """Write row by row through the file: a full disk raises OSError, while a memory map would crash."""
        for row, values in zip(range(rows.start, rows.stop), entries):
            place = row * self.grid.shape[1] + columns.start
            self._matrix.seek(self._first + place * self.dtype.itemsize)
            _write_all(self._matrix, values.tobytes())

    def _check_folder(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file, but a Gram matrix store is a folder: choose another path")
        ours = {MATRIX, SUMS, PROBLEM, CLAIMS}
        found = [p.name for p in self.path.iterdir()] if self.path.exists() else []
        others = sorted(name for name in found if name not in ours and ".partial" not in name)
        if others:
            raise ValueError(
                f"{self.path} contains files that do not belong to a Gram matrix store ({', '.join(others[:3])}): "
                "choose an empty or new folder"
            )

    def _size(self) -> int:
        """Size of the matrix file in bytes."""
        return len(_header(self.grid.shape, self.dtype)) + math.prod(self.grid.shape) * self.dtype.itemsize

    def _create(self) -> None:
        size, free = self._size(), shutil.disk_usage(self.path).free
        if size > free:
            raise ValueError(
                f"a Gram matrix of {self._problem['shape']} needs {size / 2**30:.3g} GiB, but {self.path} has "
                f"{free / 2**30:.3g} GiB free: choose a folder on a larger disk, or use float32"
            )
        with open(self.path / MATRIX, "wb") as file:
            file.write(_header(self.grid.shape, self.dtype))
            file.truncate(size)
        with open(self.path / SUMS, "wb") as file:
            file.truncate(len(self.corners) * DIGEST)
        with atomic_write(self.path / PROBLEM) as aside:
            aside.write_text(json.dumps(self._problem, indent=1))

    def _check(self) -> None:
        """Raise ValueError unless the store belongs to this problem and its files are complete."""
        path = self.path / PROBLEM
        try:
            kept = dict(json.loads(path.read_text()))
        except (ValueError, TypeError, OSError) as error:
            raise ValueError(f"{path} cannot be read ({error}): remove the store or choose another folder") from error
        other = [k for k in self._problem if kept.get(k) != self._problem[k]]
        if other:
            said = ", ".join(f"{k} {kept.get(k)}" if k in SHOWN_FIELDS else k for k in other)
            raise ValueError(f"{self.path} belongs to another problem (different {said}): choose another store")
        for name, size in ((MATRIX, self._size()), (SUMS, len(self.corners) * DIGEST)):
            path = self.path / name
            found = path.stat().st_size if path.exists() else 0
            if found != size or (name == MATRIX and not self._has_header(path)):
                raise ValueError(f"{path} was truncated or altered ({found} bytes instead of {size}): remove the store")

    def _has_header(self, path: Path) -> bool:
        header = _header(self.grid.shape, self.dtype)
        with open(path, "rb") as file:
            return file.read(len(header)) == header

    @contextmanager
    def _locked(self, byte: int, wait: bool) -> Iterator[bool]:
        """Lock one byte of `claims` inside the `with` block. Without file locks (no fcntl), always succeeds."""
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
    """Header of a .npy file."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    )
    return file.getvalue()


def _write_all(file: IO[bytes], data: bytes) -> None:
    """Write all bytes; an unbuffered file may write fewer bytes per call."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
