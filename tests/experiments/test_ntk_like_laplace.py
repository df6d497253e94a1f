"""ntk_like_laplace at small n: spectra, predicted curves, the target's exact power, and claims that can fail."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.ntk_like_laplace import experiment, harmonics


@pytest.fixture(scope="module")
def records():
    change = {"n": [64, 128], "n_max": [128]}
    return run(experiment, seeds=4, change=change, engine="inline", store=None, progress=False)


def test_the_target_has_unit_power_and_no_constant(x64):
    X = jax.random.normal(jax.random.key(0), (40_000, 5))
    f = np.asarray(harmonics(X / jnp.linalg.norm(X, axis=1, keepdims=True), 5))
    assert abs(f.mean()) < 4 * f.std() / np.sqrt(len(f))
    assert abs((f**2).mean() - 1) < 4 * (f**2).std() / np.sqrt(len(f))


def test_exponents_and_the_predicted_risk(records):
    claims = experiment.claims(records)
    assert [c.verdict for c in claims[:3]] == ["holds"] * 3  # deterministic
    measured, predicted = records.measure("risk").mean(0), records.measure("predicted").mean(0)
    spread = records.measure("risk").std(0, ddof=1) / np.sqrt(len(records))
    assert np.all(np.abs(measured - predicted) < 4 * spread + 0.15 * predicted)  # the theory's own error: 15%
    assert len(experiment.figure(records).axes) == 2


def test_claims_notice_a_wrong_prediction(records):
    wrong = Records(
        replace(r, measures=r.measures | {
            "predicted": 3 * r.measures["predicted"], "eigenvalues": np.abs(r.measures["eigenvalues"]) ** 1.1
        }) for r in records
    )  # fmt: skip
    verdicts = [c.verdict for c in experiment.claims(wrong)]
    assert verdicts[:2] == ["does not hold"] * 2 and verdicts[3:6] == ["does not hold"] * 3
