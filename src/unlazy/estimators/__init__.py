"""scikit-learn estimators, and saving and loading them. Each name is imported when first used."""

from importlib import import_module
from typing import Any

from unlazy.estimators.persistence.registry import ESTIMATORS

_WHERE = {
    **ESTIMATORS, "load": "unlazy.estimators.persistence.files", "register": "unlazy.estimators.persistence.registry",
    "save": "unlazy.estimators.persistence.files", "ZCAWhitening": "unlazy.estimators.preprocessing.whitening",
}  # fmt: skip

__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from unlazy.core.errors import did_you_mean

        raise AttributeError(f"unlazy.estimators has no {name!r}{did_you_mean(name, _WHERE)}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
