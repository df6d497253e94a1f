"""Algorithm 1 as an estimator: one gradient step finds the directions, ridge regression learns the function [D4]."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from unlazy.core.errors import check_positive_integer
from unlazy.core.linalg import dot
from unlazy.estimators.base import Estimator, Training
from unlazy.estimators.intervals import HeldOutIntervals
from unlazy.estimators.preprocessing.padding import bucket, padded, shuffled
from unlazy.estimators.preprocessing.standardize import Standard, standard
from unlazy.training.one_step.algorithm import Features, OneStep, fit_head, learn_features
from unlazy.training.one_step.readout import relative_ridges

SPLIT_FROM = 20
"""Points from which a part of them chooses the ridge; with fewer, leave-one-out does."""


class TwoLayerRegressor(HeldOutIntervals, RegressorMixin, Estimator):
    """f(x) = α + β·x + Σ_j a_j relu(w_j·x + b_j), W from one gradient step, a from ridge regression.

    Damian, Lee and Soltanolkotabi (2022), for targets that depend on few directions of many, inputs roughly normal;
    columns are standardized here. `relative_ridge` is in units of the mean of ‖φ(x)‖²; None chooses it on a held-out
    part (`validation_fraction`) and fits anew to all points: leave-one-out is too hopeful here, since the features have
    seen the labels. `metric_` is WᵀW with trace one, in the units of the standardized columns.

    >>> TwoLayerRegressor(random_state=0).fit(X, y).feature_importances_
    """

    _renamed: ClassVar = {"ridge": "relative_ridge"}
    width: int
    step: float
    relative_ridge: float | None
    validation_fraction: float
    precision: str | None
    random_state: Any

    def __init__(
        self, width=512, *, step=0.5, relative_ridge=None, validation_fraction=0.2, precision=None, random_state=0
    ):  # fmt: skip
        self.width = width
        self.step = step
        self.relative_ridge = relative_ridge
        self.validation_fraction = validation_fraction
        self.precision = precision
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "TwoLayerRegressor":
        data = self._training(X, y, multi_output=False)
        self._check()
        of_X, of_y = standard(data.X), standard(data.Y)
        self.center_, self.scale_ = of_X
        with self._scope():
            key = self._key()
            points = Training(of_X(data.X), of_y(data.Y), None)
            relative = self.relative_ridge if self.relative_ridge is not None else self._choose(key, points)
            found = self._train(key, points, jnp.asarray([relative], points.X.dtype))
        self.relative_ridge_ = float(relative)
        self.W_, self.b_ = np.asarray(found.features.W), np.asarray(found.features.b)
        self.head_ = np.asarray(found.head) * of_y.scale
        self.alpha_ = np.asarray(found.features.alpha) * of_y.scale + of_y.center
        self.beta_ = np.asarray(found.features.beta) * of_y.scale
        return self

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = Standard(self.center_, self.scale_)(self._inputs(X))
        return dot(np.maximum(dot(X, self.W_.T) + self.b_, 0), self.head_) + dot(X, self.beta_) + self.alpha_

    @property
    def metric_(self) -> np.ndarray:
        """WᵀW with trace one: the directions that the step found."""
        check_is_fitted(self)
        M = dot(self.W_.T, self.W_)
        total = np.trace(M)
        return M / total if total > 0 else np.eye(len(M), dtype=M.dtype) / len(M)

    @property
    def feature_importances_(self) -> np.ndarray:
        """The metric's diagonal; sums to one."""
        return np.diag(self.metric_).copy()

    def _choose(self, key: Any, points: Training) -> float:
        """The relative ridge of the smallest error on held-out points."""
        n, ridges = len(points.X), relative_ridges()
        if n < SPLIT_FROM:
            errors = self._train(key, points, ridges).errors
        else:
            order = shuffled(jax.random.fold_in(key, 1), n)
            held = max(2, round(self.validation_fraction * n))
            out, kept = (points.rows(index) for index in (order[:held], order[held:]))
            errors = self._train(key, kept, ridges, validation=out).errors
        return float(ridges[int(np.nanargmin(np.asarray(errors)))])

    def _train(self, key: Any, points: Training, ridges: jax.Array, validation: Training | None = None) -> OneStep:
        """Algorithm 1 for these ridges, judged on `validation` or by leave-one-out."""
        held_out = None if validation is None else (jnp.asarray(validation.X), jnp.asarray(validation.Y[:, 0]))
        X, y = jnp.asarray(points.X), jnp.asarray(points.Y[:, 0])
        wide = (jnp.asarray(a) for a in padded(points, bucket(len(points.X))))
        features = _features(key, *wide, width=int(self.width), step=float(self.step))
        choose = "leave-one-out" if held_out is None else "validation"
        return fit_head(features, X, y, validation=held_out, relative_ridges=ridges, choose=choose)

    def _check(self) -> None:
        if check_positive_integer("width", self.width) % 2:
            raise ValueError(f"width must be even for the symmetric start, got {self.width}; take {self.width + 1}")
        if not 0 < self.step < np.inf:
            raise ValueError(f"step must be positive, got {self.step!r}")
        if self.relative_ridge is not None and not 0 < self.relative_ridge < np.inf:
            raise ValueError(
                f"relative_ridge must be positive, or None to choose it on held-out points, got {self.relative_ridge!r}"
            )
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction!r}")


@functools.partial(jax.jit, static_argnames=("width", "step"))
def _features(key: Any, X: jax.Array, Y: jax.Array, weights: jax.Array, *, width: int, step: float) -> Features:
    return learn_features(key, X, Y[:, 0], width=width, step=step, weights=weights)
