"""Model files: a safetensors file whose header holds a JSON tree and a checksum; read without JAX or scikit-learn.

The header carries a SHA-256 of the whole file (with its own digits set to zero): truncated or modified files are
rejected.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load as from_bytes

from unlazy._version import VERSION
from unlazy.core.errors import UnlazyError

FORMAT = 5
"""Format number, increased when the previous version could not read new files.

Earlier formats are still read: their names are translated (`RENAMED`).
"""
ZEROS = "0" * 64
"""The checksum while it is computed."""
_CHECKSUM = re.compile(rb'"unlazy_checksum":"([0-9a-f]{64})"')
_HEADER_LIMIT = 100_000_000
"""Largest header that safetensors allows."""
_RELATIVE = {"bandwidth": "relative_bandwidth", "ridge": "relative_ridge", "ridge_": "relative_ridge_"}
# glossary: off
_SPELLING = {
    "centre_": "center_",
    "normalise": "normalize",
    "parametrisation": "parametrization",
    "parametrisation_": "parametrization_",
    "regularisation": "regularization",
    "standardise": "standardize",
    "y_centre_": "y_center_",
}
# glossary: on
_MACHINES = ("FeatureMachineRegressor", "FeatureMachineClassifier")
RENAMED: dict[int, dict[str, dict[str, str]]] = {
    1: dict.fromkeys((*_MACHINES, "TwoLayerRegressor"), _RELATIVE),
    2: {"*": _SPELLING},
    3: {name: {"categories": "categorical"} for name in _MACHINES}
    | {"GaussianProcess": {"noise": "relative_noise_variance"}},
}
"""Parameters and fitted attributes renamed after each format, by class; "*" stands for every class."""


class ModelFile(NamedTuple):
    """Contents of a model file whose checksum is right."""

    tree: Any
    """JSON of the model; arrays are referenced by name."""
    arrays: dict[str, np.ndarray]
    format: int
    version: str
    """Version of unlazy that wrote the file."""
    document: dict[str, Any]
    """The whole header."""


def current_name(name: str, kind: str, written: int) -> str:
    """Today's name of a parameter or fitted attribute in a file of an earlier format."""
    for version in range(written, max(RENAMED) + 1):
        table = RENAMED.get(version, {})
        name = {**table.get("*", {}), **table.get(kind, {})}.get(name, name)
    return name


def find_checksum(content: bytes) -> re.Match | None:
    """Return the match of the checksum in the header."""
    return _CHECKSUM.search(content, 0, _header_end(content))


def read_model_file(path: str | Path) -> ModelFile:
    """Read a file and verify its checksum and format; raise UnlazyError if that fails."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UnlazyError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        found = find_checksum(content)
        metadata = json.loads(content[8 : _header_end(content)])["__metadata__"]
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
    try:
        return ModelFile(document["tree"], from_bytes(content), written, version, document)
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
    digest = hashlib.sha256(content[: found.start(1)] + ZEROS.encode() + content[found.end(1) :]).hexdigest()
    return digest.encode() == found.group(1)
