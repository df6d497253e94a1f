"""Save and load fitted estimators: one safetensors file with a JSON header, never pickle.

Loading only constructs classes of a fixed table (`registry`) from validated values, so a file cannot run code.
`core.model_files` describes the format.
"""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from safetensors.numpy import save as to_bytes
from sklearn.base import BaseEstimator

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError, UnlazyWarning
from unlazy.core.files import atomic_write
from unlazy.core.model_files import FORMAT, ZEROS, find_checksum, read_model_file
from unlazy.estimators.persistence.classes import COMPANIONS
from unlazy.estimators.persistence.registry import Unregistered
from unlazy.estimators.persistence.serialization import Decoder, Encoder


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
    metadata = {"unlazy": json.dumps(document, allow_nan=False), "unlazy_checksum": ZEROS}
    content = to_bytes(encoder.arrays or {"empty": np.zeros(1, np.uint8)}, metadata)
    digest = hashlib.sha256(content).hexdigest().encode()
    found = find_checksum(content)
    assert found is not None and found.group(1) == ZEROS.encode()
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
    file = read_model_file(path)
    holds_theirs = any(f'"class": "{name}"' in json.dumps(file.tree) for name in COMPANIONS)
    _compare_versions(file.version, file.document.get("scikit-learn") if holds_theirs else None, path)
    try:
        if file.tree["#"] != "estimator":
            raise ValueError("no estimator")
        return Decoder(file.arrays, file.format).decode(file.tree)
    except Unregistered as error:
        raise UnlazyError(f"{path} cannot be loaded: {error}") from error
    except Exception as error:  # unexpected contents may raise anything: report one clear error
        why = f"{type(error).__name__}: {error}"
        raise UnlazyError(f"{path} does not describe an estimator of unlazy ({why})") from error


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


def _write(path: Path, content: bytes) -> None:
    try:
        with atomic_write(path) as aside:
            aside.write_bytes(content)
    except OSError as error:
        raise UnlazyError(f"cannot write {path}: {error.strerror or error}") from error
