"""Who takes part: the lazy family (fixed features), the rich one (features move), and two outside references.

Every contestant has a small fixed search of its own, so that a trial depends on nothing but its parameters.

The lazy kernels are the feature machine with no update: the same code, the same search for bandwidth and ridge by
leave-one-out, so that what an update changes is feature learning and nothing else. Each contestant reports an error
that it estimated on training rows alone; the choice of the best of a family goes by it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from unlazy.core.errors import nearest

Family = Literal["lazy", "rich", "outside"]
Judge = Literal["leave-one-out", "out-of-bag", "quarters"]
WATCHED = 20.5
"""Rows that a network needs to watch its held-out error by."""


WIDE = 300
"""Columns beyond which contestants have fewer options: trees look at every column in every node, and a full metric has
more entries than rows tell of."""


class Setting(NamedTuple):
    """A model not yet fitted, and what judges it on training rows: a closed form, its own trees, or held-out quarters
    of them."""

    model: Any
    judge: Judge


Maker = Callable[[bool, int, int], Setting]


@dataclass(frozen=True)
class Contestant:
    """A model by name; `options` make it (classification?, seed, rows): the best on training rows is taken."""

    name: str
    title: str
    family: Family
    options: tuple[Maker, ...]
    isotropic: bool = False
    """A kernel to which all directions are alike."""
    saveable: bool = True
    costly: bool = False
    """Looked at last, if time is left: it takes much and has seldom won."""
    tasks: tuple[str, ...] = ("regression", "classification")
    wide: tuple[Maker, ...] = ()
    """What is tried instead on more than WIDE columns, where all options would take minutes."""

    def tried(self, columns: int) -> tuple[Maker, ...]:
        """The options for so many columns."""
        return self.wide if self.wide and columns > WIDE else self.options


def find(name: str) -> Contestant:
    """The contestant of this name."""
    if name not in CONTESTANTS:
        raise ValueError(f"no model {name!r}{nearest(name, CONTESTANTS)}")
    return CONTESTANTS[name]


def _machine(classify: bool, **settings: Any) -> Setting:
    """The feature machine: leave-one-out is a closed form of its last fit."""
    from unlazy.estimators.feature_machine import machines as room

    kind = room.FeatureMachineClassifier if classify else room.FeatureMachineRegressor
    return Setting(kind(**settings), "leave-one-out")


def _kernel(kernel: Any, **settings: Any) -> Maker:
    """The feature machine that never updates: a fixed kernel."""

    def make(classify: bool, seed: int, rows: int) -> Setting:
        return _machine(classify, kernel=kernel, metric="diagonal", updates=0, random_state=seed, **settings)

    return make


def _linear(classify: bool, seed: int, rows: int, **settings: Any) -> Setting:
    from unlazy.kernels.dot_product import Linear

    return _kernel(Linear(), **settings)(classify, seed, rows)


def _random_features(count: int) -> Maker:
    def make(classify: bool, seed: int, rows: int) -> Setting:
        from sklearn.pipeline import Pipeline

        from unlazy.estimators.random_features import RandomFeatures

        features = RandomFeatures("gaussian", n_components=count, random_state=seed)
        linear = _linear(classify, seed, rows, standardize=False)
        return linear._replace(model=Pipeline([("features", features), ("linear", linear.model)]))

    return make


def _default_machine(classify: bool, seed: int, rows: int) -> Setting:
    return _machine(classify, random_state=seed)


def _diagonal_machine(classify: bool, seed: int, rows: int) -> Setting:
    return _machine(classify, metric="diagonal", random_state=seed)


def _one_step(classify: bool, seed: int, rows: int) -> Setting:
    if classify:  # the step's metric WᵀW, summed over classes, under a kernel
        return _machine(True, kernel="gaussian", metric="full", updates=0, start="one_step", random_state=seed)
    from unlazy.estimators.two_layer import TwoLayerRegressor

    return Setting(TwoLayerRegressor(width=256, random_state=seed), "quarters")


def _network(**settings: Any) -> Maker:
    def make(classify: bool, seed: int, rows: int) -> Setting:
        from unlazy.estimators import network as room

        kind = room.NetworkClassifier if classify else room.NetworkRegressor
        watched = float(np.clip(WATCHED / rows, 0.1, 0.34))
        usual = {"steps": 1000, "precision": "float32", "random_state": seed, "validation_fraction": watched}
        return Setting(kind(**{**usual, **settings}), "quarters")

    return make


def _logistic(**settings: Any) -> Maker:
    def make(classify: bool, seed: int, rows: int) -> Setting:
        from sklearn.linear_model import LogisticRegression

        if not classify:
            raise ValueError("logistic regression predicts classes, and the target is a number; leave it out")
        return Setting(LogisticRegression(max_iter=500, **settings), "quarters")

    return make


def _forest(**settings: Any) -> Maker:
    def make(classify: bool, seed: int, rows: int) -> Setting:
        from sklearn import ensemble

        kind = ensemble.RandomForestClassifier if classify else ensemble.RandomForestRegressor
        usual = {"n_estimators": 100, "oob_score": True, "n_jobs": 1, "random_state": seed}
        return Setting(kind(**{**usual, **settings}), "out-of-bag")

    return make


def _boosting(**settings: Any) -> Maker:
    def make(classify: bool, seed: int, rows: int) -> Setting:
        from sklearn import ensemble

        kind = ensemble.HistGradientBoostingClassifier if classify else ensemble.HistGradientBoostingRegressor
        usual = {"early_stopping": False, "min_samples_leaf": 10, "random_state": seed}
        return Setting(kind(**{**usual, **settings}), "quarters")

    return make


_ALL = (
    Contestant("linear", "linear ridge", "lazy", (_linear,), isotropic=True),
    Contestant("gaussian", "Gaussian kernel", "lazy", (_kernel("gaussian"),), isotropic=True),
    Contestant("laplace", "Laplace kernel", "lazy", (_kernel("laplace"),), isotropic=True),
    Contestant("product_laplace", "ℓ1 Laplace kernel", "lazy", (_kernel("product_laplace"),)),
    Contestant("nngp", "NNGP kernel", "lazy", (_kernel("nngp"),), isotropic=True),
    Contestant("ntk", "NTK kernel", "lazy", (_kernel("ntk"),), isotropic=True),
    Contestant("logistic", "logistic regression", "lazy", (
        _logistic(C=0.01), _logistic(C=0.1), _logistic(C=1.0), _logistic(C=10.0),
    ), isotropic=True, saveable=False, tasks=("classification",)),
    Contestant("random_features", "random features", "lazy", (_random_features(500),), isotropic=True),
    Contestant("feature_machine", "feature machine", "rich", (_default_machine,), wide=(_diagonal_machine,)),
    Contestant("one_step", "Algorithm 1 (one step)", "rich", (_one_step,), costly=True),
    Contestant("network", "trained network", "rich", (
        # one shape, one program: another depth or width would cost more to compile than to train
        _network(), _network(step_size=3e-3, decay=1e-3),
    ), costly=True),
    Contestant("forest", "random forest", "outside", (
        _forest(), _forest(max_features=0.34, min_samples_leaf=2),
    ), saveable=False, wide=(_forest(n_estimators=50),)),
    Contestant("boosting", "gradient boosting", "outside", (
        # the number of steps times their rate, and the size of trees: from bold to so slow that noise is not fitted
        _boosting(), _boosting(learning_rate=0.05, max_leaf_nodes=8, max_iter=200),
        _boosting(learning_rate=0.03, max_iter=200, min_samples_leaf=20),
        _boosting(learning_rate=0.02, max_leaf_nodes=4, max_iter=100, min_samples_leaf=20),
    ), saveable=False, wide=(
        _boosting(max_leaf_nodes=8, max_bins=63),
        _boosting(learning_rate=0.02, max_leaf_nodes=4, max_iter=100, min_samples_leaf=20, max_bins=63),
    )),
)  # fmt: skip
CONTESTANTS = {contestant.name: contestant for contestant in _ALL}
