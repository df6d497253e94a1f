"""`effort`: what each level searches."""

import numpy as np
import pytest

from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
from unlazy.estimators.feature_search import ensemble
from unlazy.kernels.radial import Gaussian, Laplace


@pytest.fixture(scope="module")
def table():
    """One relevant column of codes, one of numbers and a noise column."""
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(6, size=90), rng.normal(size=90), rng.normal(size=90)], 1).astype(float)
    return X, np.where(X[:, 0] % 2 == 0, 1.0, -1.0) + X[:, 1]


def test_low_effort_is_one_kernel_without_choices(table):
    low = FeatureMachineRegressor(effort="low").fit(*table)
    plain = FeatureMachineRegressor("laplace", updates=0, categorical=(), robust=False, average=False).fit(*table)
    np.testing.assert_array_equal(low.predict(table[0]), plain.predict(table[0]))
    assert low.n_updates_ == 0 and low.coding_ == "numbers" and len(low.members_) == 1
    assert isinstance(low.kernel_.kernel, Laplace)


def test_low_effort_factorizes_all_rows_once(table, monkeypatch):
    """Bandwidth and ridge come from `search_rows` rows, so the cost is that of one fit for many rows."""
    sizes = []
    original = ensemble.ridge_coefficients
    monkeypatch.setattr(ensemble, "ridge_coefficients", lambda K, *rest: sizes.append(len(K)) or original(K, *rest))
    rng = np.random.default_rng(1)
    X = rng.normal(size=(700, 2))
    FeatureMachineRegressor(effort="low").fit(X, X[:, 0])
    assert sizes == [700]


def test_low_effort_keeps_a_given_kernel(table):
    y = table[1] > 0
    found = FeatureMachineClassifier("gaussian", effort="low").fit(table[0], y)
    assert isinstance(found.kernel_.kernel, Gaussian)


@pytest.mark.parametrize(("effort", "rows"), [("medium", 1200), ("high", 1400)])
def test_rows_of_the_search(effort, rows, monkeypatch):
    seen = []

    def stop(candidates, data, *rest, **options):
        seen.append(data.n)
        raise InterruptedError

    monkeypatch.setattr("unlazy.estimators.feature_machine.base.select", stop)
    X = np.random.default_rng(2).normal(size=(1400, 1))
    with pytest.raises(InterruptedError):
        FeatureMachineRegressor(effort=effort).fit(X, X[:, 0])
    assert seen == [rows]


def test_unknown_effort_is_named(table):
    with pytest.raises(ValueError, match="unknown effort 'hihg'; did you mean 'high'"):
        FeatureMachineRegressor(effort="hihg").fit(*table)
