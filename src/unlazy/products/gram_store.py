"""Gram matrices that take hours: computed tile by tile into a folder, from which a killed run goes on."""

import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from unlazy._version import VERSION
from unlazy.core import devices
from unlazy.core.arrays import Points, count, float_type
from unlazy.core.errors import check_positive_integer
from unlazy.core.fingerprint import fingerprint
from unlazy.core.progress import Display
from unlazy.kernels.base import Kernel
from unlazy.products.tile_store import Grid, TileStore

COSTLY, PLAIN, ON_A_CARD = 64, 1024, 512
"""Side of a tile: of kernels whose entry is a network of images, 4,096 pairs are seconds to minutes on the CPU, and so
much a kill may cost; entries of others are nothing beside their place on the disk."""
PATIENCE = 0.2
"""Seconds between two looks at tiles that others are computing."""


def gram_to_store(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    *,
    store: str | Path,
    tile: int | None = None,
    progress: bool = False,
    repair: bool = False,
) -> np.ndarray:
    """K(X, Z), or K(X, X) from its upper triangle, in a folder on the disk; what comes back is mapped, not read.

    A run that was killed goes on from the tiles that are done when it is called again, and ends with the same matrix
    bit for bit. Several processes may be given the same store at once, on one machine or on several that share the
    disk: each claims tiles that no other has. A store of another kernel, other points or another precision is refused,
    and so are tiles whose entries are not those that were written; `repair` computes such tiles again. `tile` is the
    number of rows and columns of a tile, `progress` shows how many are done and the time left.

    >>> K = gram_to_store(NTK(MLP(3)), X, store="kernel of X")
    >>> K.shape == (len(X), len(X)) and bool((K == K.T).all())
    True
    """
    X, Z = kernel.read(X, Z)
    kernel.admit(X, Z)
    grid = Grid((count(X), count(X if Z is None else Z)), _side(kernel, tile, store), symmetric=Z is None)
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


def _fill(files: TileStore, kernel: Kernel, X: Any, Z: Any, progress: bool, repair: bool) -> int:
    """All tiles that nobody else does; how many were computed here."""
    left = {tile for tile in range(len(files.corners)) if not _there(files, tile, repair)}
    before, computed = len(files.corners) - len(left), 0
    what = f"Gram matrix, after {before} of {len(files.corners)} tiles" if before else "Gram matrix, tiles"
    with Display(what, len(left), show=progress, kept=True) as shown:
        while left:
            found = 0
            for tile in sorted(left):
                with files.claimed(tile) as ours:
                    if not ours:
                        continue
                    if not _there(files, tile, repair):
                        files.write(tile, _entries(files, tile, kernel, X, Z))
                        computed += 1
                left.discard(tile)
                found += 1
                shown.advance()
            if left and not found:
                time.sleep(PATIENCE)
    return computed


def _there(files: TileStore, tile: int, repair: bool) -> bool:
    """Whether a tile is done and whole; a ValueError where it is done and not whole."""
    if not files.done(tile):
        return False
    if files.whole(tile):
        return True
    if not repair:
        rows, columns = files.corners[tile]
        raise ValueError(
            f"tile ({rows}, {columns}) of {files.path} is damaged: its entries are not those that were written. "
            "repair=True computes such tiles again"
        )
    return False


def _entries(files: TileStore, tile: int, kernel: Kernel, X: Any, Z: Any) -> np.ndarray:
    """What a tile owns of K: every tile of one shape, by the kernel's own Gram matrix.

    A fused program for a kernel's blocks comes in there, since tiles know nothing of how entries are evaluated.
    """
    grid, (i, j) = files.grid, files.corners[tile]
    rows, columns = grid.sides()
    at_rows, at_columns = grid.computed(0, i), grid.computed(1, j)
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
    """As asked, as the store was begun, or what suits the kernel."""
    if tile is not None:
        return check_positive_integer("tile", tile)
    begun = TileStore.side_of(store)
    if begun is not None:
        return begun
    if not devices.is_host():
        return ON_A_CARD
    return COSTLY if kernel.costly else PLAIN
