"""The fixed table of what a saved file may contain: name → where its class lives. Nothing else is ever constructed."""

from importlib import import_module
from typing import Any

ESTIMATORS = {
    "KernelRegressor": "unlazy.estimators.kernel",
    "KernelClassifier": "unlazy.estimators.kernel",
    "GaussianProcess": "unlazy.estimators.gaussian_process",
    "RandomFeatures": "unlazy.estimators.random_features",
    "TwoLayerRegressor": "unlazy.estimators.two_layer",
    "NetworkRegressor": "unlazy.estimators.network",
    "NetworkClassifier": "unlazy.estimators.network",
    "FeatureMachineRegressor": "unlazy.estimators.feature_machines",
    "FeatureMachineClassifier": "unlazy.estimators.feature_machines",
}
COMPANIONS = {
    # scikit-learn's, so that a pipeline around an estimator can be saved with it
    "Pipeline": "sklearn.pipeline",
    "ColumnTransformer": "sklearn.compose",
    "TransformedTargetRegressor": "sklearn.compose",
    "StandardScaler": "sklearn.preprocessing",
    "MinMaxScaler": "sklearn.preprocessing",
    "OneHotEncoder": "sklearn.preprocessing",
    "OrdinalEncoder": "sklearn.preprocessing",
    "SimpleImputer": "sklearn.impute",
    # ours, and no model
    "TableEncoder": "unlazy.estimators.table_encoder",
}
MODULES = {
    # frozen values with fields: kernels, and the network description
    "MLP": "unlazy.core.architecture",
    "Gaussian": "unlazy.kernels.radial",
    "Laplace": "unlazy.kernels.radial",
    "Matern": "unlazy.kernels.radial",
    "RationalQuadratic": "unlazy.kernels.radial",
    "ProductLaplace": "unlazy.kernels.product_laplace",
    "Linear": "unlazy.kernels.dot_product",
    "Polynomial": "unlazy.kernels.dot_product",
    "ArcCosine": "unlazy.kernels.dot_product",
    "NNGP": "unlazy.kernels.infinite_width",
    "NTK": "unlazy.kernels.infinite_width",
    "LayerKernel": "unlazy.kernels.infinite_width",
    "Metric": "unlazy.kernels.metric",
    "TwoLayer": "unlazy.kernels.empirical",
    "CombinedFormula": "unlazy.kernels.algebra",
    "CombinedGram": "unlazy.kernels.algebra",
    "ScaledFormula": "unlazy.kernels.algebra",
    "ScaledGram": "unlazy.kernels.algebra",
}
DERIVED = {"MLP": ("biases", "skips")}
"""Fields that the constructor works out itself."""


def class_named(name: str, table: dict[str, str]) -> type:
    """The class of this name, or a KeyError."""
    return getattr(import_module(table[name]), name)


def name_of(value: Any, table: dict[str, str]) -> str | None:
    """The registered name of the value's class: exactly that class, not one that merely has its name."""
    kind = type(value)
    module = table.get(kind.__name__)
    if module is None or not (kind.__module__ == module or kind.__module__.startswith(module + ".")):
        return None
    return kind.__name__
