"""Classes that a saved file may contain, by name: name → module. Nothing else is ever constructed."""

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
    # scikit-learn classes, so that a pipeline around an estimator can be saved
    "Pipeline": "sklearn.pipeline",
    "ColumnTransformer": "sklearn.compose",
    "TransformedTargetRegressor": "sklearn.compose",
    "StandardScaler": "sklearn.preprocessing",
    "MinMaxScaler": "sklearn.preprocessing",
    "MaxAbsScaler": "sklearn.preprocessing",
    "RobustScaler": "sklearn.preprocessing",
    "PowerTransformer": "sklearn.preprocessing",
    "QuantileTransformer": "sklearn.preprocessing",
    "PolynomialFeatures": "sklearn.preprocessing",
    "OneHotEncoder": "sklearn.preprocessing",
    "OrdinalEncoder": "sklearn.preprocessing",
    "FunctionTransformer": "sklearn.preprocessing",  # with a function of NUMPY_FUNCTIONS, or none
    "SimpleImputer": "sklearn.impute",
    "MissingIndicator": "sklearn.impute",
    "PCA": "sklearn.decomposition",
    # transformers of unlazy
    "TableEncoder": "unlazy.estimators.preprocessing.table_encoder",
    "ZCAWhitening": "unlazy.estimators.preprocessing.whitening",
}
NUMPY_FUNCTIONS = (
    "log", "log1p", "log2", "log10", "exp", "expm1", "exp2", "sqrt", "square", "cbrt", "arcsinh", "sinh", "arctan",
    "tan", "absolute", "negative", "reciprocal",
)  # fmt: skip
"""Functions of NumPy that transformers of inputs and targets may hold, by name."""
MODULES = {
    # immutable values with fields: kernels and network architectures
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
    # layers of sequential architectures; branches cannot be saved
    "Serial": "unlazy.layers.combine",
    "Activation": "unlazy.layers.activation",
    "LayerNorm": "unlazy.layers.normalization",
    "Dropout": "unlazy.layers.normalization",
    "SumPool": "unlazy.layers.pooling",
    "AvgPool": "unlazy.layers.pooling",
    "GlobalSumPool": "unlazy.layers.pooling",
    "GlobalAvgPool": "unlazy.layers.pooling",
    "Flatten": "unlazy.layers.reshaping",
    "ImageResize": "unlazy.layers.reshaping",
    "Dense": "unlazy.layers.dense",
    "Conv": "unlazy.layers.conv",
    "ConvLocal": "unlazy.layers.conv",
    "ConvTranspose": "unlazy.layers.conv",
}
DERIVED = {"MLP": ("biases", "skips")}
"""Fields that the constructor computes itself."""
