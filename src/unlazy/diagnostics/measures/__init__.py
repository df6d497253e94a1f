"""Measures of a network in training: linearization gap, kernel, features, sharpness, and what they stand on."""

from unlazy._lazy_exports import lazy_exports

_MODULES = {
    "kernel_machine": ("fit_kernel_machine",),
    "kernel_result": ("KernelMachine",),
    "kernel_sketch": ("KernelMovement", "KernelSketch", "kernel_alignment"),
    "movement": ("feature_changes", "linearization_gap", "parameter_movement", "richness"),
    "sharpness": ("Sharpness",),
}
_WHERE = {name: f"unlazy.diagnostics.measures.{module}" for module, names in _MODULES.items() for name in names}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
