"""Tiny experiments for the tests of the lab, importable by worker processes."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.claims import at_least
from unlazy.core.experiment import Experiment, Records, config

traces: list[tuple] = []
"""One entry each time a trial is traced: what was static."""


def mean_trial(params, key):
    """The mean of n normal draws, padded; and the scaled draws themselves."""
    size = params["n_padded"]
    traces.append((params["method"], size))
    x = params["scale"] * jax.random.normal(key, (size,))
    weight = jnp.arange(size) < params["n"]
    value = jnp.sum(jnp.where(weight, x if params["method"] == "mean" else jnp.abs(x), 0.0)) / params["n"]
    matrix = x[:, None] * x[None, :]
    return {"value": value, "first": x[:3], "product": jnp.sum(matrix @ matrix), "n": params["n"]}


def claims(records: Records):
    return [at_least("records exist", "T1", len(records), 1)]


def figure(records: Records):
    from matplotlib.figure import Figure

    shown = Figure(layout="constrained")
    shown.subplots().plot(records.measure("value"))
    return shown


def make(name, trial, quick, full=None, claims=claims, **options):
    words = dict.fromkeys(("question", "prediction", "protocol", "verdict"), "a toy for the tests")
    return Experiment(
        name, "general", ("T1",), **words, trial=trial, claims=claims, figure=figure, quick=quick, full=full or quick,
        **options,
    )  # fmt: skip


means = make(
    "toy_means",
    mean_trial,
    config({"n": [5, 7, 9, 16], "method": ["mean", "absolute"]}, seeds=6, scale=2.0),
    traced=("scale",),
    padded=("n",),
)


def plain_trial(params, key):
    """Not traceable: sleeps, branches on its value, and refuses one seed when told so."""
    time.sleep(params["pause"])
    draw = np.asarray(jax.random.normal(key, (4,)))
    if os.environ.get("TOY_FAILS") and params["n"] == 2 and draw[0] < np.inf:
        raise RuntimeError("this one fails")
    return {"value": float(draw.sum() * params["n"]), "draw": draw, "nothing": float("nan"), "word": "ok"}


plain = make("toy_plain", plain_trial, config({"n": [1, 2, 3]}, seeds=4, pause=0.0), vectorised=False)
many = make("toy_many", plain_trial, config({"n": list(range(1, 41))}, seeds=10, pause=0.008), vectorised=False)
