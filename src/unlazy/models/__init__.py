"""Networks of any framework behind one protocol: parameters, evaluation, derivatives, layer outputs."""

from unlazy._lazy_exports import lazy_exports

_WHERE = {
    "Model": "unlazy.models.protocol",
    "as_model": "unlazy.models.adapt",
}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
