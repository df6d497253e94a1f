"""Every estimator at sizes suited to tests, and data for it."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from unlazy.estimators.persistence import registry

SMALL: dict[str, dict[str, Any]] = {
    "TwoLayerRegressor": {"width": 32},
    "RandomFeatures": {"n_components": 24},
    "NetworkRegressor": {"width": 16, "steps": 300, "step_size": 1e-2},
    "NetworkClassifier": {"width": 16, "steps": 300, "step_size": 1e-2},
}
"""Settings besides the defaults: what costs time, not what makes a check pass."""
NAMES = [name for name, module in registry.ESTIMATORS.items() if importlib.util.find_spec(module)]
CLASSIFIERS = [name for name in NAMES if name.endswith("Classifier")]
TRANSFORMERS = ["RandomFeatures"]
REGRESSORS = [name for name in NAMES if name not in CLASSIFIERS + TRANSFORMERS]
RANDOM = ("RandomFeatures", "TwoLayerRegressor", "NetworkRegressor", "NetworkClassifier")


HEAVY = ("TwoLayerRegressor", "NetworkRegressor", "NetworkClassifier")
"""These compile for seconds at every new shape."""


def light_first(names: list[str]) -> list[Any]:
    """Parameters of a test, those of heavy estimators marked slow."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in HEAVY else name for name in names]


def make(name: str, **given: Any) -> Any:
    """An estimator by name; the same random numbers each time."""
    seed = {"random_state": 0} if name in RANDOM else {}
    return registry.class_named(name, registry.ESTIMATORS)(**{**SMALL.get(name, {}), **seed, **given})


def data(n: int = 32, d: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and real labels."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.sin(X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)


def target(name: str, y: np.ndarray) -> np.ndarray:
    """Targets of this estimator: y, or classes derived from it."""
    return np.where(y > np.median(y), "high", "low") if name in CLASSIFIERS else y


def output(model: Any, X: Any) -> np.ndarray:
    """The most detailed output of a model at X."""
    for method in ("predict_proba", "transform", "predict"):
        if hasattr(model, method):
            return getattr(model, method)(X)
    raise AssertionError(f"{model} says nothing")
