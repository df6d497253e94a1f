"""The first step: toy trials, and claims that can fail."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import first_step_is_hessian as fs
from unlazy.theory.feature_learning import gradients


def made_up(power=-1.0, shift=0.0):
    rng = np.random.default_rng(0)
    rows = []
    for s in range(6):
        for d in (64, 128, 256):
            size = gradients.residual_size(64, 1) * (d / 64) ** power * (1 + 0.002 * rng.standard_normal())
            rows.append(Record({"part": "population", "d": d, "r": 1}, s, {"residual": size, "signal": 0.1}))
        for n in (1024, 4096, 16_384):
            energy = gradients.subspace_energy(float(n), 64, 1) + shift + 0.005 * rng.standard_normal()
            rows.append(Record({"part": "sample", "d": 64, "r": 1, "n": n}, s, {"energy": energy, "overlap": 0.9}))
    return Records(rows)


def test_trials_agree_with_theory_at_toy_size(x64):
    found = fs.trial({"part": "population", "d": 256, "r": 2, "width": 64}, jax.random.key(0))
    # 8,192 neurons: a mean square of relative spread 1 is good to 4/√8192 = 4.5%, its root to half; next order 2%.
    assert abs(float(found["residual"]) / gradients.residual_size(256, 2) - 1) < 0.05
    assert abs(float(found["signal"]) / gradients.signal_size(256) - 1) < 0.05
    sampled = fs.trial({"part": "sample", "d": 8, "r": 2, "n": 2000, "n_padded": 2048, "width": 64}, jax.random.key(0))
    assert 0.5 < float(sampled["energy"]) <= 1 and 0.8 < float(sampled["overlap"]) <= 1 + 1e-9


def test_claims_hold_and_fail():
    assert {c.verdict for c in fs.claims(made_up())} == {"holds"}
    slope, size, energy = (c.verdict for c in fs.claims(made_up(power=-0.8, shift=0.15)))
    assert slope == size == energy == "does not hold"
    assert len(fs.figure(made_up()).axes) == 2
