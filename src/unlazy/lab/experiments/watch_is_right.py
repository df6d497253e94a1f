"""Does the linearization gap tell lazy from rich runs, on networks whose regime is known? [W1, W6]

Question. A monitor sees only the network in training and computes the linearization gap g on probe points. Is its
verdict that of the outputs: does the trained network differ from its trained linearization?
Prediction. [W1, W6] Runs that train α (f - f_0) with steps η/α² (gradient descent), or η/α and eps × α (Adam), become
lazy as α → ∞. g at the end orders the runs as the difference of outputs does, and falls with α.
Protocol. Four architectures of width 32 in the NTK parametrization: fully connected, convolutional, residual, and one
block of attention. 64 sequences of 6 positions and 4 channels, N(0, 1); target: (u·x_p)(v·x_q) summed over neighboring
positions, centered and normalized, which is too hard for so few points: where a fixed kernel and features predict the
same, D is small in every regime. 200 full-batch steps, η = 0.2/λ_max of the initial kernel (Adam: 0.01 in
NTK parametrization). Truth: D = ‖F - F_lin‖/‖F‖ on 128 test points, F = α (f - f_0) the network at the end, F_lin its
linearization at θ_0, trained with the same steps. Lazy: D < 0.2, rich: D > 0.5, fixed before the runs. g on 64 other
points at 2, 5, 10, 20, 30, 50, 75 and 100% of the steps. Only runs that end below 0.99 of the initial loss count.
float32: at α = 30 the smallest change of f is still 10⁴ times its rounding.
Verdict. At least 0.9 of the runs train. Rank correlation of g and D at least 0.9. Three-way verdict of
`unlazy.diagnostics` at the end right in at least 0.8, with two standard errors; lazy and rich swapped in none, neither
at the end nor when extrapolated from 30% of the steps. For each architecture the rank correlation of α and g is at most
-0.9.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from scipy.stats import spearmanr

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.diagnostics.verdict import LAZY_GAP, RICH_GAP, GapPoint, decide
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim
from unlazy.lab.experiment import Experiment, Measures, Params, Records, config
from unlazy.lab.experiments._draws import draw_parameters
from unlazy.layers import Conv, Dense, Flatten, GlobalAvgPool, LayerNorm, SelfAttention, residual, serial
from unlazy.networks import Network
from unlazy.training.descent.stability import stable_step_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LAZY_DIFFERENCE, RICH_DIFFERENCE = 0.2, 0.5
"""A run is lazy if D is below the first, rich above the second."""
ENOUGH = 0.99
"""A run that does not end below this share of the initial loss has failed."""
SHAPE = (6, 4)
TRAIN, TEST, PROBES = 64, 128, 64
FRACTIONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
EARLY = 5
"""Checks up to 30% of the steps."""
SAFETY, ADAM_RATE, EPS = 0.2, 0.01, 1e-8
DESCRIPTIONS = {
    "fully connected": serial(Flatten(), Dense(), "gelu", Dense(), "gelu", Dense()),
    "convolutional": serial(Conv(3), "relu", Conv(3), "relu", GlobalAvgPool(), Dense()),
    "residual": serial(Conv(3), residual("gelu", Conv(3)), residual("gelu", Conv(3)), Flatten(), Dense()),
    "attention": serial(
        Dense(), residual(SelfAttention(), LayerNorm()), residual(Dense(), "gelu", Dense()), Flatten(), Dense()
    ),
}


class Moments(NamedTuple):
    """State of Adam: first and second moments, and the number of steps."""

    first: PyTree
    second: PyTree
    steps: Float[Array, ""]


def sample(key: PRNGKeyArray, rows: int) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """Flattened sequences, and targets of mean 0 and variance 1 over the rows."""
    key_x, key_u = jax.random.split(key)
    X = jax.random.normal(key_x, (rows, *SHAPE))
    u, v = jax.random.normal(key_u, (2, SHAPE[1])) / math.sqrt(SHAPE[1])
    y = jnp.sum(dot(X[:, :-1], u) * dot(X[:, 1:], v), 1)
    return X.reshape(rows, -1), (y - y.mean()) / y.std()


def update(
    gradient: PyTree, moments: Moments, rate: Float[Array, ""], alpha: Float[Array, ""], adam: bool
) -> tuple[PyTree, Moments]:
    """Change of the parameters at output scale α [W6], and the new moments."""
    if not adam:
        return jax.tree.map(lambda g: -rate / alpha**2 * g, gradient), moments
    steps = moments.steps + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments.first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, moments.second, gradient)

    def change(m: Array, v: Array) -> Array:
        return -rate / alpha * m / (1 - 0.9**steps) / (jnp.sqrt(v / (1 - 0.999**steps)) + EPS * alpha)

    return jax.tree.map(change, first, second), Moments(first, second, steps)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures gaps, difference, loss, initial_loss."""
    alpha, adam = jnp.asarray(params["alpha"]), params["optimizer"] == "adam"
    network = Network(DESCRIPTIONS[params["architecture"]], SHAPE, width=params["width"])
    key_data, key_start = jax.random.split(key)
    X, y = sample(key_data, TRAIN + TEST + PROBES)
    train, test, probe = jnp.split(X, (TRAIN, TRAIN + TEST))
    y = y[:TRAIN]
    (start,) = draw_parameters((network,), key_start)

    def apply(theta: PyTree, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return network(theta, X.reshape(-1, *SHAPE))

    def tangent(moved: PyTree, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jax.jvp(lambda theta: apply(theta, X), (start,), (moved,))[1]

    def change(moved: PyTree, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return apply(jax.tree.map(jnp.add, start, moved), X) - apply(start, X)

    eta = jnp.asarray(ADAM_RATE) if adam else SAFETY * stable_step_size(apply, start, Data(train, y))
    zero = jax.tree.map(jnp.zeros_like, start)
    moments = Moments(zero, zero, jnp.zeros(()))

    def loss(F: Float[Array, " n"]) -> Float[Array, ""]:
        return 0.5 * jnp.mean((F - y) ** 2)

    def both_steps(_: Array, state: tuple) -> tuple:
        """One step of the network, and one of its linearization at α = 1, whose F does not depend on α."""
        (moved, own), (linear, other) = state
        g = jax.grad(lambda m: loss(alpha * change(m, train)))(moved)
        moves, own = update(g, own, eta, alpha, adam)
        g = jax.grad(lambda m: loss(tangent(m, train)))(linear)
        linear_moves, other = update(g, other, eta, jnp.ones(()), adam)
        return (jax.tree.map(jnp.add, moved, moves), own), (jax.tree.map(jnp.add, linear, linear_moves), other)

    def until_check(state: tuple, steps: tuple) -> tuple[tuple, Float[Array, ""]]:
        first, last = steps
        state = jax.lax.fori_loop(first, last, both_steps, state)
        moved = state[0][0]
        whole = change(moved, probe)
        return state, jnp.linalg.norm(whole - tangent(moved, probe)) / jnp.linalg.norm(whole)

    ends = jnp.asarray([round(f * params["steps"]) for f in FRACTIONS])
    state = (zero, moments), (zero, moments)
    final, gaps = jax.lax.scan(until_check, state, (ends[:-1], ends[1:]))
    (moved, _), (linear, _) = final
    F = alpha * change(moved, test)
    return {
        "gaps": gaps, "difference": jnp.linalg.norm(F - tangent(linear, test)) / jnp.linalg.norm(F),
        "loss": loss(alpha * change(moved, train)), "initial_loss": loss(jnp.zeros(TRAIN)),
    }  # fmt: skip


def truth(difference: float) -> str:
    """The regime of a run by D."""
    if difference < LAZY_DIFFERENCE:
        return "lazy"
    return "rich" if difference > RICH_DIFFERENCE else "intermediate"


def verdict(gaps: Float[np.ndarray, " k"], planned_steps: int) -> str:
    """The regime that `unlazy.diagnostics` states after these checks."""
    points = [GapPoint(round(f * planned_steps), float(g)) for f, g in zip(FRACTIONS[1:], gaps)]
    return decide(points, planned_steps).word


def trained(records: Records) -> Bool[np.ndarray, " n"]:
    """Whether each run lowered its loss and is finite."""
    final, first = records.measure("loss"), records.measure("initial_loss")
    return np.isfinite(records.measure("difference")) & (final < ENOUGH * first)


def rank_correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> tuple[float, float, float]:
    """Spearman's, with a 95% interval by a bootstrap over runs."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(x), (1000, len(x)))
    low, high = np.quantile([spearmanr(x[i], y[i]).statistic for i in draws], (0.025, 0.975))
    return float(spearmanr(x, y).statistic), float(low), float(high)


def claims(records: Records) -> list[Claim]:
    """Claims on [W1, W6], from the records."""
    good = trained(records)
    kept = Records(record for record, ok in zip(records, good) if ok)
    gaps, difference = kept.measure("gaps"), kept.measure("difference")
    steps = [record.params["steps"] for record in kept]
    right = [truth(d) for d in difference]
    final = [verdict(g, n) for g, n in zip(gaps, steps)]
    early = [verdict(g[:EARLY], n) for g, n in zip(gaps, steps)]
    share = float(np.mean([r == s for r, s in zip(right, final)]))
    error = math.sqrt(share * (1 - share) / len(right))
    swaps, early_swaps = (
        sum({r, s} == {"lazy", "rich"} for r, s in zip(right, said)) for said in (final, early)
    )  # fmt: skip
    found, low, high = rank_correlation(gaps[:, -1], difference)
    falls = []
    for architecture in kept.values("architecture"):
        part = kept.where(architecture=architecture)
        alpha = np.array([record.params["alpha"] for record in part])
        falls.append(float(spearmanr(alpha, part.measure("gaps")[:, -1]).statistic))
    return [
        at_least("share of the runs that train", "W6", float(good.mean()), 0.9),
        interval_claim("rank correlation of the gap and D at the end", "W1", found, low, high, found >= 0.9, "≥ 0.9",
                       "95%, bootstrap"),
        at_least("three-way verdict at the end: share right", "W1", share, 0.8, error=error),
        at_most("verdict at the end: lazy and rich swapped", "W1", float(swaps), 0.0, predicted="none"),
        at_most("verdict at 30% of the steps: lazy and rich swapped", "W1", float(early_swaps), 0.0, predicted="none"),
        at_most("largest rank correlation of α and gap, over architectures", "W6", max(falls), -0.9),
    ]  # fmt: skip


def figure(records: Records) -> "Figure":
    """Plot of D against the gap with the thresholds of both, and of the gap against α."""
    import matplotlib.pyplot as plt

    records = Records(record for record, ok in zip(records, trained(records)) if ok)
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), layout="constrained")
    for i, architecture in enumerate(records.values("architecture")):
        part = records.where(architecture=architecture)
        gap, difference = part.measure("gaps")[:, -1], part.measure("difference")
        alpha = [record.params["alpha"] for record in part]
        axes[0].loglog(gap, difference, ".", color=f"C{i}", label=architecture)
        axes[1].loglog(alpha, gap, ".", color=f"C{i}")
    for edge, bound in ((LAZY_GAP, LAZY_DIFFERENCE), (RICH_GAP, RICH_DIFFERENCE)):
        axes[0].axvline(edge, color="k", lw=0.8, ls="--")
        axes[0].axhline(bound, color="k", lw=0.8, ls=":")
    axes[0].set(xlabel="linearization gap at the end", ylabel="D, network against linearization")
    axes[1].set(xlabel="output scale α", ylabel="linearization gap at the end")
    axes[0].legend()
    return fig


ARCHITECTURES = list(DESCRIPTIONS)
experiment = Experiment(
    name="watch_is_right",
    source="general",
    tags=("W1", "W6"),
    question="Does the linearization gap tell lazy from rich runs of networks whose regime is known?",
    prediction="Training α (f - f_0) becomes lazy as α → ∞; the gap orders runs as the difference between a network "
    "and its trained linearization does.",
    protocol="Four architectures, gradient descent and Adam, α over three decades, 200 steps; D between network and "
    "trained linearization on test points.",
    verdict="Rank correlation of gap and D ≥ 0.9, three-way verdict right in ≥ 0.8, lazy and rich never swapped at the "
    "end or at 30% of the steps, the gap falls with α.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config(
        {"architecture": ARCHITECTURES, "optimizer": ["gradient descent"], "alpha": [0.03, 0.1, 0.3, 1.0, 30.0]},
        seeds=2, width=32, steps=200,
    ),
    full=config(
        {"architecture": ARCHITECTURES, "optimizer": ["gradient descent", "adam"],
         "alpha": [0.03, 0.06, 0.1, 0.2, 0.4, 0.7, 1.5, 3.0, 10.0, 30.0]},
        seeds=4, width=32, steps=200,
    ),
    traced=("alpha",),
    lanes=2,
    precision="float32",
    caveats="Small networks, short runs and one kind of target. D depends on the target: where a fixed kernel and "
    "features predict the same, network and linearization agree although the gap is large. Runs at small α may wait "
    "on a plateau of the loss, during which no check tells how they end.",
)  # fmt: skip
