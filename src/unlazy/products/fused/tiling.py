"""Points cut for the programs of a card: rows that fill tiles, and pieces of Z that fill the card."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from unlazy.core import devices

_ENOUGH, _PROGRAMS = 8, 32
"""Programs for every multiprocessor of the card, so that the last ones do not wait alone: where rows alone make enough
of them, Z is not cut."""


def padded(A: Array, rows: int, columns: int | None = None) -> Array:
    wide = 0 if columns is None else columns - A.shape[1]
    return jnp.pad(A, ((0, rows - A.shape[0]),) + (((0, wide),) if A.ndim == 2 else ()))


def repeated(A: Array, rows: int) -> Array:
    """Padded with its first number, so that a formula stays finite where V is zero."""
    return jnp.concatenate([A, jnp.broadcast_to(A[:1], (rows - A.shape[0],))])


def pieces(n_tiles: int, m_tiles: int, wanted: int | None) -> int:
    """Pieces of Z: enough programs to fill the card, each with at least four tiles to stream."""
    if wanted is not None:
        return min(wanted, m_tiles)
    processors = devices.multiprocessors()
    if n_tiles >= _ENOUGH * processors:
        return 1
    return max(1, min(m_tiles // 4, pl.cdiv(_PROGRAMS * processors, n_tiles)))
