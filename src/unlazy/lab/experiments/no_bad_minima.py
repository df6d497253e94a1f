"""Gradient descent finds global minima of non-convex matrix problems: sensing, completion, phase retrieval [L10].

Question: from a small random initialization, what fraction of runs reaches the global minimum, as a function of the
number of measurements, and how long does gradient descent stay near the saddle at zero?
Prediction [L10]: with enough measurements f(U) = 1/(4n) Σ_i (⟨A_i, UUᵀ⟩ - y_i)² has no bad local minima and only strict
saddles, so every run finds UUᵀ = M*. At zero the Hessian is -D, D = 1/n Σ_i y_i sym(A_i): an initialization smaller by
a factor ε takes log(1/ε)/log(1 + η λ_max(D)) more steps.
Protocol: d = 12; sensing with Gaussian A_i and rank 2, completion of a Gaussian rank-1 matrix from random entries,
real phase retrieval A_i = a_i a_iᵀ, rank 1; n from 3/4 to 6 (phase retrieval: 12) times d·rank; initializations of size
1e-3 and 1e-5 in the same direction; 600 steps; a run has reached the global minimum if ‖UUᵀ - M*‖ ≤ 1e-3 ‖M*‖, and
another critical point if not and the gradient norm is below 1e-6.
Verdict: at the largest n at least 98% of the runs reach the global minimum and none another critical point, at the
smallest n at most 10% reach it; the mean ratio of measured to predicted escape time is within 5% of 1.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot, einsum
from unlazy.lab.claims import Claim, at_least, at_most, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config

LinearMap = Callable[[Array], Array]
RANK = {"sensing": 2, "completion": 1, "phase retrieval": 1}
MOST = {"sensing": 6, "completion": 6, "phase retrieval": 12}
"""Maximum number of measurements divided by d·rank: this many are drawn, and the first n are used."""
STEP, STEPS = 0.2, 600
SMALL, SMALLER = 1e-3, 1e-5
FOUND, FLAT = 1e-3, 1e-6


def measurements(kind: str, key: PRNGKeyArray, d: int, n: int | Array, rows: int) -> tuple[LinearMap, LinearMap]:
    """M ↦ (⟨A_i, M⟩)_i and its adjoint v ↦ 1/n Σ_i v_i sym(A_i), for the first n of `rows` measurements."""
    used = jnp.arange(rows) < n
    if kind == "sensing":
        A = jax.random.normal(key, (rows, d, d)) * used[:, None, None]
        A = (A + A.transpose(0, 2, 1)) / 2
        return lambda M: einsum("ijk,jk->i", A, M), lambda v: einsum("ijk,i->jk", A, v) / n
    if kind == "completion":
        order = jnp.argsort(jax.random.uniform(key, (d * (d + 1) // 2,)))[:rows]
        i, j = (jnp.asarray(index)[order] for index in np.triu_indices(d))
        entry_scale = used[: len(order)] * d / math.sqrt(2)  # scaled so that 1/n Σ ⟨A_i, M⟩² ≈ ‖M‖²

        def adjoint_of_entries(v: Any) -> Any:
            M = jnp.zeros((d, d)).at[i, j].add(v * entry_scale / 2)
            return (M + M.T) / n

        return lambda M: entry_scale * (M[i, j] + M[j, i]) / 2, adjoint_of_entries
    a = jax.random.normal(key, (rows, d)) * used[:, None]
    return lambda M: einsum("ij,jk,ik->i", a, M, a), lambda v: dot(a.T * v, a) / n


def descend(gradient: Callable, start: Array, size: float) -> tuple[Array, Array]:
    """U after STEPS steps, and the number of steps until its norm reaches half of `size`."""

    def step(state: tuple, t: Any) -> tuple[tuple, None]:
        U, escaped = state
        U = U - STEP * gradient(U)
        away = jnp.sqrt(jnp.sum(U**2)) >= size / 2
        return (U, jnp.where(away & jnp.isinf(escaped), t + 1.0, escaped)), None

    return lax.scan(step, (start, jnp.asarray(jnp.inf)), jnp.arange(STEPS))[0]


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures off, flat, escape."""
    kind, d = params["kind"], params["d"]
    one, two, three = jax.random.split(key, 3)
    r = RANK[kind]
    truth = jax.random.normal(one, (d, r))
    truth = truth * math.sqrt(r) / jnp.sqrt(jnp.sum(truth**2))
    forward, adjoint = measurements(kind, two, d, params["n"], d * r * MOST[kind])
    y, M = forward(dot(truth, truth.T)), dot(truth, truth.T)
    if kind == "phase retrieval":  # since E (a·u)⁴ = 3, its curvature is three times that of sensing
        y = y / math.sqrt(3)
        seen, returned = forward, adjoint
        forward, adjoint = (lambda M: seen(M) / math.sqrt(3)), (lambda v: returned(v) / math.sqrt(3))

    def gradient(U: Any) -> Any:
        return dot(adjoint(forward(dot(U, U.T)) - y), U)

    start = jax.random.normal(three, (d, r))
    ends = [descend(gradient, size * start, math.sqrt(r)) for size in (SMALL, SMALLER)]
    U = ends[0][0]
    rate = jnp.log1p(STEP * jnp.linalg.eigvalsh(adjoint(y))[-1])
    return {
        "off": jnp.sqrt(jnp.sum((dot(U, U.T) - M) ** 2) / jnp.sum(M**2)),
        "flat": jnp.sqrt(jnp.sum(gradient(U) ** 2)),
        "escape": (ends[1][1] - ends[0][1]) * rate / math.log(SMALL / SMALLER),
    }


def shares(records: Records) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """n, the fractions of runs at the global minimum and at other critical points, and the number of runs."""
    n = np.array(records.values("n"))
    parts = [list(records.where(n=int(v))) for v in n]
    off = [np.array([float(p.measures["off"]) for p in part]) for part in parts]
    flat = [np.array([float(p.measures["flat"]) for p in part]) for part in parts]
    found = np.array([np.mean(o <= FOUND) for o in off])
    elsewhere = np.array([np.mean((o > FOUND) & (f < FLAT)) for o, f in zip(off, flat)])
    return n, found, elsewhere, np.array([len(part) for part in parts])


def claims(records: Records) -> list[Claim]:
    """Claims on [L10], from the records."""
    rows = []
    for kind in records.values("kind"):
        part = records.where(kind=kind)
        n, found, elsewhere, _ = shares(part)
        if len(n) < 2:
            continue
        word = kind.capitalize()
        rows += [
            at_least(f"{word}, n = {n[-1]}: fraction of runs at the global minimum", "L10", found[-1], 0.98),
            at_most(f"{word}, n = {n[-1]}: fraction of runs at other critical points", "L10", elsewhere[-1], 0.0),
            at_most(
                f"{word}, n = {n[0]}, too few measurements: fraction of runs at the global minimum",
                "L10",
                found[0],
                0.1,
            ),
        ]
        ratio = np.array([float(p.measures["escape"]) for p in part.where(n=int(n[-1]))])
        rows.append(within(
            f"{word}: escape time / (log(1/ε)/log(1 + ηλ_max))", "L10", float(ratio.mean()), 0.95, 1.05,
            error=standard_error(ratio) if len(ratio) > 1 else 0.0, predicted="1 ± 5%",
        ))  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of fraction at the global minimum against measurements per unknown, n/(d·rank)."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.2), layout="constrained")
    for i, kind in enumerate(records.values("kind")):
        part = records.where(kind=kind)
        n, found, _, runs = shares(part)
        d = part.values("d")[0]
        error = np.sqrt(found * (1 - found) / runs)
        left.errorbar(n / (d * RANK[kind]), found, error, fmt="o-", color=f"C{i}", capsize=2, label=kind)
        ratio = [float(p.measures["escape"]) for p in part.where(n=int(n[-1]))]
        right.hist(ratio, bins=np.linspace(0.8, 1.2, 41), histtype="step", color=f"C{i}", label=kind)
    left.set(xlabel="measurements per unknown, n/(d·rank)", ylabel="fraction at the global minimum", ylim=(-0.03, 1.05))
    right.axvline(1, color="k", lw=0.8)
    right.set(xlabel="escape time / linear prediction", ylabel="runs")
    for axis in (left, right):
        axis.legend()
    return fig


def _grid(seeds: int, ratios: tuple[float, ...], d: int = 12) -> Any:
    """Configuration with n = ratio · d · rank for each problem."""
    grids: list[dict[str, list]] = []
    for kind, rank in RANK.items():
        grids.append({"kind": [kind], "n": [round(d * rank * v) for v in ratios if v <= MOST[kind]]})
    return config(*grids, d=d, seeds=seeds)


experiment = Experiment(
    name="no_bad_minima",
    source="S3",
    tags=("L10",),
    question="Does gradient descent from a small random initialization find global minima of non-convex matrix "
    "problems?",
    prediction="With enough measurements always; it escapes from the saddle at zero after log(1/ε)/log(1 + ηλ_max) "
    "steps.",
    protocol="Matrix sensing (rank 2), completion and real phase retrieval (rank 1) at d = 12, n from 3/4 to 12 times "
    "d·rank, initializations of size 1e-3 and 1e-5, 600 steps.",
    verdict="At the largest n 98% of the runs at the global minimum and none at other critical points, at the smallest "
    "at most 10%; escape times within 5% of the linear prediction on average.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=_grid(24, (0.75, 2.0, 6.0, 12.0)),
    full=_grid(256, (0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)),
    traced=("n",),
    lanes=8,
    caveats="The theorems require n of order d·rank times constants and logarithms; for completion, also incoherent "
    "matrices and a penalty that is omitted here. They exclude bad minima, not slow runs. One d, noiseless "
    "measurements, constant step size. Below d·rank measurements the loss can vanish away from M*: such a run is at a "
    "global minimum of the loss but does not count as one.",
)  # fmt: skip
