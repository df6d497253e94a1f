"""Claims of the information exponent: they hold on what theory predicts and fail on what it excludes."""

import jax
import numpy as np

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import batch_reuse, information_exponent


def made_up(powers, target=None, **fixed):
    rng, rows = np.random.default_rng(0), []
    for s in range(64):
        for k, power in powers.items():
            for d in (64, 256, 1024):
                law = 3 * d**power * (np.log(d) if k in (2, "large") else 1.0)
                at = {"d": d, "k": k} if target is None else {"d": d, "use": k, "target": target}
                rows.append(Record(at, s, {"found": law * np.exp(0.3 * rng.standard_normal())}))
    return rows


def test_exponents_hold_and_fail():
    words = [c.verdict for c in information_exponent.claims(Records(made_up({1: 1.0, 2: 1.0, 3: 2.0})))]
    assert words == ["holds"] * 3
    words = [c.verdict for c in information_exponent.claims(Records(made_up({1: 2.0, 2: 2.0, 3: 1.0})))]
    assert words == ["does not hold"] * 3
    lost = [Record({"d": d, "k": 3}, s, {"found": np.inf}) for d in (64, 256) for s in range(8)]
    assert [c.verdict for c in information_exponent.claims(Records(lost))] == ["undecided"]
    assert len(information_exponent.figure(Records(made_up({1: 1.0, 2: 1.0, 3: 2.0}))).axes) == 1


def test_reuse_holds_and_fails():
    control = [Record({"d": d, "use": "twice", "target": "parity"}, s, {"found": np.inf})
               for d in (64, 256) for s in range(64)]  # fmt: skip
    good = Records(made_up({"once": 2.0, "twice": 1.1, "large": 1.0}, "He_3") + control)
    assert [c.verdict for c in batch_reuse.claims(good)] == ["holds"] * 4
    arrived = [Record(r.params, r.seed, {"found": 100.0}) for r in control]
    bad = Records(made_up({"once": 1.2, "twice": 2.0, "large": 2.0}, "He_3") + arrived)
    assert [c.verdict for c in batch_reuse.claims(bad)] == ["does not hold"] * 4
    assert len(batch_reuse.figure(good).axes) == 2


def test_trials_at_toy_size(x64):
    found = jax.jit(lambda key: information_exponent.trial({"k": 1, "d": 16}, key))(jax.random.key(0))["found"]
    assert 1 <= float(found) <= 160 * np.log(16)
    found = jax.jit(lambda key: batch_reuse.trial({"use": "twice", "target": "parity", "d": 16}, key))(
        jax.random.key(0)
    )
    assert float(found["found"]) >= 1
