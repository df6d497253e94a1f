"""Save and load fitted estimators: one safetensors file with a JSON header, never pickle.

Loading only constructs classes of a fixed table (`registry`) from validated values, so a file cannot run code. The
header carries a SHA-256 of the whole file (with its own digits set to zero): truncated or modified files are rejected.
"""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes
from sklearn.base import BaseEstimator

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.files import atomic_write
from unlazy.estimators.persistence.registry import COMPANIONS, Unregistered
from unlazy.estimators.persistence.serialization import Decoder, Encoder

FORMAT = 5
"""Format number, increased when the previous version could not read new files.

Earlier formats are still read: their names are translated (`registry.RENAMED`).
"""
_ZEROS = "0" * 64
_CHECKSUM = re.compile(rb'"unlazy_checksum":"([0-9a-f]{64})"')
_HEADER_LIMIT = 100_000_000
"""Largest header that safetensors allows."""


def save(model: BaseEstimator, path: str | Path) -> None:
    """Save a fitted estimator, or a scikit-learn pipeline that ends in one, to a file that `load` reads.

    The file is in safetensors format with a JSON header; pickle is never used. So a pipeline may hold the estimators
    and transformers of unlazy and, of scikit-learn, pipelines, `ColumnTransformer`, `TransformedTargetRegressor`, the
    usual scalers, encoders and imputers, `PCA`, and `FunctionTransformer` with functions of NumPy.

    Parameters
    ----------
    model : estimator or Pipeline
        A fitted estimator of unlazy, or a scikit-learn pipeline around one. Custom kernels must be registered with
        `unlazy.estimators.register` first.
    path : str or Path
        File to write.

    Raises
    ------
    UnlazyError
        If the model holds something that files cannot hold, such as a Python function, or if the file cannot be
        written.

    Examples
    --------
    >>> import numpy as np
    >>> import unlazy
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> model = make_pipeline(StandardScaler(), unlazy.KernelRegressor()).fit(X, y)
    >>> unlazy.save(model, "model.unlazy")
    >>> bool((unlazy.load("model.unlazy").predict(X) == model.predict(X)).all())
    True
    """
    encoder = Encoder()
    tree = encoder.encode(model, type(model).__name__)
    document = {"format": FORMAT, "unlazy": VERSION, "scikit-learn": _sklearn_version(), "tree": tree}
    metadata = {"unlazy": json.dumps(document, allow_nan=False), "unlazy_checksum": _ZEROS}
    content = to_bytes(encoder.arrays or {"empty": np.zeros(1, np.uint8)}, metadata)
    digest = hashlib.sha256(content).hexdigest().encode()
    found = _CHECKSUM.search(content, 0, _header_end(content))
    assert found is not None and found.group(1) == _ZEROS.encode()
    _write(Path(path), content[: found.start(1)] + digest + content[found.end(1) :])


def load(path: str | Path) -> Any:
    """Load an estimator from a file written by `save`.

    Predictions are identical bit for bit. Files from untrusted sources are safe to load: no code in them is run.

    Parameters
    ----------
    path : str or Path
        File to read.

    Returns
    -------
    estimator
        The fitted estimator or pipeline.

    Raises
    ------
    UnlazyError
        If the file cannot be read, was not written by unlazy, is truncated or modified, has a newer format, or holds a
        class that is not registered.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import KernelRegressor, load
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> model = KernelRegressor().fit(X, y)
    >>> model.save("model.unlazy")
    >>> bool((load("model.unlazy").predict(X) == model.predict(X)).all())
    True
    """
    content = _read(Path(path))
    tree, arrays, written = _verify(content, path)
    try:
        if tree["#"] != "estimator":
            raise ValueError("no estimator")
        return Decoder(arrays, written).decode(tree)
    except Unregistered as error:
        raise UnlazyError(f"{path} cannot be loaded: {error}") from error
    except Exception as error:  # unexpected contents may raise anything: report one clear error
        why = f"{type(error).__name__}: {error}"
        raise UnlazyError(f"{path} does not describe an estimator of unlazy ({why})") from error


def _verify(content: bytes, path: str | Path) -> tuple[Any, dict[str, np.ndarray], int]:
    """Return tree, arrays and format number of a file after checking its checksum and version."""
    try:
        end = _header_end(content)
        found = _CHECKSUM.search(content, 0, end)
        metadata = json.loads(content[8:end])["__metadata__"]
        document = json.loads(metadata["unlazy"])
        written, version = document["format"], str(document["unlazy"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnlazyError(f"{path} is not a file that unlazy saved, or it was truncated or modified") from error
    if type(written) is not int or not 1 <= written <= FORMAT:
        raise UnlazyError(
            f"{path} has format {written!r} (unlazy {version}); this unlazy {VERSION} reads formats 1 to {FORMAT}: "
            + ("upgrade unlazy" if isinstance(written, int) and written > FORMAT else "fit and save the model again")
        )
    if found is None or metadata.get("unlazy_checksum") != found.group(1).decode() or not _intact(content, found):
        raise UnlazyError(f"{path} was modified or damaged: its checksum is wrong. Save it again, or copy it again")
    holds_theirs = any(f'"class": "{name}"' in metadata["unlazy"] for name in COMPANIONS)
    _compare_versions(version, document.get("scikit-learn") if holds_theirs else None, path)
    try:
        return document["tree"], from_bytes(content), written
    except Exception as error:
        raise UnlazyError(f"the arrays of {path} cannot be read ({error})") from error


def _header_end(content: bytes) -> int:
    """Return the offset at which the header ends; raise ValueError if there is none."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= size <= min(_HEADER_LIMIT, len(content) - 8):
        raise ValueError("no header")
    return 8 + size


def _intact(content: bytes, found: re.Match) -> bool:
    """Return whether the checksum matches."""
    digest = hashlib.sha256(content[: found.start(1)] + _ZEROS.encode() + content[found.end(1) :]).hexdigest()
    return digest.encode() == found.group(1)


def _compare_versions(version: str, sklearn_version: Any, path: str | Path) -> None:
    """Warn if the file was saved by a newer unlazy or another scikit-learn."""
    if _numbers(version) > _numbers(VERSION):
        warnings.warn(
            f"{path} was saved by unlazy {version}, which is newer than this {VERSION}: upgrade if it misbehaves",
            UnlazyWarning,
            stacklevel=4,
        )
    if sklearn_version is not None and _numbers(str(sklearn_version))[:2] != _numbers(_sklearn_version())[:2]:
        warnings.warn(
            f"{path} holds transformers saved with scikit-learn {sklearn_version}, but {_sklearn_version()} is "
            "installed: they may behave differently",
            UnlazyWarning,
            stacklevel=4,
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Parse the first three numbers of a version string."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _sklearn_version() -> str:
    return sklearn.__version__


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnlazyError(f"cannot read {path}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        with atomic_write(path) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise UnlazyError(f"cannot write {path}: {error.strerror or error}") from error
