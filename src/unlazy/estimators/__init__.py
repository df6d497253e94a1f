"""scikit-learn estimators, and saving and loading them. Each name is imported when first used."""

from unlazy._lazy_exports import lazy_exports
from unlazy.estimators.persistence.classes import ESTIMATORS

_WHERE = {
    **ESTIMATORS, "load": "unlazy.estimators.persistence.files", "register": "unlazy.estimators.persistence.registry",
    "predict_interval": "unlazy.estimators.intervals", "save": "unlazy.estimators.persistence.files",
    "TableEncoder": "unlazy.estimators.preprocessing.table_encoder",
    "ZCAWhitening": "unlazy.estimators.preprocessing.whitening",
}  # fmt: skip

__all__ = [*_WHERE]

__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
