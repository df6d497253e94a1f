"""Save and load fitted estimators: one safetensors file, its header holds the rest as JSON; never pickle.

Loading builds classes of a fixed table only (`registry`) from checked values, so a file cannot run code. The header
carries a SHA-256 of the whole file (its own digits counted as zeros): a truncated or altered file is refused.
"""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.files import written_whole
from unlazy.estimators.persistence.registry import COMPANIONS, Unregistered

FORMAT = 2
"""Raised when a file of this version could not be read by the version before. Format 1 is read too: its words for
relative ridges and bandwidths are translated (`registry.RENAMED`)."""
_ZEROS = "0" * 64
_CHECKSUM = re.compile(rb'"unlazy_checksum":"([0-9a-f]{64})"')
_HEADER_LIMIT = 100_000_000
"""What safetensors itself allows."""


def save(estimator: Any, path: str | Path) -> None:
    """Write a fitted estimator, or a scikit-learn pipeline that ends in one, to `path`.

    >>> model.save("model.unlazy")
    >>> unlazy.load("model.unlazy").predict(X)        # the same bits
    """
    from safetensors.numpy import save as to_bytes

    from unlazy.estimators.persistence.serialization import Encoder

    encoder = Encoder()
    tree = encoder.encode(estimator, type(estimator).__name__)
    document = {"format": FORMAT, "unlazy": VERSION, "scikit-learn": _sklearn_version(), "tree": tree}
    metadata = {"unlazy": json.dumps(document, allow_nan=False), "unlazy_checksum": _ZEROS}
    content = to_bytes(encoder.arrays or {"empty": np.zeros(1, np.uint8)}, metadata)
    digest = hashlib.sha256(content).hexdigest().encode()
    found = _CHECKSUM.search(content, 0, _header_end(content))
    assert found is not None and found.group(1) == _ZEROS.encode()
    _write(Path(path), content[: found.start(1)] + digest + content[found.end(1) :])


def load(path: str | Path) -> Any:
    """The estimator that `save` wrote: its predictions are the same bit for bit.

    Files from others are safe to open: nothing in them is run. A file that is not one of ours, was cut short, altered,
    or written by a newer format ends in an `UnlazyError`.

    >>> model.save("model.unlazy")
    >>> bool((load("model.unlazy").predict(Z) == model.predict(Z)).all())
    True
    """
    from unlazy.estimators.persistence.serialization import Decoder

    content = _read(Path(path))
    tree, arrays, written = _verified(content, path)
    try:
        if tree["#"] != "estimator":
            raise ValueError("no estimator")
        return Decoder(arrays, renamed=written == 1).decode(tree)
    except Unregistered as error:
        raise UnlazyError(f"{path} cannot be loaded: {error}") from error
    except Exception as error:  # whatever an unexpected tree leads to, the user gets one sentence
        why = f"{type(error).__name__}: {error}"
        raise UnlazyError(f"{path} does not describe an estimator of unlazy ({why})") from error


def _verified(content: bytes, path: str | Path) -> tuple[Any, dict[str, np.ndarray], int]:
    """The tree, the arrays and the format of a file whose checksum and version are right."""
    from safetensors.numpy import load as from_bytes

    try:
        end = _header_end(content)
        found = _CHECKSUM.search(content, 0, end)
        metadata = json.loads(content[8:end])["__metadata__"]
        document = json.loads(metadata["unlazy"])
        written, version = document["format"], str(document["unlazy"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnlazyError(f"{path} is not a file that unlazy saved, or it was cut short or altered") from error
    if type(written) is not int or not 1 <= written <= FORMAT:
        raise UnlazyError(
            f"{path} is of format {written!r} (unlazy {version}); this unlazy {VERSION} reads formats 1 to {FORMAT}: "
            + ("upgrade unlazy" if isinstance(written, int) and written > FORMAT else "fit and save the model again")
        )
    if found is None or metadata.get("unlazy_checksum") != found.group(1).decode() or not _intact(content, found):
        raise UnlazyError(f"{path} was altered or damaged: its checksum is wrong. Save it again, or copy it anew")
    holds_theirs = any(f'"class": "{name}"' in metadata["unlazy"] for name in COMPANIONS)
    _compare_versions(version, document.get("scikit-learn") if holds_theirs else None, path)
    try:
        return document["tree"], from_bytes(content), written
    except Exception as error:
        raise UnlazyError(f"the arrays of {path} cannot be read ({error})") from error


def _header_end(content: bytes) -> int:
    """Where the header ends, or a ValueError."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= size <= min(_HEADER_LIMIT, len(content) - 8):
        raise ValueError("no header")
    return 8 + size


def _intact(content: bytes, found: re.Match) -> bool:
    digest = hashlib.sha256(content[: found.start(1)] + _ZEROS.encode() + content[found.end(1) :]).hexdigest()
    return digest.encode() == found.group(1)


def _compare_versions(version: str, sklearn: Any, path: str | Path) -> None:
    if _numbers(version) > _numbers(VERSION):
        warnings.warn(
            f"{path} was saved by unlazy {version}, which is newer than this {VERSION}: upgrade if it misbehaves",
            UnlazyWarning,
            stacklevel=4,
        )
    if sklearn is not None and _numbers(str(sklearn))[:2] != _numbers(_sklearn_version())[:2]:
        warnings.warn(
            f"{path} holds transformers of scikit-learn {sklearn}, this is {_sklearn_version()}: they may behave "
            "differently",
            UnlazyWarning,
            stacklevel=4,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _sklearn_version() -> str:
    import sklearn

    return sklearn.__version__


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnlazyError(f"cannot read {path}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        with written_whole(path) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise UnlazyError(f"cannot write {path}: {error.strerror or error}") from error
