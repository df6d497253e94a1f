"""Location of JAX's persistent compilation cache: the user's cache folder, unless JAX is configured otherwise."""

import os
import platform
from pathlib import Path

import platformdirs


def compilation_cache_env() -> dict[str, str]:
    """Environment variables that enable JAX's persistent compilation cache.

    Empty if the user has already set a cache folder or if the folder cannot be created. The variables must be set
    before JAX is imported. Compiled programs are specific to a machine, so each machine gets its own folder (the home
    folder may be shared).
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return {}
    folder = cache_folder() / "programs" / f"{platform.machine()}-{platform.node() or 'here'}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return {}
    return {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}


def cache_folder() -> Path:
    """The per-user cache folder of this package."""
    return platformdirs.user_cache_path("unlazy", appauthor=False)
