"""dial_from_lazy_to_rich: it runs on every target, Θ moves with γ_0, richness pays where it should; claims can fail."""

from dataclasses import replace

import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Records
from unlazy.lab.experiments.dial_from_lazy_to_rich import TARGETS, experiment


@pytest.fixture(scope="module")
def records():
    return run(experiment, engine="inline", store=None, progress=False)


def test_richness_moves_the_kernel_and_claims_notice_when_it_does_not(records):
    for target in TARGETS:
        lazy, rich = (records.where(target=target, richness=g).measure("moved").mean() for g in (0.1, 8.0))
        assert rich > 10 * lazy
    assert len(experiment.claims(records)) == 10 and len(experiment.figure(records).axes) == 3
    still = Records(replace(r, measures=r.measures | {"risk": 0.5, "moved": 0.1, "share": 1.0}) for r in records)
    verdicts = {c.statement: c.verdict for c in experiment.claims(still)}
    assert all(verdict == "does not hold" for s, verdict in verdicts.items() if "Θ" in s or "share" in s)
    paid = [v for s, v in verdicts.items() if "risk at" in s]
    assert paid == ["does not hold", "holds", "does not hold"]  # equal risks are what an isotropic target has


def test_richness_pays_for_latent_directions(records):
    claims = {c.statement: c.verdict for c in experiment.claims(records)}
    assert all(v == "holds" for s, v in claims.items() if s.startswith("index"))
    assert "does not hold" not in claims.values()
