"""How much memory a worker holds, and giving back what compiled programs take of it.

JAX keeps every program it ever compiled, tens of megabytes each where a trial is large, and the allocator keeps their
pages after that: a worker that has been through many experiments would hold gigabytes that no trial needs.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import jax

from unlazy.core.memory import trim

BOUND = 2**30
"""Bytes that a worker may hold before it forgets its programs."""
ROOM = 2**28
"""Bytes that it may grow by after it has forgotten, where what is left is near the bound already."""


class Keeper:
    """Forgets compiled programs once this process holds more than `bound`; asked after every chunk."""

    def __init__(self, forget: Callable[[], None], bound: int = BOUND, room: int = ROOM):
        self._forget, self._bound, self._room = forget, bound, room
        self._limit = bound

    def look(self) -> bool:
        """Whether it forgot."""
        held = resident()
        if held is None or held <= self._limit:
            return False
        self._forget()
        jax.clear_caches()
        gc.collect()
        trim()
        # what is left is data or libraries: to forget after every chunk would only compile again
        self._limit = max(self._bound, (resident() or 0) + self._room)
        return True


def resident() -> int | None:
    """Bytes of this process in memory; None where that cannot be told."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        pass
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)
