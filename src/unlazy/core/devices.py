"""Devices and their memory: backend, number of devices, hardware capabilities, free memory, memory budgets.

All other modules query devices through this one. Nothing is cached here: the backend may be selected after import.
"""

import contextlib
import ctypes
import os
import platform
import sys
import threading
from pathlib import Path

import jax

from unlazy.core.errors import check_positive_integer

MULTIPROCESSORS = 132
"""Assumed number of multiprocessors if the GPU does not report it: that of an H100 or H200."""
UNKNOWN_MEMORY = 2 * 2**30
"""Assumed free memory in bytes if the system does not report it."""


def kind() -> str:
    """The default backend: "cpu", "gpu" (NVIDIA or AMD) or "tpu"."""
    return jax.default_backend()


def is_host() -> bool:
    """Whether the default backend is the CPU.

    On the CPU, JAX arrays convert to NumPy without a copy, so BLAS and LAPACK work on them in place; float64
    factorizations run at half the speed of float32; and cache sizes limit the best block size. A GPU needs large
    blocks and much parallel work, and copies whatever is converted to NumPy.
    """
    return kind() == "cpu"


def initialize_in_background() -> None:
    """Start to initialize the devices, which takes two seconds for a GPU, in a thread; later calls wait for it."""
    threading.Thread(target=jax.devices).start()


def all_devices() -> list[jax.Device]:
    """All devices, including those of other processes."""
    return jax.devices()


def cpu() -> jax.Device:
    """The host's first CPU device; raises RuntimeError if JAX was started without the CPU."""
    return jax.local_devices(backend="cpu")[0]


def count() -> int:
    """Number of devices, including those of other processes."""
    return jax.device_count()


def multiprocessors() -> int:
    """Number of multiprocessors of one GPU; a typical value if the device does not report it."""
    return int(getattr(jax.local_devices()[0], "core_count", None) or MULTIPROCESSORS)


def is_hopper() -> bool:
    """Whether the GPU is of the Hopper generation, such as an H100 or H200 (compute capability 9)."""
    return str(getattr(jax.local_devices()[0], "compute_capability", "")).startswith("9.")


def description() -> str:
    """Short description of the device, for records: 'gpu NVIDIA H200', 'cpu x86_64'."""
    first = jax.devices()[0]
    words = first.platform if first.platform == first.device_kind else f"{first.platform} {first.device_kind}"
    return f"{words} {platform.machine()}" if first.platform == "cpu" else words


def free_memory() -> int:
    """Free bytes for new arrays on the default backend.

    On a GPU, the minimum over the local GPUs, if they report their limit and usage; otherwise, the free memory of the
    host.
    """
    if is_host():
        return host_free_memory()
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("bytes_limit" in s for s in stats):
        return host_free_memory()
    return min(max(0, s["bytes_limit"] - s.get("bytes_in_use", 0)) for s in stats)


def largest_block() -> int:
    """Bytes that one new array could take.

    On a GPU with fragmented memory this is less than the total free memory: the largest free block, or the part of
    the limit that is not in the pool yet. Many GPUs do not report it (their largest block is 0); then it is all free
    memory.
    """
    free = free_memory()
    if is_host():
        return free
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        piece = stats.get("largest_free_block_bytes", 0)
        if piece and {"bytes_limit", "pool_bytes"} <= stats.keys():
            free = min(free, max(piece, stats["bytes_limit"] - stats["pool_bytes"]))
    return free


def is_out_of_memory(error: Exception) -> bool:
    """Whether the exception is an out-of-memory error of JAX."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def host_free_memory() -> int:
    """Free bytes for this process on the host: the minimum of available memory and the rest of the cgroup limit."""
    candidates = [c for c in (_available(), _cgroup_rest()) if c is not None]
    return min(candidates) if candidates else UNKNOWN_MEMORY


def _available() -> int | None:
    """Available memory of the machine in bytes; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (ValueError, OSError, AttributeError):
        return None


def _cgroup_rest() -> int | None:
    """Remaining memory of a version 2 cgroup; None if there is no limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
SHARE_OF_FREE = 0.5
"""Default share of the free memory for one computation; results, copies and other processes need the rest."""


def parse_bytes(text: str) -> int:
    """Parse a memory size such as '4GiB', '500 MB', '2g' or a plain number of bytes.

    Examples
    --------
    >>> from unlazy.core.devices import parse_bytes
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
