"""A wide network trains like its linearization [K10].

Question. How large is the distance between a network and its linearization over training, and how does it depend on
width?
Prediction. [K10] sup over training time of |f_t - f_lin,t| decays at least like w^{-1/2}, and so does the change of the
tangent kernel (Lee et al. 2019).
Protocol. ReLU, one hidden layer, σ_w = √2, σ_b = 0.1, NTK parametrization, Gaussian initialization; n = 10 Gaussian
inputs in R^5 and 20 test inputs (the same for every seed), y = sin(2 x_1); gradient descent with η = 1/λ_max of each
network's tangent kernel, 300 steps, compared every 10 steps. f_lin at every step in closed form [K3]. float64.
Verdict. Slope of log sup_t rms(f_t - f_lin,t) against log width, median over seeds, at most -0.45; slope of the
relative drift of the final kernel at most -0.4; both with two standard errors (bootstrap over seeds).
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.dataset import Data
from unlazy.lab.claims import Claim, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.scaling_fit import power_law, slope
from unlazy.networks import Network, tangent_kernel
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent import recording
from unlazy.training.descent.descend import descend
from unlazy.training.options import Recording

INPUTS, POINTS, TESTS, EVERY = 5, 10, 20, 10


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures gap, sup, drift, loss, f, linear."""
    network = Network(MLP(params["depth"], "relu", sigma_b=0.1, width=params["width"]), INPUTS)
    inputs = jnp.asarray(np.random.default_rng(0).standard_normal((POINTS + TESTS, INPUTS)))
    X, Z = inputs[:POINTS], inputs[POINTS:]
    y = jnp.sin(2 * X[:, 0])
    start = network.init(key)
    eigenvalues, U = jnp.linalg.eigh(tangent_kernel(network, start, X))
    eta = 1 / eigenvalues[-1]
    measures = {"f": lambda p: network(p, Z), "drift": recording.kernel_drift(network, start, X)}
    found = descend(
        network, start, Data(X, y), steps=params["steps"], step_size=POINTS * eta,
        recording=Recording(measures, every=EVERY),
    )  # fmt: skip
    c = spectral_filters.descent_coefficient(eigenvalues, eta, found.recorded_at)
    alpha = spectral_filters.coefficients(U, c, y - network(start, X))
    linear = network(start, Z) + dot(alpha, tangent_kernel(network, start, X, Z))
    gap = jnp.sqrt(jnp.mean(jnp.square(found.recorded["f"] - linear), axis=1))
    return {
        "gap": gap, "sup": jnp.max(gap), "drift": found.recorded["drift"][-1], "loss": found.final_loss,
        "f": found.recorded["f"][-1], "linear": linear[-1],
    }  # fmt: skip


def _by_width(records: Records, name: str) -> tuple[list[int], np.ndarray]:
    """Widths, and a measure stacked by width and seed."""
    widths = records.values("width")
    return widths, np.stack([records.where(width=w).measure(name) for w in widths])


def claims(records: Records) -> list[Claim]:
    """Claims on [K10], from the records."""
    rows = []
    for name, statement, bound in [
        (
            "sup",
            "slope of the largest distance to the linearization over training (sup over time) against width",
            -0.45,
        ),
        ("drift", "slope of the relative drift of the final tangent kernel against width", -0.4),
    ]:
        widths, values = _by_width(records, name)
        fit = slope(widths, values)
        error = (fit.high - fit.low) / 4
        rows.append(
            at_most(statement, "K10", fit.value, bound, error=error, predicted=f"-1/2 or steeper, allowed {bound}")
        )
    return rows


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.1), layout="constrained")
    widths, gaps = _by_width(records, "gap")
    steps = EVERY * np.arange(gaps.shape[2])
    for width, rows in zip(widths, gaps):
        left.semilogy(steps[1:], np.median(rows, axis=0)[1:], label=f"width {width}")
    left.set(xlabel="gradient steps", ylabel="rms of $f_t - f_{lin,t}$ on test points", title="during training")
    left.legend(ncols=2)
    for (name, label), marker in zip({"sup": "sup over time", "drift": "drift of the tangent kernel"}.items(), "os"):
        _, values = _by_width(records, name)
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=1)
        right.errorbar(widths, middle, [middle - low, high - middle], fmt=marker + "-", lw=1, ms=4.5, label=label)
    fit = power_law(widths, np.median(_by_width(records, "sup")[1], axis=1))
    line = np.array([widths[0], widths[-1]], float)
    right.plot(line, fit(line)[0] * (line / line[0]) ** -0.5, "k--", lw=1, label="slope $-1/2$")
    right.set(
        xscale="log",
        yscale="log",
        xlabel="width",
        ylabel="distance, relative drift",
        title="median and quartiles over seeds",
    )
    right.legend()
    return fig


experiment = Experiment(
    name="linearization_error",
    source="S1",
    tags=("K10",),
    question="How far is a network in training from its linearization, and how does this depend on width?",
    prediction="sup over training time of |f - f_lin| decays like width^(-1/2) or faster [K10].",
    protocol="ReLU networks and their linearizations (closed form) trained on 10 points, compared every 10 steps.",
    verdict="Slope of the median sup against width at most -0.45, of the kernel drift at most -0.4, with two standard "
    "errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"width": [32, 128, 512, 2048]}, seeds=16, depth=1, steps=300),
    full=config({"width": [32, 64, 128, 256, 512, 1024, 2048, 4096]}, seeds=32, depth=1, steps=1000),
    caveats="The theorem gives an upper bound w^(-1/2); measured slopes are steeper at small widths.",
)
