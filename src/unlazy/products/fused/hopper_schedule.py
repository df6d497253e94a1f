"""Who multiplies what, for products.fused.hopper: work dealt out to programs that stay on their multiprocessors.

Rows of X are cut into tiles, those of Z into folds (some tiles each). Z is read in chunks, one after the other, each of
which stays in the card's cache while all rows of X meet it. Of a chunk the folds of the first tile of rows, then those
of the second and so on are one long row, of which every program has a stretch, none longer than another by more than
one fold: nobody waits for a last wave. A tile of rows may be shared by several programs, whose sums are then added up.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jaxtyping import Array, Bool

CACHED = 2**24
"""Bytes of a chunk of Z: a third of an H200's cache."""
FEWEST = 64
"""Folds of a program's stretch below which Z is not cut into chunks: one more or less would count."""


class Shares(NamedTuple):
    """Tiles of rows, folds of a chunk of Z, chunks, programs."""

    tiles: int
    folds: int
    chunks: int
    programs: int

    @classmethod
    def of(cls, tiles: int, folds: int, fold_bytes: int, programs: int) -> "Shares":
        """Of so many tiles of rows and folds of Z, for at most so many programs."""
        chunks = max(1, min(pl.cdiv(folds * fold_bytes, CACHED), tiles * folds // (FEWEST * programs)))
        each = pl.cdiv(folds, chunks)
        return cls(tiles, each, pl.cdiv(folds, each), min(programs, tiles * each))

    @property
    def shortest(self) -> int:
        """Folds of the shortest stretch."""
        return self.tiles * self.folds // self.programs

    @property
    def parts(self) -> int:
        """Programs that share a tile of rows, at most."""
        return min(self.programs, pl.cdiv(self.folds - 1, self.shortest) + 1)

    def stretch(self, program: Any) -> tuple[Any, Any]:
        """Where a program begins and ends in the row of a chunk."""
        whole, more = divmod(self.tiles * self.folds, self.programs)
        return tuple(p * whole + jnp.minimum(p, more) for p in (program, program + 1))

    def part(self, program: Any) -> Any:
        """In which part a program leaves its sums: those that share a tile of rows follow one another."""
        return lax.rem(program, jnp.int32(self.parts))

    def left(self) -> Bool[Array, "parts tiles"]:
        """Which parts of every tile of rows there are."""
        begin = jnp.arange(self.tiles) * self.folds
        first, last = self._program(begin), self._program(begin + self.folds - 1)
        return (jnp.arange(self.parts)[:, None] - first) % self.parts <= last - first

    def _program(self, place: Array) -> Array:
        """Whose stretch a place of the row is in."""
        whole, more = divmod(self.tiles * self.folds, self.programs)
        longer = more * (whole + 1)
        return jnp.where(place < longer, place // (whole + 1), more + (place - longer) // whole)
