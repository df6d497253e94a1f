"""Padding of rows to full tiles, and splitting of Z into enough pieces to occupy the GPU."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array

from unlazy.core import devices

Interpret = bool | object
"""Whether a program is interpreted instead of compiled: a flag, or the parameters of JAX's Mosaic interpreter."""
_ENOUGH, _PROGRAMS = 8, 32
"""Programs per multiprocessor: with at least `_ENOUGH` from the row tiles alone, Z is not split; otherwise Z is split
to reach `_PROGRAMS`, so that the tail effect is small."""


def padded(A: Array, rows: int, columns: int | None = None) -> Array:
    """Pad with zeros to the given number of rows and columns."""
    wide = 0 if columns is None else columns - A.shape[1]
    return jnp.pad(A, ((0, rows - A.shape[0]),) + (((0, wide),) if A.ndim == 2 else ()))


def repeated(A: Array, rows: int) -> Array:
    """Pad with copies of the first value, so that formulas stay finite in the padding, where V is zero."""
    return jnp.concatenate([A, jnp.broadcast_to(A[:1], (rows - A.shape[0],))])


def pieces(n_tiles: int, m_tiles: int, wanted: int | None) -> int:
    """Number of pieces of Z: enough programs to occupy the GPU, each with at least four tiles."""
    if wanted is not None:
        return min(wanted, m_tiles)
    processors = devices.multiprocessors()
    if n_tiles >= _ENOUGH * processors:
        return 1
    return max(1, min(m_tiles // 4, pl.cdiv(_PROGRAMS * processors, n_tiles)))
