"""Files that are whole or not there: written aside and moved into place."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """Where to write what is to stand at `path`: it takes its place when the block ends, and goes where that fails.

    A crash leaves the file that was there before. The ending of the name stays, since some writers go by it. Links are
    followed; what is no plain file (a terminal, a pipe) is written directly.
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
