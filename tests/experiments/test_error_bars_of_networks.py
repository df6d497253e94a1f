"""error_bars_of_networks: a trial against NumPy, claims that notice wrong error bars, and the quick sweep."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import ndtri

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import error_bars_of_networks as eb
from unlazy.lab.experiments.influence_is_right import jacobian


def made_up(**changes):
    """Three seeds of every setting of the full grid, with error bars as predicted; changes by measure."""
    rows = []
    for params in eb.experiment.full.points():
        decay = params["decay"]
        for seed in range(3):
            right = decay == 0.005
            measures = {
                "coverage": 0.9 if decay else 0.99, "outer": 0.9, "noise_ratio": 1.1 if right else 2.0, "std": 0.2,
                "far": 3.0, "order": 0.3, "gap": 0.1, "gradient": 1e-4, "coverage_calibrated": 0.89,
                "noise_ratio_calibrated": 1.0, "train_error": 0.05 if decay else 1e-6, "error": 0.04,
                "held_error": 0.1 if right else 0.2,
            }  # fmt: skip
            measures |= {k: v(params) if callable(v) else v for k, v in changes.items()}
            noise = 1 + 1e-3 * (seed - 1)
            rows.append(Record(params, seed, {k: np.float64(v * noise) for k, v in measures.items()}))
    return Records(rows)


def verdicts(**changes):
    return [claim.verdict for claim in eb.claims(made_up(**changes))]


def test_claims_hold_where_the_evidence_is_right():
    assert set(verdicts()) == {"holds"}
    assert len(eb.figure(made_up()).axes) == 3


@pytest.mark.parametrize(
    "changes, wrong",
    [
        ({"gradient": 0.1}, {0}),
        ({"coverage": lambda p: 0.8 if p["decay"] == 0.01 else 0.9}, {1, 11}),  # also right without decay
        ({"coverage": 0.99}, {2}),
        ({"outer": 0.7}, {3}),
        ({"coverage_calibrated": 0.97}, {6, 13}),
        ({"noise_ratio": lambda p: 1.6 if p["inputs"] == 2 else 1.0}, {7}),
        ({"noise_ratio": lambda p: 0.6}, {7}),  # too small is as wrong
        ({"far": lambda p: 0.9 if p["decay"] == 0.002 else 2.0}, {8}),
        ({"order": lambda p: -0.1 if p["decay"] == 0.002 else 0.5}, {9}),
    ],
)
def test_claims_notice_wrong_error_bars(changes, wrong):
    found = verdicts(**changes)
    assert {i for i, verdict in enumerate(found) if verdict == "does not hold"} == wrong


def test_networks_that_do_not_interpolate_are_not_counted():
    found = verdicts(train_error=0.05, coverage_calibrated=lambda p: 0.89 if p["decay"] else 0.5)
    assert found[10] == "does not hold" and len(found) == 11


def test_a_trial_has_the_error_bars_of_numpy():
    """Dense algebra in float64 on a Jacobian in float32, whose rounding of 1e-6 the evidence does not amplify."""
    params, key = {"target": "smooth", "inputs": 5, "decay": 0.005, "steps": 1500}, jax.random.key(5)
    found = eb.trial(params, key)
    key_data, key_start = jax.random.split(key)
    X, y, f = (np.asarray(v, float) for v in eb.sample(key_data, "smooth", eb.ROWS + eb.HELD_OUT + eb.NEW, 5))
    start, rows = eb.initial(key_start, 5), [np.float32(v[: eb.ROWS]) for v in (X, y)]
    theta, gradient = eb.train(start, *rows, params["decay"], params["steps"])
    assert float(gradient) < eb.AT_MINIMUM
    outputs = np.asarray(eb.mlp(theta, np.float32(X)), float)
    J = jacobian(theta, jnp.float32(X))
    n, train, new = eb.ROWS, J[: eb.ROWS], J[-eb.NEW :]
    residual = np.sum((y[:n] - outputs[:n]) ** 2)
    norm = sum(np.sum(np.asarray(v, float) ** 2) for v in jax.tree.leaves(theta))
    K = train @ train.T

    def minus_evidence(log_tau):
        tau = np.exp(log_tau)
        return n * np.log((residual + tau * norm) / n) + np.linalg.slogdet(np.eye(n) + K / tau)[1]

    tau = np.exp(minimize_scalar(minus_evidence, bounds=(-8, 5), method="bounded").x)
    noise = (residual + tau * norm) / n
    cross = new @ train.T
    variance = noise / tau * (np.sum(new**2, 1) - np.sum(cross * np.linalg.solve(K + tau * np.eye(n), cross.T).T, 1))
    # a maximum is found to about 1e-4 in log τ
    assert found["noise_ratio"] == pytest.approx(noise / eb.NOISE**2, rel=1e-3)
    assert found["std"] == pytest.approx(np.sqrt(np.mean(variance)), rel=1e-3)
    half = ndtri(0.95) * np.sqrt(variance + noise)
    hit = np.abs(y[-eb.NEW :] - outputs[-eb.NEW :]) <= half
    assert found["coverage"] == pytest.approx(hit.mean(), abs=2e-3)  # two targets at the end of their intervals
    assert found["error"] == pytest.approx(np.mean((outputs - f)[-eb.NEW :] ** 2), rel=1e-4)


@pytest.mark.nightly
def test_quick_covers():
    records = run(eb.experiment, engine="inline", store=None, progress=False)
    found = eb.experiment.claims(records)
    assert "does not hold" not in {claim.verdict for claim in found}
    narrow = Records(replace(r, measures={**r.measures, "coverage": r.measures["coverage"] - 0.2}) for r in records)
    assert "does not hold" in {claim.verdict for claim in eb.experiment.claims(narrow)}
