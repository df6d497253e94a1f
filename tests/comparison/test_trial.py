"""Contestants estimate their error on training rows alone."""

import numpy as np
import pytest

from unlazy.comparison.contestants import CONTESTANTS, find
from unlazy.comparison.trial import fit_contestant


@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", ["linear", "boosting"])
def test_a_contestant_reports_its_error_on_training_rows(name, classify):
    check_contestant(name, classify)


@pytest.mark.slow
@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("name", [name for name in CONTESTANTS if name not in ("linear", "boosting")])
def test_every_contestant_reports_its_error_on_training_rows(name, classify):
    if classify < ("regression" not in find(name).tasks):
        pytest.skip("for classes alone")
    check_contestant(name, classify, n=90)


def check_contestant(name, classify, n=48):
    """Better than a constant on rows that its fit had not seen, and on those it had."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=n)
    y = np.where(y > 0, "up", "down") if classify else y
    classes = np.array(["down", "up"]) if classify else None
    found = fit_contestant(find(name), X, y, classes, 0)
    assert found.tried == len(find(name).options) and 0 <= found.inner < 1
    assert np.mean(found.model.predict(X) == y) > 0.8 if classify else np.var(found.model.predict(X) - y) < np.var(y)
