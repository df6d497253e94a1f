"""jacobian_conditioning, small: thresholds, the tail rate on a known curve, claims that can fail."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records, config
from unlazy.lab.experiments.jacobian_conditioning import experiment, tail_rate

SMALL = config(
    {"part": ["threshold"], "activation": ["softplus", "square"], "d": [3], "width": [8]},
    {"part": ["scale"], "activation": ["square"], "dims": [(4, 6)], "times": [2]},
    {"part": ["width"], "activation": ["softplus"], "d": [4], "n": [16], "widths": [(3, 4, 5)]},
    {"part": ["descent"], "activation": ["softplus"], "d": [10], "n": [20], "width": [200], "steps": [1600]},
    seeds=3,
)


@pytest.fixture(scope="module")
def records():
    return run(experiment, SMALL, engine="inline", store=None, progress=False)


def test_thresholds_rates_and_bounds(records):
    claims = {c.statement: c for c in experiment.claims(records)}
    for words in ("softplus: largest n", "square: largest n", "smallest width", "measured rate", "distance", "bound"):
        (claim,) = [c for s, c in claims.items() if words in s]
        assert claim.verdict == "holds", claim
    assert len(experiment.figure(records).axes) == 3


def test_claims_notice_wrong_measurements(records):
    wrong = Records(
        replace(r, measures={k: (0.0 if k == "pl" else 3.0) * np.ones_like(v) * (1 + 1e-3 * r.seed)
                             for k, v in r.measures.items()} | {"predicted": 1.0})
        for r in records
    )  # fmt: skip
    verdicts = {c.statement: c.verdict for c in experiment.claims(wrong) if "σ_min(W_0)" not in c.statement}
    verdicts.pop("square: slope of this ratio against d")
    assert set(verdicts.values()) == {"does not hold"}, verdicts


def test_tail_rate_of_a_sum_of_exponentials(x64):
    """e^{-0.01 s} + 100 e^{-0.1 s}: in the last quarter of the decades only the slow one is left, to e^{-0.09·1500}."""
    s = jnp.arange(2000.0)
    losses = jnp.exp(-0.01 * s) + 100 * jnp.exp(-0.1 * s)
    np.testing.assert_allclose(tail_rate(losses, jnp.array(2000)), 0.01, rtol=1e-9)
    held = jnp.where(s < 1500, losses, losses[1499])  # a run that stopped at step 1500
    np.testing.assert_allclose(tail_rate(held, jnp.array(1500)), 0.01, rtol=1e-9)


@pytest.mark.nightly
@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
