"""A student of r neurons recovers a teacher of r neurons from n ≈ dr samples, if it starts well [L5].

Question: can a small student find the teacher's neurons, from how many samples, and what does the start matter?
Prediction [L5]: n ≈ dr suffices information-theoretically; kernels cannot use that there are few neurons. Moments of
the labels give a start near the neurons for r ≤ d (method of moments), from which gradient descent converges to them.
Protocol: f* = r^{-1/2} Σ_j ReLU(w_j·x), orthonormal w_j, x ~ N(0, I_d), no noise, n = m·dr for m = 1 … 32. Student: r
neurons, first layer and heads trained, Adam 1e-2 with cosine decay, 2,000 steps, all samples; start: random unit
neurons or the spectral start (training.one_step.method_of_moments), heads r^{-1/2} in both. Recovery: the smallest
|cosine| of the best matching between student and teacher exceeds 0.99. `moments`: the spectral start itself, untrained.
Kernel ridge with the NTK, ridge by validation. Risks are over Var f* left by the best linear function, 1: no better
than linear. Verdict: spectral start, r = 4, n = 32dr: recovered in at least 90% of the seeds at d = 10, 20, 40, and at
d = 20 the median risk is at most a tenth of the NTK's. With r = 16 neurons at d = 20 the spectral start ends nearer to
the teacher than the random one (median of the worst cosine). What does not work: the moments alone do not recover
(worst cosine below 0.99), and for few orthonormal neurons the spectral start is not needed: random ones recover them
from 32dr too.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from unlazy.core.data import Data
from unlazy.core.linalg import dot
from unlazy.lab.claims import Claim, at_least, at_most
from unlazy.lab.experiment import Experiment, Params, Records, config
from unlazy.lab.experiments._baselines import draw, infinite_width_ridge, risk
from unlazy.tasks.teachers import teacher
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.method_of_moments import spectral_start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE, STEPS, RECOVERED = 1e-2, 2000, 0.99
NAMES = {"ntk": "NTK", "moments": "moments alone", "random": "student, random start",
         "spectral": "student, spectral start"}  # fmt: skip


def trial(params: Params, key: Any) -> dict[str, Any]:
    d, r, method = params["d"], params["r"], params["method"]
    n = params["multiple"] * d * r
    key_task, key_data, key_start, key_test = jax.random.split(key, 4)
    task = _teacher(key_task, d=d, r=r)
    sample = draw(task, key_data, n)
    beyond = float(beyond_linear(r))
    if method == "ntk":
        return {"risk": risk(task, infinite_width_ridge("ntk", sample), key_test)[0] / beyond}
    W, a = (np.asarray(part) for part in _student(key_start, *sample.exact, r=r, method=method))
    found = risk(task, lambda Z: dot(jnp.maximum(dot(Z, W.T), 0), a), key_test)[0] / beyond
    return {"risk": found, "cosine": worst_cosine(W, np.asarray(task.W))}


@partial(jax.jit, static_argnames=("d", "r"))
def _teacher(key: Any, *, d: int, r: int) -> Any:
    return teacher(d, r, "relu", key=key)


@partial(jax.jit, static_argnames=("r", "method"))
def _student(key: Any, X: Any, y: Any, *, r: int, method: str) -> tuple[Any, Any]:
    heads = jnp.full(r, 1 / math.sqrt(r))
    if method == "random":
        W = jax.random.normal(key, (r, X.shape[1]))
        W = W / jnp.linalg.norm(W, axis=1, keepdims=True)
    else:
        W = spectral_start(X, y, r, key=key).W
        both = jnp.stack([W, -W])  # even moments leave the signs open: the slope of y along w_j tells
        W = jnp.where((dot(X.T, y, W.T) > 0)[:, None], both[0], both[1])
    if method == "moments":
        return W, heads
    rule = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

    def student(theta: Any, Z: Any) -> Any:
        return dot(jnp.maximum(dot(Z, theta[0].T), 0), theta[1])

    return descend(student, (W, heads), Data(X, y), steps=STEPS, optimizer=rule).params


def worst_cosine(W: np.ndarray, truth: np.ndarray) -> float:
    """Smallest |cosine| over the matching of neurons that has the largest sum of them."""
    from scipy.optimize import linear_sum_assignment

    unit = W / np.maximum(np.linalg.norm(W, axis=1, keepdims=True), 1e-300)
    C = np.abs(dot(unit, truth.T))
    return float(C[linear_sum_assignment(-C)].min())


def beyond_linear(r: int) -> float:
    """Variance of r^{-1/2} Σ ReLU(z_j) less that of its linear part: (1/2 - 1/(2π)) - 1/4, for every r."""
    return 0.25 - 1 / (2 * math.pi)


def claims(records: Records) -> list[Claim]:
    rows = []
    for d in (10, 20, 40):
        found = records.where(method="spectral", d=d, r=4, multiple=32)
        if len(found) > 1:
            rows.append(
                at_least(
                    f"spectral start, d = {d}, r = 4, n = 32dr: share of {len(found)} seeds recovered",
                    "L5",
                    _share(found),
                    0.9,
                )
            )
    here = records.where(d=20, r=4, multiple=32)
    parts = {m: here.where(method=m) for m in NAMES}
    if len(parts["spectral"]) and len(parts["ntk"]):
        ratio = float(np.median(parts["spectral"].measure("risk")) / np.median(parts["ntk"].measure("risk")))
        rows.append(at_most("d = 20, r = 4, n = 32dr: median risk over the NTK's", "L5", ratio, 0.1))
    if len(parts["moments"]) > 1:
        worst = float(np.median(parts["moments"].measure("cosine")))
        rows.append(at_most("moments alone, what does not work: worst cosine, n = 32dr", "L5", worst, RECOVERED))
    if len(parts["random"]) > 1:
        rows.append(
            at_least(
                "random start, d = 20, r = 4, n = 32dr: share recovered (no spectral start needed here)",
                "L5",
                _share(parts["random"]),
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
                "r = 16: worst cosine, spectral less random start",
                "L5",
                float(gain.mean()),
                0.0,
                error=float(gain.std(ddof=1) / math.sqrt(size)),
            )
        )
    return rows  # fmt: skip


def _share(records: Records) -> float:
    return float(np.mean(records.measure("cosine") > RECOVERED))


def figure(records: Records) -> "Figure":
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
    left.set(ylabel="median risk beyond linear (1e-4: exact)", title="ReLU teacher, d = 20, r = 4")
    right.set(ylabel="share of seeds with all neurons recovered", ylim=(-0.03, 1.03))
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return fig


experiment = Experiment(
    name="teacher_student",
    source="S3",
    tags=("L5",),
    question="Can a small student recover a teacher's neurons, from how many samples, and what does the start matter?",
    prediction="n ≈ dr samples suffice from a spectral start (r ≤ d); kernels cannot use that the neurons are few.",
    protocol="ReLU teacher with r orthonormal neurons, student with r neurons from a random or a spectral start; "
    "NTK; n = m·dr.",
    verdict="Spectral start, n = 32dr: recovered in at least 90% of the seeds at d = 10, 20, 40, risk at most a "
    "tenth of the NTK's; r = 16: nearer to the teacher than from a random start.",
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
    caveats="Orthonormal neurons with equal heads: the easy case. The fourth moment needs many more samples than dr to "
    "be accurate; as a start it only has to be better than chance.",
)  # fmt: skip
