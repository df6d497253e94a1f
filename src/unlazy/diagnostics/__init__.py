"""Diagnostics of a network in training: lazy or rich, and what to change."""

from unlazy._lazy_exports import lazy_exports

_WHERE = {
    "Monitor": "unlazy.diagnostics.monitor",
    "WatchOptions": "unlazy.diagnostics.options",
    "watch": "unlazy.diagnostics.monitor",
}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
