"""agop_is_gram, small: the measure, and the two regimes."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records, config
from unlazy.lab.experiments.agop_is_gram import LAZY, RICH, agop, experiment, traceless_correlation


@pytest.fixture(scope="module")
def records():
    small = config({"scale": [RICH, LAZY]}, seeds=2, width=128, steps=20_000)
    return run(experiment, small, engine="inline", store=None, progress=False)


def test_agop_of_a_quadratic_form(x64):
    """f = ½ xᵀAx has ∇f = Ax, so the AGOP is A (XᵀX/n) A."""
    rng = np.random.default_rng(0)
    A, X = rng.normal(size=(3, 3)), jnp.asarray(rng.normal(size=(50, 3)))
    A = jnp.asarray(A + A.T)
    np.testing.assert_allclose(agop(lambda x: 0.5 * x @ A @ x, X), A @ (X.T @ X / 50) @ A, rtol=1e-12)


def test_traceless_correlation_ignores_scale_and_identity(x64):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(4, 4))
    A = jnp.asarray(A @ A.T)
    assert traceless_correlation(A, 3 * A + 5 * jnp.eye(4)) == pytest.approx(1, abs=1e-12)
    assert traceless_correlation(A, -A) == pytest.approx(-1, abs=1e-12)
    assert traceless_correlation(A, jnp.eye(4)) == pytest.approx(0, abs=1e-6)


def test_rich_networks_write_their_agop(records):
    rich, lazy = records.where(scale=RICH), records.where(scale=LAZY)
    assert records.measure("reached").all()
    assert (rich.measure("half") > 0.9).all() and (lazy.measure("half") < 0.8).all()
    assert len(experiment.figure(records).axes) == 4  # the color bar is one


def test_claims_notice_a_network_that_never_moves(records):
    still = Records(replace(r, measures=r.measures | {"half": 0.3, "weights_overlap": 0.4}) for r in records)
    assert [c.verdict for c in experiment.claims(still)].count("does not hold") == 2
