"""Do error bars of the evidence cover, for networks trained with decay and for networks that interpolate? [I1]

Question. `unlazy.uncertainty` takes prior precision and noise from the evidence of a trained network. Do its 90%
intervals cover new targets, is its noise the true one, and what becomes of a network trained without decay?
Prediction. [I1] At the minimum of a loss with decay the network is the posterior mean of the linear model in its
tangents, up to curvature: intervals cover as stated, and the evidence finds the variance of the noise if the decay is
the right one. A network that interpolates leaves no residual: the evidence takes the noise for zero and explains the
targets by a large prior, far from the truth, until scales are fitted to held-out rows. The posterior variance grows
where no data restrict the tangents.
Protocol. 200 rows x ~ N(0, I), in 2 or 5 dimensions; y = target + 0.3·N(0, 1): a narrow network, or sin(2x_1) plus a
product of two inputs, variance 1. tanh networks with two hidden layers of width 32 minimize
½ mean((f - y)²) + λ/2 ‖θ‖² by 10,000 full-batch steps of Adam that fall from 3e-3 to 0. 90% intervals on 1,000 new
rows, with hyperparameters by the evidence, and after `held_out` calibration on 200 others. Right decay: of least error
on those 200, mean over seeds. Far: the same new inputs times 3. A network interpolates if its mean squared training
error is below 1% of the noise. Means over seeds, with two standard errors; each seed has its own data and network.
Verdict. With decay, over settings: the gradient at the end is at most 1% of that of the errors at the start; least and
largest mean coverage within 0.85 and 0.95, by the evidence and after calibration. At the right decay: noise variance
within a factor of 1.3 of the truth (mean over seeds of the logarithm), coverage of the outer half of the new rows, by
their norm, within 0.85 and 0.95. Interpolating: coverage by the evidence is off 0.9 by more than 0.05, within 0.85 and
0.95 after calibration. Root mean square of std far from the data / at new rows is above 1 in every setting. With decay,
the rank correlation of std and |f - target| is positive in every setting.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.stats import spearmanr

from unlazy.diagnostics.uncertainty import uncertainty
from unlazy.lab.claims import Claim, at_least, at_most, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments.influence_is_right import NOISE, Weights, initial, mlp, sample
from unlazy.solvers.tangent.options import TangentOptions

ROWS, HELD_OUT, NEW = 200, 200, 1000
STEP_SIZE = 3e-3
LEVEL, LOW, HIGH = 0.9, 0.85, 0.95
FACTOR = 1.3
AT_MINIMUM = 0.01
"""Largest relative gradient of a network that counts as trained to the minimum."""
INTERPOLATES = 0.01
"""A network whose mean squared training error is below this share of the noise interpolates."""


@jax.jit
def train(
    start: Weights, X: Float[Array, "n d"], y: Float[Array, " n"], decay: Float[Array, ""], steps: Int[Array, ""]
) -> tuple[Weights, Float[Array, ""]]:
    """The trained network, and the norm of the gradient relative to that of the loss without decay at the start."""
    optimizer = optax.scale_by_adam()

    def objective(theta: Weights, weight: Float[Array, ""] | float) -> Float[Array, ""]:
        return (jnp.mean((mlp(theta, X) - y) ** 2) + weight * sum(jnp.sum(v**2) for v in theta.values())) / 2

    def norm(theta: Weights, weight: Float[Array, ""] | float) -> Float[Array, ""]:
        return jnp.sqrt(sum(jnp.sum(g**2) for g in jax.grad(objective)(theta, weight).values()))

    def step(t: Array, state: tuple) -> tuple:
        theta, moments = state
        change, moments = optimizer.update(jax.grad(objective)(theta, decay), moments)
        rate = STEP_SIZE * (1 + jnp.cos(jnp.pi * t / steps)) / 2
        return jax.tree.map(lambda v, c: v - rate * c, theta, change), moments

    theta = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))[0]
    return theta, norm(theta, decay) / norm(start, 0.0)


def covered(prediction, y: Float[np.ndarray, " m"]) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Whether each target lies in its interval."""
    low, high = prediction.interval(LEVEL)
    return (low <= y) & (y <= high)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures coverage, outer, noise_ratio, far, order, their values after calibration, and errors."""
    key_data, key_start = jax.random.split(key)
    inputs = params["inputs"]
    X, y, f = (np.asarray(v) for v in sample(key_data, params["target"], ROWS + HELD_OUT + NEW, inputs))
    theta, gradient = train(initial(key_start, inputs), X[:ROWS], y[:ROWS], params["decay"], params["steps"])
    (X, X_held, Z), (y, y_held, y_new) = (np.split(v, (ROWS, ROWS + HELD_OUT)) for v in (X, y))
    posterior = uncertainty((mlp, theta), X, y, options=TangentOptions(dtype="float64"))
    found, far = posterior.predict(Z), posterior.predict(3 * Z)
    error = np.abs(found.mean - f[-NEW:])
    hit, size = covered(found, y_new), np.linalg.norm(Z, axis=1)
    noise, gap = posterior.noise_variance, posterior.gap
    held_error = np.mean((posterior.predict(X_held).mean - y_held) ** 2)
    posterior.calibrate(X_held, y_held)
    return {
        "coverage": hit.mean(), "outer": hit[size > np.median(size)].mean(), "noise_ratio": noise / NOISE**2,
        "std": np.sqrt(np.mean(found.std**2)), "far": np.sqrt(np.mean(far.std**2) / np.mean(found.std**2)),
        "order": spearmanr(found.std, error).statistic, "gap": gap, "gradient": gradient,
        "coverage_calibrated": covered(posterior.predict(Z), y_new).mean(),
        "noise_ratio_calibrated": posterior.noise_variance / NOISE**2,
        "train_error": np.mean((posterior.predict(X).mean - y) ** 2), "held_error": held_error,
        "error": np.mean(error**2),
    }  # fmt: skip


def settings(records: Records) -> list[Records]:
    """Records by setting: equal parameters, all seeds."""
    return [records.where(**p) for p in {tuple(sorted(r.params.items())): r.params for r in records}.values()]


def right_decay(records: Records) -> list[Records]:
    """For every target and number of inputs, the setting of least mean error on the held-out rows."""
    kept: dict[tuple, list[Records]] = {}
    for part in settings(records):
        kept.setdefault((part[0].params["target"], part[0].params["inputs"]), []).append(part)
    return [min(parts, key=lambda p: float(p.measure("held_error").mean())) for parts in kept.values()]


def _extreme(parts: list[Records], name: str, largest: bool) -> tuple[float, float]:
    """Least or largest mean of a measure over settings, and its standard error."""
    values = [part.measure(name) for part in parts]
    chosen = (max if largest else min)(values, key=lambda v: float(v.mean()))
    return float(chosen.mean()), standard_error(chosen)


def _coverage(what: str, parts: list[Records], name: str) -> list[Claim]:
    """Claims on the least and the largest mean coverage over settings."""
    low, low_error = _extreme(parts, name, False)
    high, high_error = _extreme(parts, name, True)
    return [
        at_least(f"{what}: least coverage of 90% intervals", "I1", low, LOW, error=low_error),
        at_most(f"{what}: largest coverage of 90% intervals", "I1", high, HIGH, error=high_error),
    ]


def claims(records: Records) -> list[Claim]:
    """Claims on [I1], from the records."""
    decayed = Records(r for r in records if r.params["decay"] > 0)
    bare = records.where(decay=0.0)
    interpolating = Records(r for r in bare if r.measures["train_error"] < INTERPOLATES * NOISE**2)
    parts, right = settings(decayed), right_decay(decayed)
    logs = [np.log(part.measure("noise_ratio")) for part in right]
    noise = max(logs, key=lambda v: abs(float(v.mean())))
    return [
        at_most("decay: gradient at the end / gradient of the errors at the start, largest", "I1",
                float(decayed.measure("gradient").max()), AT_MINIMUM),
        *_coverage("decay, evidence", parts, "coverage"),
        *_coverage("right decay, evidence, outer half of the new rows", right, "outer"),
        *_coverage("decay, calibrated", parts, "coverage_calibrated"),
        at_most("right decay: |log of noise variance by the evidence / truth|, largest of the targets", "I1",
                abs(float(noise.mean())), math.log(FACTOR), error=standard_error(noise),
                predicted=f"≤ {math.log(FACTOR):.3f} = log {FACTOR}"),
        _positive("std far from the data / at new rows, least over settings", settings(records), "far", 1.0),
        _positive("decay: rank correlation of std and |f - target|, least over settings", parts, "order", 0.0),
        *([at_least("no decay: share of networks that interpolate", "I1", len(interpolating) / len(bare), 0.9)]
          if len(bare) else []),
        *(_without_residuals(interpolating) if len(interpolating) else []),
    ]  # fmt: skip


def _without_residuals(records: Records) -> list[Claim]:
    """Claims on networks that interpolate."""
    coverage = records.measure("coverage")
    return [
        at_least("interpolating, evidence: |coverage of 90% intervals - 0.9|", "I1",
                 abs(float(coverage.mean()) - LEVEL), HIGH - LEVEL, error=standard_error(coverage)),
        *_coverage("interpolating, calibrated", settings(records), "coverage_calibrated"),
    ]  # fmt: skip


def _positive(statement: str, parts: list[Records], name: str, bound: float) -> Claim:
    """Claim that the mean of a measure exceeds a bound in every setting."""
    value, error = _extreme(parts, name, False)
    return at_least(statement, "I1", value, bound, error=error, predicted=f"> {bound:g}", basis="theory")


def figure(records: Records) -> Figure:
    """Plot of coverage and noise against decay, by the evidence and after calibration."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
    kinds = dict.fromkeys((r.params["target"], r.params["inputs"]) for r in records)
    least = min(d for d in records.values("decay") if d > 0)
    for i, (target, inputs) in enumerate(kinds):
        mine = records.where(target=target, inputs=inputs)
        for name, line in (("", "o-"), ("_calibrated", "s:")):
            decay, coverage = mine.over("decay", f"coverage{name}", np.mean)
            noise = mine.over("decay", f"noise_ratio{name}", np.mean)[1]
            at = np.where(decay > 0, decay, least / 5)
            axes[0].semilogx(at, coverage, line, ms=3.5, color=f"C{i}")
            axes[1].loglog(at, np.maximum(noise, 1e-3), line, ms=3.5, color=f"C{i}",
                           label=f"{target}, d = {inputs}{name.replace('_', ', ')}")  # fmt: skip
        axes[2].loglog(at, mine.over("decay", "std", np.mean)[1], "o-", ms=3.5, color=f"C{i}")
        axes[2].loglog(at, np.sqrt(mine.over("decay", "error", np.mean)[1]), "x--", ms=4, color=f"C{i}")
    axes[0].axhspan(LOW, HIGH, color="0.9")
    axes[1].axhspan(1 / FACTOR, FACTOR, color="0.9")
    axes[0].set_ylabel("coverage of 90% intervals")
    axes[1].set_ylabel("noise variance / truth")
    axes[2].set_ylabel("std (o), error of f (x)")
    for axis in axes:
        axis.set_xlabel("decay λ (leftmost: none)")
    axes[1].legend(fontsize=6)
    return fig


TARGETS = ["network", "smooth"]
experiment = Experiment(
    name="error_bars_of_networks",
    source="general",
    tags=("I1",),
    question="Do error bars of the evidence cover, for networks trained with decay and for networks that interpolate?",
    prediction="At the minimum with decay intervals cover and the evidence finds the noise; a network that "
    "interpolates is misjudged until scales are fitted to held-out rows; std grows away from the data [I1].",
    protocol="tanh networks of width 32 on 200 rows with noise of known variance, in 2 and 5 dimensions, with and "
    "without decay; 90% intervals of `unlazy.uncertainty` on 1,000 new rows.",
    verdict="With decay, and after calibration: coverage within 0.85 and 0.95. Noise within a factor of 1.3 at the "
    "decay of least held-out error. Interpolating: coverage off by more than 0.05 by the evidence. std grows away "
    "from the data, and is larger where the error is.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"target": TARGETS, "inputs": [5], "decay": [0.0, 0.002, 0.005, 0.01]}, seeds=3, steps=10_000),
    full=config(
        {"target": TARGETS, "inputs": [5], "decay": [0.0, 0.001, 0.002, 0.005, 0.01, 0.02]},
        {"target": TARGETS, "inputs": [2], "decay": [0.0005, 0.001, 0.002, 0.005, 0.01]},
        seeds=6, steps=10_000,
    ),
    vectorized=False,
    precision="float32",
    caveats="Coverage is an average over new rows of the training distribution; it says nothing about a single input. "
    "Where decay keeps the network from the target, the bias counts as noise: intervals for targets cover although std "
    "is smaller than the error of f. The local gap does not warn of interpolation: without residuals, leaving rows out "
    "moves nothing to first order. Bounds were fixed before the runs, that on the gradient after the quick one; decays "
    "were chosen in pilot runs with other seeds.",
)  # fmt: skip
