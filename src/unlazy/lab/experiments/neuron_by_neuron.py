"""From a small initialization, orthogonal teacher neurons are learned one by one, the strongest first [L11].

Question: a student with many neurons learns Σ a_i |u_i·x| with orthonormal u_i and a = 4 : 2 : 1. In which order are
the teacher neurons learned, from a small initialization, from a larger one, and in the lazy limit?
Prediction [L11]: from a small initialization the fastest-growing component always dominates, so neurons are learned one
at a time, in order of strength. In between, the risk has plateaus at the minimal risk of the neurons learned so far,
which has a closed form. In the lazy limit the kernel is isotropic, so all three are learned at the same time.
Protocol: f = Σ_j ‖v_j‖ |v_j·x|, d = 8, 32 neurons, gradient descent on the population risk in closed form, E f*² = 1,
step size 0.1, Σ ‖v‖² = size² at initialization, size 1e-20 and 0.1; lazy: 100(f - f_0) from size 1, 128 neurons. The
learned fraction of teacher neuron i is u_iᵀ(Σ ‖v_j‖² v̂_j v̂_jᵀ)u_i, minus the mean over irrelevant directions, divided
by a_i; T_i is the time at which it passes 1/2, D_i the time from 0.1 to 0.9; the plateau risk is the risk where log
risk changes least between T_i and T_{i+1}.
Verdict (95% intervals over seeds), small initialization: T_1 < T_2 < T_3 in at least 80% of the runs; the smaller of
(T_{i+1} - T_i)/max(D_i, D_{i+1}) at least 1; plateau risks within 10% of theory; T_max/T_min at least 2. From size 0.1
the same ratio is at most 0.5. Lazy: T_max/T_min at most 1.5.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from unlazy.lab.claims import Claim
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._baselines import median_with_interval
from unlazy.lab.experiments._passage import share_claim, slope_claim
from unlazy.measures.scaling_fit import Interval
from unlazy.theory.activations.functions import activation
from unlazy.theory.feature_learning.balanced_neurons import plateau_risks
from unlazy.training.descent.population import descend_population, random_start

D, K, STRENGTHS, STEP, WIDTH = 8, 3, np.array([4.0, 2.0, 1.0]), 0.1, 32
LAZINESS, LAZY_STEPS, LAZY_WIDTH = 100.0, 300, 128


def heads() -> Array:
    """The teacher's head weights a, scaled so that E f*² = 1."""
    return jnp.asarray(STRENGTHS) / jnp.sqrt(plateau_risks(STRENGTHS, activation("abs"))[0])


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures at, risk, shares, times, durations."""
    lazy = params["kind"] == "lazy"
    a = heads()
    start = random_start(key, LAZY_WIDTH if lazy else WIDTH, D, params["size"])
    path = descend_population(
        start, jnp.eye(D)[:K], a, activation("abs"), step_size=STEP, steps=LAZY_STEPS if lazy else params["steps"],
        every=1 if lazy else 4, laziness=LAZINESS if lazy else None,
    )  # fmt: skip
    along = jnp.diagonal(path.second, axis1=1, axis2=2)
    shares = (along[:, :K] - along[:, K:].mean(1, keepdims=True)) / a
    low, half, high = (_first(path.at, shares, level) for level in (0.1, 0.5, 0.9))
    return {"at": path.at, "risk": path.risk, "shares": shares, "times": half, "durations": high - low}


def _first(at: Any, shares: Any, level: float) -> Any:
    """First time at which each share reaches the level; infinite if never."""
    there = shares >= level
    return jnp.where(there.any(0), at[jnp.argmax(there, 0)], jnp.inf)


def separation(records: Records) -> np.ndarray:
    """Smallest (T_{i+1} - T_i)/max(D_i, D_{i+1}) of every run; -inf if a duration is infinite."""
    T, longest = records.measure("times"), records.measure("durations")
    with np.errstate(invalid="ignore"):
        ratio = np.diff(T) / np.maximum(longest[:, 1:], longest[:, :-1])
    return np.where(np.isfinite(ratio), ratio, -np.inf).min(1)


def measured_plateau_risk(records: Records, i: int) -> np.ndarray:
    """Risk where log risk changes least between T_i and T_{i+1}; infinite if the interval is too short."""
    found = []
    for r in records:
        at, risk, T = (np.asarray(r.measures[name]) for name in ("at", "risk", "times"))
        between = np.flatnonzero((at > T[i]) & (at < min(T[i + 1], at[-1])))
        if len(between) > 2:
            found.append(risk[between][np.argmin(np.abs(np.gradient(np.log(risk[between]))))])
    return np.array(found + [np.inf] * (len(records) - len(found)))


def _row(statement: str, values: np.ndarray, low: float, high: float) -> Claim:
    """Claim that the median over runs lies in [low, high]."""
    return slope_claim(statement, "L11", Interval(*median_with_interval(values)), low, high)


def claims(records: Records) -> list[Claim]:
    """Claims on [L11], from the records."""
    rows, rich, lazy = [], records.where(kind="rich"), records.where(kind="lazy")
    sizes = rich.values("size")
    if sizes:
        word, small = f"Initialization {sizes[0]:g}", rich.where(size=sizes[0])
        T = small.measure("times")
        right = int(np.sum((T[:, :-1] < T[:, 1:]).all(1) & np.isfinite(T[:, -1])))
        rows.append(
            share_claim(f"{word}: fraction of runs in order of strength", "L11", right, len(small), 0.8, np.inf)
        )
        rows.append(
            _row(f"{word}: time between two neurons / duration of the transition", separation(small), 1, np.inf)
        )
        for i, theory in enumerate(np.asarray(plateau_risks(heads(), activation("abs")))[1:]):
            name = f"{word}: plateau risk with {i + 1} of {K} neurons learned / theory"
            rows.append(_row(name, measured_plateau_risk(small, i) / theory, 0.9, 1.1))
        rows.append(_row(f"{word}: T_max/T_min", T.max(1) / T.min(1), 2, np.inf))
    if len(sizes) > 1:
        name = f"Initialization {sizes[-1]:g}: time between two neurons / duration of the transition"
        rows.append(_row(name, separation(rich.where(size=sizes[-1])), -np.inf, 0.5))
    if len(lazy):
        T = lazy.measure("times")
        rows.append(_row("Lazy: T_max/T_min", T.max(1) / T.min(1), -np.inf, 1.5))
    return rows


def figure(records: Records) -> Figure:
    """Plot of learned fraction against time."""
    import matplotlib.pyplot as plt

    rich, lazy = (records.where(kind=kind).values("size") for kind in ("rich", "lazy"))
    cases = [("rich", size) for size in dict.fromkeys([*rich[:1], *rich[-1:]])] + [("lazy", size) for size in lazy]
    fig, axes = plt.subplots(2, len(cases), figsize=(3 * len(cases), 4.6), layout="constrained", squeeze=False)
    for (kind, size), (top, low) in zip(cases, axes.T):
        run = records.where(kind=kind, size=size)[0].measures
        for i in range(K):
            top.plot(run["at"], np.asarray(run["shares"])[:, i], color=f"C{i}", label=f"a = {STRENGTHS[i]:g}")
        low.semilogy(run["at"], run["risk"], color="k")
        for level in np.asarray(plateau_risks(heads(), activation("abs")))[1:]:
            low.axhline(level, color="C7", lw=0.8, ls="--")
        top.set(title="lazy" if kind == "lazy" else f"initialization {size:g}", ylabel="learned fraction")
        low.set(xlabel="time", ylabel="risk (dashed: theory)")
    axes[0, 0].legend()
    return fig


experiment = Experiment(
    name="neuron_by_neuron",
    source="S3",
    tags=("L11",),
    question="Are orthogonal teacher neurons learned one by one, and does it depend on the scale of initialization?",
    prediction="From a small initialization one at a time, in order of strength, with plateaus at the minimal risk of "
    "the neurons learned so far; all at the same time in the lazy limit.",
    protocol="Σ_j ‖v_j‖ |v_j·x| learns three orthonormal neurons of strengths 4 : 2 : 1 in d = 8 by gradient descent "
    "on the population risk in closed form, from sizes 1e-20 and 0.1, and in the lazy limit.",
    verdict="95% intervals, small initialization: order of strength in 80% of the runs, transitions shorter than the "
    "time between them, plateau risks within 10% of theory, last time at least twice the first; from 0.1: ratio at "
    "most 0.5; lazy: last time at most 1.5 times the first.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"kind": ["rich"], "size": [1e-20, 0.1]}, {"kind": ["lazy"], "size": [1.0]}, steps=1000, seeds=24),
    full=config({"kind": ["rich"], "size": [1e-30, 1e-20, 1e-10, 1e-3, 0.1]}, {"kind": ["lazy"], "size": [1.0]},
                steps=1600, seeds=128),
    traced=("size",),
    lanes=8,
    caveats="The theorem bounds the risk of such a network below what kernels reach with as many samples. The order of "
    "strength is our interpretation of its phases and needs a very small initialization: at 1e-10 transitions overlap. "
    "Balanced neurons and |·|, as in the paper; population risk instead of samples, one shape. Strengths, sizes and "
    "bounds were chosen after pilot runs with other seeds.",
)  # fmt: skip
