"""Memory budget of a computation, and block sizes that fit in it."""

import contextlib
import ctypes
import os
import sys

from unlazy.core.devices import free_memory
from unlazy.core.errors import check_positive_integer

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
SHARE_OF_FREE = 0.5
"""Default share of the free memory for one computation; results, copies and other processes need the rest."""


def parse_bytes(text: str) -> int:
    """Parse a memory size such as '4GiB', '500 MB', '2g' or a plain number of bytes.

    Examples
    --------
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
        raise ValueError(f"a memory size must look like '4GiB' or '500MB', got {text!r}")
    return size


def memory_budget(override: int | str | None = None) -> int:
    """Bytes that one computation may use.

    In order of precedence: `override`, the environment variable UNLAZY_MEMORY, half of the free memory of the device
    (of the GPU if there is one, otherwise of the host).
    """
    chosen = override if override is not None else os.environ.get("UNLAZY_MEMORY")
    if chosen is None:
        return int(SHARE_OF_FREE * free_memory())
    return parse_bytes(chosen) if isinstance(chosen, str) else check_positive_integer("the memory budget", chosen)


def block_rows(row_bytes: int, rows: int, budget: int | str | None = None) -> int:
    """Largest number of rows, between 1 and `rows`, of `row_bytes` each, that fits the budget."""
    return max(1, min(rows, memory_budget(budget) // max(1, row_bytes)))


def release_free_heap() -> None:
    """Return free heap pages to the system (`malloc_trim`); does nothing unless the allocator is glibc's."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
