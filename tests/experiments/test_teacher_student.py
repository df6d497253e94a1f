"""teacher_student: a toy trial, the matching, the normalization, claims that can fail."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import teacher_student
from unlazy.lab.experiments.teacher_student import BEYOND_LINEAR, experiment, worst_cosine


def made_up(cosine, risk, moments, random16):
    rows = []
    for seed in range(5):
        for d in (10, 20, 40):
            rows.append(({"method": "spectral", "d": d, "r": 4, "multiple": 32}, {"risk": risk, "cosine": cosine}))
        for method, c in (("ntk", 0.0), ("moments", moments), ("random", cosine)):
            rows.append(({"method": method, "d": 20, "r": 4, "multiple": 32}, {"risk": 0.5, "cosine": c}))
        for method, c in (("spectral", 0.9), ("random", random16)):
            measures = {"risk": 0.1, "cosine": c + 0.01 * (seed % 2) * (method == "random")}
            rows.append(({"method": method, "d": 20, "r": 16, "multiple": 32}, measures))
        rows = [(*row[:2], seed) if len(row) == 2 else row for row in rows]
    return Records(Record(p, s, m) for p, m, s in rows)


def test_claims_hold_and_fail():
    good = made_up(1.0, 1e-6, 0.7, 0.8)
    found = experiment.claims(good)
    assert len(found) == 7 and {c.verdict for c in found} == {"holds"}, found
    bad = experiment.claims(made_up(0.5, 0.4, 0.999, 0.95))
    assert {c.verdict for c in bad} == {"does not hold"}, bad
    assert len(experiment.figure(good).axes) == 2


def test_matching_ignores_order_and_sign():
    W = np.eye(3)[[2, 0, 1]] * np.array([[2.0], [-1.0], [0.5]])
    assert worst_cosine(W, np.eye(3)) == 1
    np.testing.assert_allclose(worst_cosine(np.ones((2, 2)), np.eye(2)), np.sqrt(0.5), rtol=1e-15)


def test_variance_beyond_the_linear_part_by_sampling():
    z = np.random.default_rng(0).normal(size=(400_000, 2))
    f = np.maximum(z, 0).sum(1) / np.sqrt(2)
    rest = f - f.mean() - z.sum(1) / (2 * np.sqrt(2))
    assert abs(np.mean(rest**2) - BEYOND_LINEAR) < 4 * np.std(rest**2) / np.sqrt(len(z))


def test_the_student_recovers_the_teacher(x64):
    params, methods = {"d": 5, "r": 2, "multiple": 32}, ("spectral", "moments", "ntk")
    found = {m: teacher_student.trial({**params, "method": m}, jax.random.key(0)) for m in methods}
    assert found["spectral"]["cosine"] > 0.99 > found["moments"]["cosine"]
    assert found["spectral"]["risk"] < 1e-3 < found["ntk"]["risk"]
