"""Fully connected networks trained by Adam, as regressor and classifier."""

import functools
import warnings
from collections.abc import Callable
from typing import Literal, overload

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points
from unlazy.core.dataset import Data
from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.estimators.base import Estimator, RandomState, TrainingData, map_blocks
from unlazy.estimators.classifiers import LogitClassifier
from unlazy.estimators.intervals import HeldOutIntervals
from unlazy.estimators.preprocessing.columns import Standardizer, fit_standardizer
from unlazy.estimators.preprocessing.padding import pad_rows, padded_size, random_permutation, repeat_rows
from unlazy.layers.protocol.parametrization import WeightBias, adam_rates
from unlazy.models.adapt import as_model
from unlazy.networks.mlp import Network, Parameters
from unlazy.solvers.tangent.fit import TangentModel
from unlazy.solvers.tangent.options import TangentOptions
from unlazy.solvers.tangent.posterior import NetworkPosterior
from unlazy.theory.dynamics.losses import resolve_loss
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import Descent, descend
from unlazy.training.options import DescentOptions, Recording

MIN_HELD_OUT = 20
"""Smallest number of held-out points for early stopping; the error of fewer points is too noisy."""
PATIENCE = 10
"""Number of evaluations without improvement after which training stops."""
MAX_STD_ROWS = 4096
"""Largest number of training rows that standard deviations are computed from."""
N_EVALUATIONS = 40
"""Number of evaluations of the held-out error in a full run."""
LOSS_FLOOR = 1e-6
"""Training loss (of standardized targets, or in nats) below which training stops."""


class NetworkMachine(Estimator):
    """Base class of both networks: architecture, training with early stopping, predictions."""

    depth: int
    width: int
    activation: str
    parametrization: str
    step_size: float
    steps: int
    batch_size: int
    decay: float
    validation_fraction: float
    precision: str | None
    random_state: RandomState
    progress: ProgressOption

    def __init__(
        self, depth=2, width=128, *, activation="relu", parametrization="standard", step_size=1e-3, steps=2000,
        batch_size=128, decay=1e-4, validation_fraction=0.1, precision=None, random_state=0, progress=False,
    ):  # fmt: skip
        self.depth = depth
        self.width = width
        self.activation = activation
        self.parametrization = parametrization
        self.step_size = step_size
        self.steps = steps
        self.batch_size = batch_size
        self.decay = decay
        self.validation_fraction = validation_fraction
        self.precision = precision
        self.random_state = random_state
        self.progress = progress

    def _fit(self, data: TrainingData, loss: str) -> None:
        """Train on standardized columns; set the fitted attributes."""
        self._check()
        of_X = fit_standardizer(data.X)
        self.center_, self.scale_ = of_X
        # parametrizations that multiply biases by σ_b need it to be positive
        sigma_b = 0.1 if self.parametrization in ("ntk", "mean_field") else 0.0
        self.mlp_ = MLP(
            self.depth, self.activation, sigma_b=sigma_b, width=int(self.width), outputs=data.Y.shape[1]
        )  # fmt: skip
        self.parametrization_ = self.parametrization
        network = Network(self.mlp_, data.X.shape[1], self.parametrization_)
        with self._precision_scope():
            start_key, key = jax.random.split(self._key())
            data = data._replace(X=of_X(data.X))
            parts = self._split(data, jax.random.fold_in(key, 0))
            train, held = self._padded(*parts)
            every = max(1, -(-int(self.steps) // N_EVALUATIONS))
            with ProgressDisplay("training", N_EVALUATIONS + 1, show=self.progress) as shown:
                found = _descend(
                    network, network.init(start_key), train, held, key, self.step_size, self.decay, loss=loss,
                    every=every, steps=every * -(-int(self.steps) // every),
                    batch_size=int(self.batch_size) if self.batch_size < train.n else None,
                    tick=shown.advance if self.progress else None,
                )  # fmt: skip
                jax.block_until_ready(found.params)
            if bool(found.diverged):
                warnings.warn(f"training diverged ({found.report}): lower step_size", UnlazyWarning, stacklevel=3)
            self.layers_ = [(np.asarray(weight), np.asarray(bias)) for weight, bias in found.params]
        self._keep_rows(*parts)
        self.n_steps_, self.loss_ = int(found.steps), float(found.final_loss)
        self.validation_losses_ = None if held is None else np.asarray(found.recorded["held_out"])

    def _split(self, data: TrainingData, key: jax.Array) -> tuple[TrainingData, TrainingData | None]:
        """Split into training and held-out points; hold none out if there are few."""
        held = round(self.validation_fraction * data.n)
        if held < MIN_HELD_OUT:
            return data, None
        order = random_permutation(key, data.n)
        return data.rows(order[held:]), data.rows(order[:held])

    def _padded(self, train: TrainingData, held: TrainingData | None) -> tuple[Data, Data | None]:
        """Both parts with one of few shapes."""
        return self._pad(train), None if held is None else _data(pad_rows(held, padded_size(train.n)))

    def _pad(self, data: TrainingData) -> Data:
        """Pad the training points to one of few shapes.

        If all points make one batch, rows of weight zero are added; otherwise rows are repeated and share their weight,
        so that each batch has points.
        """
        n = len(data.X)
        return _data(pad_rows(data, padded_size(n, 2)) if n <= self.batch_size else repeat_rows(data, padded_size(n)))

    def _keep_rows(self, train: TrainingData, held: TrainingData | None) -> None:
        """Keep what predictions need of the rows: nothing."""

    def _network(self) -> tuple[Network, Parameters]:
        """The trained network and its parameters."""
        params = tuple(WeightBias(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in self.layers_)
        return Network(self.mlp_, len(self.center_), self.parametrization_), params

    def _outputs(self, X: Points) -> np.ndarray:
        """Evaluate the network at the rows of X, shape (m, c)."""
        X = Standardizer(self.center_, self.scale_)(self._validate_inputs(X))
        with self._precision_scope():
            network, params = self._network()
            out = map_blocks(lambda Z: _apply(network, params, jnp.asarray(Z)), X)
        return out.reshape(len(X), -1)

    def _check(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        for what in ("depth", "width", "steps", "batch_size"):
            check_positive_integer(what, getattr(self, what))
        if not self.step_size > 0:
            raise ValueError(f"step_size must be positive, got {self.step_size!r}")
        if not self.decay >= 0:
            raise ValueError(f"decay must be non-negative, got {self.decay!r}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction!r}")


class NetworkRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, NetworkMachine):
    """Fully connected network trained by Adam on the squared error.

    Columns and targets are standardized. With enough rows a part of them is held out, and the parameters with the
    smallest held-out error are kept.

    Parameters
    ----------
    depth : int, default 2
        Number of hidden layers.
    width : int, default 128
        Width of the hidden layers.
    activation : str, default "relu"
        Name of the activation function.
    parametrization : {"standard", "ntk", "mup", "mean_field"}, default "standard"
        Scaling of weights and learning rates with the width.
    step_size : float, default 1e-3
        Learning rate of Adam.
    steps : int, default 2000
        Largest number of gradient steps.
    batch_size : int, default 128
        Number of rows in a batch; all rows if there are fewer.
    decay : float, default 1e-4
        Weight decay.
    validation_fraction : float, default 0.1
        Share of the rows held out for early stopping. It must amount to at least 20 rows; otherwise all rows are used
        for training, for all steps.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of training and predictions. None is float64 on every device.
    random_state : int, RandomState or None, default 0
        Seed of the initialization, the split and the batches. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of training, or a function called with a `Progress` after every step.

    Attributes
    ----------
    mlp_ : MLP
        The architecture.
    parametrization_ : str
        The parametrization that was used.
    layers_ : list of (weight, bias)
        The trained parameters.
    center_, scale_ : arrays of shape (d,)
        Means and standard deviations of the columns.
    n_steps_ : int
        Number of steps that were taken.
    loss_ : float
        Final training loss.
    validation_losses_ : array or None
        Losses of the held-out rows during training; None if no rows were held out.
    y_center_, y_scale_ : arrays of shape (outputs,)
        Means and standard deviations of the targets.
    X_fit_, y_fit_, sample_weight_fit_ : arrays or None
        Standardized rows and targets that the network was trained on, at most 4,096, for standard deviations.
    X_held_out_, y_held_out_ : arrays or None
        Those that were held out.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Kingma and Ba (2015), Adam: a method for stochastic optimization.
    Yang and Hu (2021), Tensor programs IV: feature learning in infinite-width neural networks (for "mup").

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import NetworkRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> NetworkRegressor(random_state=0).fit(X, y).predict(Z).shape
    (5,)
    """

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "NetworkRegressor":
        """Train the network.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points.
        y : array of shape (n,) or (n, outputs)
            Targets.
        sample_weight : array of shape (n,), optional
            Weights of the rows in the loss.

        Returns
        -------
        NetworkRegressor
            The fitted estimator.
        """
        data = self._validate_regression(X, y, sample_weight).merge_duplicates()
        of_y = fit_standardizer(data.Y, data.weights)
        self.y_center_, self.y_scale_ = of_y
        self._fit(data._replace(Y=of_y(data.Y)), "squared")
        return self

    @overload
    def predict(self, X: Points, return_std: Literal[False] = False) -> np.ndarray: ...
    @overload
    def predict(self, X: Points, return_std: bool) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...
    def predict(self, X: Points, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predict the targets of X, and optionally how uncertain the network is.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.
        return_std : bool, default False
            Whether to return standard deviations: those of the linearized network at its trained parameters, see
            `unlazy.uncertainty`, from at most 4,096 training rows; scales are fitted to the held-out rows.

        Returns
        -------
        mean : array of shape (m,) or (m, outputs)
            Predictions, with as many axes as the `y` passed to `fit`.
        std : array of shape (m,) or (m, outputs)
            Standard deviation of the prediction, without the noise. Only if `return_std`.
        """
        check_is_fitted(self)
        of_y = Standardizer(self.y_center_, self.y_scale_)
        mean = self._restore_output_axes(of_y.inverse(self._outputs(X)))
        if not return_std:
            return mean
        Z = Standardizer(self.center_, self.scale_)(self._validate_inputs(X))
        with self._precision_scope():
            std = self._posterior().predict(np.asarray(Z)).std
        return mean, self._restore_output_axes(std.reshape(len(std), -1) * self.y_scale_)

    def _keep_rows(self, train: TrainingData, held: TrainingData | None) -> None:
        train = train.rows(np.random.default_rng(0).permutation(train.n)[:MAX_STD_ROWS])
        self.X_fit_, self.y_fit_, self.sample_weight_fit_ = train
        self.X_held_out_ = None if held is None else held.X
        self.y_held_out_ = None if held is None else held.Y
        self._cached_posterior: NetworkPosterior | None = None

    def _posterior(self) -> NetworkPosterior:
        """The posterior of the network, computed once."""
        found: NetworkPosterior | None = getattr(self, "_cached_posterior", None)
        if found is None:
            options = TangentOptions(dtype=np.dtype(self._dtype).name)
            model = as_model(self._network(), dtype=options.dtype)
            fit = TangentModel(model, self.X_fit_, self.y_fit_, "squared", options, weights=self.sample_weight_fit_)
            found = self._cached_posterior = NetworkPosterior(fit)
            if self.X_held_out_ is not None and self.y_held_out_ is not None:
                found.calibrate(self.X_held_out_, self.y_held_out_)
        return found


class NetworkClassifier(LogitClassifier, NetworkMachine):
    """Fully connected network trained by Adam on the cross-entropy.

    Columns are standardized. With enough rows a part of them is held out, and the parameters with the smallest held-out
    loss are kept. Probabilities are the softmax of the outputs.

    Parameters
    ----------
    depth : int, default 2
        Number of hidden layers.
    width : int, default 128
        Width of the hidden layers.
    activation : str, default "relu"
        Name of the activation function.
    parametrization : {"standard", "ntk", "mup", "mean_field"}, default "standard"
        Scaling of weights and learning rates with the width.
    step_size : float, default 1e-3
        Learning rate of Adam.
    steps : int, default 2000
        Largest number of gradient steps.
    batch_size : int, default 128
        Number of rows in a batch; all rows if there are fewer.
    decay : float, default 1e-4
        Weight decay.
    validation_fraction : float, default 0.1
        Share of the rows held out for early stopping. It must amount to at least 20 rows; otherwise all rows are used
        for training, for all steps.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of training and predictions. None is float64 on every device.
    random_state : int, RandomState or None, default 0
        Seed of the initialization, the split and the batches. None draws a new seed for each fit.
    progress : bool or callable, default False
        Whether to show the progress of training, or a function called with a `Progress` after every step.
    class_weight : dict, "balanced" or None, default None
        Weight of all rows of a class; multiplies `sample_weight`.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The class labels.
    mlp_ : MLP
        The architecture.
    parametrization_ : str
        The parametrization that was used.
    layers_ : list of (weight, bias)
        The trained parameters.
    center_, scale_ : arrays of shape (d,)
        Means and standard deviations of the columns.
    n_steps_ : int
        Number of steps that were taken.
    loss_ : float
        Final training loss.
    validation_losses_ : array or None
        Losses of the held-out rows during training; None if no rows were held out.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Kingma and Ba (2015), Adam: a method for stochastic optimization.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import NetworkClassifier
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> NetworkClassifier(depth=1, width=32, random_state=0).fit(X, X[:, 0] > 0).predict(X[:5]).shape
    (5,)
    """

    class_weight: dict | str | None

    def __init__(
        self, depth=2, width=128, *, activation="relu", parametrization="standard", step_size=1e-3, steps=2000,
        batch_size=128, decay=1e-4, validation_fraction=0.1, precision=None, random_state=0, progress=False,
        class_weight=None,
    ):  # fmt: skip
        super().__init__(
            depth, width, activation=activation, parametrization=parametrization, step_size=step_size, steps=steps,
            batch_size=batch_size, decay=decay, validation_fraction=validation_fraction, precision=precision,
            random_state=random_state, progress=progress,
        )  # fmt: skip
        self.class_weight = class_weight

    def fit(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> "NetworkClassifier":
        """Train the network.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points.
        y : array of shape (n,)
            Class labels.
        sample_weight : array of shape (n,), optional
            Weights of the rows in the loss.

        Returns
        -------
        NetworkClassifier
            The fitted estimator.
        """
        data = self._validate_classification(X, y, sample_weight).merge_duplicates()
        if data.Y.shape[1] == 1:  # one class: add a second output for the softmax
            data = data._replace(Y=np.hstack([data.Y, np.zeros_like(data.Y)]))
        self._fit(data, "cross_entropy")
        return self

    def _logits(self, X: Points) -> np.ndarray:
        return self._outputs(X)[:, : len(self.classes_)]


def _data(found: TrainingData) -> Data:
    """Convert to JAX arrays."""
    Y = found.Y[:, 0] if found.Y.shape[1] == 1 else found.Y
    return Data(jnp.asarray(found.X), jnp.asarray(Y), jnp.asarray(found.weights))


@jax.jit
def _apply(network: Network, params: Parameters, X: jax.Array) -> jax.Array:
    """Evaluate the network, as one compiled program."""
    return network(params, X)


@functools.partial(jax.jit, static_argnames=("loss", "every", "steps", "batch_size", "tick"))
def _descend(
    network: Network,
    params: Parameters,
    train: Data,
    held: Data | None,
    key: jax.Array,
    step_size: float | jax.Array,
    decay: float | jax.Array,
    *,
    loss: str,
    every: int,
    steps: int,
    batch_size: int | None,
    tick: Callable | None,
) -> Descent:
    """Run Adam with early stopping on the held-out loss, as one compiled program."""
    import optax

    def measure(theta: Parameters) -> jax.Array:
        if tick is not None:
            jax.debug.callback(lambda: tick(""))
        if held is None:
            return jnp.zeros(())
        return resolve_loss(loss).mean(network(theta, held.X), held.y, held.weights)

    rates = adam_rates(network.mlp, network.inputs) if network.parametrization == "mup" else 1.0
    options = DescentOptions(
        optax.adam(step_size), batch_size, decay, rates, stop_below=LOSS_FLOOR,
        patience=None if held is None else ("held_out", PATIENCE),
    )  # fmt: skip
    recording = Recording({"held_out": measure}, every)
    return descend(network, params, train, steps=steps, loss=loss, options=options, recording=recording, key=key)
