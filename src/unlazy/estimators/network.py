"""Fully connected networks trained by Adam as estimators: regression and classification."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.data import Data
from unlazy.core.errors import UnlazyWarning, check_positive_integer
from unlazy.core.progress import Display
from unlazy.estimators.base import Estimator, Training, by_blocks
from unlazy.estimators.classifiers import LogitClassifier
from unlazy.estimators.intervals import HeldOutIntervals
from unlazy.estimators.preprocessing.padding import bucket, padded, repeated, shuffled
from unlazy.estimators.preprocessing.standardize import Standard, standard
from unlazy.layers.parametrization import Layer, adam_rates
from unlazy.networks.mlp import Network, Parameters
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import Descent, descend
from unlazy.training.descent.losses import loss_named

LEAST_HELD_OUT = 20
"""Held-out points without which their error says too little to stop by."""
PATIENCE = 10
RECORDS = 40
"""Looks at the held-out error in a whole run."""
DONE = 1e-6
"""Training loss (of standardized targets, or in nats) at which nothing is left to learn."""


class NetworkMachine(Estimator):
    """What both networks share: the description, descent with early stopping, predictions."""

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
    random_state: Any
    progress: bool

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

    def _fit(self, data: Training, loss: str) -> None:
        """Trains on standardized columns; sets the layers and how it went."""
        self._check()
        of_X = standard(data.X)
        self.center_, self.scale_ = of_X
        # where biases are multiplied by σ_b, as in the NTK, zero would switch them off
        sigma_b = 0.1 if self.parametrization in ("ntk", "mean_field") else 0.0
        self.mlp_ = MLP(
            self.depth, self.activation, sigma_b=sigma_b, width=int(self.width), outputs=data.Y.shape[1]
        )  # fmt: skip
        self.parametrization_ = self.parametrization
        network = Network(self.mlp_, data.X.shape[1], self.parametrization_)
        with self._scope():
            start_key, key = jax.random.split(self._key())
            train, held = self._split(data._replace(X=of_X(data.X)), jax.random.fold_in(key, 0))
            every = max(1, -(-int(self.steps) // RECORDS))
            with Display("training", RECORDS + 1, show=self.progress) as shown:
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
        self.n_steps_, self.loss_ = int(found.steps), float(found.final_loss)
        self.validation_losses_ = None if held is None else np.asarray(found.recorded["held_out"])

    def _split(self, data: Training, key: jax.Array) -> tuple[Data, Data | None]:
        """Training and held-out points; none held out where there are few."""
        n = len(data.X)
        held = round(self.validation_fraction * n)
        if held < LEAST_HELD_OUT:
            return self._padded(data), None
        order = shuffled(key, n)
        kept, out = (data.rows(part) for part in (order[held:], order[:held]))
        return self._padded(kept), _data(padded(out, bucket(n - held)))

    def _padded(self, data: Training) -> Data:
        """Points that train, in one of few shapes: where all make one batch, with rows of weight zero; else with rows
        that come again for a share of their weight, so that every batch is of points."""
        n = len(data.X)
        return _data(padded(data, bucket(n, 2)) if n <= self.batch_size else repeated(data, bucket(n)))

    def _outputs(self, X: Any) -> np.ndarray:
        """The network at the rows of X, (m, c)."""
        X = Standard(self.center_, self.scale_)(self._inputs(X))
        network = Network(self.mlp_, X.shape[1], self.parametrization_)
        with self._scope():
            params = tuple(Layer(jnp.asarray(weight), jnp.asarray(bias)) for weight, bias in self.layers_)
            out = by_blocks(lambda Z: _apply(network, params, jnp.asarray(Z)), X)
        return out.reshape(len(X), -1)

    def _check(self) -> None:
        for what in ("depth", "width", "steps", "batch_size"):
            check_positive_integer(what, getattr(self, what))
        if not self.step_size > 0:
            raise ValueError(f"step_size must be positive, got {self.step_size!r}")
        if not self.decay >= 0:
            raise ValueError(f"decay must be zero or more, got {self.decay!r}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be at least 0 and below 1, got {self.validation_fraction!r}")


class NetworkRegressor(HeldOutIntervals, MultiOutputMixin, RegressorMixin, NetworkMachine):
    """A network of `depth` hidden layers trained by Adam on the squared error, columns and targets standardized.

    With 200 points or more a part (`validation_fraction`) is held out and the parameters of its smallest error are
    kept; with fewer all points train for all `steps`. Weights multiply the loss.

    >>> NetworkRegressor(random_state=0).fit(X, y).predict(Z)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NetworkRegressor":
        data = self._training(X, y, sample_weight).merged()
        of_y = standard(data.Y, data.weights)
        self.y_center_, self.y_scale_ = of_y
        self._fit(data._replace(Y=of_y(data.Y)), "squared")
        return self

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self._shaped(Standard(self.y_center_, self.y_scale_).back(self._outputs(X)))


class NetworkClassifier(LogitClassifier, NetworkMachine):
    """The same network trained on the cross-entropy; its softmax are the probabilities. `class_weight` ('balanced', or
    a dictionary) is a weight of every row of a class.

    >>> NetworkClassifier(depth=1, width=32, random_state=0).fit(X, labels).predict(Z).shape
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "NetworkClassifier":
        data = self._labeled(X, y, sample_weight).merged()
        if data.Y.shape[1] == 1:  # one class: nothing to tell apart, and a softmax needs two outputs
            data = data._replace(Y=np.hstack([data.Y, np.zeros_like(data.Y)]))
        self._fit(data, "cross_entropy")
        return self

    def _logits(self, X: Any) -> np.ndarray:
        return self._outputs(X)[:, : len(self.classes_)]


def _data(found: Training) -> Data:
    Y = found.Y[:, 0] if found.Y.shape[1] == 1 else found.Y
    return Data(jnp.asarray(found.X), jnp.asarray(Y), jnp.asarray(found.weights))


@jax.jit
def _apply(network: Network, params: Parameters, X: jax.Array) -> jax.Array:
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
    """Adam with early stopping by the held-out loss, as one compiled program."""

    def measure(theta: Parameters) -> jax.Array:
        if tick is not None:
            jax.debug.callback(lambda: tick(""))
        if held is None:
            return jnp.zeros(())
        return loss_named(loss).mean(network(theta, held.X), held.y, held.weights)

    rates = adam_rates(network.mlp, network.inputs) if network.parametrization == "mup" else 1.0
    return descend(
        network, params, train, steps=steps, optimizer=optax.adam(step_size), loss=loss, batch_size=batch_size, key=key,
        decay=decay, rates=rates, record={"held_out": measure}, every=every, stop_below=DONE,
        patience=None if held is None else ("held_out", PATIENCE),
    )  # fmt: skip
