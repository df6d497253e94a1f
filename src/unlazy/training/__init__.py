"""Training with feature learning: gradient descent, one-step training, recursive feature machines, the rich limit."""

from unlazy._lazy_exports import lazy_exports

_MODULES = {
    "descent.descend": ("Descent", "descend"),
    "one_step.algorithm": ("OneStep",),
    "options": ("DescentOptions", "LangevinChains", "OneStepOptions", "RFMOptions", "Recording", "RichOptions"),
    "rfm.rfm": ("RecursiveFeatureMachine", "recursive_features"),
    "rich.adaptive": ("adaptive_kernel",),
    "rich.finite_width": ("rich_network",),
    "rich.langevin": ("langevin",),
    "rich.limit": ("rich_limit",),
    "rich.trajectory": ("RichTrajectory",),
}
_WHERE = {name: f"unlazy.training.{module}" for module, names in _MODULES.items() for name in names}
_WHERE["Loss"] = "unlazy.theory.dynamics.losses"
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
