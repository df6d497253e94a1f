"""A student with r neurons recovers a teacher with r neurons from n ≈ dr samples, if initialized well [L5].

Question: can a small student recover the teacher's neurons, from how many samples, and how does it depend on the
initialization?
Prediction [L5]: n ≈ dr suffices information-theoretically; kernels cannot exploit the small number of neurons. For
r ≤ d, moments of the labels (method of moments) give an initialization near the neurons, from which gradient descent
converges to them.
Protocol: f* = r^{-1/2} Σ_j ReLU(w_j·x), orthonormal w_j, x ~ N(0, I_d), no noise, n = m·dr for m = 1 … 32. Student: r
neurons, first layer and heads trained, Adam with learning rate 1e-2 and cosine decay, 2,000 full-batch steps;
initialization: random unit neurons, or spectral (training.one_step.method_of_moments), heads r^{-1/2} in both cases.
Recovery: the smallest |cosine| of the best matching between student and teacher exceeds 0.99. `moments`: the spectral
initialization without training. Kernel ridge regression with the NTK, ridge selected by validation. Risks are relative
to that of the best linear function.
Verdict: spectral initialization, r = 4, n = 32dr: recovery in at least 90% of the seeds at d = 10, 20, 40, and at
d = 20 the median risk is at most a tenth of the NTK's. With r = 16 neurons at d = 20 the spectral initialization ends
closer to the teacher than the random one (mean difference of the worst cosine). Negative results: the moments alone do
not recover the teacher (worst cosine below 0.99), and for few orthonormal neurons the spectral initialization is not
needed: random initialization also recovers them from 32dr samples.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._baselines import draw, infinite_width_ridge, risk
from unlazy.tasks.teachers import teacher
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.method_of_moments import spectral_start
from unlazy.training.options import DescentOptions

RATE, STEPS, RECOVERED = 1e-2, 2000, 0.99
BEYOND_LINEAR = 0.25 - 1 / (2 * math.pi)
"""Variance of r^{-1/2} Σ ReLU(z_j) minus that of its linear part: (1/2 - 1/(2π)) - 1/4, for every r."""
NAMES = {"ntk": "NTK", "moments": "moments alone", "random": "random initialization",
         "spectral": "spectral initialization"}  # fmt: skip


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, cosine."""
    d, r, method = params["d"], params["r"], params["method"]
    n = params["multiple"] * d * r
    key_task, key_data, key_start, key_test = jax.random.split(key, 4)
    task = _teacher(key_task, d=d, r=r)
    sample = draw(task, key_data, n)
    if method == "ntk":
        return {"risk": risk(task, infinite_width_ridge("ntk", sample), key_test)[0] / BEYOND_LINEAR}
    W, a = (np.asarray(part) for part in _student(key_start, *sample.exact, r=r, method=method))
    found = risk(task, lambda Z: dot(jnp.maximum(dot(Z, W.T), 0), a), key_test)[0] / BEYOND_LINEAR
    return {"risk": found, "cosine": worst_cosine(W, np.asarray(task.W))}


@partial(jax.jit, static_argnames=("d", "r"))
def _teacher(key: Any, *, d: int, r: int) -> Any:
    """Random teacher with orthonormal neurons."""
    return teacher(d, r, "relu", key=key)


@partial(jax.jit, static_argnames=("r", "method"))
def _student(key: Any, X: Any, y: Any, *, r: int, method: str) -> tuple[Any, Any]:
    """First-layer weights and heads of the student, trained unless the method is "moments"."""
    heads = jnp.full(r, 1 / math.sqrt(r))
    if method == "random":
        W = jax.random.normal(key, (r, X.shape[1]))
        W = W / jnp.linalg.norm(W, axis=1, keepdims=True)
    else:
        W = spectral_start(X, y, r, key=key).W
        both = jnp.stack([W, -W])  # even moments leave the sign open; the slope of y along w_j determines it
        W = jnp.where((dot(X.T, y, W.T) > 0)[:, None], both[0], both[1])
    if method == "moments":
        return W, heads
    rule = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def student(theta: Any, Z: Any) -> Any:
        return dot(jnp.maximum(dot(Z, theta[0].T), 0), theta[1])

    return descend(student, (W, heads), Data(X, y), steps=STEPS, options=DescentOptions(rule)).params


def worst_cosine(W: np.ndarray, truth: np.ndarray) -> float:
    """Smallest |cosine| in the matching of neurons with the largest sum of |cosines|."""
    from scipy.optimize import linear_sum_assignment

    unit = W / np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-300)
    C = np.abs(dot(unit, truth.T))
    return float(C[linear_sum_assignment(-C)].min())


def claims(records: Records) -> list[Claim]:
    """Claims on [L5], from the records."""
    rows = []
    for d in (10, 20, 40):
        found = records.where(method="spectral", d=d, r=4, multiple=32)
        if len(found) > 1:
            rows.append(
                at_least(
                    f"spectral initialization, d = {d}, r = 4, n = 32dr: recovered fraction of {len(found)} seeds",
                    "L5",
                    _recovered_fraction(found),
                    0.9,
                )
            )
    here = records.where(d=20, r=4, multiple=32)
    parts = {m: here.where(method=m) for m in NAMES}
    if len(parts["spectral"]) and len(parts["ntk"]):
        ratio = float(np.median(parts["spectral"].measure("risk")) / np.median(parts["ntk"].measure("risk")))
        rows.append(
            at_most(
                "spectral initialization, d = 20, r = 4, n = 32dr: median risk / median risk of the NTK",
                "L5",
                ratio,
                0.1,
            )
        )
    if len(parts["moments"]) > 1:
        worst = float(np.median(parts["moments"].measure("cosine")))
        rows.append(at_most("moments alone (negative result), n = 32dr: worst cosine", "L5", worst, RECOVERED))
    if len(parts["random"]) > 1:
        rows.append(
            at_least(
                "random initialization, d = 20, r = 4, n = 32dr: recovered fraction (spectral not needed here)",
                "L5",
                _recovered_fraction(parts["random"]),
                0.9,
            )
        )
    many = [records.where(method=m, d=20, r=16) for m in ("spectral", "random")]
    if all(len(part) > 1 for part in many):
        (a, b) = (np.array([r.measures["cosine"] for r in sorted(part, key=lambda r: r.seed)]) for part in many)
        size = min(len(a), len(b))
        gain = a[:size] - b[:size]
        rows.append(
            at_least(
                "r = 16: worst cosine, spectral minus random initialization",
                "L5",
                float(gain.mean()),
                0.0,
                error=float(gain.std(ddof=1) / math.sqrt(size)),
            )
        )
    return rows  # fmt: skip


def _recovered_fraction(records: Records) -> float:
    """Fraction of seeds in which all neurons are recovered."""
    return float(np.mean(records.measure("cosine") > RECOVERED))


def figure(records: Records) -> Figure:
    """Plot of median risk / best linear risk (1e-4: exact) against n / (dr)."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.9))
    here = records.where(d=20, r=4)
    for i, (method, name) in enumerate(NAMES.items()):
        part = here.where(method=method)
        if not len(part):
            continue
        m, values = part.over("multiple", "risk")
        left.loglog(m, np.maximum(values, 1e-4), "sv^o"[i] + "-", color=f"C{i}", label=name)
        if method != "ntk":
            m, share = part.over("multiple", "cosine", lambda v, axis: np.mean(v > RECOVERED, axis=axis))
            right.semilogx(m, share, "sv^o"[i] + "-", color=f"C{i}", label=name)
    for axis in (left, right):
        ticks = here.values("multiple")
        axis.set_xticks(ticks, [str(v) for v in ticks])
        axis.minorticks_off()
        axis.set(xlabel="n / (dr)")
    left.set(ylabel="median risk / best linear risk (1e-4: exact)", title="ReLU teacher, d = 20, r = 4")
    right.set(ylabel="fraction of seeds with all neurons recovered", ylim=(-0.03, 1.03))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return fig


experiment = Experiment(
    name="teacher_student",
    source="S3",
    tags=("L5",),
    question="Can a small student recover a teacher's neurons, from how many samples, and from which initialization?",
    prediction="n ≈ dr samples suffice with spectral initialization (r ≤ d); kernels cannot exploit the small number "
    "of neurons.",
    protocol="ReLU teacher with r orthonormal neurons, student with r neurons and random or spectral initialization; "
    "NTK; n = m·dr.",
    verdict="Spectral initialization, n = 32dr: recovery in at least 90% of the seeds at d = 10, 20, 40, risk at most "
    "a tenth of the NTK's; r = 16: closer to the teacher than with random initialization.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"method": ["spectral", "random"], "d": [20], "r": [4], "multiple": [2, 8, 32]},
                 {"method": ["moments", "ntk"], "d": [20], "r": [4], "multiple": [32]},
                 {"method": ["spectral"], "d": [10], "r": [4], "multiple": [32]}, seeds=6),
    full=config({"method": list(NAMES), "d": [20], "r": [4], "multiple": [1, 2, 4, 8, 16, 32]},
                {"method": ["spectral", "random"], "d": [10, 40], "r": [4], "multiple": [8, 32]},
                {"method": ["spectral", "random"], "d": [20], "r": [16], "multiple": [32]}, seeds=12),
    vectorized=False,
    caveats="Orthonormal neurons with equal heads are the easy case. The fourth moment needs many more samples than dr "
    "to be accurate; as an initialization it only has to be better than random.",
)  # fmt: skip
