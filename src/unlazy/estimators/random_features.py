"""Random features: a finite feature map whose inner products approximate a kernel, for use with linear models."""

import jax.numpy as jnp
import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points, dot
from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.estimators.base import Estimator, RandomState, map_blocks
from unlazy.estimators.named_kernels import NETWORK, default_bandwidth, kernel_named, scaled
from unlazy.kernels.networks.infinite_width import NNGP
from unlazy.layers.protocol.parametrization import WeightBias
from unlazy.networks.mlp import Network
from unlazy.theory.infinite_width.architecture import MLP

KERNELS = ("gaussian", "laplace", "matern", "product_laplace", "nngp")


class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Estimator):
    """Random features φ with φ(x)·φ(z) → k(x, z) as `n_components` grows, with error O(1/√n_components).

    Radial kernels: φ = (cos ωx, sin ωx)/√(n/2) at frequencies ω drawn from the Fourier transform of the kernel: normal
    for the Gaussian kernel, Student's t with 2ν degrees of freedom for Matérn (ν = 1/2 is Laplace), Cauchy in each
    coordinate for the product Laplace kernel. "nngp": the last hidden layer of a random network of that width (σ_w
    φ(f)/√w, and σ_b for the bias) [K7].

    Parameters
    ----------
    kernel : {"gaussian", "laplace", "matern", "product_laplace", "nngp"}, default "gaussian"
        Kernel to approximate.
    n_components : int, default 256
        Number of features.
    bandwidth : float or None, default None
        Bandwidth of the kernel. None uses the median distance between rows, as `KernelRegressor` does.
    network : MLP or None, default None
        Network of "nngp". None is `MLP(depth=2, activation="relu", sigma_b=0.5)`.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the features. None is float64.
    random_state : int, RandomState or None, default 0
        Seed of the features. None draws a new seed for each fit.

    Attributes
    ----------
    kernel_ : Kernel
        The kernel in the limit of many features, applied to x - `offset_`.
    bandwidth_ : float
        The bandwidth.
    offset_ : array of shape (d,)
        Mean of the training rows, subtracted from the inputs.
    frequencies_ : array of shape (d, ⌈n_components/2⌉)
        The frequencies ω; not set for "nngp".
    mlp_ : MLP
        The random network; only for "nngp".
    layers_ : list of (weight, bias)
        Its parameters; only for "nngp".
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Rahimi and Recht (2007), Random features for large-scale kernel machines.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import RidgeCV
    >>> from sklearn.pipeline import make_pipeline
    >>> from unlazy import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> make_pipeline(RandomFeatures(random_state=0), RidgeCV()).fit(X, y).predict(X[:5]).shape
    (5,)
    """

    kernel: str
    n_components: int
    bandwidth: float | None
    network: MLP | None
    precision: str | None
    random_state: RandomState

    def __init__(
        self, kernel="gaussian", *, n_components=256, bandwidth=None, network=None, precision=None, random_state=0
    ):  # fmt: skip
        self.kernel = kernel
        self.n_components = n_components
        self.bandwidth = bandwidth
        self.network = network
        self.precision = precision
        self.random_state = random_state

    def fit(self, X: Points, y: Labels | None = None) -> "RandomFeatures":
        """Draw the random features.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points; they determine the offset and the default bandwidth.
        y : None
            Ignored.

        Returns
        -------
        RandomFeatures
            The fitted transformer.
        """
        X = self._validate_columns(X, reset=True)
        self._check()
        self._n_features_out_ = int(self.n_components)
        h = default_bandwidth(self.kernel, X) if self.bandwidth is None else float(self.bandwidth)
        self.offset_, self.bandwidth_ = X.mean(0), h
        with self._precision_scope():
            if self.kernel == "nngp":
                self._draw_network(X.shape[1])
            else:
                self.kernel_ = kernel_named(self.kernel, h, X.shape[1])
                self.frequencies_ = self._frequencies(X.shape[1]).astype(self._dtype)
        return self

    def transform(self, X: Points) -> np.ndarray:
        """Compute the features of X.

        Parameters
        ----------
        X : array of shape (m, d)
            Points.

        Returns
        -------
        array of shape (m, n_components)
            Features.
        """
        check_is_fitted(self)
        X = self._validate_inputs(X) - self.offset_
        if self.kernel != "nngp":
            angle = dot(X, self.frequencies_)
            waves = np.stack([np.cos(angle), np.sin(angle)], -1).reshape(len(X), -1)
            return waves[:, : self._n_features_out] / np.sqrt(self._n_features_out / 2, dtype=X.dtype)
        network = Network(self.mlp_, X.shape[1])
        with self._precision_scope():
            weights = tuple(WeightBias(jnp.asarray(w), jnp.asarray(b)) for w, b in self.layers_)
            hidden = map_blocks(lambda Z: network.hidden(weights, jnp.asarray(Z / self.bandwidth_)), X)
        features = hidden * (self.mlp_.sigma_w[-1] / np.sqrt(hidden.shape[1], dtype=X.dtype))
        if not self.mlp_.biases:
            return features
        return np.hstack([features, np.full((len(X), 1), self.mlp_.sigma_b[-1], X.dtype)])

    @property
    def _n_features_out(self) -> int:
        return self._n_features_out_

    def _draw_network(self, d: int) -> None:
        """Draw the random network of "nngp"."""
        given = NETWORK if self.network is None else self.network
        width = int(self.n_components) - given.biases
        if width < 1:
            raise ValueError("a network with biases needs n_components of at least 2: one component is the bias")
        self.mlp_ = MLP(
            given.depth, given.activation, given.sigma_w, given.sigma_b,
            residual=given.residual, scale_input=given.scale_input, width=width,
        )  # fmt: skip
        self.kernel_ = scaled(NNGP(given), self.bandwidth_, d)
        params = Network(self.mlp_, d).init(self._key())
        self.layers_ = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in params]

    def _frequencies(self, d: int) -> np.ndarray:
        """Draw (d, ⌈n/2⌉) frequencies from the Fourier transform of the kernel."""
        rng = check_random_state(self.random_state)
        count = -(-int(self.n_components) // 2)
        if self.kernel == "product_laplace":
            return rng.standard_cauchy((d, count)) / self.bandwidth_
        normal = rng.standard_normal((d, count)) / self.bandwidth_
        if self.kernel == "gaussian":
            return normal
        freedom = {"laplace": 1.0, "matern": 3.0}[self.kernel]
        return normal / np.sqrt(rng.chisquare(freedom, count) / freedom)

    def _check(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel {self.kernel!r} is not supported{did_you_mean(str(self.kernel), KERNELS)}")
        check_positive_integer("n_components", self.n_components)
        if self.bandwidth is not None and not 0 < self.bandwidth < np.inf:
            raise ValueError(f"bandwidth must be a positive number or None (median), got {self.bandwidth!r}")
        if self.network is not None and self.kernel != "nngp":
            raise ValueError(f"network applies to kernel='nngp', not to {self.kernel!r}")
