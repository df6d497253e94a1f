"""Resident memory of a worker, and its limit: compiled programs are dropped when it is exceeded.

JAX keeps every program that it compiles, tens of megabytes each for large trials, and the allocator keeps their pages
afterward: after many experiments a worker would use gigabytes that no trial needs.
"""

import gc
import os
from collections.abc import Callable
from pathlib import Path

import jax

from unlazy.core.devices import release_free_heap

MEMORY_BOUND = 2**30
"""Resident memory in bytes above which a worker drops its compiled programs."""
GROWTH_ALLOWANCE = 2**28
"""Bytes by which a worker may grow after dropping its programs, if the remaining memory is close to the bound."""


class MemoryLimit:
    """Drops compiled programs when the resident memory exceeds `bound`; enforced after every chunk."""

    def __init__(self, clear: Callable[[], None], bound: int = MEMORY_BOUND, allowance: int = GROWTH_ALLOWANCE):
        self._clear, self._bound, self._allowance = clear, bound, allowance
        self._limit = bound

    def enforce(self) -> bool:
        """Drop compiled programs if the limit is exceeded; return whether they were dropped."""
        size = resident()
        if size is None or size <= self._limit:
            return False
        self._clear()
        jax.clear_caches()
        gc.collect()
        release_free_heap()
        # the rest is data and libraries; dropping programs after every chunk would only cause recompilation
        self._limit = max(self._bound, (resident() or 0) + self._allowance)
        return True


def resident() -> int | None:
    """Resident memory of this process in bytes; None if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        pass
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)
