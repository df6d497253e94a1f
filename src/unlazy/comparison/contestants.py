"""Who takes part: the lazy family (fixed features), the rich one (features move), and two outside references.

The lazy kernels are the feature machine with no update: the same code, the same search for bandwidth and ridge by
leave-one-out, so that what an update changes is feature learning and nothing else. Each contestant reports an error
that it estimated on training rows alone; the choice of the best of a family goes by it.
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from unlazy.comparison.scoring import risk_of, spread_of
from unlazy.core.errors import nearest

Family = Literal["lazy", "rich", "outside"]
Maker = Callable[[bool, int], Any]
QUARTERS, JUDGES = 4, 300
"""Where no closed form judges a setting, quarters of the training rows do: all of them, or as make so many rows."""
WATCHED = 20.5
"""Rows that a network needs to watch its held-out error by."""


@dataclass(frozen=True)
class Contestant:
    """A model by name; `options` make it (classification?, seed), the first one always, the others as time allows."""

    name: str
    title: str
    family: Family
    options: tuple[Maker, ...]
    isotropic: bool = False
    """A kernel to which all directions are alike."""
    saveable: bool = True


class Fitted(NamedTuple):
    """A model fitted to all the rows it was given, its error estimated on them alone, how many settings it tried."""

    model: Any
    inner: float
    tried: int


def fit_contestant(
    contestant: Contestant, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seconds: float, seed: int
) -> Fitted:
    """The best setting by training rows alone, refitted to all of them; no new setting is begun after `seconds`."""
    began, best, chosen = time.process_time(), (np.inf, contestant.options[0]), 0
    tried = 0
    known: dict[int, Fitted] = {}
    for i, option in enumerate(contestant.options):
        if tried and time.process_time() - began > seconds * i / (i + 1):
            break
        inner, model = _judged(option, X, y, classes, seed)
        tried += 1
        if model is not None:
            known[i] = Fitted(model, inner, tried)
        if inner < best[0]:
            best, chosen = (inner, option), i
    inner, option = best
    if chosen in known:
        return known[chosen]._replace(tried=tried)
    return Fitted(_fit(option(classes is not None, seed), X, y), inner, tried)


def _judged(
    option: Maker, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int
) -> tuple[float, Any | None]:
    """The error on rows that a fit has not seen, and the model where judging it fitted all rows: leave-one-out."""
    model = option(classes is not None, seed)
    last = model[-1] if hasattr(model, "named_steps") else model
    if hasattr(last, "oob_score"):
        _fit(model, X, y)
        out = model.oob_prediction_ if classes is None else model.oob_decision_function_
        return risk_of(np.nan_to_num(out), model.classes_ if classes is not None else None, y, classes), model
    if "FeatureMachine" in type(last).__name__:
        _fit(model, X, y)
        return float(last.leave_one_out_error_), model
    return _cross_validated(option, X, y, classes, seed), None


def _cross_validated(option: Maker, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, seed: int) -> float:
    """The error over quarters of the rows, each held out from a fit to the rest; as many quarters as make JUDGES rows.

    Few rows say little of a model, and the smallest of several noisy errors is too small: a model judged by fewer rows
    than its rivals would be chosen for its luck. All fits have one shape, so that one program serves them.
    """
    order = np.random.default_rng([seed, len(X)]).permutation(len(X))
    size = max(1, len(X) // QUARTERS)
    folds = min(QUARTERS, -(-JUDGES // size))
    unit, errors = spread_of(y, classes), []
    for held in order[: folds * size].reshape(folds, size):
        kept = np.setdiff1d(order, held)
        if classes is not None and len(np.unique(y[kept])) < 2:
            return np.inf
        model = _fit(option(classes is not None, seed), X[kept], y[kept])
        errors.append(_error(model, X[held], y[held], classes, unit))
    return float(np.mean(errors))


def _error(model: Any, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, unit: float) -> float:
    """Mean squared error of predictions, or of class probabilities (Brier), over `unit`."""
    if classes is None:
        return risk_of(np.asarray(model.predict(X)), None, y, None, unit)
    return risk_of(model.predict_proba(X), model.classes_, y, classes, unit)


def _fit(model: Any, X: np.ndarray, y: np.ndarray) -> Any:
    if "Network" in type(model).__name__:
        model.set_params(validation_fraction=float(np.clip(WATCHED / len(X), 0.1, 0.34)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a trial run of a setting says is no news; a bad one is not chosen
        return model.fit(X, y)


def find(name: str) -> Contestant:
    """The contestant of this name."""
    if name not in CONTESTANTS:
        raise ValueError(f"no model {name!r}{nearest(name, CONTESTANTS)}")
    return CONTESTANTS[name]


def _kernel(kernel: Any, **settings: Any) -> Maker:
    """The feature machine that never updates: a fixed kernel."""

    def make(classify: bool, seed: int) -> Any:
        return _machine(classify, kernel=kernel, metric="diagonal", updates=0, random_state=seed, **settings)

    return make


def _machine(classify: bool, **settings: Any) -> Any:
    from unlazy.estimators import feature_machines as room

    return (room.FeatureMachineClassifier if classify else room.FeatureMachineRegressor)(**settings)


def _linear(classify: bool, seed: int) -> Any:
    from unlazy.kernels.dot_product import Linear

    return _kernel(Linear())(classify, seed)


def _random_features(count: int) -> Maker:
    def make(classify: bool, seed: int) -> Any:
        from sklearn.pipeline import Pipeline

        from unlazy.estimators.random_features import RandomFeatures
        from unlazy.kernels.dot_product import Linear

        features = RandomFeatures("gaussian", n_components=count, random_state=seed)
        return Pipeline([("features", features), ("linear", _kernel(Linear(), standardise=False)(classify, seed))])

    return make


def _default_machine(classify: bool, seed: int) -> Any:
    return _machine(classify, random_state=seed)


def _one_step(classify: bool, seed: int) -> Any:
    if classify:  # the step's metric WᵀW, summed over classes, under a kernel
        return _machine(True, kernel="gaussian", metric="full", updates=0, start="one_step", random_state=seed)
    from unlazy.estimators.two_layer import TwoLayerRegressor

    return TwoLayerRegressor(width=256, random_state=seed)


def _network(**settings: Any) -> Maker:
    def make(classify: bool, seed: int) -> Any:
        from unlazy.estimators import network as room

        kind = room.NetworkClassifier if classify else room.NetworkRegressor
        return kind(**{"steps": 1000, "precision": "float32", "random_state": seed, **settings})

    return make


def _forest(**settings: Any) -> Maker:
    def make(classify: bool, seed: int) -> Any:
        from sklearn import ensemble

        kind = ensemble.RandomForestClassifier if classify else ensemble.RandomForestRegressor
        return kind(**{"n_estimators": 100, "oob_score": True, "n_jobs": 1, "random_state": seed, **settings})

    return make


def _boosting(**settings: Any) -> Maker:
    def make(classify: bool, seed: int) -> Any:
        from sklearn import ensemble

        kind = ensemble.HistGradientBoostingClassifier if classify else ensemble.HistGradientBoostingRegressor
        return kind(**{"early_stopping": False, "min_samples_leaf": 10, "random_state": seed, **settings})

    return make


_ALL = (
    Contestant("linear", "linear ridge", "lazy", (_linear,), isotropic=True),
    Contestant("gaussian", "Gaussian kernel", "lazy", (_kernel("gaussian"),), isotropic=True),
    Contestant("laplace", "Laplace kernel", "lazy", (_kernel("laplace"),), isotropic=True),
    Contestant("product_laplace", "ℓ1 Laplace kernel", "lazy", (_kernel("product_laplace"),)),
    Contestant("nngp", "NNGP kernel", "lazy", (_kernel("nngp"),), isotropic=True),
    Contestant("ntk", "NTK kernel", "lazy", (_kernel("ntk"),), isotropic=True),
    Contestant("random_features", "random features", "lazy", (_random_features(500),), isotropic=True),
    Contestant("feature_machine", "feature machine", "rich", (_default_machine,)),
    Contestant("one_step", "Algorithm 1 (one step)", "rich", (_one_step,)),
    Contestant("network", "trained network", "rich", (
        # one shape, one program: another depth or width would cost more to compile than to train
        _network(), _network(step_size=3e-3, decay=1e-3), _network(step_size=3e-4),
    )),
    Contestant("forest", "random forest", "outside", (
        _forest(), _forest(max_features=0.34), _forest(max_features=0.34, min_samples_leaf=4),
    ), saveable=False),
    Contestant("boosting", "gradient boosting", "outside", (
        _boosting(), _boosting(learning_rate=0.05, max_leaf_nodes=8, max_iter=200),
        _boosting(learning_rate=0.03, max_iter=300, min_samples_leaf=20),
    ), saveable=False),
)  # fmt: skip
CONTESTANTS = {contestant.name: contestant for contestant in _ALL}
