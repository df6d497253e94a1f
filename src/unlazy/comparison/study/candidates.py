"""Candidate models: the lazy family (fixed features), the rich family (learned features) and two reference models.

Each candidate has a small fixed hyperparameter search, so that a trial depends only on its parameters.

The lazy kernels are feature machines with zero updates: the code and the search for bandwidth and ridge by
leave-one-out error are the same, so that the only difference is feature learning. Each candidate reports an error
estimated on training rows only, which selects the best model of a family.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline

from unlazy.core.errors import did_you_mean

Family = Literal["lazy", "rich", "outside"]
ValidationMethod = Literal["leave-one-out", "out-of-bag", "cross-validation"]
NETWORK_VALIDATION_ROWS = 20.5
"""Validation rows a network needs for early stopping."""


WIDE_TABLE = 300
"""With more columns, candidates have fewer options: trees search all columns in each node, and a full metric has more
entries than the rows can determine."""
MANY_CLASSES = 10
"""With more classes, models that are only references have fewer options: boosting fits one tree per class."""


class ModelSetting(NamedTuple):
    """An unfitted model and how its error is estimated on training rows: in closed form (leave-one-out), by out-of-bag
    predictions, or by cross-validation."""

    model: Any
    validation: ValidationMethod


ModelFactory = Callable[[bool, int, int], ModelSetting]


@dataclass(frozen=True)
class Candidate:
    """A named model; `options` are factories of its settings, called with (classification?, seed, rows). The setting
    with the smallest error estimated on training rows is used."""

    name: str
    title: str
    family: Family
    options: tuple[ModelFactory, ...]
    isotropic: bool = False
    """Whether it treats all directions alike."""
    saveable: bool = True
    expensive: bool = False
    """Run last, if time is left: it is slow and rarely the best."""
    tasks: tuple[str, ...] = ("regression", "classification")
    wide_options: tuple[ModelFactory, ...] = ()
    """Used instead of `options` for more than WIDE_TABLE columns, where all options would take minutes; models of the
    family "outside" use them for more than MANY_CLASSES classes too."""

    def options_for(self, columns: int, classes: int = 0) -> tuple[ModelFactory, ...]:
        """Options for a table with these numbers of columns and classes."""
        slow = columns > WIDE_TABLE or (classes > MANY_CLASSES and self.family == "outside")
        return self.wide_options if self.wide_options and slow else self.options


def find_candidate(name: str) -> Candidate:
    """Return the candidate of this name; raise ValueError if there is none."""
    if name not in CANDIDATES:
        raise ValueError(f"unknown model {name!r}{did_you_mean(name, CANDIDATES)}")
    return CANDIDATES[name]


def _machine(classify: bool, **settings: Any) -> ModelSetting:
    """A feature machine; its leave-one-out error has a closed form."""
    from unlazy.estimators.feature_machine import machines as module

    kind = module.FeatureMachineClassifier if classify else module.FeatureMachineRegressor
    return ModelSetting(kind(**settings), "leave-one-out")


def _kernel(kernel: Any, **settings: Any) -> ModelFactory:
    """A fixed kernel: a feature machine with zero updates."""

    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        return _machine(classify, kernel=kernel, metric="diagonal", updates=0, random_state=seed, **settings)

    return make


def _linear(classify: bool, seed: int, rows: int, **settings: Any) -> ModelSetting:
    from unlazy.kernels.dot_product import Linear

    return _kernel(Linear(), **settings)(classify, seed, rows)


def _random_features(count: int) -> ModelFactory:
    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        from unlazy.estimators.random_features import RandomFeatures

        features = RandomFeatures("gaussian", n_components=count, random_state=seed)
        linear = _linear(classify, seed, rows, standardize=False)
        return linear._replace(model=Pipeline([("features", features), ("linear", linear.model)]))

    return make


def _default_machine(classify: bool, seed: int, rows: int) -> ModelSetting:
    return _machine(classify, random_state=seed)


def _diagonal_machine(classify: bool, seed: int, rows: int) -> ModelSetting:
    return _machine(classify, metric="diagonal", random_state=seed)


def _one_step(classify: bool, seed: int, rows: int) -> ModelSetting:
    if classify:  # a kernel with the metric WᵀW after one step, summed over classes
        return _machine(True, kernel="gaussian", metric="full", updates=0, start="one_step", random_state=seed)
    from unlazy.estimators.two_layer import TwoLayerRegressor

    return ModelSetting(TwoLayerRegressor(width=256, random_state=seed), "cross-validation")


def _network(**settings: Any) -> ModelFactory:
    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        from unlazy.estimators import network as module

        kind = module.NetworkClassifier if classify else module.NetworkRegressor
        watched = float(np.clip(NETWORK_VALIDATION_ROWS / rows, 0.1, 0.34))
        usual = {"steps": 1000, "precision": "float32", "random_state": seed, "validation_fraction": watched}
        return ModelSetting(kind(**{**usual, **settings}), "cross-validation")

    return make


def _logistic(**settings: Any) -> ModelFactory:
    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        from sklearn.linear_model import LogisticRegression

        if not classify:
            raise ValueError("logistic regression needs classes, but the target is numeric; remove it from the models")
        return ModelSetting(LogisticRegression(max_iter=500, **settings), "cross-validation")

    return make


def _forest(**settings: Any) -> ModelFactory:
    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        from sklearn import ensemble

        kind = ensemble.RandomForestClassifier if classify else ensemble.RandomForestRegressor
        usual = {"n_estimators": 100, "oob_score": True, "n_jobs": 1, "random_state": seed}
        return ModelSetting(kind(**{**usual, **settings}), "out-of-bag")

    return make


def _boosting(**settings: Any) -> ModelFactory:
    def make(classify: bool, seed: int, rows: int) -> ModelSetting:
        from sklearn import ensemble

        kind = ensemble.HistGradientBoostingClassifier if classify else ensemble.HistGradientBoostingRegressor
        usual = {"early_stopping": False, "min_samples_leaf": 10, "random_state": seed}
        return ModelSetting(kind(**{**usual, **settings}), "cross-validation")

    return make


_ALL = (
    Candidate("linear", "linear ridge", "lazy", (_linear,), isotropic=True),
    Candidate("gaussian", "Gaussian kernel", "lazy", (_kernel("gaussian"),), isotropic=True),
    Candidate("laplace", "Laplace kernel", "lazy", (_kernel("laplace"),), isotropic=True),
    Candidate("product_laplace", "ℓ1 Laplace kernel", "lazy", (_kernel("product_laplace"),)),
    Candidate("nngp", "NNGP kernel", "lazy", (_kernel("nngp"),), isotropic=True),
    Candidate("ntk", "NTK kernel", "lazy", (_kernel("ntk"),), isotropic=True),
    Candidate("logistic", "logistic regression", "lazy", (
        _logistic(C=0.01), _logistic(C=0.1), _logistic(C=1.0), _logistic(C=10.0),
    ), isotropic=True, saveable=False, tasks=("classification",)),
    Candidate("random_features", "random features", "lazy", (_random_features(500),), isotropic=True),
    Candidate("feature_machine", "feature machine", "rich", (_default_machine,), wide_options=(_diagonal_machine,)),
    Candidate("one_step", "Algorithm 1 (one step)", "rich", (_one_step,), expensive=True),
    Candidate("network", "trained network", "rich", (
        # one shape for all: another depth or width would take longer to compile than to train
        _network(), _network(step_size=3e-3, decay=1e-3),
    ), expensive=True),
    Candidate("forest", "random forest", "outside", (
        _forest(), _forest(max_features=0.34, min_samples_leaf=2),
    ), saveable=False, wide_options=(_forest(n_estimators=50),)),
    Candidate("boosting", "gradient boosting", "outside", (
        # from fast learning with large trees to learning so slow that noise is not fitted
        _boosting(), _boosting(learning_rate=0.05, max_leaf_nodes=8, max_iter=200),
        _boosting(learning_rate=0.03, max_iter=200, min_samples_leaf=20),
        _boosting(learning_rate=0.02, max_leaf_nodes=4, max_iter=100, min_samples_leaf=20),
    ), saveable=False, wide_options=(
        _boosting(max_leaf_nodes=8, max_bins=63),
        _boosting(learning_rate=0.02, max_leaf_nodes=4, max_iter=100, min_samples_leaf=20, max_bins=63),
    )),
)  # fmt: skip
CANDIDATES = {candidate.name: candidate for candidate in _ALL}
