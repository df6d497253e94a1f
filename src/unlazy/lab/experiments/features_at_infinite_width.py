"""One gradient step is the first Euler step of the rich gradient flow; what do later steps add? [D4, M2]

Question. Is the single first-layer step of Algorithm 1 the beginning of feature learning at infinite width, and does
the rest of the flow improve the alignment?
Prediction. [D4, M2] From f = 0 the first Euler step moves every neuron along the gradient of Algorithm 1, for every
γ_0; so does the flow at small times. [P4] Later steps depend on the residual, and the share of the weight change in the
relevant directions grows; how much the features change depends on γ_0: Φ is nearly constant at γ_0 = 0.05 but not at
γ_0 = 2.
Protocol. x ~ N(0, I_d), f* = (x_1² - x_2²)/2 (so E f*² = 1 and no linear part), n = 300, d = 10, ReLU, no biases;
neurons of the limit after one step of size 1/4 of the inverse largest eigenvalue of the NTK, and along the flow until
the training loss is a tenth of its initial value. Share: ‖(W_t - W_0)Uᵀ‖²/‖W_t - W_0‖², r/d = 0.2 by chance. float64.
Verdict. Smallest cosine over neurons between the first step and the gradient of Algorithm 1 at least 1 - 1e-9; share of
the flow at 1/100 of the time of the step within 1% of that of the step; share at the end of the flow at γ_0 = 2 larger
than that of the step, with two standard errors over seeds; Φ changes by at least 20% at γ_0 = 2 and at most 2% at γ_0 =
0.05.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.kernels.networks.infinite_width import NTK
from unlazy.lab.claims import Claim, at_least, at_most, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.subspace import energy
from unlazy.products.metric_gram import cross
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.one_step.algorithm import first_gradient
from unlazy.training.options import RichOptions
from unlazy.training.rich.limit import rich_limit

LAZY, RICH, ENOUGH = 0.05, 2.0, 0.1


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures cosine, share, shares, end, times, losses, features, reached."""
    d, gamma = params["d"], params["richness"]
    X = jax.random.normal(jax.random.fold_in(key, 0), (params["n"], d))
    y = 0.5 * (X[:, 0] ** 2 - X[:, 1] ** 2)
    net, U = MLP(1, "relu", sigma_w=1.0), jnp.eye(d)[:2]
    rows = np.asarray(X, float)
    largest = float(np.linalg.eigvalsh(cross(NTK(net), rows, rows, np.ones(d), 1.0))[-1])
    options, ask = RichOptions(draws=params["draws"], runs=1), {"richness": gamma, "key": jax.random.fold_in(key, 1)}
    step: Any = rich_limit(net, X, y, times=[0, 1], step_size=0.25 * len(X) / largest, options=options, **ask)
    W0, moved = step.states.w[0, 0], step.states.w[1, 0] - step.states.w[0, 0]
    gradient = first_gradient(W0, step.states.z[0, 0, :, 0], X, y)
    times = np.r_[0.0, 0.01, np.geomspace(1, params["long"], 8)] * 0.25 / largest
    flow: Any = rich_limit(net, X, y, times=times, options=replace(options, tolerance=3e-3), **ask)
    losses = np.asarray(flow.losses.value)
    end = int(np.argmax(losses <= ENOUGH * losses[0])) if losses[-1] <= ENOUGH * losses[0] else -1
    shares = np.array([float(energy(w[0] - W0, U)) for w in flow.states.w[1:]])
    Phi = np.asarray(flow.features[0].value)
    return {
        "cosine": float(jnp.min(_cosines(moved, -gradient))), "share": float(energy(moved, U)), "shares": shares,
        "end": shares[end - 1 if end > 0 else -1], "times": times[1:] / times[-1], "losses": losses,
        "features": float(np.linalg.norm(Phi[end] - Phi[0]) / np.linalg.norm(Phi[0])), "reached": end > 0,
    }  # fmt: skip


def _cosines(A: Any, B: Any) -> Any:
    """Cosines of corresponding rows; 1 if a row is zero in either matrix."""
    sizes = jnp.linalg.norm(A, axis=1) * jnp.linalg.norm(B, axis=1)
    return jnp.where(sizes > 0, jnp.sum(A * B, 1) / jnp.where(sizes > 0, sizes, 1), 1.0)


def claims(records: Records) -> list[Claim]:
    """Claims on [D4, M2, P4, M1], from the records."""
    rich, lazy = records.where(richness=RICH), records.where(richness=LAZY)
    early = records.measure("shares")[:, 0] / records.measure("share")
    gain = rich.measure("end") / rich.measure("share")
    far, near = rich.measure("features"), lazy.measure("features")
    return [
        at_least("smallest cosine, over neurons, of the first Euler step with the gradient of Algorithm 1", "D4",
                 float(records.measure("cosine").min()), 1 - 1e-9, predicted="1, allowed 1e-9 less"),
        within("share of the change in the relevant directions: flow at small times / one step", "M2",
               float(early.mean()), 0.99, 1.01, error=standard_error(early), predicted="1 ± 1%"),
        at_least("share of runs that reach the stopping loss", "M2", float(rich.measure("reached").mean()), 1.0,
                 predicted="always"),
        at_least(f"γ_0 = {RICH:g}: share in the relevant directions, end of flow / one step", "P4",
                 float(gain.mean()), 1.0, error=standard_error(gain), predicted="> 1", basis="theory"),
        at_least(f"γ_0 = {RICH:g}: relative change of Φ", "M1", float(far.mean()), 0.2, error=standard_error(far)),
        at_most(f"γ_0 = {LAZY:g}: relative change of Φ", "M1", float(near.mean()), 0.02, error=standard_error(near)),
    ]  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of share in the relevant directions against time."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.1), layout="constrained")
    for gamma in records.values("richness"):
        chosen = records.where(richness=gamma)
        times = chosen.measure("times")[0]
        line = left.semilogx(times, np.median(chosen.measure("shares"), 0), "o-", label=f"flow, γ₀ = {gamma:g}")[0]
        left.axhline(np.median(chosen.measure("share")), color=line.get_color(), ls="--", lw=1)
        losses = np.median(chosen.measure("losses"), 0)
        right.loglog(times, losses[1:], "o-", color=line.get_color(), label=f"γ₀ = {gamma:g}")
    left.set(xlabel="time", ylabel="share in the relevant directions", title="weight change; dashed: one step")
    right.set(xlabel="time", ylabel="training loss", title="training loss")
    left.legend()
    right.legend()
    return fig


experiment = Experiment(
    name="features_at_infinite_width",
    source="S2",
    tags=("D4", "M2", "P4", "M1"),
    question="Is the single step of Algorithm 1 the first Euler step of the rich flow, and what do later steps add?",
    prediction="Yes, for every γ_0; later steps increase the share of the change in the relevant directions [D4, M2, "
    "P4].",
    protocol="Neurons of the limit after one step and along the flow, f* = (x_1² - x_2²)/2; γ_0 = 0.05 and 2.",
    verdict="Cosine 1; equal shares at small times (1%); larger share at the end; Φ changes by at least 20% when rich, "
    "by at most 2% when lazy.",
    trial=trial,
    claims=claims,
    figure=figure,
    vectorized=False,
    lanes=1,
    quick=config({"richness": [LAZY, RICH]}, seeds=3, n=300, d=10, draws=512, long=60.0),
    full=config({"richness": [LAZY, 0.5, RICH], "d": [10, 20]}, seeds=8, n=1000, draws=4096, long=200.0),
    caveats="Algorithm 1 discards the initial weights after its step and refits the head; the flow does neither.",
)
