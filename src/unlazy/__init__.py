"""unlazy: kernels, infinitely wide networks, and the feature learning beyond them.

The names a user types, listed by hand. Each is imported when first used, so that `import unlazy` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from unlazy._version import VERSION as __version__

_WHERE = {
    # the network description that finite networks and infinite kernels share
    "MLP": "theory.infinite_width.architecture",
    "Progress": "core.progress",
    "precision": "core.arrays",
    # kernels
    "ArcCosine": "kernels.dot_product",
    "Constant": "kernels.algebra",
    "Custom": "kernels.custom",
    "Gaussian": "kernels.radial",
    "Laplace": "kernels.radial",
    "LayerKernel": "kernels.networks.infinite_width",
    "Linear": "kernels.dot_product",
    "Matern": "kernels.radial",
    "NNGP": "kernels.networks.infinite_width",
    "NTK": "kernels.networks.infinite_width",
    "Periodic": "kernels.periodic",
    "Polynomial": "kernels.dot_product",
    "ProductLaplace": "kernels.product_laplace",
    "RationalQuadratic": "kernels.radial",
    "SpectralMixture": "kernels.periodic",
    "TangentKernel": "kernels.networks.tangent",
    "nngp_and_ntk": "kernels.networks.infinite_width",
    "with_metric": "kernels.metric",
    # matrices that take hours
    "gram_to_store": "products.gram_store",
    # kernel fixed: one ridge at any size, or every ridge and every training time at once
    "solve": "solvers.solve",
    "SolveOptions": "solvers.solve",
    "Direct": "solvers.method_selection",
    "PreconditionedCG": "solvers.method_selection",
    "NystromCG": "solvers.method_selection",
    "Askotch": "solvers.method_selection",
    "EigenPro": "solvers.method_selection",
    "Richardson": "solvers.method_selection",
    "decompose": "solvers.path",
    "learning_curve": "solvers.path",
    "ensemble": "solvers.gaussian_process.posterior",
    "log_marginal_likelihood": "solvers.gaussian_process.posterior",
    "posterior": "solvers.gaussian_process.posterior",
    "prior": "solvers.gaussian_process.posterior",
    # features move
    "Network": "networks.mlp",
    "linearize": "networks.linearization",
    "tangent_kernel": "networks.tangent",
    "descend": "training.descent.descend",
    "one_step": "training.one_step.algorithm",
    "recursive_features": "training.rfm.rfm",
    "rich_limit": "training.rich.limit",
    "rich_network": "training.rich.finite_width",
    # scikit-learn estimators, and model files that cannot run code
    "FeatureMachineClassifier": "estimators.feature_machine.machines",
    "FeatureMachineRegressor": "estimators.feature_machine.machines",
    "GaussianProcess": "estimators.gaussian_process",
    "KernelClassifier": "estimators.kernel",
    "KernelRegressor": "estimators.kernel",
    "NetworkClassifier": "estimators.network",
    "NetworkRegressor": "estimators.network",
    "RandomFeatures": "estimators.random_features",
    "TwoLayerRegressor": "estimators.two_layer",
    "load": "estimators.persistence.files",
    "save": "estimators.persistence.files",
    "predict_interval": "estimators.intervals",
    # predictions without JAX
    "load_predictor": "serving.predictor",
    # is my training run lazy?
    "Monitor": "diagnostics.monitor",
    "ScalingCheck": "diagnostics.scaling.result",
    "ScalingOptions": "diagnostics.scaling.options",
    "WatchOptions": "diagnostics.options",
    "check_scaling": "diagnostics.scaling.check",
    "scaled": "diagnostics.scaling.scaled",
    "sweep_rates": "diagnostics.scaling.sweep",
    "watch": "diagnostics.monitor",
    # how sure is it, and which rows made it?
    "TangentOptions": "solvers.tangent.options",
    "attribution": "diagnostics.attribution",
    "uncertainty": "diagnostics.uncertainty",
    # does feature learning pay on my data?
    "compare": "comparison.compare",
    "Comparison": "comparison.compare",
    "StudyOptions": "comparison.options",
    "TableOptions": "comparison.options",
    # is every program of this machine right?
    "check_device": "device_check.check",
}
_SUBPACKAGES = (
    "comparison", "diagnostics", "estimators", "kernels", "lab", "layers", "measures", "networks", "products",
    "serving", "solvers", "tasks", "theory", "training",
)  # fmt: skip

__all__ = ["__version__", *_SUBPACKAGES, *_WHERE]

if TYPE_CHECKING:  # the same for readers of types, who run nothing
    from unlazy import comparison as comparison
    from unlazy import diagnostics as diagnostics
    from unlazy import estimators as estimators
    from unlazy import kernels as kernels
    from unlazy import lab as lab
    from unlazy import layers as layers
    from unlazy import measures as measures
    from unlazy import networks as networks
    from unlazy import products as products
    from unlazy import serving as serving
    from unlazy import solvers as solvers
    from unlazy import tasks as tasks
    from unlazy import theory as theory
    from unlazy import training as training
    from unlazy.comparison.compare import Comparison as Comparison
    from unlazy.comparison.compare import compare as compare
    from unlazy.comparison.options import StudyOptions as StudyOptions
    from unlazy.comparison.options import TableOptions as TableOptions
    from unlazy.core.arrays import precision as precision
    from unlazy.core.progress import Progress as Progress
    from unlazy.device_check.check import check_device as check_device
    from unlazy.diagnostics.attribution import attribution as attribution
    from unlazy.diagnostics.monitor import Monitor as Monitor
    from unlazy.diagnostics.monitor import watch as watch
    from unlazy.diagnostics.options import WatchOptions as WatchOptions
    from unlazy.diagnostics.scaling.check import check_scaling as check_scaling
    from unlazy.diagnostics.scaling.options import ScalingOptions as ScalingOptions
    from unlazy.diagnostics.scaling.result import ScalingCheck as ScalingCheck
    from unlazy.diagnostics.scaling.scaled import scaled as scaled
    from unlazy.diagnostics.scaling.sweep import sweep_rates as sweep_rates
    from unlazy.diagnostics.uncertainty import uncertainty as uncertainty
    from unlazy.estimators.feature_machine.machines import FeatureMachineClassifier as FeatureMachineClassifier
    from unlazy.estimators.feature_machine.machines import FeatureMachineRegressor as FeatureMachineRegressor
    from unlazy.estimators.gaussian_process import GaussianProcess as GaussianProcess
    from unlazy.estimators.intervals import predict_interval as predict_interval
    from unlazy.estimators.kernel import KernelClassifier as KernelClassifier
    from unlazy.estimators.kernel import KernelRegressor as KernelRegressor
    from unlazy.estimators.network import NetworkClassifier as NetworkClassifier
    from unlazy.estimators.network import NetworkRegressor as NetworkRegressor
    from unlazy.estimators.persistence.files import load as load
    from unlazy.estimators.persistence.files import save as save
    from unlazy.estimators.random_features import RandomFeatures as RandomFeatures
    from unlazy.estimators.two_layer import TwoLayerRegressor as TwoLayerRegressor
    from unlazy.kernels.algebra import Constant as Constant
    from unlazy.kernels.custom import Custom as Custom
    from unlazy.kernels.dot_product import ArcCosine as ArcCosine
    from unlazy.kernels.dot_product import Linear as Linear
    from unlazy.kernels.dot_product import Polynomial as Polynomial
    from unlazy.kernels.metric import with_metric as with_metric
    from unlazy.kernels.networks.infinite_width import NNGP as NNGP
    from unlazy.kernels.networks.infinite_width import NTK as NTK
    from unlazy.kernels.networks.infinite_width import LayerKernel as LayerKernel
    from unlazy.kernels.networks.infinite_width import nngp_and_ntk as nngp_and_ntk
    from unlazy.kernels.networks.tangent import TangentKernel as TangentKernel
    from unlazy.kernels.periodic import Periodic as Periodic
    from unlazy.kernels.periodic import SpectralMixture as SpectralMixture
    from unlazy.kernels.product_laplace import ProductLaplace as ProductLaplace
    from unlazy.kernels.radial import Gaussian as Gaussian
    from unlazy.kernels.radial import Laplace as Laplace
    from unlazy.kernels.radial import Matern as Matern
    from unlazy.kernels.radial import RationalQuadratic as RationalQuadratic
    from unlazy.networks.linearization import linearize as linearize
    from unlazy.networks.mlp import Network as Network
    from unlazy.networks.tangent import tangent_kernel as tangent_kernel
    from unlazy.products.gram_store import gram_to_store as gram_to_store
    from unlazy.serving.predictor import load_predictor as load_predictor
    from unlazy.solvers.gaussian_process.posterior import ensemble as ensemble
    from unlazy.solvers.gaussian_process.posterior import log_marginal_likelihood as log_marginal_likelihood
    from unlazy.solvers.gaussian_process.posterior import posterior as posterior
    from unlazy.solvers.gaussian_process.posterior import prior as prior
    from unlazy.solvers.method_selection import Askotch as Askotch
    from unlazy.solvers.method_selection import Direct as Direct
    from unlazy.solvers.method_selection import EigenPro as EigenPro
    from unlazy.solvers.method_selection import NystromCG as NystromCG
    from unlazy.solvers.method_selection import PreconditionedCG as PreconditionedCG
    from unlazy.solvers.method_selection import Richardson as Richardson
    from unlazy.solvers.path import decompose as decompose
    from unlazy.solvers.path import learning_curve as learning_curve
    from unlazy.solvers.solve import SolveOptions as SolveOptions
    from unlazy.solvers.solve import solve as solve
    from unlazy.solvers.tangent.options import TangentOptions as TangentOptions
    from unlazy.theory.infinite_width.architecture import MLP as MLP
    from unlazy.training.descent.descend import descend as descend
    from unlazy.training.one_step.algorithm import one_step as one_step
    from unlazy.training.rfm.rfm import recursive_features as recursive_features
    from unlazy.training.rich.finite_width import rich_network as rich_network
    from unlazy.training.rich.limit import rich_limit as rich_limit

else:  # hidden from them: it would make a name of every typing error

    def __getattr__(name: str) -> Any:
        if name in _WHERE:
            value = getattr(import_module(f"unlazy.{_WHERE[name]}"), name)
        elif name in _SUBPACKAGES:
            value = import_module(f"unlazy.{name}")
        else:
            from unlazy.core.errors import did_you_mean

            raise AttributeError(f"unlazy has no {name!r}{did_you_mean(name, [*_WHERE, *_SUBPACKAGES])}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
