"""The weighted Jacobian A = RᵀJ of a network on its training rows, kept, or computed again in batches."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unlazy.core.arrays import einsum
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.models.inputs import take_rows
from unlazy.models.protocol import Inputs
from unlazy.models.tangents import TangentMap, Tangents

BATCH = 1024
"""Largest number of rows per pass of a product."""
BLOCK_BYTES = 2**28
"""Memory for the tangents of one batch of rows."""
ITEM = 8
"""Bytes of a number, at most."""


class WeightedJacobian:
    """A = RᵀJ on n rows with c outputs each: N = n·c tangents.

    Parameters
    ----------
    tangents : TangentMap
        The Jacobian of the network.
    inputs : inputs
        n rows.
    root : array of shape (n, c, c)
        R of every row.
    memory : int
        Bytes for tangents that are kept.
    progress : bool or callable, default False
        Whether to show progress.
    """

    def __init__(
        self,
        tangents: TangentMap,
        inputs: Inputs,
        root: Float[np.ndarray, "n c c"],
        memory: int,
        progress: ProgressOption = False,
    ) -> None:
        self.map, self.inputs, self.root, self._progress = tangents, inputs, root, progress
        self.n, self.c = root.shape[:2]
        self.size = self.n * self.c
        row = self.c * tangents.size * ITEM
        self._kept: Tangents | None = None
        self._keeps = self.n * row <= memory
        self._block = max(1, min(BATCH, self.n, min(memory // 4, BLOCK_BYTES) // row))

    def tangents(self, rows: NDArray[np.integer]) -> Tangents:
        """Aᵢ of some rows."""
        return self.map.rows(take_rows(self.inputs, rows), np.swapaxes(self.root[rows], 1, 2))

    def pull(self, vectors: Float[np.ndarray, "k N"]) -> Tangents:
        """V A."""
        kept = self.keep()
        if kept is not None:
            return self.map.combine(vectors, kept)
        total = None
        for rows, real in self._batches(min(BATCH, self.n)):
            found = self.map.pull(take_rows(self.inputs, rows), self._weighted(vectors, rows, real))
            total = found if total is None else self.map.add(total, found)
        return total

    def push(self, tangents: Tangents) -> Float[np.ndarray, "k N"]:
        """T Aᵀ."""
        kept = self.keep()
        if kept is not None:
            return self.map.contract(tangents, kept)
        found = []
        for rows, real in self._batches(min(BATCH, self.n)):
            out = self.map.push(take_rows(self.inputs, rows), tangents)[:, :real]
            found.append(einsum("kma,mab->kmb", out, self.root[rows[:real]]).reshape(len(out), -1))
        return np.concatenate(found, 1)

    def gram(self) -> Float[np.ndarray, "N N"]:
        """A Aᵀ."""
        kept = self.keep()
        if kept is not None:
            return self.map.contract(kept, kept)
        K = np.empty((self.size, self.size))
        starts = range(0, self.n, self._block)
        with ProgressDisplay("kernel", len(starts) * (len(starts) + 1) // 2, show=self._progress) as shown:
            for i in starts:
                left = self.tangents(self._rows(i))
                a = slice(i * self.c, i * self.c + min(self._block, self.n - i) * self.c)
                for j in range(0, i + 1, self._block):
                    b = slice(j * self.c, j * self.c + min(self._block, self.n - j) * self.c)
                    right = left if j == i else self.tangents(self._rows(j))
                    K[a, b] = self.map.contract(left, right)[: a.stop - a.start, : b.stop - b.start]
                    K[b, a] = K[a, b].T
                    shown.advance("")
        return K

    def covariance(self) -> Float[np.ndarray, "p p"]:
        """AᵀA, of few parameters."""
        kept = self.keep()
        if kept is not None:
            return self.map.contract(kept.T, kept.T)
        total = np.zeros((self.map.size, self.map.size))
        for i in range(0, self.n, self._block):
            part = self.map.to_host(self.tangents(np.arange(i, min(i + self._block, self.n))))
            total += part.T @ part
        return total

    def keep(self) -> Tangents | None:
        """All tangents, if they fit into memory."""
        if self._keeps and self._kept is None:
            parts = []
            starts = range(0, self.n, self._block)
            with ProgressDisplay("tangents", len(starts), show=self._progress) as shown:
                for i in starts:
                    count = min(self._block, self.n - i) * self.c
                    parts.append(self.tangents(self._rows(i))[:count])
                    shown.advance("")
            self._kept = self.map.stack(parts)
        return self._kept

    def _rows(self, start: int) -> NDArray[np.integer]:
        """One batch of constant size, so that programs are compiled once; it wraps around at the end."""
        return np.arange(start, start + self._block) % self.n

    def _batches(self, size: int) -> Iterator[tuple[NDArray[np.integer], int]]:
        """Rows of every batch, and how many of them count."""
        for i in range(0, self.n, size):
            yield np.arange(i, i + size) % self.n, min(size, self.n - i)

    def _weighted(self, vectors: np.ndarray, rows: NDArray[np.integer], real: int) -> np.ndarray:
        """R v on the rows of a batch, zero on those that do not count."""
        V = vectors.reshape(len(vectors), self.n, self.c)[:, rows]
        V[:, real:] = 0
        return einsum("mab,kmb->kma", self.root[rows], V)
