"""Devices, in one place: what kind computes, how many there are, how much memory is free, what they are good at.

No other file asks JAX for its devices. Nothing is remembered here: a backend may be chosen after import.
"""

import os
import platform
from pathlib import Path
from typing import Any

import jax

MULTIPROCESSORS = 132
"""Of a card that does not say: an H100 or H200."""
UNKNOWN_MEMORY = 2 * 2**30
"""Taken for free where nobody says."""


def kind() -> str:
    """What computes: "cpu", "gpu" (NVIDIA's or AMD's) or "tpu"."""
    return jax.default_backend()


def is_host() -> bool:
    """Whether the host itself computes.

    Its arrays are NumPy's without a copy, so that BLAS and LAPACK work in their memory; factorizations in float64 are
    LAPACK's, at half the speed of float32; its caches decide how large a block may be. A card wants large blocks and
    many things side by side, and copies what crosses over to NumPy.
    """
    return kind() == "cpu"


def every() -> list[jax.Device]:
    """All devices, those of other processes too."""
    return jax.devices()


def count() -> int:
    """How many devices there are, those of other processes too."""
    return jax.device_count()


def multiprocessors() -> int:
    """Multiprocessors of one card, among which programs are spread; a usual number where the device does not say."""
    return int(getattr(jax.local_devices()[0], "core_count", None) or MULTIPROCESSORS)


def is_hopper() -> bool:
    """Whether the card is an H100, H200 or a sister of theirs (compute capability 9)."""
    return str(getattr(jax.local_devices()[0], "compute_capability", "")).startswith("9.")


def description() -> str:
    """The device in a few words, for records: 'gpu NVIDIA H200', 'cpu x86_64'."""
    first = jax.devices()[0]
    words = first.platform if first.platform == first.device_kind else f"{first.platform} {first.device_kind}"
    return f"{words} {platform.machine()}" if first.platform == "cpu" else words


def lies_on_host(array: Any) -> bool:
    """Whether NumPy can have the values as they lie: no tracer, and not in the memory of a card."""
    if not isinstance(array, jax.Array):
        return True
    return not isinstance(array, jax.core.Tracer) and all(d.platform == "cpu" for d in array.devices())


def free_memory() -> int:
    """Bytes that new arrays could still take where arrays lie: on the card (the fullest of this process's), where it
    says how much it has and uses; else on the host."""
    if is_host():
        return host_free_memory()
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if not all("bytes_limit" in s for s in stats):
        return host_free_memory()
    return min(max(0, s["bytes_limit"] - s.get("bytes_in_use", 0)) for s in stats)


def largest_block() -> int:
    """Bytes that one new array could take. A card whose memory was taken piece by piece has less in one piece than in
    all: the largest piece, or what is not taken yet. Many cards do not say (their largest piece is 0): all that is
    free."""
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
    """Whether JAX found no room for an array."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def host_free_memory() -> int:
    """Bytes this process could still take: the smaller of the machine's available memory and the cgroup's rest."""
    candidates = [c for c in (_available(), _cgroup_rest()) if c is not None]
    return min(candidates) if candidates else UNKNOWN_MEMORY


def _available() -> int | None:
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
    """Memory left in a version 2 control group; None where there is no limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
