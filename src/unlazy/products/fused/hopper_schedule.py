"""Work schedule of products.fused.hopper: persistent programs, one per multiprocessor, with balanced shares.

Rows of X are split into tiles, rows of Z into folds of several tiles. Z is processed in chunks, each of which stays in
the L2 cache while it is multiplied by all rows of X. The pairs (row tile, fold) of a chunk, row tile by row tile, form
a sequence, and every program processes a contiguous range of it. The ranges differ by at most one fold, so there is no
tail effect. Several programs may share a row tile; their partial sums are added afterwards."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool

CHUNK_BYTES = 2**24
"""Bytes of a chunk of Z: a third of the L2 cache of an H200."""
MIN_FOLDS = 64
"""Minimum number of folds per program and chunk; with fewer, an imbalance of one fold would matter."""


class WorkSchedule(NamedTuple):
    """Number of row tiles, folds per chunk of Z, chunks and programs."""

    tiles: int
    folds: int
    chunks: int
    programs: int

    @classmethod
    def build(cls, tiles: int, folds: int, fold_bytes: int, programs: int) -> "WorkSchedule":
        """Schedule for the given row tiles and folds of Z, with at most the given number of programs."""
        chunks = max(1, min(pl.cdiv(folds * fold_bytes, CHUNK_BYTES), tiles * folds // (MIN_FOLDS * programs)))
        each = pl.cdiv(folds, chunks)
        return cls(tiles, each, pl.cdiv(folds, each), min(programs, tiles * each))

    @property
    def shortest(self) -> int:
        """Folds of the shortest range of a program."""
        return self.tiles * self.folds // self.programs

    @property
    def parts(self) -> int:
        """Maximum number of programs that share a row tile."""
        return min(self.programs, pl.cdiv(self.folds - 1, self.shortest) + 1)

    def program_range(self, program: int | Array) -> tuple[Array, Array]:
        """Start and end of a program's range within a chunk."""
        whole, more = divmod(self.tiles * self.folds, self.programs)
        start, stop = (p * whole + jnp.minimum(p, more) for p in (program, program + 1))
        return start, stop

    def part(self, program: int | Array) -> Array:
        """Index of the partial sum that a program writes; programs that share a row tile are consecutive."""
        return lax.rem(program, jnp.int32(self.parts))

    def written(self) -> Bool[Array, "parts tiles"]:
        """Mask of the partial sums that are written, for every row tile."""
        begin = jnp.arange(self.tiles) * self.folds
        first, last = self._program(begin), self._program(begin + self.folds - 1)
        return (jnp.arange(self.parts)[:, None] - first) % self.parts <= last - first

    def _program(self, place: Array) -> Array:
        """Program whose range contains a position of the sequence."""
        whole, more = divmod(self.tiles * self.folds, self.programs)
        longer = more * (whole + 1)
        return jnp.where(place < longer, place // (whole + 1), more + (place - longer) // whole)
