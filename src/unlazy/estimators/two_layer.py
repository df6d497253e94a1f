"""Algorithm 1 [D4] as an estimator: one gradient step learns the directions, ridge regression learns the function."""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.arrays import Labels, Points, dot
from unlazy.core.errors import check_positive_integer
from unlazy.estimators.base import Estimator, RandomState, TrainingData
from unlazy.estimators.intervals import HeldOutIntervals
from unlazy.estimators.preprocessing.columns import Standardizer, fit_standardizer
from unlazy.estimators.preprocessing.padding import pad_rows, padded_size, random_permutation
from unlazy.training.one_step.algorithm import Features, OneStep, fit_readout, learn_features
from unlazy.training.one_step.readout import relative_ridges

MIN_SPLIT_ROWS = 20
"""Smallest number of points for which held-out points choose the ridge; below it leave-one-out does."""


class TwoLayerRegressor(HeldOutIntervals, RegressorMixin, Estimator):
    """Two-layer network trained by one gradient step, followed by ridge regression on the second layer [D4].

    f(x) = α + β·x + Σ_j a_j relu(w_j·x + b_j), with W from one gradient step and a from ridge regression. It suits
    targets that depend on few directions of roughly normal inputs. Columns and targets are standardized.

    Parameters
    ----------
    width : int, default 512
        Number of hidden neurons, even.
    step : float, default 0.5
        Size of the gradient step.
    relative_ridge : float or None, default None
        Ridge in units of the mean of ‖φ(x)‖². None chooses it on held-out points and refits on all points. Leave-one-
        out would be optimistic, since the features depend on the labels.
    validation_fraction : float, default 0.2
        Share of the points that choose the ridge.
    precision : {"float32", "float64"} or None, default None
        Floating-point type of the fit and the predictions. None is float64 on every device.
    random_state : int, RandomState or None, default 0
        Seed of the initialization and the split. None draws a new seed for each fit.

    Attributes
    ----------
    metric_ : array of shape (d, d)
        WᵀW with trace one, for the standardized columns.
    feature_importances_ : array of shape (d,)
        Diagonal of `metric_`; sums to one.
    relative_ridge_ : float
        The ridge that was used.
    W_ : array of shape (width, d)
        First-layer weights after the step.
    b_ : array of shape (width,)
        First-layer biases.
    head_ : array of shape (width,)
        Second-layer weights a.
    alpha_, beta_ : arrays
        The affine part α + β·x.
    center_, scale_ : arrays of shape (d,)
        Means and standard deviations of the columns.
    encoder_ : TableEncoder
        Encoder of the data frame `X`; only set if it held text, categories, dates or missing values.

    References
    ----------
    Damian, Lee and Soltanolkotabi (2022), Neural networks can learn representations with gradient descent.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import TwoLayerRegressor
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y = np.sin(X[:, 0])
    >>> TwoLayerRegressor(random_state=0).fit(X, y).feature_importances_.shape
    (3,)
    """

    _renamed: ClassVar = {"ridge": "relative_ridge"}
    width: int
    step: float
    relative_ridge: float | None
    validation_fraction: float
    precision: str | None
    random_state: RandomState

    def __init__(
        self, width=512, *, step=0.5, relative_ridge=None, validation_fraction=0.2, precision=None, random_state=0
    ):  # fmt: skip
        self.width = width
        self.step = step
        self.relative_ridge = relative_ridge
        self.validation_fraction = validation_fraction
        self.precision = precision
        self.random_state = random_state

    def fit(self, X: Points, y: Labels) -> "TwoLayerRegressor":
        """Fit the network.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points.
        y : array of shape (n,)
            Targets.

        Returns
        -------
        TwoLayerRegressor
            The fitted estimator.
        """
        data = self._validate_regression(X, y, multi_output=False)
        self._check()
        of_X, of_y = fit_standardizer(data.X), fit_standardizer(data.Y)
        self.center_, self.scale_ = of_X
        with self._precision_scope():
            key = self._key()
            points = TrainingData(of_X(data.X), of_y(data.Y), None)
            relative = self.relative_ridge if self.relative_ridge is not None else self._choose(key, points)
            found = self._train(key, points, jnp.asarray([relative], points.X.dtype))
        self.relative_ridge_ = float(relative)
        self.W_, self.b_ = np.asarray(found.features.W), np.asarray(found.features.b)
        self.head_ = np.asarray(found.readout) * of_y.scale
        self.alpha_ = np.asarray(found.features.alpha) * of_y.scale + of_y.center
        self.beta_ = np.asarray(found.features.beta) * of_y.scale
        return self

    def predict(self, X: Points) -> np.ndarray:
        """Predict the targets of X.

        Parameters
        ----------
        X : array of shape (m, d)
            Points to predict at.

        Returns
        -------
        array of shape (m,)
            Predictions.
        """
        check_is_fitted(self)
        X = Standardizer(self.center_, self.scale_)(self._validate_inputs(X))
        return dot(np.maximum(dot(X, self.W_.T) + self.b_, 0), self.head_) + dot(X, self.beta_) + self.alpha_

    @property
    def metric_(self) -> np.ndarray:
        """WᵀW with trace one: the directions learned by the gradient step, for standardized columns."""
        check_is_fitted(self)
        M = dot(self.W_.T, self.W_)
        total = np.trace(M)
        return M / total if total > 0 else np.eye(len(M), dtype=M.dtype) / len(M)

    @property
    def feature_importances_(self) -> np.ndarray:
        """Diagonal of `metric_`, summed over encoded columns of the same input; sums to one."""
        return self._per_input(np.diag(self.metric_).copy())

    def _choose(self, key: PRNGKeyArray, points: TrainingData) -> float:
        """Return the relative ridge with the smallest error on held-out points."""
        n, ridges = len(points.X), relative_ridges()
        if n < MIN_SPLIT_ROWS:
            errors = self._train(key, points, ridges).errors
        else:
            order = random_permutation(jax.random.fold_in(key, 1), n)
            held = max(2, round(self.validation_fraction * n))
            out, kept = (points.rows(index) for index in (order[:held], order[held:]))
            errors = self._train(key, kept, ridges, validation=out).errors
        return float(ridges[int(np.nanargmin(np.asarray(errors)))])

    def _train(
        self, key: PRNGKeyArray, points: TrainingData, ridges: jax.Array, validation: TrainingData | None = None
    ) -> OneStep:
        """Run Algorithm 1 for these ridges, scored on `validation` or by leave-one-out."""
        held_out = None if validation is None else (jnp.asarray(validation.X), jnp.asarray(validation.Y[:, 0]))
        X, y = jnp.asarray(points.X), jnp.asarray(points.Y[:, 0])
        wide = (jnp.asarray(a) for a in pad_rows(points, padded_size(len(points.X))))
        features = _features(key, *wide, width=int(self.width), step_size=float(self.step))
        choose = "leave-one-out" if held_out is None else "validation"
        return fit_readout(features, X, y, validation=held_out, relative_ridges=ridges, choose=choose)

    def _check(self) -> None:
        """Raise ValueError if a parameter is invalid."""
        if check_positive_integer("width", self.width) % 2:
            raise ValueError(
                f"width must be even for the symmetric initialization, got {self.width}; use {self.width + 1}"
            )
        if not 0 < self.step < np.inf:
            raise ValueError(f"step must be positive, got {self.step!r}")
        if self.relative_ridge is not None and not 0 < self.relative_ridge < np.inf:
            raise ValueError(
                f"relative_ridge must be positive, or None to choose it on held-out points, got {self.relative_ridge!r}"
            )
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")


@functools.partial(jax.jit, static_argnames=("width", "step_size"))
def _features(
    key: PRNGKeyArray, X: jax.Array, Y: jax.Array, weights: jax.Array, *, width: int, step_size: float
) -> Features:
    """Learn the features, as one compiled program."""
    return learn_features(X, Y[:, 0], width=width, step_size=step_size, weights=weights, key=key)
