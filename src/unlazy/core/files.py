"""Atomic file writes: write to a temporary file, then move it into place."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` when the block ends, and is deleted on an exception.

    After a crash the previous file is still there. The temporary name keeps the suffix of `path`, since some writers
    depend on it. Symbolic links are followed; anything other than a regular file (a terminal, a pipe) is written
    directly.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    aside = target.with_name(f"{target.stem}.{secrets.token_hex(4)}.partial{target.suffix}")
    try:
        yield aside
        os.replace(aside, target)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise
