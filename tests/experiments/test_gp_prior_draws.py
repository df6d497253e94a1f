"""gp_prior_draws on one kernel: draws agree with their kernel, and the claims notice when they do not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.gp_prior_draws import draws, experiment


@pytest.fixture(scope="module")
def records():
    return run(
        experiment, seeds=4, change={"kernel": ["Laplace"], "draws": [500]}, engine="inline", store=None, progress=False
    )


def test_draws_have_their_kernel(records):
    assert [c.verdict for c in experiment.claims(records)] == ["holds", "holds"]
    assert len(experiment.figure(records).axes) == 2


def test_claims_notice_a_wrong_covariance_and_a_wrong_roughness(records):
    wrong = Records(
        replace(r, measures=r.measures | {
            "second": 1.3 * r.measures["second"], "expected_roughness": r.measures["expected_roughness"] + 0.5
        }) for r in records
    )  # fmt: skip
    assert [c.verdict for c in experiment.claims(wrong)] == ["does not hold", "does not hold"]


def test_a_draw_is_the_noise_in_the_eigenbasis(x64):
    """U√λ ε, as in every record so far: undone by NumPy's own eigenvectors, whose signs are its own."""
    B = np.random.default_rng(0).normal(size=(5, 5))
    K, key = B @ B.T + np.diag(np.arange(5.0)), jax.random.key(1)
    values, U = np.linalg.eigh(K)
    noise = np.asarray(jax.random.normal(key, (3, 5, 1), float))[..., 0]
    found = np.abs(np.asarray(draws(jnp.asarray(K), key, 3)) @ U / np.sqrt(values))
    # units over the smallest gap, 1.4 of ‖K‖ = 10, times 6, by which √λ differ, and sums of 5: some hundred units
    np.testing.assert_allclose(found, np.abs(noise), rtol=0, atol=1e3 * 2.0**-52)
