"""gcv_is_honest: claims detect wrong estimates, and copies of rows make the estimates of a trial wrong."""

import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import gcv_is_honest as experiment


def made_up(gcv=1.0, left_out=1.0, copied=0.1, learned=0.3):
    rng, rows = np.random.default_rng(0), []
    for name in experiment.SETS:
        for copies in (1, 2):
            for seed in range(40):
                risk = rng.normal(1, 0.05, (4, 5))
                said = gcv if copies == 1 else copied
                found = {"risk": risk, "gcv": said * risk, "leave one out": left_out * risk,
                         "learned": np.full((4, 5), learned)}  # fmt: skip
                rows.append(Record({"data": name, "copies": copies, "n": 200}, seed, found))
    return Records(rows)


def verdicts(**more):
    return [c.verdict for c in experiment.claims(made_up(**more))[:4]]


def test_claims_hold_and_fail():
    assert verdicts()[:2] == ["holds"] * 2
    assert verdicts()[3] == "holds"
    assert verdicts(gcv=1.3)[0] == "does not hold"
    assert verdicts(gcv=1.3, learned=0.8)[0] == "holds"  # past half of the points nothing is claimed
    assert verdicts(left_out=0.8, learned=0.8)[1] == "does not hold"
    assert verdicts(copied=0.9)[3] == "does not hold"
    assert len(experiment.figure(made_up()).axes) == 3


@pytest.mark.slow
def test_one_split(x64):
    """Leave-one-out of 60 points against a refit without each of them, in NumPy; copies flatter GCV."""
    import jax

    params = {"data": "single index", "n": 60, "copies": 1}
    found = experiment.trial(params, jax.random.key(0))
    seed = int(jax.random.randint(jax.random.key(0), (), 0, 2**31 - 1))
    X, y = experiment.sample("single index", seed, 60)
    K = np.asarray(experiment.kernels(X[:60])["Laplace"].gram(X[:60]))
    ridge = experiment.RIDGES[2] * np.trace(K) / 60
    missed = []
    for i in range(60):
        rest = np.delete(np.arange(60), i)
        alpha = np.linalg.solve(K[np.ix_(rest, rest)] + ridge * np.eye(59), y[rest])
        missed.append(y[i] - K[i, rest] @ alpha)
    assert found["leave one out"][1, 2] == pytest.approx(np.mean(np.square(missed)), rel=1e-9)
    S = K @ np.linalg.inv(K + ridge * np.eye(60))
    assert found["learned"][1, 2] == pytest.approx(np.trace(S) / 60, rel=1e-9)
    gcv = np.mean((y[:60] - S @ y[:60]) ** 2) / (1 - np.trace(S) / 60) ** 2
    assert found["gcv"][1, 2] == pytest.approx(gcv, rel=1e-9)
    copied = experiment.trial({**params, "copies": 2}, jax.random.key(0))
    assert np.all(copied["gcv"][:, 0] < 0.5 * copied["risk"][:, 0])
