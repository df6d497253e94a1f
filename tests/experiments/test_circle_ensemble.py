"""circle_ensemble, small: trained networks interpolate, the summary's errors are honest, claims can fail."""

from dataclasses import replace

import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments.circle_ensemble import ANGLES, experiment, summary


@pytest.fixture(scope="module")
def records():
    change = {"width": [64, 256], "networks": [10], "steps": [100]}
    return run(experiment, seeds=2, change=change, engine="inline", store=None, progress=False)


def test_the_figure_and_the_band(records):
    f = np.concatenate(records.where(width=256).measure("f"))
    theory = records[0].measures
    # networks and closed form agree to a few bands where the band is widest, long before any claim is sharp
    assert np.abs(f - theory["mean"]).max() < 8 * theory["std"].max()
    assert len(experiment.figure(records).axes) == 2


def made_up(scale: float, shift: float, seed: int = 0, networks: int = 400) -> Records:
    """Ensembles drawn from the closed form itself, or from a wrong one, at two widths."""
    rng = np.random.default_rng(seed)
    std, mean = 0.05 + 0.02 * np.cos(np.arange(ANGLES)), np.sin(np.arange(ANGLES) / 10)
    rows = []
    for width, bias in ((64, 0.03), (1024, shift)):
        f = mean + bias + scale * std * rng.standard_normal((networks, ANGLES))
        rows += [
            Record({"width": width}, s, {
                "f": f[s::2], "start": scale**2 * (1 + 0.001 * rng.standard_normal(ANGLES)), "mean": mean, "std": std,
                "start_std": np.ones(ANGLES), "prior": f[:2], "y": np.zeros(8),
            }) for s in range(2)
        ]  # fmt: skip
    return Records(rows)


def test_claims_distinguish_right_and_wrong_ensembles():
    assert {c.verdict for c in experiment.claims(made_up(1.0, 0.005))} == {"holds"}
    assert {c.verdict for c in experiment.claims(made_up(1.6, 0.06))} == {"does not hold"}


def test_the_jackknife_is_the_spread_over_repetitions():
    """Standard errors of one ensemble against the spread of 40 of them: both known to about 1/√80 = 11%."""
    found = [summary(made_up(1.0, 0.01, seed), 1024) for seed in range(40)]
    for name, error in (("variance", "variance_error"), ("beyond", "beyond_error"), ("inside", "inside_error")):
        spread = np.std([s[name] for s in found], ddof=1)
        assert 0.6 < np.mean([s[error] for s in found]) / spread < 1.6, name


@pytest.mark.nightly
@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}


def test_a_missing_width_fails_a_claim(records):
    narrow = Records(replace(r) for r in records.where(width=64))
    assert any(c.verdict != "holds" for c in experiment.claims(narrow))
