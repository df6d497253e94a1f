"""JAX's persistent compilation cache in the user's cache folder, unless the user has configured JAX otherwise.

`core.arrays`, which everything that uses JAX imports, enables it: a later process loads the programs of an earlier one
instead of compiling them. `UNLAZY_COMPILATION_CACHE=off` turns that off.

JAX bounds the size of its cache only if `filelock` is installed, and then reads the whole folder before every write.
The folder is therefore shortened when a process enables the cache. Autotuning results of a GPU are kept in the same
folder: that is JAX's default.
"""

import functools
import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

SWITCH = "UNLAZY_COMPILATION_CACHE"
"""Environment variable: "off" (or "0", "no", "false") turns the cache off."""
MAX_BYTES = 2**30
"""Size from which the programs that were not used for longest are deleted."""
KEPT_SHARE = 0.8
"""Share of `MAX_BYTES` that is kept then, so that not every process has something to delete."""
MIN_COMPILE_SECONDS = 0.0
"""Compilations from this time on are kept; JAX's default is one second."""


def enable_compilation_cache() -> None:
    """Keep compiled programs, unless the user has turned that off or has configured a cache of JAX."""
    import jax

    config: Any = jax.config
    if config.jax_compilation_cache_dir is not None or not config.jax_enable_compilation_cache:
        return  # JAX has read its environment variables, and the user's program may have changed its configuration
    folder = _programs_folder()
    if folder is None:
        return
    config.update("jax_compilation_cache_dir", str(folder))
    given = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" in os.environ
    if not given and config.jax_persistent_cache_min_compile_time_secs == 1.0:  # JAX's default
        config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    delete_least_recently_used(folder.parent, MAX_BYTES)


def compilation_cache_env() -> dict[str, str]:
    """Environment variables that enable the cache in a process that imports JAX first.

    Empty if the user has turned the cache off or set a folder, or if the folder cannot be written.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ or (folder := _programs_folder()) is None:
        return {}
    name = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), name: os.environ.get(name, str(MIN_COMPILE_SECONDS))}


def cache_folder() -> Path:
    """The per-user cache folder of this package."""
    import platformdirs

    return platformdirs.user_cache_path("unlazy", appauthor=False)


def delete_least_recently_used(folder: Path, max_bytes: int) -> None:
    """Delete the files that were not used for longest if those in a folder exceed this size.

    Other processes may write, read or delete files at the same time.
    """
    found: list[tuple[float, int, str]] = []
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                status = os.stat(path := os.path.join(place, name))
                found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= max_bytes:
        return
    for _, size, path in sorted(found):
        if total <= KEPT_SHARE * max_bytes:
            break
        with suppress(OSError):
            os.unlink(path)
        total -= size


def _programs_folder() -> Path | None:
    """The folder of compiled programs for this kind of processor; None if turned off or not writable."""
    if os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "no", "false"):
        return None
    folder = cache_folder() / "programs" / f"{platform.machine() or 'unknown'}-{_processor_hash()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who can write programs here can run them as this user
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


@functools.cache
def _processor_hash() -> str:
    """Hash of the processor's model and instruction sets: the home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    keys = ("model name", "flags", "Features", "CPU part", "isa")
    described = sorted({line for line in lines if line.partition(":")[0].strip() in keys})
    text = "\n".join(described) or f"{platform.processor()} {platform.node()}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]
