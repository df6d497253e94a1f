"""Solvers for a fixed kernel: `solve` for one ridge at any size, `decompose` for all ridges and training times."""

from unlazy._lazy_exports import lazy_exports

_MODULES = {
    "callbacks": ("SolverProgress",),
    "convex.nuclear_norm": ("MatrixFit", "minimum_frobenius_norm", "minimum_nuclear_norm"),
    "convex.relu_network": ("ConvexNetwork", "convex_relu_network"),
    "gaussian_process.posterior": (
        "PredictiveDistribution",
        "ensemble",
        "log_marginal_likelihood",
        "posterior",
        "prior",
    ),
    "gradient_flow": ("flow",),
    "learning_curve": ("LearningCurve",),
    "method_selection": ("Askotch", "Direct", "EigenPro", "NystromCG", "PreconditionedCG", "Richardson"),
    "path": ("Decomposition", "Path", "decompose"),
    "solution": ("Solution",),
    "solve": ("SolveOptions",),
}
_WHERE = {name: f"unlazy.solvers.{module}" for module, names in _MODULES.items() for name in names}
__all__ = [*_WHERE]
__getattr__, __dir__ = lazy_exports(__name__, _WHERE)
