"""Adaptivity, all three kinds and the step alone: toy trials, and claims that can fail."""

import jax
import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import adaptivity, adaptivity_smoothness


def made_up(good):
    rows = []
    for s in range(5):
        jitter = 1 + 0.01 * s
        for method in ("laplace", "ntk", "network"):
            for d, k in ((6, 3), (24, 3), (24, 1)):
                power = {3: 1.0, 1: 2.0}[k] if good else {6: 1.0, 24: 0.3}[d]
                for n in (16, 64):
                    point = {"kind": "support", "method": method, "d": d, "k": k, "n": n}
                    rows.append(Record(point, s, {"risk": n**-power * jitter}))
        for method in (*adaptivity.KERNELS, "network"):
            risk = 0.5 if method == "network" and good else 1.0
            point = {"kind": "smoothness", "method": method, "noise": 0.1, "n": 256}
            rows.append(Record(point, s, {"risk": risk * jitter}))
        for method in ("ntk", "one_step"):
            for d in (6, 24):
                power = 1.0 if (method == "one_step") == good or d == 6 else 0.2
                for n in (1000, 4000):
                    point = {"kind": "latent", "method": method, "d": d, "n": n}
                    rows.append(Record(point, s, {"risk": n**-power * jitter}))
    return Records(rows)


def test_claims_hold_and_fail():
    good, bad = adaptivity.claims(made_up(True)), adaptivity.claims(made_up(False))
    assert {c.verdict for c in good} == {"holds"} and len(good) == 9
    assert {c.verdict for c in bad} == {"does not hold"}
    assert len(adaptivity.figure(made_up(True)).axes) == 3


@pytest.mark.parametrize("method", ["laplace", "ntk"])
def test_kernels_learn_on_a_manifold(x64, method):
    point = {"kind": "support", "method": method, "d": 6, "k": 1, "n": 100}
    assert float(adaptivity.trial(point, jax.random.key(0))["risk"]) < 0.01  # 11 harmonics, 100 exact labels


@pytest.mark.nightly
@pytest.mark.slow
def test_trained_network_beats_kernels_at_a_noisy_step(x64):
    point = {"kind": "smoothness", "noise": 0.1, "n": 256}
    risk = {
        m: np.median([adaptivity.trial({**point, "method": m}, jax.random.key(s))["risk"] for s in range(5)])
        for m in ("ntk", "network")
    }
    assert risk["network"] < risk["ntk"]


def test_step_trial_learns_without_ringing(x64):
    point = {"kernel": "laplace", "noise": 0.0, "n": 50, "n_padded": 64}
    run = jax.jit(jax.vmap(lambda key: adaptivity_smoothness.trial(point, key)))
    found = run(jax.random.split(jax.random.key(0), 4))
    assert float(found["risk"].max()) < 0.05 and float(found["overshoot"].max()) < 0.02
    assert found["curve"].shape == (4, adaptivity_smoothness.POINTS // 4)


def step_records(power, ring):
    rng = np.random.default_rng(0)
    rows = []
    for kernel in adaptivity_smoothness.KERNELS:
        over = ring if kernel == "gaussian" else 0.1 - ring
        for s in range(16):
            curve = np.zeros(adaptivity_smoothness.POINTS // 4)
            rows.append(Record({"kernel": kernel, "noise": 0.0, "n": 128}, s, {"overshoot": over, "curve": curve}))
            for n in (64, 128, 512):
                risk = n**power * (1 + 0.05 * rng.standard_normal())
                rows.append(Record({"kernel": kernel, "noise": 0.3, "n": n}, s, {"risk": risk}))
    return Records(rows)


def test_step_claims_hold_and_fail():
    good, bad = step_records(-0.5, 0.1), step_records(-1.0, 0.0)
    assert {c.verdict for c in adaptivity_smoothness.claims(good)} == {"holds"}
    assert {c.verdict for c in adaptivity_smoothness.claims(bad)} == {"does not hold"}
    assert len(adaptivity_smoothness.figure(good).axes) == 2
