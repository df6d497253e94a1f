"""How much memory a computation may take, and how large a block that allows."""

import contextlib
import ctypes
import os
import sys

from unlazy.core.devices import free_memory
from unlazy.core.errors import check_positive_integer

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
SHARE_OF_FREE = 0.5
"""Part of the free memory one computation takes unless told otherwise: results, copies and others need the rest."""


def parse_bytes(text: str) -> int:
    """Bytes from '4GiB', '500 MB', '2g' or a plain number.

    >>> parse_bytes("4GiB")
    4294967296
    """
    cleaned = text.strip().lower().removesuffix("ib").removesuffix("b").strip()
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned and cleaned[-1] in "kmgt" else (cleaned, "")
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ValueError(f"a memory size looks like '4GiB' or '500MB', got {text!r}")
    return size


def memory_budget(override: int | str | None = None) -> int:
    """Bytes one computation may take.

    `override` wins, then the environment variable UNLAZY_MEMORY, then half of the memory that is free where arrays lie:
    on a GPU that of the card, else of the host.
    """
    chosen = override if override is not None else os.environ.get("UNLAZY_MEMORY")
    if chosen is None:
        return int(SHARE_OF_FREE * free_memory())
    return parse_bytes(chosen) if isinstance(chosen, str) else check_positive_integer("the memory budget", chosen)


def block_rows(row_bytes: int, rows: int, budget: int | str | None = None) -> int:
    """Largest number of rows, between 1 and `rows`, whose `row_bytes` each fit the budget."""
    return max(1, min(rows, memory_budget(budget) // max(1, row_bytes)))


def trim() -> None:
    """Ask glibc for the pages it keeps; other allocators give them back themselves, or not at all."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
