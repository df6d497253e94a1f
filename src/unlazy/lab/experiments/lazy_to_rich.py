"""The output scale of a network determines whether its training is lazy or rich [K10, L1].

Question. What decides whether a network trains like its tangent kernel or learns features, and does it matter for risk?
Prediction. [L1] Scale, not architecture: multiply the output by α and divide the learning rates by α² (Chizat, Oyallon
and Bach 2019). As α → ∞ the tangent kernel is constant, and the network reaches the risk of its linearization [K10];
for small α the kernel changes by more than its norm, and the relevant directions are learned. As a function of width,
the change of the kernel decays like w^{-1/2} or faster in the NTK parametrization, and does not decay in mean field.
Protocol. x ~ N(0, I_10), f* = relu(x_1) - relu(-x_2), centered and normalized on the sample, n = 100, 400 test points;
two-layer ReLU network, antisymmetric initialization (f_0 = 0); gradient descent with step size 0.3/λ_max of the initial
kernel until the loss is 1e-3 (zero predictor: 1/2). `scale`: width 100, α from 0.03 to 30. `width`: NTK and mean-field
parametrization, α = 1. The linearized network is trained to convergence in closed form. float64.
Verdict. Every run reaches the target loss. Risk at the smallest α at most 0.3 times that at the largest; risk at the
largest α within 10% of that of the linearized network; kernel drift above 1 at the smallest α, at most 0.05 at the
largest, and its mean decreases with every step of α. Slope of the drift in width at most -0.3 for NTK, at least -0.15
for mean field. All with two standard errors.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_least, at_most, interval_claim, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.risk import risk
from unlazy.measures.scaling_fit import slope
from unlazy.measures.tangent_drift import relative_change
from unlazy.networks import Network, linearize, tangent_kernel, trained_linearization
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent.descend import STOPPED, descend
from unlazy.training.descent.stability import stable_step_size
from unlazy.training.options import DescentOptions

INPUTS, POINTS, TESTS, ENOUGH, SAFETY = 10, 100, 400, 1e-3, 0.3


def _data(key: Any) -> tuple[Data, Data]:
    """Training and test data."""
    X = jax.random.normal(key, (POINTS + TESTS, INPUTS))
    f = jax.nn.relu(X[:, 0]) - jax.nn.relu(-X[:, 1])
    f = (f - f.mean()) / f.std()
    return Data(X[:POINTS], f[:POINTS]), Data(X[POINTS:], f[POINTS:])


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures risk, linear_risk, drift, features, reached, steps_taken."""
    key_data, key_start = jax.random.split(key)
    train, test = _data(key_data)
    mlp = MLP(1, "relu", width=params["width"])
    network = Network(mlp, INPUTS, params["parametrization"], output_scale=params["scale"])
    start = network.init(key_start, "antisymmetric")
    eta = SAFETY * stable_step_size(network, start, train, rates=network.rates)
    options = DescentOptions(rates=network.rates, stop_below=ENOUGH)
    found = descend(network, start, train, steps=params["steps"], step_size=eta, options=options)
    K = tangent_kernel(network, start, train.X, rates=network.rates)
    trained = trained_linearization(network, start, train.X, train.y, time=jnp.inf, rates=network.rates)
    linear = linearize(network, start)(trained, test.X)
    H0, H = network.hidden(start, train.X), network.hidden(found.params, train.X)
    return {
        "risk": risk(network(found.params, test.X), test.y), "linear_risk": risk(linear, test.y),
        "drift": relative_change(K, tangent_kernel(network, found.params, train.X, rates=network.rates)),
        "features": relative_change(H0, H), "reached": found.status == STOPPED, "steps_taken": found.steps,
    }  # fmt: skip


def _by_scale(records: Records, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Values of α, and a measure as a table (α × seeds)."""
    chosen = records.where(part="scale")
    scales = chosen.values("scale")
    return np.array(scales), np.stack([chosen.where(scale=a).measure(name) for a in scales])


def _ratio(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """Ratio of means over the same seeds, and its standard error."""
    ratio = top.mean() / bottom.mean()
    return float(ratio), float(np.std(top - ratio * bottom, ddof=1) / np.sqrt(len(top)) / bottom.mean())


def claims(records: Records) -> list[Claim]:
    """Claims on [L1, K10], from the records."""
    scales, risks = _by_scale(records, "risk")
    drifts, linear = _by_scale(records, "drift")[1], _by_scale(records, "linear_risk")[1]
    gain, gain_error = _ratio(risks[0], risks[-1])
    lazy, lazy_error = _ratio(risks[-1], linear[-1])
    errors = drifts.std(1, ddof=1) / np.sqrt(drifts.shape[1])
    falls = -np.diff(np.log(drifts.mean(1)))
    small, large = f"α = {scales[0]:g}", f"α = {scales[-1]:g}"
    reached = records.measure("reached").mean()
    rows = [
        at_least("fraction of runs that reach the target loss", "L1", float(reached), 1.0, predicted="all"),
        at_most(f"risk at {small} / risk at {large}", "L1", gain, 0.3, error=gain_error),
        within(f"risk at {large} / risk of the linearized network", "K10", lazy, 0.9, 1.1, error=lazy_error,
               predicted="1 ± 0.1"),
        at_least(f"{small}: relative drift of the tangent kernel", "L1", float(drifts[0].mean()), 1.0,
                 error=float(errors[0])),
        at_most(f"{large}: relative drift of the tangent kernel", "K10", float(drifts[-1].mean()), 0.05,
                error=float(errors[-1])),
        interval_claim("drift decreases with every step of α: smallest decrease of its logarithm", "L1",
                       float(falls.min()), float(falls.min()), float(falls.max()), bool(falls.min() > 0), "> 0",
                       "range over steps"),
    ]  # fmt: skip
    for name, bound, low in (("ntk", -0.3, False), ("mean_field", -0.15, True)):
        widths, values = _by_width(records, name)
        fit = slope(widths, values, statistic=np.mean)
        compare = at_least if low else at_most
        statement = f"{name}: slope of the drift of the tangent kernel against width"
        rows.append(compare(statement, "L1", fit.value, bound, error=(fit.high - fit.low) / 4))
    return rows


def _by_width(records: Records, name: str) -> tuple[list[int], np.ndarray]:
    """Widths, and the kernel drift as a table (widths × seeds)."""
    chosen = records.where(part="width", parametrization=name)
    widths = chosen.values("width")
    return widths, np.stack([chosen.where(width=w).measure("drift") for w in widths])


def figure(records: Records) -> Figure:
    """Plot of test risk against output scale α."""
    import matplotlib.pyplot as plt

    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(9.6, 3.0), layout="constrained")
    scales, risks = _by_scale(records, "risk")
    low, center, high = np.quantile(risks, [0.25, 0.5, 0.75], axis=1)
    left.errorbar(scales, center, [center - low, high - center], fmt="o-", label="network")
    left.plot(scales, np.median(_by_scale(records, "linear_risk")[1], axis=1), "k--", lw=1, label="linearization")
    left.set(xscale="log", yscale="log", xlabel="output scale α", ylabel="test risk", title="rich ← α → lazy")
    left.legend()
    for name, label, marker in (("drift", "tangent kernel", "o"), ("features", "hidden features", "s")):
        middle.loglog(scales, np.median(_by_scale(records, name)[1], axis=1), marker + "-", label=label)
    middle.axhline(1, color="k", lw=0.8, ls=":")
    middle.set(xlabel="output scale α", ylabel="relative change", title="change during training")
    middle.legend()
    for name, label, marker in (("ntk", "NTK", "o"), ("mean_field", "mean field", "s")):
        widths, values = _by_width(records, name)
        right.loglog(widths, np.median(values, axis=1), marker + "-", label=label)
    right.set(xlabel="width", ylabel="drift of the tangent kernel", title="parametrization")
    right.set_xticks(widths, [str(w) for w in widths])
    right.minorticks_off()
    right.legend()
    return fig


_SCALES: dict[str, list] = {"part": ["scale"], "parametrization": ["ntk"], "width": [100]}
_WIDTHS: dict[str, list] = {"part": ["width"], "parametrization": ["ntk", "mean_field"], "scale": [1.0]}

experiment = Experiment(
    name="lazy_to_rich",
    source="S3",
    tags=("L1", "K10"),
    question="What decides whether a network trains like its tangent kernel or learns features?",
    prediction="The output scale α: for large α the kernel is constant; for small α it changes and the relevant "
    "directions are learned [L1].",
    protocol="The same two-layer network, data and target loss; α from 0.03 to 30; NTK and mean field against width.",
    verdict="Rich: risk at least 3.3 times lower. Lazy: risk equal to the linearization's. Drift decreases with α.",
    trial=trial,
    claims=claims,
    figure=figure,
    version=2,
    quick=config({**_SCALES, "scale": [0.03, 0.3, 3.0, 30.0]}, {**_WIDTHS, "width": [64, 256]}, seeds=8, steps=4000),
    full=config(
        {**_SCALES, "scale": [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0]},
        {**_WIDTHS, "width": [64, 128, 256, 512, 1024, 2048]},
        seeds=16,
        steps=10000,
    ),
    traced=("scale",),
    lanes=1,
    demo=True,
    caveats="Rich training is better here because the target has two relevant directions; a rotationally invariant "
    "target would gain nothing.",
)
