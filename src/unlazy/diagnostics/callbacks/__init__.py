"""Callbacks that watch a training run in other packages' trainers: Lightning and Hugging Face.

Neither package is imported before one of the classes is used.
"""

from unlazy._lazy_exports import lazy_exports

_WHERE = {
    "LightningWatch": "unlazy.diagnostics.callbacks.lightning",
    "TransformersWatch": "unlazy.diagnostics.callbacks.transformers",
}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
