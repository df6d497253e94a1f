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
    "TangentKernel": "kernels.tangent",
    "nngp_and_ntk": "kernels.infinite_width",
    "with_metric": "kernels.metric",
    # matrices that take hours
    "gram_to_store": "products.stored",
    # kernel fixed: one ridge at any size, or every ridge and every training time at once
    "solve": "solvers.solve",
    "Direct": "solvers.methods",
    "PreconditionedCG": "solvers.methods",
    "NystromCG": "solvers.methods",
    "Askotch": "solvers.methods",
    "EigenPro": "solvers.methods",
    "Richardson": "solvers.methods",
    "decompose": "solvers.path",
    "learning_curve": "solvers.path",
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
    "recursive_features": "training.machine",
    "rich_limit": "training.rich.limit",
    "rich_network": "training.rich.partner",
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
    "comparison", "estimators", "kernels", "lab", "layers", "measures", "networks", "products", "report", "solvers",
    "tasks", "theory", "training",
)  # fmt: skip

__all__ = ["__version__", *_ROOMS, *_WHERE]

if TYPE_CHECKING:  # the same for readers of types, who run nothing
    from unlazy import comparison as comparison
    from unlazy import estimators as estimators
    from unlazy import kernels as kernels
    from unlazy import lab as lab
    from unlazy import layers as layers
    from unlazy import measures as measures
    from unlazy import networks as networks
    from unlazy import products as products
    from unlazy import report as report
    from unlazy import solvers as solvers
    from unlazy import tasks as tasks
    from unlazy import theory as theory
    from unlazy import training as training
    from unlazy.comparison.compare import Comparison as Comparison
    from unlazy.comparison.compare import compare as compare
    from unlazy.core.architecture import MLP as MLP
    from unlazy.core.precision import precision as precision
    from unlazy.estimators.feature_machines import FeatureMachineClassifier as FeatureMachineClassifier
    from unlazy.estimators.feature_machines import FeatureMachineRegressor as FeatureMachineRegressor
    from unlazy.estimators.gaussian_process import GaussianProcess as GaussianProcess
    from unlazy.estimators.kernel import KernelClassifier as KernelClassifier
    from unlazy.estimators.kernel import KernelRegressor as KernelRegressor
    from unlazy.estimators.network import NetworkClassifier as NetworkClassifier
    from unlazy.estimators.network import NetworkRegressor as NetworkRegressor
    from unlazy.estimators.persistence import load as load
    from unlazy.estimators.random_features import RandomFeatures as RandomFeatures
    from unlazy.estimators.two_layer import TwoLayerRegressor as TwoLayerRegressor
    from unlazy.kernels.algebra import Constant as Constant
    from unlazy.kernels.custom import Custom as Custom
    from unlazy.kernels.dot_product import ArcCosine as ArcCosine
    from unlazy.kernels.dot_product import Linear as Linear
    from unlazy.kernels.dot_product import Polynomial as Polynomial
    from unlazy.kernels.infinite_width import NNGP as NNGP
    from unlazy.kernels.infinite_width import NTK as NTK
    from unlazy.kernels.infinite_width import LayerKernel as LayerKernel
    from unlazy.kernels.infinite_width import nngp_and_ntk as nngp_and_ntk
    from unlazy.kernels.metric import with_metric as with_metric
    from unlazy.kernels.periodic import Periodic as Periodic
    from unlazy.kernels.periodic import SpectralMixture as SpectralMixture
    from unlazy.kernels.product_laplace import ProductLaplace as ProductLaplace
    from unlazy.kernels.radial import Gaussian as Gaussian
    from unlazy.kernels.radial import Laplace as Laplace
    from unlazy.kernels.radial import Matern as Matern
    from unlazy.kernels.radial import RationalQuadratic as RationalQuadratic
    from unlazy.kernels.tangent import TangentKernel as TangentKernel
    from unlazy.networks.linearise import linearise as linearise
    from unlazy.networks.mlp import Network as Network
    from unlazy.networks.tangent import tangent_kernel as tangent_kernel
    from unlazy.products.stored import gram_to_store as gram_to_store
    from unlazy.solvers.gaussian_process import ensemble as ensemble
    from unlazy.solvers.gaussian_process import log_marginal_likelihood as log_marginal_likelihood
    from unlazy.solvers.gaussian_process import posterior as posterior
    from unlazy.solvers.gaussian_process import prior as prior
    from unlazy.solvers.methods import Askotch as Askotch
    from unlazy.solvers.methods import Direct as Direct
    from unlazy.solvers.methods import EigenPro as EigenPro
    from unlazy.solvers.methods import NystromCG as NystromCG
    from unlazy.solvers.methods import PreconditionedCG as PreconditionedCG
    from unlazy.solvers.methods import Richardson as Richardson
    from unlazy.solvers.path import decompose as decompose
    from unlazy.solvers.path import learning_curve as learning_curve
    from unlazy.solvers.solve import solve as solve
    from unlazy.training.descent import descend as descend
    from unlazy.training.machine import recursive_features as recursive_features
    from unlazy.training.one_step import one_step as one_step
    from unlazy.training.rich.limit import rich_limit as rich_limit
    from unlazy.training.rich.partner import rich_network as rich_network

else:  # hidden from them: it would make a name of every typing error

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
