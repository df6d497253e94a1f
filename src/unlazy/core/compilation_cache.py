"""Where compiled programs are kept between runs: the user's cache folder, unless JAX was told otherwise."""

import os
import platform
import sys
from pathlib import Path


def kept_programs() -> dict[str, str]:
    """Environment for a process whose JAX keeps what it compiles; empty where the user has chosen a place, or none can
    be written. Must be set before JAX is imported. Programs are a machine's own: in a shared home each has a folder."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    folder = cache_folder() / "programs" / f"{platform.machine()}-{platform.node() or 'here'}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return {}
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}


def cache_folder() -> Path:
    """The user's folder for what can be made again."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "unlazy"
