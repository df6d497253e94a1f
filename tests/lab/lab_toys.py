"""Tiny experiments for the tests of the lab, importable by worker processes."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from unlazy import lab
from unlazy.lab.claims import at_least
from unlazy.lab.experiment import Experiment, Records, config

HERE = os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
"""PYTHONPATH for processes that import these toys."""
traces: list[tuple] = []
"""One entry each time a trial is traced: what was static."""
lived: list[dict] = []
"""The plain trials of this process; those beyond TOY_LIMIT never end."""


def mean_trial(params, key):
    """The mean of n normal draws, padded; and the scaled draws themselves."""
    size = params["n_padded"]
    traces.append((params["method"], size))
    x = params["scale"] * jax.random.normal(key, (size,))
    weight = jnp.arange(size) < params["n"]
    value = jnp.sum(jnp.where(weight, x if params["method"] == "mean" else jnp.abs(x), 0.0)) / params["n"]
    matrix = x[:, None] * x[None, :]
    return {"value": value, "first": x[:3], "product": jnp.sum(matrix @ matrix), "count": params["n"]}


def plain_trial(params, key):
    """Not traceable: sleeps, writes a log, fails at n = 2 if TOY_FAILS is set."""
    from threadpoolctl import threadpool_info

    lived.append(params)
    time.sleep(600 if len(lived) > int(os.environ.get("TOY_LIMIT", 10**9)) else params["pause"])
    draw = np.asarray(jax.random.normal(key, (4,)))
    if os.environ.get("TOY_FAILS") and params["n"] == 2 and draw[0] < np.inf:
        raise RuntimeError("this one fails")
    if "TOY_LOG" in os.environ:
        with open(os.environ["TOY_LOG"], "a") as log:
            log.write(f"{os.getpid()}\n")
    threads = max((pool["num_threads"] for pool in threadpool_info()), default=1)
    return {"value": float(draw.sum() * params["n"]), "draw": draw, "nan": float("nan"), "threads": threads}


def broken_trial(params, key):
    raise RuntimeError("never works")


def holds(records: Records):
    return [at_least("records exist", "T1", len(records), 1)]


def refuted(records: Records):
    return [at_least("there are a million records", "T1", len(records), 10**6)]


def figure(records: Records):
    from matplotlib.figure import Figure

    shown = Figure(layout="constrained")
    shown.subplots().plot(records.measure("value"))
    return shown


def make(name, trial, quick, claims=holds, **options):
    words = dict.fromkeys(("question", "prediction", "protocol", "verdict"), "a toy for the tests")
    return Experiment(
        name, "general", ("T1",), **words, trial=trial, claims=claims, figure=figure, quick=quick, full=quick, **options
    )


_grid = config({"n": [5, 7, 9, 16], "method": ["mean", "absolute"]}, seeds=6, scale=2.0)
means = make("toy_means", mean_trial, _grid, traced=("scale",), padded=("n",))
plain = make("toy_plain", plain_trial, config({"n": [1, 2, 3]}, seeds=4, pause=0.0), vectorized=False)
wrong = make("toy_wrong", plain_trial, config({"n": [1]}, seeds=1, pause=0.0), refuted, vectorized=False)
broken = make("toy_broken", broken_trial, config({"n": [1]}, seeds=3))
many = make("toy_many", plain_trial, config({"n": list(range(1, 41))}, seeds=10, pause=0.004), vectorized=False)


def run_many(store):
    lab.run(many, store=store, engine="inline", progress=False)


def same(a: Records, b: Records) -> bool:
    """The same trials with the same numbers, bit for bit; the seconds may differ."""
    return [(r.params, r.seed) for r in a] == [(r.params, r.seed) for r in b] and all(
        x.measures.keys() == y.measures.keys() and all(_equal(x.measures[k], y.measures[k]) for k in x.measures)
        for x, y in zip(a, b)
    )


def _equal(a, b) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
