"""Residual blocks divided by their number L keep the best learning rate of Adam, and stay nonlinear [T1, T2, T4].

Question. Which power a of the depth in h ← h + L^{-a} F(h) keeps the best learning rate and feature learning in blocks?
Prediction. [T4] a = 1 keeps both: the best rate, and the nonlinear share of every block's change. With a = 1/2 the best
rate falls with L, unless the rates of the blocks are corrected; then the blocks become lazy (CompleteP, Dey et al.).
Derivation, with Adam. Block: F(h) = B tanh(A h), A and B of width n. Maximal update in width [T1, T2]: initial weights
N(0, 1/n_in), those of the output N(0, 1/n²); steps of Adam have entries of order 1 and need the rate η/n_in. They then
change every entry of A h and F by order η, whatever L and a: Adam forgets the scale L^{-a} of the gradients. All blocks
push the outputs the same way, and together change h by L·L^{-a}·η. For a = 1 this is of order η at every depth, with no
factor of depth in the rates; for a < 1 the best rate falls like L^{a-1}. CompleteP's correction, rates of blocks times
(L/4)^{a-1}, gives this back for every a; but each block then changes by order L^{a-1}, and its linearization in its own
parameters becomes exact unless a = 1. (Gradient descent sees the factor L^{-a} twice, and needs the factor L^{2a-1} in
the rates of the blocks: L for a = 1.)
Protocol. Width 32; input, blocks and output are trained together by Adam (0.9, 0.999, eps 1e-12, constant rate, full
batches, 16 steps) on 16 points x ~ N(0, I_8), y = sin(2 u·x) + (u·x)(v·x), normalized. L = 4 … 64, one grid of rates,
2^-11 … 2^3 in steps of 2^(3/4). Two criteria: loss averaged over the run, whose basin is within a factor of 1.5
of the least, and over its last quarter, within a factor of 4: at the best rates single steps oscillate. Basin midpoint:
geometric middle of the basin. Nonlinear share: change of F at the trained inputs of the block, minus its linearization
in A and B at initialization, over the change; mean over blocks, at the first criterion's midpoint.
Verdict. a = 1: midpoints within a factor of 1.5 over all depths; share at the largest depth at least 0.8 times that at
the smallest, and at least 0.3. a = 1/2 and 0: midpoint lower by a factor of more than 1.5 at the largest depth; share
at most 0.8 times that at the smallest; with corrected rates, at most 0.5 times. All with two standard errors over
seeds. Whether corrected rates keep the midpoint is measured and carries no verdict.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from unlazy.core.arrays import dot
from unlazy.lab.claims import Claim, at_least, at_most, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments.rates_transfer import DRIFT, basin_midpoint, drift

INPUTS, POINTS, BASE = 8, 16, 4
RATES = 2.0 ** np.arange(-11.25, 3.01, 0.75)
CRITERIA = {"run": 1.5, "end": 4.0}
"""Losses by name, and the factor of the least loss that bounds their basin."""
WORDS = {"run": "mean loss of the run", "end": "loss of the last quarter"}
EPS = 1e-12
"""Of Adam: far below any gradient, whose entries fall with width and depth."""
NAMES = {1.0: "a = 1", 0.5: "a = 1/2", 0.0: "a = 0"}


def block(weights: tuple[Array, Array], h: Float[Array, "m n"]) -> Float[Array, "m n"]:
    """F(h) = B tanh(A h), one point per row."""
    A, B = weights
    return dot(jnp.tanh(dot(h, A.T)), B.T)


def network(theta: PyTree, X: Float[Array, "m d"], branch: Float[Array, ""]) -> tuple[Array, Float[Array, "L m n"]]:
    """Outputs of h ← h + branch·F(h), and the inputs of every block."""

    def add(h: Array, weights: tuple[Array, Array]) -> tuple[Array, Array]:
        return h + branch * block(weights, h), h

    h, inputs = jax.lax.scan(add, dot(X, theta["input"].T), theta["blocks"])
    return dot(h, theta["output"]), inputs


def nonlinear_share(start: tuple, end: tuple, h: Float[Array, "m n"]) -> Float[Array, ""]:
    """Norm of the change of a block minus its linearization at the start, over that of the change."""
    change = block(end, h) - block(start, h)
    moved = jax.tree.map(jnp.subtract, end, start)
    linear = jax.jvp(lambda weights: block(weights, h), (start,), (moved,))[1]
    return jnp.linalg.norm(change - linear) / jnp.linalg.norm(change)


def draw(key: PRNGKeyArray, blocks: int, width: int) -> tuple[Array, Array, PyTree]:
    """Inputs, targets and initial weights, from one draw, which compiles once."""
    shapes = {
        "X": (POINTS, INPUTS), "directions": (2, INPUTS), "input": (width, INPUTS), "output": (width,),
        "A": (blocks, width, width), "B": (blocks, width, width),
    }  # fmt: skip
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    values = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
    part = {name: v.reshape(shape) for (name, shape), v in zip(shapes.items(), values)}
    s, t = dot(part["X"], part["directions"].T).T / math.sqrt(INPUTS)
    y = jnp.sin(2 * s) + s * t
    theta = {
        "input": part["input"] / math.sqrt(INPUTS), "output": part["output"] / width,
        "blocks": (part["A"] / math.sqrt(width), part["B"] / math.sqrt(width)),
    }  # fmt: skip
    return part["X"], (y - y.mean()) / y.std(), theta


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures run and end (losses by rate) and share."""
    blocks, width, steps = params["blocks"], params["width"], params["steps"]
    power = jnp.asarray(params["power"], float)
    X, y, start = draw(key, blocks, width)
    branch = (float(blocks) ** -power).astype(X.dtype)
    hidden = jnp.where(params["corrected"] > 0, (blocks / BASE) ** (power - 1), 1.0).astype(X.dtype) / width
    multipliers = {"input": 1 / INPUTS, "output": 1 / width, "blocks": (hidden, hidden)}
    rule = optax.scale_by_adam(eps=EPS)

    def loss(theta: PyTree) -> Float[Array, ""]:
        return 0.5 * jnp.mean((network(theta, X, branch)[0] - y) ** 2)

    def train(rate: Float[Array, ""]) -> dict[str, Array]:
        def step(state: tuple, _: None) -> tuple[tuple, Array]:
            theta, moments = state
            value, gradient = jax.value_and_grad(loss)(theta)
            change, moments = rule.update(gradient, moments)
            return (jax.tree.map(lambda w, m, d: w - rate * m * d, theta, multipliers, change), moments), value

        (end, _), path = jax.lax.scan(step, (start, rule.init(start)), None, length=steps)
        path = jnp.append(path[1:], loss(end))  # the loss at initialization is that of every rate
        shares = jax.vmap(nonlinear_share)(start["blocks"], end["blocks"], network(end, X, branch)[1])
        return {"run": path.mean(), "end": path[-(steps // 4) :].mean(), "share": shares.mean()}

    return jax.vmap(train)(jnp.asarray(RATES, X.dtype))


def midpoints(records: Records, criterion: str) -> tuple[list[int], Float[np.ndarray, "s v"]]:
    """Depths, and the logarithm of the basin midpoint (seeds × depths)."""
    depths, factor = records.values("blocks"), CRITERIA[criterion]
    table = [[basin_midpoint(row, RATES, factor) for row in records.where(blocks=L).measure(criterion)] for L in depths]
    return depths, np.log(np.array(table)).T


def shares(records: Records) -> Float[np.ndarray, "s v"]:
    """Nonlinear share at the basin midpoint of the mean loss of the run (seeds × depths)."""
    depths, logs = midpoints(records, "run")
    return np.array([
        [np.interp(at, np.log(RATES), row) if np.isfinite(at) else np.nan for at, row in zip(column, table)]
        for column, table in zip(logs.T, (records.where(blocks=L).measure("share") for L in depths))
    ]).T  # fmt: skip


def ratio(top: Float[np.ndarray, " s"], bottom: Float[np.ndarray, " s"]) -> tuple[float, float]:
    """Ratio of means over the same seeds, and its standard error."""
    value = top.mean() / bottom.mean()
    return float(value), standard_error(top - value * bottom) / float(bottom.mean())


def fall(logs: Float[np.ndarray, "s v"]) -> tuple[float, float]:
    """Midpoint at the smallest depth over that at the largest, and its standard error."""
    change = logs[:, 0] - logs[:, -1]
    value = math.exp(change.mean())
    return value, value * standard_error(change)


def claims(records: Records) -> list[Claim]:
    """Claims on [T4], from the records."""
    rows = []
    for power, name in NAMES.items():
        part = records.where(power=power, corrected=0)
        if not len(part):
            continue
        for criterion, words in WORDS.items():
            depths, logs = midpoints(part, criterion)
            if power == 1:
                value, error = drift(logs)
                rows.append(at_most(f"{name}: drift of the basin midpoint over L = {depths[0]} … {depths[-1]}, {words}",
                                    "T4", value, DRIFT, error=error))  # fmt: skip
            else:
                value, error = fall(logs)
                rows.append(at_least(f"{name}: basin midpoint at L = {depths[0]} over L = {depths[-1]}, {words}", "T4",
                                     value, DRIFT, error=error))  # fmt: skip
        rows += share_claims(part, name, power, corrected=False)
    for power in records.where(corrected=1).values("power"):
        part = records.where(power=power, corrected=1)
        rows += share_claims(part, f"{NAMES[power]}, corrected rates", power, corrected=True)
    return rows


def share_claims(records: Records, name: str, power: float, corrected: bool) -> list[Claim]:
    """Claims on the nonlinear share of the blocks at one power."""
    found = shares(records)
    value, error = ratio(found[:, -1], found[:, 0])
    depths = records.values("blocks")
    statement = f"{name}: nonlinear share of a block at L = {depths[-1]} over L = {depths[0]}"
    if power == 1:
        last = found[:, -1]
        return [
            at_least(statement, "T4", value, 0.8, error=error),
            at_least(f"{name}: nonlinear share of a block at L = {depths[-1]}", "T4", float(last.mean()), 0.3,
                     error=standard_error(last)),
        ]  # fmt: skip
    return [at_most(statement, "T4", value, 0.5 if corrected else 0.8, error=error)]


def figure(records: Records) -> Figure:
    """Plot of the loss against the rate, and of basin midpoint and nonlinear share against depth."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.1), layout="constrained")
    part = records.where(power=1.0, corrected=0)
    for i, depth in enumerate(part.values("blocks")):
        loss = np.log(part.where(blocks=depth).measure("run")).mean(0)
        axes[0].loglog(RATES, np.exp(loss), color=f"C{i}", label=f"L = {depth}")
    axes[0].set(xlabel="learning rate η", ylabel="mean loss of the run", title="a = 1", ylim=(None, 2))
    axes[0].legend()
    for i, (power, name) in enumerate(NAMES.items()):
        for corrected, style in ((0, "o-"), (1, "s:")):
            part = records.where(power=power, corrected=corrected)
            if not len(part):
                continue
            depths, logs = midpoints(part, "run")
            label = name + (", corrected rates" if corrected else "")
            middle, error = np.exp(logs.mean(0)), 2 * logs.std(0) / math.sqrt(len(logs))
            axes[1].errorbar(depths, middle, middle * error, fmt=style, color=f"C{i}", label=label)
            axes[2].plot(depths, shares(part).mean(0), style, color=f"C{i}", label=label)
    for axis, label in zip(axes[1:], ("basin midpoint (mean ± 2 s.e.)", "nonlinear share of a block")):
        axis.set(xscale="log", yscale="log", xlabel="depth L", ylabel=label)
        axis.set_xticks(depths, [str(v) for v in depths])
        axis.minorticks_off()
    axes[2].legend()
    return fig


POWERS: dict[str, Any] = {"power": list(NAMES), "corrected": [0]}
DEPTHS = [4, 8, 16, 32, 64]
experiment = Experiment(
    name="depth_transfer",
    source="general",
    tags=("T4", "T2", "T1"),
    question="Which scaling of residual blocks with depth keeps the best learning rate and the learning of each block?",
    prediction="Blocks divided by their number L keep both with Adam. Divided by √L or undivided, the best rate falls "
    "with L; if the rates of the blocks are corrected, the blocks become lazy.",
    protocol="h ← h + L^-a B tanh(A h), width 32 in maximal update, Adam, 16 full-batch steps, L = 4 … 64, one grid of "
    "rates; geometric middle of the rates with nearly the least loss, and nonlinear share of each block's change.",
    verdict="a = 1: midpoint within a factor of 1.5, share kept to 0.8. a = 1/2 and 0: the midpoint falls by more than "
    "1.5, the share to at most 0.8; with corrected rates the share falls to at most a half.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({**POWERS, "blocks": [4, 32]}, seeds=4, width=32, steps=16),
    full=config({**POWERS, "blocks": DEPTHS}, {"power": [0.5, 0.0], "corrected": [1], "blocks": DEPTHS}, seeds=8,
                width=32, steps=16),
    traced=("power", "corrected"),
    precision="float32",
    lanes=4,
    caveats="Criteria, grid and the bounds of the shares were chosen after pilot runs, some with the same seeds. With "
    "corrected rates a = 1/2 keeps the midpoint as well as a = 1 does (full configuration: to a factor of 1.07), so "
    "that transfer of the rate alone does not single out a = 1; the nonlinear share does. Without correction the "
    "midpoint falls more slowly than L^(a-1): input and output are trained at the same rate, with no factor of depth. "
    "The midpoint of the last quarter rises with L for a = 1, by 1.25. Few steps, one task, one width; there are no "
    "normalization layers, without which a = 0 is harsher than in a transformer.",
)  # fmt: skip
