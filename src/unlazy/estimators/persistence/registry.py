"""The fixed table of what a saved file may contain: name → where its class lives. Nothing else is ever constructed,
except kernels of your own that you registered in this very program."""

import dataclasses
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
    "FeatureMachineRegressor": "unlazy.estimators.feature_machine.machines",
    "FeatureMachineClassifier": "unlazy.estimators.feature_machine.machines",
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
    "TableEncoder": "unlazy.estimators.preprocessing.table_encoder",
    "ZCAWhitening": "unlazy.estimators.preprocessing.whitening",
}
MODULES = {
    # frozen values with fields: kernels, and the network description
    "MLP": "unlazy.theory.infinite_width.architecture",
    "Gaussian": "unlazy.kernels.radial",
    "Laplace": "unlazy.kernels.radial",
    "Matern": "unlazy.kernels.radial",
    "RationalQuadratic": "unlazy.kernels.radial",
    "ProductLaplace": "unlazy.kernels.product_laplace",
    "Linear": "unlazy.kernels.dot_product",
    "Polynomial": "unlazy.kernels.dot_product",
    "ArcCosine": "unlazy.kernels.dot_product",
    "NNGP": "unlazy.kernels.networks.infinite_width",
    "NTK": "unlazy.kernels.networks.infinite_width",
    "LayerKernel": "unlazy.kernels.networks.infinite_width",
    "Metric": "unlazy.kernels.metric",
    "TwoLayer": "unlazy.kernels.networks.two_layer",
    "CombinedFormula": "unlazy.kernels.algebra",
    "CombinedGram": "unlazy.kernels.algebra",
    "ScaledFormula": "unlazy.kernels.algebra",
    "ScaledGram": "unlazy.kernels.algebra",
    "PowerFormula": "unlazy.kernels.algebra",
    "PowerGram": "unlazy.kernels.algebra",
    "Constant": "unlazy.kernels.algebra",
    "Periodic": "unlazy.kernels.periodic",
    "SpectralMixture": "unlazy.kernels.periodic",
    "LayeredNNGP": "unlazy.kernels.networks.layered",
    "LayeredNTK": "unlazy.kernels.networks.layered",
    "Flipped": "unlazy.kernels.networks.flips",
    # layers of descriptions, one after another; files do not hold branches
    "Serial": "unlazy.layers.description.combine",
    "Activation": "unlazy.layers.description.shaping",
    "LayerNorm": "unlazy.layers.description.shaping",
    "Dropout": "unlazy.layers.description.shaping",
    "SumPool": "unlazy.layers.description.shaping",
    "AvgPool": "unlazy.layers.description.shaping",
    "GlobalSumPool": "unlazy.layers.description.shaping",
    "GlobalAvgPool": "unlazy.layers.description.shaping",
    "Flatten": "unlazy.layers.description.shaping",
    "ImageResize": "unlazy.layers.description.shaping",
    "Dense": "unlazy.layers.description.weights",
    "Conv": "unlazy.layers.description.weights",
    "ConvLocal": "unlazy.layers.description.weights",
    "ConvTranspose": "unlazy.layers.description.weights",
}
DERIVED = {"MLP": ("biases", "skips")}
"""Fields that the constructor works out itself."""


RENAMED = {
    # of files of format 1, whose words meant something relative
    "FeatureMachineRegressor": {
        "bandwidth": "relative_bandwidth", "ridge": "relative_ridge", "ridge_": "relative_ridge_",
    },
    "FeatureMachineClassifier": {
        "bandwidth": "relative_bandwidth", "ridge": "relative_ridge", "ridge_": "relative_ridge_",
    },
    "TwoLayerRegressor": {"ridge": "relative_ridge", "ridge_": "relative_ridge_"},
}  # fmt: skip
"""Parameters and fitted attributes that are called otherwise now."""
_OWN: dict[str, type] = {}


class Unregistered(LookupError):
    """A file holds a class that this program has not registered."""


def register(kind: Any, name: str | None = None) -> Any:
    """Let a kernel of your own be saved and loaded: files hold its name and its fields, your program its code.

    The program that loads registers the class too, before `load`; `name` is what files call it (default: the class's).

    >>> @unlazy.estimators.register
    ... class Cosine(InnerProductKernel):
    ...     power: float
    """
    import equinox as eqx

    if not (isinstance(kind, type) and issubclass(kind, eqx.Module)):
        raise ValueError(f"what can be registered is a kernel's class, a subclass of unlazy's kernels; got {kind!r}")
    name = kind.__name__ if name is None else name
    for taken in (MODULES, ESTIMATORS, COMPANIONS):
        if name in taken:
            raise ValueError(f"files know another {name!r} already, that of {taken[name]}; register it with name=")
    before = _OWN.get(name)
    if before is not None and (before.__module__, before.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ValueError(f"{before!r} is registered as {name!r} already; register {kind!r} with another name=")
    _OWN[name] = kind  # the same class defined once more, in a notebook, takes its own place
    return kind


def module_named(name: str) -> type:
    """The class of a kernel or network in a file, or an error that says how to make it known."""
    if name in MODULES:
        return class_named(name, MODULES)
    if name not in _OWN:
        raise Unregistered(
            f"it holds a {name!r}, which is not of unlazy: import its class and call "
            f"unlazy.estimators.register on it before load"
        )
    return _OWN[name]


def module_name(value: Any) -> str | None:
    """What files call the class of a kernel or network; None where it may not be saved."""
    own = [name for name, kind in _OWN.items() if type(value) is kind]
    return own[0] if own else name_of(value, MODULES)


def saved_fields(value: Any, name: str) -> list[str]:
    """Fields that rebuild it: all that its constructor takes."""
    return [f.name for f in dataclasses.fields(value) if f.init and f.name not in DERIVED.get(name, ())]


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
