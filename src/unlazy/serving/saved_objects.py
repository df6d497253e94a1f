"""Values of a model file as plain objects: a saved estimator or kernel is its class name and its attributes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unlazy.core.errors import UnlazyError
from unlazy.core.model_files import ModelFile, current_name


@dataclass(frozen=True)
class SavedObject:
    """An estimator or a kernel."""

    kind: str
    """Name of its class."""
    values: dict[str, Any]
    """Parameters and fitted attributes, by name."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or the default."""
        return self.values.get(name, default)


def decode(file: ModelFile) -> SavedObject:
    """Return the model of a file; raise UnlazyError if it holds no estimator."""
    try:
        found = _Decoder(file).decode(file.tree)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnlazyError(f"the file does not describe a model ({type(error).__name__}: {error})") from error
    if not isinstance(found, SavedObject):
        raise UnlazyError("the file holds no estimator")
    return found


class _Decoder:
    def __init__(self, file: ModelFile) -> None:
        self._arrays, self._format = file.arrays, file.format

    def decode(self, tree: Any) -> Any:
        """Return the value of a JSON tree."""
        if isinstance(tree, list):
            return [self.decode(x) for x in tree]
        if not isinstance(tree, dict):
            return tree
        readers: dict[str, Callable[[dict], Any]] = {
            "array": self._array, "text": self._text, "estimator": self._estimator, "module": self._module,
            "jax": lambda tree: self.decode(tree["v"]),
            "float": lambda tree: float(tree["v"]),
            "tuple": lambda tree: tuple(self.decode(tree["v"])),
            "slice": lambda tree: slice(*self.decode(tree["v"])),
            "dict": lambda tree: {self.decode(k): self.decode(v) for k, v in tree["v"]},
        }  # fmt: skip
        read = readers.get(tree["#"])
        return SavedObject(tree["#"], dict(tree)) if read is None else read(tree)

    def _array(self, tree: dict) -> Any:
        array = self._arrays[tree["v"]]
        return array[()] if tree["scalar"] else array

    def _text(self, tree: dict) -> Any:
        entries = self.decode(tree["v"])
        flat = np.empty(len(entries), object)
        flat[:] = entries
        array = (flat if tree["kind"] == "O" else np.array(entries, np.str_)).reshape(tree["shape"])
        return array[()] if tree["scalar"] else array

    def _estimator(self, tree: dict) -> SavedObject:
        named = {**tree["given"], **tree["fitted"]}
        kind = tree["class"]
        return SavedObject(kind, {current_name(n, kind, self._format): self.decode(v) for n, v in named.items()})

    def _module(self, tree: dict) -> SavedObject:
        return SavedObject(tree["class"], {name: self.decode(value) for name, value in tree["fields"].items()})
