"""Gram matrices that take hours: computed tile by tile into a folder, so that an interrupted run can resume."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unlazy._version import VERSION
from unlazy.core import devices
from unlazy.core.arrays import Points, float_type, n_points
from unlazy.core.errors import check_positive_integer
from unlazy.core.fingerprint import fingerprint
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.kernels.base import Kernel
from unlazy.products.tile_store import TileGrid, TileStore

EXPENSIVE_TILE, CHEAP_TILE, GPU_TILE = 64, 1024, 512
"""Side of a tile. For convolutional kernels 4,096 pairs take seconds to minutes on the CPU, which is the work lost when
a run is killed. Entries of other kernels are cheap compared with writing them to disk."""
POLL_SECONDS = 0.2
"""Seconds between two checks of tiles that other processes are computing."""


def gram_to_store(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    *,
    store: str | Path,
    tile: int | None = None,
    progress: ProgressOption = False,
    repair: bool = False,
) -> np.ndarray:
    """Compute K(X, Z), or K(X, X) from its upper triangle, into a folder on disk.

    A run that was killed resumes with the missing tiles when it is called again, and produces the same matrix bit for
    bit. Several processes may share one store, on one machine or on several machines with a shared disk: each process
    claims tiles that no other process is computing.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows. Kernels of images or trees take their own input layout.
    Z : array of shape (m, d), optional
        Points of the columns; X by default.
    store : str or Path
        Folder of the matrix, created if it does not exist.
    tile : int, optional
        Number of rows and columns of a tile. By default that of an existing store, or a size suitable for the kernel
        and the device.
    progress : bool or callable, default False
        Whether to show the number of finished tiles and the estimated remaining time, or a function that is called with
        an `unlazy.Progress` after every tile.
    repair : bool, default False
        Recompute damaged tiles instead of raising an error.

    Returns
    -------
    NumPy memmap of shape (n, m)
        The matrix, memory-mapped from disk for reading.

    Raises
    ------
    ValueError
        If the store belongs to another kernel, other points, another precision or another version of unlazy, if it was
        altered or contains damaged tiles (unless `repair`), or if the disk is too small.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, NTK, gram_to_store
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> K = gram_to_store(NTK(MLP(3)), X, store="kernel of X")
    >>> K.shape == (len(X), len(X)) and bool((K == K.T).all())
    True
    """
    X, Z = kernel.read(X, Z)
    kernel.validate(X, Z)
    grid = TileGrid((n_points(X), n_points(X if Z is None else Z)), _side(kernel, tile, store), symmetric=Z is None)
    problem = {
        "kernel": fingerprint(kernel), "points": fingerprint(_leaves(X), None if Z is None else _leaves(Z)),
        "precision": float_type(X).name, "unlazy": VERSION,
    }  # fmt: skip
    files = TileStore(store, grid, float_type(X), problem)
    try:
        _fill(files, kernel, X, Z, progress, repair)
        return files.matrix()
    finally:
        files.close()


def _fill(files: TileStore, kernel: Kernel, X: Any, Z: Any, progress: ProgressOption, repair: bool) -> int:
    """Compute all missing tiles that no other process computes; returns the number of tiles computed here."""
    left = {tile for tile in range(len(files.corners)) if not _is_finished(files, tile, repair)}
    before, computed = len(files.corners) - len(left), 0
    what = f"Gram matrix, resuming after {before} of {len(files.corners)} tiles" if before else "Gram matrix, tiles"
    with ProgressDisplay(what, len(left), show=progress, persist=True) as shown:
        while left:
            found = 0
            for tile in sorted(left):
                with files.claim(tile) as ours:
                    if not ours:
                        continue
                    if not _is_finished(files, tile, repair):
                        files.write(tile, _entries(files, tile, kernel, X, Z))
                        computed += 1
                left.discard(tile)
                found += 1
                shown.advance()
            if left and not found:
                time.sleep(POLL_SECONDS)
    return computed


def _is_finished(files: TileStore, tile: int, repair: bool) -> bool:
    """Whether a tile is finished; a damaged tile raises ValueError unless `repair`."""
    if not files.is_done(tile):
        return False
    if files.is_intact(tile):
        return True
    if not repair:
        rows, columns = files.corners[tile]
        raise ValueError(
            f"tile ({rows}, {columns}) of {files.path} is damaged: its checksum does not match. "
            "Use repair=True to recompute damaged tiles"
        )
    return False


def _entries(files: TileStore, tile: int, kernel: Kernel, X: Any, Z: Any) -> np.ndarray:
    """Entries of K that a tile owns. All tiles are computed with one shape by `Kernel.gram`, which may be fused."""
    grid, (i, j) = files.grid, files.corners[tile]
    rows, columns = grid.sides()
    at_rows, at_columns = grid.computed_start(0, i), grid.computed_start(1, j)
    left = _part(X, at_rows, rows)
    right = None if Z is None and i == j else _part(X if Z is None else Z, at_columns, columns)
    K = kernel.gram(left, right)
    own_rows, own_columns = grid.owned(0, i), grid.owned(1, j)
    return np.asarray(K)[own_rows.start - at_rows :, own_columns.start - at_columns :]


def _part(X: Any, start: int, rows: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[start : start + rows], X)


def _leaves(X: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(X)]


def _side(kernel: Kernel, tile: int | None, store: str | Path) -> int:
    """Side of a tile: as requested, that of the existing store, or the default for the kernel and device."""
    if tile is not None:
        return check_positive_integer("tile", tile)
    begun = TileStore.tile_side(store)
    if begun is not None:
        return begun
    if not devices.is_host():
        return GPU_TILE
    return EXPENSIVE_TILE if kernel.expensive else CHEAP_TILE
