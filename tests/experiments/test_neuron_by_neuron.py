"""Neuron by neuron: claims that can fail, and a trial at toy size."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import neuron_by_neuron as nn
from unlazy.theory.activations.functions import activation
from unlazy.theory.feature_learning.balanced_neurons import plateau_risks


def made_up(times, durations, level=1.0, kind="rich", size=1e-20):
    rng, rows = np.random.default_rng(0), []
    waits = np.asarray(plateau_risks(nn.heads(), activation("abs"))) * level
    at = np.arange(0, 100, 0.5)
    for s in range(24):
        T = np.asarray(times) * (1 + 0.01 * rng.standard_normal(3))
        risk = np.concatenate([waits, [1e-4]])[np.sum(at[:, None] > T, axis=1)] * np.exp(-1e-3 * at)
        shares = (at[:, None] > T).astype(float)
        measures = {"at": at, "risk": risk, "shares": shares, "times": T, "durations": np.asarray(durations, float)}
        rows.append(Record({"kind": kind, "size": size}, s, measures))
    return rows


def test_claims_hold_and_fail():
    lazy = made_up([5, 5, 5], [5, 5, 5], kind="lazy", size=1.0)
    good = Records(made_up([20, 40, 70], [2, 4, 10]) + made_up([5, 6, 9], [5, 9, 20], size=0.1) + lazy)
    assert [c.verdict for c in nn.claims(good)] == ["holds"] * 7
    lazy = made_up([5, 9, 20], [5, 5, 5], kind="lazy", size=1.0)
    bad = Records(made_up([40, 33, 50], [20, 20, 20], 1.5) + made_up([20, 40, 70], [2, 4, 10], size=0.1) + lazy)
    words = [c.verdict for c in nn.claims(bad)]
    assert words[2] == "undecided" and words[:2] + words[3:] == ["does not hold"] * 6
    assert len(nn.figure(good).axes) == 6


def test_a_trial_at_toy_size(x64):
    found = jax.jit(lambda key: nn.trial({"kind": "rich", "size": 0.1, "steps": 40}, key))(jax.random.key(0))
    assert np.all(np.diff(np.asarray(found["risk"])) <= 0) and found["shares"].shape == (10, 3)
