"""The first two gradients: components T_j along relevant and irrelevant patterns, and their ratio [P4].

Question: how large are the components of the gradient along relevant patterns, and along irrelevant ones, at steps 1
and 2?
Prediction [P4]: the gradient of neuron i is -a_i Σ_j M_j T_j with T_j ≈ (γ/σ̃) E σ' for j in A at both steps; outside
A, T_j is small at step 1 and much smaller at step 2, where the weights are small and already aligned with the feature.
Protocol: parity of 5 of 100 patterns. Exact part: the 2^5 relevant patterns are enumerated and the background is
Gaussian by the central limit theorem, without sampling. Sampled part: 20,000 and 1,000 fresh points per step. Gradual
part: the same without forgetting (small heads, large steps, no weight decay). Control: ridge regression on frozen
features after step 1, after step 2, and after both with exchanged norms, to separate scale from direction.
Verdict: the median signal-to-noise ratio grows 100-fold; median T_A/(γ/σ̃) in [0.4, 0.55]; with 20,000 points the
smallest |cosine| increases and is ≥ 0.99 after step 2; gradual cosines increase; the control shows whether scale or
direction matters.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot, precision
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._patterns import DICTIONARY, RELEVANT, STAGES
from unlazy.measures.neurons import feature_cosines
from unlazy.networks.mlp import Parameters
from unlazy.tasks.patterns import Patterns, pattern_task
from unlazy.theory.feature_learning import patterns
from unlazy.training.one_step.readout import relative_ridges, ridge_path
from unlazy.training.one_step.two_steps import pattern_network, smoothed_network, step_on_weights, weight_gradient

STARTS = dict(sigma_w=0.2, sigma_b=0.3, sigma_a=4.0)
RATES, SPREAD = (0.005, 20.0), 0.3
GRADUAL = dict(sigma_w=0.2, sigma_b=0.3, sigma_a=0.01)
GRADUAL_RATES = (1.5e3, 1.5e4)
HEAD_POINTS = 4000
"""Training points for the heads of the control; the same number for validation and for testing."""
CONTROLS = ("step 1", "step 2", "step 1, norms of step 2", "step 2, norms of step 1")


def exact(width: int, key: PRNGKeyArray) -> Measures:
    """Signal-to-noise ratio and T_A/(γ/σ̃) of every neuron at both steps, in float64 and without sampling."""
    task = pattern_task(DICTIONARY, DICTIONARY, RELEVANT)
    table = patterns.relevant_patterns(task.k, task.positive, task.uniform_part)
    keys = jax.random.split(key, 3)
    # the coordinates of Gaussian weights in an orthonormal dictionary are Gaussian for every d
    q = STARTS["sigma_w"] * jax.random.normal(keys[0], (width, DICTIONARY))
    b = STARTS["sigma_b"] * jax.random.normal(keys[1], (width,))
    a = STARTS["sigma_a"] * jax.random.normal(keys[2], (width,))
    ratios, signals = [], []
    for rate in RATES:
        T = patterns.gradient_components(q, b, table, background=task.background, scale=task.scale, spread=SPREAD)
        ratios.append(patterns.signal_to_noise(T, task.k))
        signals.append(jnp.mean(T[:, : task.k], 1) / (task.gamma / task.scale))
        q = rate * a[:, None] * T
    return {"ratio": jnp.stack(ratios), "signal": jnp.stack(signals)}


def sampled(params: Params, key: PRNGKeyArray) -> Measures:
    """Cosines at initialization and after steps 1 and 2, signal-to-noise ratio of the gradients, and the control."""
    d, n, forget = params["d"], params["samples"], params["regime"] == "forgetting"
    starts, rates = (STARTS, RATES) if forget else (GRADUAL, GRADUAL_RATES)
    key_task, key_start, *keys = jax.random.split(key, 5)
    task = pattern_task(d, DICTIONARY, RELEVANT, key=key_task)
    network = pattern_network(d, params["width"], **starts)
    theta = network.init(key_start, "antisymmetric")
    a, cosines, ratios, layers, margin = theta[1].weight[:, 0], [_cosines(theta, task)], [], [], 0.0
    for rate, key_points in zip(rates, keys):
        gradient, margin = _gradient(smoothed_network(network, SPREAD), theta, _points(task, key_points, n))
        theta = step_on_weights(theta, gradient, rate, forget)
        ratios.append(patterns.signal_to_noise(-dot(task.M.T, gradient).T / a[:, None], RELEVANT))
        cosines.append(_cosines(theta, task))
        layers.append(theta[0])
    found: dict[str, ArrayLike] = {"cosines": np.stack(cosines), "ratio": np.stack(ratios), "margin": margin}
    if params["control"]:
        found["controls"] = control(layers, _points(task, keys[2], n))
    return found


def control(layers: list, data: Data) -> np.ndarray:
    """Test accuracy of ridge heads on frozen first layers of steps 1 and 2, with original and with exchanged norms."""
    first, second = (np.asarray(layer.weight, float) for layer in layers)
    sizes = [np.linalg.norm(W, axis=0) for W in (first, second)]
    X, y, b = (np.asarray(part, float) for part in (data.X, data.y, layers[0].bias))
    weights = (first, second, first * (sizes[1] / sizes[0]), second * (sizes[0] / sizes[1]))
    return np.array([_head_accuracy(np.clip(dot(X[: 3 * HEAD_POINTS], W) + b, 0, 1), y) for W in weights])


def _head_accuracy(Phi: np.ndarray, y: np.ndarray) -> float:
    """Test accuracy of a ridge head, with the ridge selected by validation."""
    train, val, test = (slice(i * HEAD_POINTS, (i + 1) * HEAD_POINTS) for i in range(3))
    Phi = np.concatenate([Phi, np.ones((len(Phi), 1))], 1)
    path = ridge_path(Phi[train], y[train], np.asarray(relative_ridges()))
    errors = np.mean((dot(Phi[val], np.asarray(path.readouts).T) - y[val, None]) ** 2, 0)
    head = np.asarray(path.readouts)[int(np.argmin(errors))]
    return float(np.mean(np.sign(dot(Phi[test], head)) == y[test]))


def _cosines(theta: Parameters, task: Patterns) -> np.ndarray:
    """Cosines of the neurons with the feature."""
    return np.asarray(feature_cosines(theta[0].weight.T, task.feature))


_exact = jax.jit(exact, static_argnums=0)
_gradient = jax.jit(weight_gradient)
_points = jax.jit(lambda task, key, n: task.sample(key, n), static_argnums=2)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial at a point of the grid."""
    if params["part"] == "exact":
        return _exact(params["width"], key)
    with precision("float32"):
        return sampled(params, key)


def claims(records: Records) -> list[Claim]:
    """Claims on [P4], from the records."""
    rows = []
    found = records.where(part="exact")
    if len(found):
        ratio = np.median(found.measure("ratio"), axis=2)  # seeds × steps
        signal = np.median(found.measure("signal"), axis=2)
        rows += [
            at_least("exact: growth of the median signal-to-noise ratio from step 1 to step 2, worst seed", "P4",
                     float((ratio[:, 1] / ratio[:, 0]).min()), 100.0),
            within("exact: median T_A/(γ/σ̃), smallest over seeds and steps", "P4", float(signal.min()), 0.4, 0.55),
            within("exact: median T_A/(γ/σ̃), largest over seeds and steps", "P4", float(signal.max()), 0.4, 0.55),
        ]  # fmt: skip
    many = _forgetting(records)
    if len(many):
        smallest = np.abs(many.measure("cosines")).min(2)
        n = many[0].params["samples"]
        rows += [
            at_least(f"{n:,} points: increase of the smallest |cosine| from step 1 to 2, worst seed", "P4",
                     float((smallest[:, 2] - smallest[:, 1]).min()), 0.0),
            at_least(f"{n:,} points: smallest |cosine| after step 2, worst seed", "P4",
                     float(smallest[:, 2].min()), 0.99),
            at_most(f"{n:,} points: largest margin at step 2 (the lemma requires < 1)", "P4",
                    float(many.measure("margin").max()), 1.0, basis="theory"),
        ]  # fmt: skip
        for name, value, good in zip(CONTROLS, many.measure("controls").T, (False, True, True, False)):
            text = f"control: accuracy of ridge regression on frozen features, {name}"
            worst = float(value.min() if good else value.max())
            rows.append(at_least(text, "P4", worst, 0.99) if good else at_most(text, "P4", worst, 0.87))
    gradual = records.where(regime="gradual")
    if len(gradual):
        middle = np.median(np.abs(gradual.measure("cosines")), axis=(0, 2))
        rows.append(within("gradual: median |cosine| after step 1", "P4", float(middle[1]), 0.1, 0.4))
        rows.append(within("gradual: median |cosine| after step 2", "P4", float(middle[2]), 0.75, 0.95))
    return rows


def _forgetting(records: Records) -> Records:
    """Runs with forgetting and the largest number of points."""
    mine = records.where(part="sampled", regime="forgetting")
    return mine.where(samples=mine.values("samples")[-1]) if len(mine) else mine


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(10.2, 3.5), layout="constrained", width_ratios=(1, 1.2, 0.9))
    left, middle, right = axes
    series = [("exact", records.where(part="exact"))]
    chosen = records.where(part="sampled", regime="forgetting")
    series += [(f"{n:,} points", chosen.where(samples=n)) for n in reversed(chosen.values("samples"))]
    series.append(("20,000 points, gradual", records.where(regime="gradual")))
    for marker, (label, mine) in zip("osD^", series):
        if len(mine):
            left.semilogy([1, 2], np.median(mine.measure("ratio"), axis=(0, 2)), marker + "-", label=label)
    left.set(xlabel="gradient step", xticks=[1, 2], xlim=(0.8, 2.2), title="signal-to-noise ratio",
             ylabel=r"median of mean $T_A$ / rms $T_{\notin A}$")  # fmt: skip
    both = ((-0.19, "forgetting", _forgetting(records), "C1"),
            (0.19, "gradual (no weight decay)", records.where(regime="gradual"), "C3"))  # fmt: skip
    for shift, label, mine, color in both:
        if len(mine):
            cosines = np.abs(mine.measure("cosines")).transpose(1, 0, 2).reshape(3, -1)
            drawn = middle.violinplot(list(cosines), np.arange(3) + shift, widths=0.34, showmedians=True, points=200)
            for body in drawn["bodies"]:
                body.set(facecolor=color, alpha=0.45)
            for part in ("cmedians", "cmins", "cmaxes", "cbars"):
                drawn[part].set(color=color, lw=1)
            middle.plot([], [], color=color, lw=5, alpha=0.5, label=label)
    middle.set_xticks(range(3), STAGES[:3])
    middle.set(ylabel=r"$|\cos|$ with $\Sigma_{j\in A}M_j$", ylim=(-0.03, 1.05),
               title="20,000 points: direction of neurons")  # fmt: skip
    for axis in (left, middle):
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=7.5)
    many = _forgetting(records)
    if len(many):
        values = many.measure("controls")
        right.barh(range(4), np.median(values, 0), color=["C1", "C1", "C2", "C2"], alpha=0.8)
        for i, column in enumerate(values.T):
            right.plot(column, [i] * len(column), "k.", ms=3)
    right.axvline(27 / 32, color="0.35", lw=0.9, ls="--")
    right.text(27 / 32 - 0.01, 3.9, "27/32", fontsize=7.5, ha="right")
    right.set_yticks(range(4), [name.replace(", ", ",\n") for name in CONTROLS])
    right.invert_yaxis()
    right.set(xlim=(0.5, 1.02), ylim=(4.1, -0.5), xlabel="test accuracy of a ridge head",
              title="control: scale, not direction")  # fmt: skip
    return fig


def sampled_grids(d: int) -> tuple[dict[str, list], ...]:
    """1,000 and 20,000 points with forgetting (the latter with control), and 20,000 points without, in R^100."""
    rows = (("forgetting", 1000, False, d), ("forgetting", 20_000, True, d), ("gradual", 20_000, False, 100))
    return tuple(
        {"part": ["sampled"], "regime": [r], "samples": [n], "control": [c], "d": [dim], "width": [600]}
        for r, n, c, dim in rows
    )


experiment = Experiment(
    name="two_steps",
    source="S4",
    tags=("P4",),
    question="How large are the first two gradients along relevant patterns, and along irrelevant ones?",
    prediction="T_j ≈ (γ/σ̃) E σ' for j in A at both steps; outside A much smaller, and even smaller at step 2 [P4].",
    protocol="Exact T_j by enumeration over A; 20,000 and 1,000 sampled points; a gradual variant; exchanged norms.",
    verdict="Ratio grows ≥ 100×; T_A/(γ/σ̃) in [0.4, 0.55]; with 20,000 points the smallest |cosine| rises to ≥ 0.99.",
    trial=trial,
    claims=claims,
    figure=figure,
    version=2,
    quick=config({"part": ["exact"], "width": [300]}, *sampled_grids(d=100), seeds=3),
    full=config({"part": ["exact"], "width": [1000]}, *sampled_grids(d=500), seeds=10),
    vectorized=False,
    caveats=(
        "Ridge regression on frozen step-1 features is no better than the majority vote, and on step-2 features it "
        "learns parity; but so it does with step-1 directions at step-2 norms: this improvement comes from scale. The "
        "improvement in direction by step 2 is shown by the cosine."
    ),
)
