"""unlazy: kernels, infinitely wide networks, and the feature learning beyond them.

The names a user types, listed by hand. Each is imported when first used, so that `import unlazy` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unlazy.core.version import VERSION as __version__

_WHERE = {
    # the network description that finite networks and infinite kernels share
    "MLP": "core.architecture",
    "precision": "core.precision",
    # kernels
    "ArcCosine": "kernels.dot_product",
    "Constant": "kernels.algebra",
    "Custom": "kernels.custom",
    "Gaussian": "kernels.radial",
    "Laplace": "kernels.radial",
    "LayerKernel": "kernels.infinite_width",
    "Linear": "kernels.dot_product",
    "Matern": "kernels.radial",
    "NNGP": "kernels.infinite_width",
    "NTK": "kernels.infinite_width",
    "Periodic": "kernels.periodic",
    "Polynomial": "kernels.dot_product",
    "ProductLaplace": "kernels.product_laplace",
    "RationalQuadratic": "kernels.radial",
    "SpectralMixture": "kernels.periodic",
    "nngp_and_ntk": "kernels.infinite_width",
    "with_metric": "kernels.metric",
    # kernel fixed: one ridge at any size, or every ridge and every training time at once
    "solve": "solvers.front",
    "decompose": "solvers.path",
    "ensemble": "solvers.gaussian_process",
    "log_marginal_likelihood": "solvers.gaussian_process",
    "posterior": "solvers.gaussian_process",
    "prior": "solvers.gaussian_process",
    # features move
    "Network": "networks.mlp",
    "linearise": "networks.linearise",
    "tangent_kernel": "networks.tangent",
    "descend": "training.descent",
    "one_step": "training.one_step",
    # scikit-learn's manners, and files that cannot run code
    "FeatureMachineClassifier": "estimators.feature_machines",
    "FeatureMachineRegressor": "estimators.feature_machines",
    "GaussianProcess": "estimators.gaussian_process",
    "KernelClassifier": "estimators.kernel",
    "KernelRegressor": "estimators.kernel",
    "NetworkClassifier": "estimators.network",
    "NetworkRegressor": "estimators.network",
    "RandomFeatures": "estimators.random_features",
    "TwoLayerRegressor": "estimators.two_layer",
    "load": "estimators.persistence",
    # does feature learning pay on my data?
    "compare": "comparison.compare",
    "Comparison": "comparison.compare",
}
_ROOMS = (
    "comparison", "estimators", "kernels", "lab", "measures", "networks", "products", "report", "solvers", "tasks",
    "theory", "training",
)  # fmt: skip

__all__ = ["__version__", *_ROOMS, *_WHERE]

if TYPE_CHECKING:
    from unlazy import comparison as comparison
    from unlazy import estimators as estimators
    from unlazy import kernels as kernels
    from unlazy import lab as lab
    from unlazy import measures as measures
    from unlazy import networks as networks
    from unlazy import products as products
    from unlazy import report as report
    from unlazy import solvers as solvers
    from unlazy import tasks as tasks
    from unlazy import theory as theory
    from unlazy import training as training


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(import_module(f"unlazy.{_WHERE[name]}"), name)
    elif name in _ROOMS:
        value = import_module(f"unlazy.{name}")
    else:
        from unlazy.core.errors import nearest

        raise AttributeError(f"unlazy has no {name!r}{nearest(name, [*_WHERE, *_ROOMS])}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
