"""Conditioning of the Jacobian: when gradient descent on a two-layer network provably succeeds [L4].

Question. When is σ_min(J) of a two-layer network positive, how large is it, and does it govern gradient descent?
Prediction. [L4] σ_min(J) > 0 up to n = wd (softplus, ReLU) and n = d(d+1)/2 (square, w ≥ d), so the sharp width is n/d;
σ_min(J) ≳ d σ_min(W_0)‖a‖_∞; the loss satisfies the PL inequality with constant σ_min² and decays at rate 2ησ_min²; the
final weights lie within ‖y - f_0‖/σ_min of the initialization; ‖J(W̄) - J(W)‖ ≤ |σ''|_∞ ‖X⊗X‖ ‖a‖_∞ ‖W̄ - W‖.
Protocol. f = Σ_j a_j σ(w_j·x), a_j = ±1 and frozen, w_j ~ N(0, I), x ~ N(0, I_d), y ~ N(0,1); float64. `threshold`:
d = 6, w = 16, smallest singular value for n around the predicted threshold; values below 1e-10 times the largest count
as zero. `scale`: square activation, n = d(d+1)/4, w = 2d (and 4d), mean of 8 draws per seed. `width`: softplus, d = 8,
n = 64, the first w neurons of one draw, w around n/d. `descent`: softplus, d = 10, n = 40, antisymmetric pairs
(f_0 = 0), η = 1/σ_max², until the loss is 1e-13; the rate is fitted over the last quarter of the decades.
Verdict. Thresholds are exact for every seed. The smallest ratio σ_min/(d σ_min(W_0)‖a‖_∞) is at least 0.15, and its
slope in d at least -0.25. Ratio of measured to predicted rate in [0.9, 1.6] at widths ≥ 200 (two standard errors), and
PL constant during training at least 0.8 σ_min² there; ratio of distance to its bound at most 1; ratio of the change of
the Jacobian to its bound at most 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim, standard_error, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.scaling_fit import slope
from unlazy.networks import Network, WeightBias
from unlazy.theory.dynamics import conditioning
from unlazy.theory.finite_width.empirical_ntk import jacobian_rows
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import descend
from unlazy.training.options import DescentOptions, Recording

FIRST_LAYER = (WeightBias(1.0, 0.0), WeightBias(0.0, 0.0))
ZERO, AROUND, FLOOR, DRAWS = 1e-10, (-2, -1, 0, 1, 2), 1e-13, 8


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures threshold, scale, width, descent."""
    return {"threshold": _threshold, "scale": _scale, "width": _width, "descent": _descent}[params["part"]](params, key)


def _problem(params: Params, key: Any, n: int) -> tuple[Network, Any, jax.Array, jax.Array]:
    """The network of [L4] with w_j ~ N(0, I) and alternating signs, its initial parameters, inputs and labels."""
    d, w = params["d"], params["width"]
    mlp = MLP(1, params["activation"], sigma_w=(1.0, w**0.5), scale_input=False, width=w)
    network = Network(mlp, d, "standard")
    draw = jax.random.normal(key, (d * w + n * d + n,))  # one draw compiles faster than three
    W, X, y = draw[: d * w].reshape(d, w), draw[d * w : -n].reshape(n, d), draw[-n:]
    signs = jnp.where(jnp.arange(w) % 2 == 0, 1.0, -1.0)
    start = (WeightBias(W, jnp.zeros(w)), WeightBias(signs[:, None], jnp.zeros(1)))
    return network, start, X, y


def _jacobian(network: Network, params: Any, X: jax.Array) -> jax.Array:
    """Jacobian of the network with respect to the first-layer weights."""
    return jacobian_rows(lambda W, x: network((WeightBias(W, params[0].bias), params[1]), x), params[0].weight, X)[0][
        :, 0
    ]


def _singular(J: jax.Array) -> jax.Array:
    """All n singular values of J, padded with zeros if J has fewer columns than rows."""
    values = jnp.linalg.svd(J, compute_uv=False)
    return jnp.pad(values, (0, max(0, J.shape[0] - J.shape[1])))


def _threshold(params: Params, key: Any) -> dict[str, Any]:
    """σ_min/σ_max for n around the rank limit."""
    limit = conditioning.rank_limit(params["width"], params["d"], params["activation"])
    network, start, X, _ = _problem(params, key, limit + AROUND[-1])
    J = _jacobian(network, start, X)
    ends = [_singular(J[: limit + extra]) for extra in AROUND]
    return {"smallest": jnp.stack([s[-1] / s[0] for s in ends])}


def _scale(params: Params, key: Any) -> dict[str, Any]:
    """σ_min(J)/(d σ_min(W_0)‖a‖_∞) for each d, averaged over draws."""

    def of(d: int, one: Any) -> jax.Array:
        network, start, X, _ = _problem({**params, "d": d, "width": params["times"] * d}, one, d * (d + 1) // 4)
        smallest = _singular(_jacobian(network, start, X))[-1]
        return smallest / conditioning.smallest_singular_scale(start[0].weight.T, start[1].weight[:, 0])

    keys = jax.random.split(key, DRAWS)
    return {"ratio": jnp.stack([jax.vmap(lambda one, d=d: of(d, one))(keys).mean() for d in params["dims"]])}


def _width(params: Params, key: Any) -> dict[str, Any]:
    """σ_min/σ_max for the first w neurons, for each w."""
    widths, n, d = params["widths"], params["n"], params["d"]
    network, start, X, _ = _problem({**params, "width": max(widths)}, key, n)
    J = _jacobian(network, start, X).reshape(n, d, max(widths))
    ends = [_singular(J[:, :, :w].reshape(n, d * w)) for w in widths]
    return {"smallest": jnp.stack([s[-1] / s[0] for s in ends])}


def _descent(params: Params, key: Any) -> dict[str, Any]:
    """Gradient descent: loss decay rate, PL constant, distance and Jacobian change relative to their bounds."""
    n = params["n"]
    network, start, X, y = _problem(params, key, n)
    spare = start[0].weight[:, 1::2]
    start = (WeightBias(_paired(start[0].weight), start[0].bias), start[1])
    J = _jacobian(network, start, X)
    values = _singular(J)
    eta, smallest = 1 / values[0] ** 2, values[-1]

    def pl(theta: Any) -> jax.Array:
        """Local PL constant ‖∇L‖²/(2L)."""
        residual, pull = jax.vjp(lambda W: network((WeightBias(W, theta[0].bias), theta[1]), X) - y, theta[0].weight)
        return jnp.sum(jnp.square(pull(residual)[0])) / jnp.sum(jnp.square(residual))

    found = descend(
        network, start, Data(X, y), steps=params["steps"], step_size=n * eta,
        options=DescentOptions(rates=FIRST_LAYER, stop_below=FLOOR),
        recording=Recording({"pl": pl}, every=params["steps"] // 100),
    )  # fmt: skip
    move = (found.params[0].weight - start[0].weight).T
    change = _norm(_jacobian(network, found.params, X) - J)
    curvature = conditioning.CURVATURE[params["activation"]]
    random_move = _paired(jnp.repeat(spare, 2, axis=1)).T  # the draws not used after pairing
    random_move = random_move * jnp.linalg.norm(move) / jnp.linalg.norm(random_move)
    shifted = (WeightBias(start[0].weight + random_move.T, start[0].bias), start[1])
    random_change = _norm(_jacobian(network, shifted, X) - J)
    a = start[1].weight[:, 0]
    return {
        "rate": tail_rate(found.losses, found.steps), "predicted": conditioning.loss_rate(eta, smallest),
        "curve": found.losses[:: params["steps"] // 200],
        "pl": jnp.min(found.recorded["pl"]) / smallest**2,
        "distance": jnp.linalg.norm(move) / conditioning.distance_bound(y - network(start, X), smallest),
        "change": change / conditioning.jacobian_change_bound(X, a, move, curvature),
        "random_change": random_change / conditioning.jacobian_change_bound(X, a, random_move, curvature),
    }  # fmt: skip


def _norm(A: jax.Array) -> jax.Array:
    """Spectral norm."""
    return jnp.sqrt(jnp.linalg.eigvalsh(dot(A, A.T))[-1])


def _paired(W: jax.Array) -> jax.Array:
    """Give neighboring neurons equal weights, so that f_0 = 0 with opposite head weights."""
    return jnp.repeat(W[:, ::2], 2, axis=1)[:, : W.shape[1]]


def tail_rate(losses: jax.Array, steps: jax.Array) -> jax.Array:
    """Decay of the log loss per step, fitted by least squares over the last quarter of the decades."""
    logs, index = jnp.log(losses), jnp.arange(losses.size)
    end = logs[jnp.maximum(steps - 1, 0)]
    use = ((index < steps) & (logs <= end + (logs[0] - end) / 4)).astype(losses.dtype)
    centered = use * (index - jnp.sum(use * index) / jnp.sum(use))
    return -jnp.sum(centered * logs) / jnp.sum(centered * centered)


def claims(records: Records) -> list[Claim]:
    """Claims on [L4], from the records."""
    return [*_threshold_claims(records), *_scale_claims(records), *_descent_claims(records)]


def _threshold_claims(records: Records) -> list[Claim]:
    rows = []
    chosen = records.where(part="threshold")
    for name in chosen.values("activation"):
        mine = chosen.where(activation=name)
        limit = conditioning.rank_limit(mine[0].params["width"], mine[0].params["d"], name)
        found = limit + np.array([max(np.array(AROUND)[s > ZERO], default=-99) for s in mine.measure("smallest")])
        exact = bool(np.all(found == limit))
        text = f"{limit} = {'d(d+1)/2' if name == 'square' else 'wd'}"
        rows.append(
            interval_claim(f"{name}: largest n with σ_min(J) > 0, every seed", "L4", float(np.median(found)),
                           float(found.min()), float(found.max()), exact, text, "range over seeds")
        )  # fmt: skip
    return rows


def _scale_claims(records: Records) -> list[Claim]:
    chosen = records.where(part="scale")
    dims = chosen[0].params["dims"]
    ratios = chosen.measure("ratio").T
    means, errors = ratios.mean(1), ratios.std(1, ddof=1) / np.sqrt(ratios.shape[1])
    worst = int(means.argmin())
    fit = slope(dims, ratios, statistic=np.mean)
    widths = records.where(part="width")
    ratio = widths[0].params["n"] / widths[0].params["d"]
    positive = np.array(widths[0].params["widths"])[np.all(widths.measure("smallest") > ZERO, axis=0)]
    first = float(min(positive, default=float("inf")))
    return [
        at_least("square: σ_min(J)/(d σ_min(W_0)‖a‖_∞), smallest mean over d", "L4",
                 float(means[worst]), 0.15, error=float(errors[worst])),
        at_least("square: slope of this ratio against d", "L4", fit.value, -0.25, error=(fit.high - fit.low) / 4),
        interval_claim("softplus: smallest width with σ_min(J) > 0, every seed", "L4", first, first, first,
                       first == ratio, f"{ratio:g} = n/d", ""),
    ]  # fmt: skip


def _descent_claims(records: Records) -> list[Claim]:
    rows, chosen = [], records.where(part="descent")
    for width in chosen.values("width"):
        mine = chosen.where(width=width)
        if width >= 200:
            ratio = mine.measure("rate") / mine.measure("predicted")
            error = standard_error(ratio)
            rows.append(within(f"width {width}: measured rate / 2ησ_min²", "L4", float(ratio.mean()), 0.9, 1.6,
                               error=float(error), predicted="1, allowed 0.9 to 1.6"))  # fmt: skip
            rows.append(at_least(f"width {width}: smallest PL constant during training / σ_min², every seed", "L4",
                                 float(mine.measure("pl").min()), 0.8))  # fmt: skip
    wide = chosen.where(width=chosen.values("width")[-1])
    changes = np.concatenate([chosen.measure("change"), chosen.measure("random_change")])
    rows.append(at_most("largest distance from initialization / (‖y - f_0‖/σ_min), widest network", "L4",
                        float(wide.measure("distance").max()), 1.0, basis="theory"))  # fmt: skip
    rows.append(at_most("largest ‖J(W̄) - J(W)‖ / bound, all widths, trained and random displacements", "L4",
                        float(changes.max()), 1.0, basis="theory"))  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of training loss against n - predicted threshold."""
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.0), layout="constrained")
    chosen = records.where(part="threshold")
    for name, marker in zip(chosen.values("activation"), "osD"):
        values = np.median(chosen.where(activation=name).measure("smallest"), axis=0)
        left.semilogy(AROUND, np.maximum(values, 1e-17), marker + "-", label=name)
    left.axhline(ZERO, color="k", lw=0.8, ls=":", label="numerical zero")
    ratio = r"$\sigma_{min}(J)/\sigma_{max}(J)$"
    left.set(xlabel="n - predicted threshold", ylabel=ratio, title="rank of J")
    left.legend()
    widths = records.where(part="width")
    w, values = widths[0].params["widths"], np.median(widths.measure("smallest"), axis=0)
    n, d = widths[0].params["n"], widths[0].params["d"]
    middle.semilogy(w, np.maximum(values, 1e-17), "o-", label=f"softplus, n = {n}, d = {d}")
    middle.axvline(n / d, color="k", lw=0.8, ls="--", label="n/d")
    middle.set(xlabel="width", ylabel=ratio, title="width threshold")
    middle.legend()
    descent = records.where(part="descent")
    for width in descent.values("width"):
        mine = descent.where(width=width)[0].measures
        steps = np.arange(len(mine["curve"])) * descent[0].params["steps"] // len(mine["curve"])
        line = right.semilogy(steps, mine["curve"], label=f"width {width}")[0]
        slope_line = mine["curve"][0] * np.exp(-mine["predicted"] * steps)
        right.semilogy(steps, slope_line, "--", lw=0.9, color=line.get_color())
    right.set(xlabel="gradient steps", ylabel="training loss", title=r"dashed: rate $2\eta\sigma_{min}^2$",
              ylim=(FLOOR / 10, 10))  # fmt: skip
    right.legend()
    return fig


experiment = Experiment(
    name="jacobian_conditioning",
    source="S3",
    tags=("L4",),
    question="When is the Jacobian's smallest singular value positive, how large is it, and does it govern training?",
    prediction="Positive up to n = wd (square: d(d+1)/2); ≳ d σ_min(W₀)‖a‖; the loss decays at rate 2ησ_min² [L4].",
    protocol="Two-layer networks, only the first layer trained, Gaussian data; SVD of J, gradient descent, float64.",
    verdict="Exact thresholds; ratio ≥ 0.15; rate/prediction in [0.9, 1.6] for widths ≥ 200; bounds never violated.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config(
        {"part": ["threshold"], "activation": ["softplus", "relu", "square"], "d": [6], "width": [16]},
        {"part": ["scale"], "activation": ["square"], "dims": [(6, 10, 16)], "times": [2]},
        {"part": ["width"], "activation": ["softplus"], "d": [8], "n": [64], "widths": [(6, 7, 8, 9, 10, 12)]},
        {"part": ["descent"], "activation": ["softplus"], "d": [10], "n": [40], "width": [50, 200]},
        seeds=6,
        steps=3000,
    ),
    full=config(
        {"part": ["threshold"], "activation": ["softplus", "relu", "square"], "d": [6], "width": [16]},
        {"part": ["scale"], "activation": ["square"], "dims": [(6, 10, 16, 24)], "times": [2, 4]},
        {"part": ["width"], "activation": ["softplus"], "d": [8], "n": [64], "widths": [(6, 7, 8, 9, 10, 12, 16, 24)]},
        {"part": ["descent"], "activation": ["softplus"], "d": [10], "n": [40], "width": [50, 200, 500, 1000]},
        seeds=16,
        steps=4000,
    ),
    lanes=2,
    caveats="For the square activation and w < d the rank is wd - w(w-1)/2, less than min(wd, d(d+1)/2): the theory "
    "assumes w ≥ d.",
)
