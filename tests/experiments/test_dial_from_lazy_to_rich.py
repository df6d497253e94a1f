"""dial_from_lazy_to_rich, small: it runs on every target, Θ moves with γ_0, and claims can fail."""

from dataclasses import replace

from unlazy.core.experiment import Records, config
from unlazy.experiments.dial_from_lazy_to_rich import TARGETS, experiment
from unlazy.lab import run


def test_richness_moves_the_kernel_and_claims_notice_when_it_does_not():
    small = config({"target": TARGETS, "richness": [0.1, 8.0], "n": [20, 30]}, seeds=2, draws=64, long=30.0)
    records = run(experiment, small, engine="inline", store=None, progress=False)
    for target in TARGETS:
        lazy, rich = (records.where(target=target, richness=g).measure("moved").mean() for g in (0.1, 8.0))
        assert rich > 10 * lazy
    assert len(experiment.claims(records)) == 10 and len(experiment.figure(records).axes) == 3
    still = Records(replace(r, measures=r.measures | {"risk": 0.5, "moved": 0.1, "share": 1.0}) for r in records)
    verdicts = {c.statement: c.verdict for c in experiment.claims(still)}
    assert all(verdict == "does not hold" for s, verdict in verdicts.items() if "Θ" in s or "share" in s)
    paid = [v for s, v in verdicts.items() if "risk at" in s]
    assert paid == ["does not hold", "holds", "does not hold"]  # equal risks are what an isotropic target has


def test_quick_runs_and_richness_pays_where_there_are_latent_directions():
    records = run(experiment, engine="inline", store=None, progress=False)
    claims = {c.statement: c.verdict for c in experiment.claims(records)}
    assert all(v == "holds" for s, v in claims.items() if s.startswith("index"))
    assert "does not hold" not in claims.values()
