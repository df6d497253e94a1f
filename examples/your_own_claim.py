"""Your own claim
==============

A task has a known target, a measure quantifies how well a method recovers it, and an experiment turns both into a claim
that can fail. The lab runs the experiment and writes a report. All in one file, in seconds.

    python examples/your_own_claim.py
"""

import tempfile
from pathlib import Path

import jax
import numpy as np

import unlazy
from unlazy import lab
from unlazy.lab.claims import at_least
from unlazy.lab.experiment import Experiment, config
from unlazy.lab.report.page import write_report
from unlazy.lab.report.table import print_claims
from unlazy.measures.subspace import energy
from unlazy.tasks.index_models import quadratic_plus


def trial(params, key):
    """Algorithm 1 on n samples: share of its first layer in the relevant direction."""
    task = quadratic_plus(8, key=jax.random.key(1))
    data = task.sample(key, params["n"])
    step = unlazy.one_step(data.X, data.y, width=64, choose="leave-one-out", key=key)
    return {"energy": energy(step.features.W, task.subspace)}


def claims(records):
    few, many = (records.where(n=n).measure("energy") for n in (64, 1024))
    gain = many - few
    return [at_least("share of W¹ in S*, n = 1,024 minus n = 64", "D5", float(gain.mean()), 0.0,
                     error=float(gain.std(ddof=1) / np.sqrt(len(gain))))]  # fmt: skip


def figure(records):
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(figsize=(4, 3))
    axes.semilogx(*records.over("n", "energy"), "o-", label="share of W¹ in S*")
    axes.set(xlabel="samples", ylim=(0, 1))
    axes.legend()
    return fig


experiment = Experiment(
    name="samples_show_the_direction", source="general", tags=("D5",), question="Do more samples show the direction?",
    prediction="The share of the first step in S* grows with n [D5].", protocol="d = 8, n = 64 and 1,024, 4 seeds.",
    verdict="The gain is positive by two standard errors.", trial=trial, claims=claims, figure=figure,
    quick=config({"n": [64, 1024]}, seeds=4), full=config({"n": [64, 256, 1024]}, seeds=32),
)  # fmt: skip

records = lab.run(experiment, store=None)
print_claims([(experiment, experiment.claims(records))])
with tempfile.TemporaryDirectory() as folder:
    page = write_report([(experiment, records)], Path(folder))
    print(f"{page.name}: {page.stat().st_size // 1000} kB in one file")
