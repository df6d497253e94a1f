"""frobenius_nuclear: a toy trial of every kind, the exponent of known thresholds, claims that can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import frobenius_nuclear
from unlazy.lab.experiments.frobenius_nuclear import experiment, exponent, quadratic_risk, thresholds


def made_up(nuclear_star, relu):
    """Risks that jump at known n*: d(d+1)/2 for Frobenius, nuclear_star(d) for the others."""
    rng, rows = np.random.default_rng(0), []
    for d in (10, 20, 40):
        D = d * (d + 1) // 2
        for method, star in (("frobenius", D), ("nuclear", nuclear_star(d)), ("network", nuclear_star(d))):
            for n in sorted({*np.unique(np.round(star * np.array([0.8, 0.9, 0.95, 1.0, 1.05]))).astype(int), 100}):
                for seed in range(10):
                    risk = 0.3 + 0.01 * rng.random() if n < star else 1e-9
                    rows.append(
                        Record(
                            {"part": "square", "method": method, "d": d, "n": int(n)},
                            seed,
                            {"risk": risk, **({"gap": relu * 1e-6} if method == "nuclear" else {})},
                        )
                    )
    rows += [Record({"part": "relu", "n": 32}, s, {"risk": relu * (1 + s / 99), "kernel": 1.0, "gap": relu * 1e-6})
             for s in range(5)]  # fmt: skip
    return Records(rows)


def test_claims_hold_and_fail():
    good = experiment.claims(made_up(lambda d: 3 * d, 0.01))
    assert len(good) == 10 and {c.verdict for c in good} == {"holds"}, good
    bad = {c.statement: c.verdict for c in experiment.claims(made_up(lambda d: 2 * d * d, 2.0))}
    failed = {s for s, v in bad.items() if v == "does not hold"}
    for words in ("nuclear (F1), d = 20", "network", "d = 20: n*", "d = 40: n*", "nuclear: exponent", "gap", "ReLU"):
        assert any(words in s for s in failed), (words, bad)
    assert len(experiment.figure(made_up(lambda d: 3 * d, 0.01)).axes) == 3


def test_thresholds_lie_in_their_brackets():
    d, stars = thresholds(made_up(lambda d: 3 * d, 0.01), "nuclear")
    assert list(d) == [10, 20, 40]
    assert np.all(stars <= 3 * d) and np.all(stars >= 0.89 * 3 * d)
    assert abs(exponent(d, stars).value - 1) < 0.05  # brackets of 5 to 10% over two octaves


def test_risk_of_a_quadratic_form_by_sampling(x64):
    """E (xᵀEx)² = 2‖E‖² + tr², four standard errors of 200,000 samples."""
    rng = np.random.default_rng(0)
    E = rng.normal(size=(3, 3))
    E = E + E.T
    X = rng.normal(size=(200_000, 3))
    values = np.einsum("ni,ij,nj->n", X, E, X) ** 2
    assert abs(values.mean() - float(quadratic_risk(jnp.asarray(E)))) < 4 * values.std() / np.sqrt(len(values))


def test_trials(x64):
    base = {"part": "square", "d": 8, "rows": 40, "n": 36}
    key = jax.random.key(0)
    risks = {m: frobenius_nuclear.trial({**base, "method": m}, key) for m in ("frobenius", "nuclear", "network")}
    assert float(risks["nuclear"]["risk"]) < 1e-6 and float(risks["nuclear"]["gap"]) <= 1e-6
    assert float(risks["network"]["risk"]) < 0.01
    short = frobenius_nuclear.trial({**base, "method": "frobenius", "n": 18}, key)["risk"]
    assert float(short) > 0.02 and float(risks["frobenius"]["risk"]) < 1e-6
    relu = frobenius_nuclear.trial({"part": "relu", "n": 16}, key)
    assert relu["gap"] <= 1e-6 and relu["risk"] < relu["kernel"]


@pytest.mark.slow
def test_quick_holds():
    records = run(experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in experiment.claims(records)} == {"holds"}
