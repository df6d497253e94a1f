"""The quadratic model of a two-layer network learns rank-1 targets better than the linear model [L7, L8].

Question: what does the second-order term of a wide network learn that its linear term does not, and with what step
size?
Prediction [L8]: on a quadratic function of one direction, the linear model behaves like F2 (about d²/2 samples), the
quadratic model with the ‖·‖_{2,4}^4 penalty like F1 (about d), and a wide network trained with signed dropout like its
quadratic model. With a_r = ±w^{-1/2}, fitting needs weight changes of size w^{-1/2} with the linear term and w^{-1/4}
with the quadratic term: the tangent kernel during training is smaller by a factor w^{-1/2}, so step sizes can be √w
times larger. For degree p the two-layer quadratic model needs d^{p-1} samples [L7]: for p = 4 the gain over its NTK is
not visible at d ≤ 10.
Protocol: softplus, 256 neurons in antisymmetric pairs, w_r ~ N(0, I/d). `linear`: ridge regression with the tangent
kernel of the first layer, best ridge on the test set. `quadratic`: value at initialization plus quadratic part, penalty
1e-4‖δ‖_{2,4}^4, Adam with learning rate 1e-2 and cosine decay, 1,500 steps. `signed`: the network itself, trained with
signed dropout and the same penalty; its even part is the prediction. Targets (β·x)²/√3 at d = 20, n = 160, and
He_4(β·x)/√24 at d = 8, n = 300. Step sizes: square activation, d = 10, n = 40, widths 64 … 2,048, learning rate 0.04
w^{-1/4}; step sizes are compared by the largest eigenvalue of the Gauss–Newton matrix, at initialization (linear) and
after training (quadratic); one slope per seed.
Verdict: degree 2: risks of the quadratic model and of the network with signed dropout at most half of the risk of the
linear model (geometric mean over seeds, ± 2 standard errors); exponents in the width: weight changes -1/2 ± 0.05 and
-1/4 ± 0.07, step-size gain 1/2 ± 0.15. Degree 4 (negative result): the risk of the quadratic model is at least 0.7
times that of the linear model.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, interval_claim, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._baselines import by_seed
from unlazy.lab.experiments.signed_dropout import geometric_mean, log_ratios
from unlazy.networks.quadratic import alternating, fourth_power_norm, second_order
from unlazy.tasks.polynomials import hermite_polynomial, quadratic
from unlazy.theory.activations.functions import activation
from unlazy.training.descent.signed_dropout import even_part, odd_share, train_moves
from unlazy.training.descent.stability import sharpness

NEURONS, RATE, STEPS, PENALTY = 256, 1e-2, 1500, 1e-4
RIDGES = (1e-6, 1e-4, 1e-2, 1e-1, 1.0)
NAMES = {"linear": "linear model (NTK)", "quadratic": "quadratic model", "signed": "network with signed dropout"}


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial at a point of the grid."""
    if params["part"] == "width":
        return _step_sizes(key, width=params["width"])
    return _risk(key, **{k: params[k] for k in ("degree", "method", "d", "n")}, width=params.get("width", NEURONS))


@partial(jax.jit, static_argnames=("degree", "method", "d", "n", "width"))
def _risk(key: Any, *, degree: int, method: str, d: int, n: int, width: int) -> dict[str, Any]:
    """Test risk of one method."""
    key_task, key_data, key_start, key_train, key_test = jax.random.split(key, 5)
    task: Any = quadratic(d, key=key_task) if degree == 2 else hermite_polynomial(d, degree, key=key_task)
    data = task.sample(key_data, n)
    model, nudge = _start(key_start, d, width, "softplus")
    if method == "linear":
        s, U, gram = _tangent(model.W0, data.X, "softplus")
        alphas = [dot(U, dot(U.T, data.y) / (jnp.maximum(s, 0) + r * jnp.mean(s))) for r in RIDGES]
        risks = [task.population_risk(lambda Z, v=v: dot(gram(Z, data.X), v), key_test).mean for v in alphas]
        return {"risk": jnp.min(jnp.stack(risks))}
    single = jax.tree.map(lambda part: part.astype(jnp.float32), (data.X, data.y, model.W0, model.a, nudge))
    X, y, W0, a, nudge = single
    model = second_order(W0, a, "softplus")

    def network(delta: Any, Z: Any) -> Any:
        return dot(activation("softplus")(dot(Z.astype(delta.dtype), (W0 + delta).T)), a)

    def quadratic_part(delta: Any, Z: Any) -> Any:
        return model.even(delta, Z.astype(delta.dtype))

    signed = method == "signed"
    apply = network if signed else quadratic_part
    found = train_moves(apply, nudge, Data(X, y), steps=STEPS, step_size=RATE, key=key_train if signed else None,
                        penalty=lambda delta: PENALTY * fourth_power_norm(delta))  # fmt: skip
    risk = task.population_risk(lambda Z: even_part(apply, found.delta, Z).astype(Z.dtype), key_test).mean
    return {"risk": risk, "odd_share": odd_share(network, found.delta, X), "training_loss": 2 * found.losses[-1]}


@partial(jax.jit, static_argnames="width")
def _step_sizes(key: Any, *, width: int) -> dict[str, Any]:
    """Weight changes (RMS over neurons) and step-size gain of the two models; square activation, d = 10, n = 40."""
    d, n = 10, 40
    key_task, key_data, key_start = jax.random.split(key, 3)
    data = quadratic(d, key=key_task).sample(key_data, n)
    model, nudge = _start(key_start, d, width, "square")
    s, U, _ = _tangent(model.W0, data.X, "square")
    linear_move = jnp.sqrt(jnp.sum(dot(U.T, data.y) ** 2 / jnp.maximum(s, 1e-10 * s[-1])) / width)
    found = train_moves(model.even, nudge, data, steps=STEPS, step_size=0.04 * width**-0.25, key=None,
                        penalty=lambda delta: PENALTY * fourth_power_norm(delta))  # fmt: skip
    after = sharpness(model.even, found.delta, data)
    return {"linear_move": linear_move, "quadratic_move": jnp.sqrt(jnp.mean(jnp.sum(found.delta**2, 1))),
            "gain": (2 * s[-1] / n) / after, "training_loss": 2 * found.losses[-1]}  # fmt: skip


def _start(key: Any, d: int, width: int, name: str) -> tuple[Any, Any]:
    """Second-order model at paired neurons with opposite heads, and small initial δ, since δ = 0 is a saddle."""
    key_w, key_move = jax.random.split(key)
    W0 = jnp.repeat(jax.random.normal(key_w, (width // 2, d)) / math.sqrt(d), 2, axis=0)
    nudge = 0.1 * width**-0.25 * jax.random.normal(key_move, W0.shape) / math.sqrt(d)
    return second_order(W0, alternating(width) / math.sqrt(width), name), nudge


def _tangent(W0: Any, X: Any, name: str) -> tuple[Any, Any, Any]:
    """Eigendecomposition of K_1 = mean_r σ'(w_r·x)σ'(w_r·z)⟨x,z⟩ on X, and the kernel function."""

    def slopes(Z: Any) -> Any:
        z = dot(Z, W0.T)
        return jax.jvp(activation(name), (z,), (jnp.ones_like(z),))[1]

    def gram(Z: Any, X: Any) -> Any:
        return (dot(slopes(Z), slopes(X).T) / W0.shape[0]) * dot(Z, X.T)

    return *jnp.linalg.eigh(gram(X, X)), gram


def claims(records: Records) -> list[Claim]:
    """Claims on [L7, L8], from the records."""
    rows = []
    risks = records.where(part="risk")
    two, four = (risks.where(degree=degree) for degree in (2, 4))
    for method in ("quadratic", "signed"):
        logs = log_ratios(two, method, "linear") if len(two) and len(two.values("n")) == 1 else np.zeros(0)
        if len(logs) > 1:
            value, low, high = geometric_mean(logs)
            rows.append(
                interval_claim(
                    f"degree 2, d = 20, n = 160: risk of the {NAMES[method]} / risk of the linear model",
                    "L8",
                    value,
                    low,
                    high,
                    high <= 0.5,
                    "≤ 0.5",
                    "± 2 standard errors",
                )
            )
    logs = log_ratios(four, "quadratic", "linear")
    if len(logs) > 1:
        value, low, high = geometric_mean(logs)
        rows.append(
            interval_claim(
                "degree 4, d = 8, n = 300 (negative result): risk of the quadratic model / risk of the linear model",
                "L7",
                value,
                low,
                high,
                low >= 0.7,
                "≥ 0.7: no gain at d ≤ 10",
                "± 2 standard errors",
            )
        )
    widths = records.where(part="width")
    for measure, name, low, high in (
        ("linear_move", "weight change of the linear model", -0.55, -0.45),
        ("quadratic_move", "weight change of the quadratic model", -0.32, -0.18),
        ("gain", "step-size gain of the quadratic model", 0.35, 0.65),
    ):
        if len(widths) and len(widths.values("width")) > 1:
            w, table = by_seed(widths, "width", measure)
            slopes = np.polyfit(np.log(w), np.log(table), 1)[
                0
            ]  # one slope per seed, since the widths share task and data
            rows.append(
                within(
                    f"{name}: exponent in the width",
                    "L8",
                    float(slopes.mean()),
                    low,
                    high,
                    error=standard_error(slopes),
                    predicted=f"{(low + high) / 2:g} ± {(high - low) / 2:g}",
                )
            )
    return rows  # fmt: skip


def figure(records: Records) -> Figure:
    """Plot of risk against width."""
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.5))
    for axis, degree, title in ((left, 2, "degree 2, d = 20, n = 160"), (middle, 4, "degree 4, d = 8, n = 300")):
        part = records.where(part="risk", degree=degree)
        for i, method in enumerate(NAMES):
            values = part.where(method=method).measure("risk") if len(part.where(method=method)) else np.zeros(0)
            if len(values):
                axis.semilogy([i] * len(values), values, "o", color=f"C{i}", alpha=0.4)
                axis.semilogy(i, np.median(values), "_", color=f"C{i}", ms=24, mew=2)
        axis.set_xticks(range(3), ["linear", "quadratic", "signed\ndropout"])
        axis.set(xlim=(-0.6, 2.6), ylim=(4e-3, 3), title=title, ylabel="risk")
    widths = records.where(part="width")
    if len(widths):
        curves = (
            ("linear_move", "weight change, linear"),
            ("quadratic_move", "weight change, quadratic"),
            ("gain", "step-size gain"),
        )
        for i, (measure, name) in enumerate(curves):
            w, values = widths.over("width", measure)
            right.loglog(w, values, "os^"[i] + "-", color=f"C{i}", label=name)
            power = (-0.5, -0.25, 0.5)[i]
            right.loglog(w, values[0] * (w / w[0]) ** power, "k:", lw=0.9)
        right.set_xticks(w, [str(v) for v in w])
        right.minorticks_off()
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    right.set(xlabel="width", title="dotted: powers -1/2, -1/4, 1/2")
    return fig


METHODS = ["linear", "quadratic", "signed"]
experiment = Experiment(
    name="quadratic_beats_linear",
    source="S3",
    tags=("L7", "L8"),
    question="What does the second-order term of a wide network learn that its linear term does not?",
    prediction="Rank-1 quadratics from about d samples instead of d²/2, with step sizes √w times larger; for degree 4 "
    "no gain visible at small d.",
    protocol="Second-order model of a softplus network and the network with signed dropout against the tangent "
    "kernel; weight changes and curvature against width.",
    verdict="Degree 2: risk at most half of the linear model's; exponents -1/2, -1/4 (weight changes), 1/2 (step "
    "size); degree 4: ratio at least 0.7.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"part": ["risk"], "degree": [2], "method": METHODS, "d": [20], "n": [160]},
                 {"part": ["width"], "width": [64, 256, 1024]}, seeds=6),
    full=config({"part": ["risk"], "degree": [2], "method": METHODS, "d": [20], "n": [160]},
                {"part": ["risk"], "degree": [4], "method": METHODS, "d": [8], "n": [300]},
                {"part": ["width"], "width": [64, 128, 256, 512, 1024, 2048]}, seeds=12),
    vectorized=False,
    caveats="The step-size gain is computed from the curvature, not measured with a tuned optimizer: training used "
    "Adam. The quadratic model shows a clear gain only for degree 2; degree 4 needs three layers (three_layers).",
)  # fmt: skip
