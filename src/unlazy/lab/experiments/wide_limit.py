"""Tangent and feature kernels of finite networks converge to their infinite-width limits [K7, K8, K9, L1, L2].

Question. How fast do the kernels of a random finite network converge to the NNGP and the NTK, layer by layer?
Prediction. [K9] Every kernel is an average over about w neurons, so its relative error decays like w^{-1/2}: for each
layer of a two-layer network (K_1 = Σ a²σ'σ'⟨x,z⟩, K_2 = Σ σσ [L1]), and for every K_l of a deep one [L2].
Protocol. ReLU, σ_w = √2, σ_b = 0.1, n = 8 Gaussian inputs in R^10 (the same for every seed), NTK parametrization,
float64. ‖K_w - K_∞‖_F/‖K_∞‖_F of each layer's tangent kernel, of their sum and of the last hidden layer's Gram matrix;
root mean square over seeds at each width.
Verdict. Slope of log error against log width in [-0.6, -0.4], with two standard errors (bootstrap over seeds): for
K_1, K_2, the NTK and the NNGP with one hidden layer; in `full` also for each layer with three hidden layers.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.networks.infinite_width import NNGP, layer_kernel
from unlazy.lab.claims import Claim, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.scaling_fit import power_law, slope
from unlazy.measures.tangent_drift import relative_change
from unlazy.networks import Network, layer_tangent_kernels
from unlazy.theory.infinite_width.architecture import MLP

INPUTS, POINTS, SIGMA_B = 10, 8, 0.1


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures layers, ntk, nngp."""
    mlp = MLP(params["depth"], "relu", sigma_b=SIGMA_B, width=params["width"])
    network = Network(mlp, INPUTS)
    X = jnp.asarray(np.random.default_rng(0).standard_normal((POINTS, INPUTS)))
    start = network.init(key)
    finite = layer_tangent_kernels(network, start, X)
    infinite = [layer_kernel(mlp, l + 1).gram(X) for l in range(mlp.depth + 1)]
    H = network.hidden(start, X)
    features = dot(mlp.sigma_w[-1] ** 2 * H, H.T) / params["width"] + SIGMA_B**2
    return {
        "layers": jnp.stack([relative_change(K, k) for k, K in zip(finite, infinite)]),
        "ntk": relative_change(sum(infinite, jnp.zeros(())), sum(finite, jnp.zeros(()))),
        "nngp": relative_change(NNGP(mlp).gram(X), features),
    }


def errors(records: Records, depth: int) -> tuple[list[int], dict[str, np.ndarray]]:
    """Widths, and the errors of every kernel by name, shape (widths, seeds)."""
    chosen = records.where(depth=depth)
    widths = chosen.values("width")
    layers = np.stack([chosen.where(width=w).measure("layers") for w in widths])
    found = {f"K_{l + 1}": layers[..., l] for l in range(depth + 1)}
    for name in ("ntk", "nngp"):
        found[name.upper()] = np.stack([chosen.where(width=w).measure(name) for w in widths])
    return widths, found


def root_mean_square(values: np.ndarray, axis: int) -> np.ndarray:
    """Root mean square along an axis."""
    return np.sqrt(np.mean(np.square(values), axis=axis))


def claims(records: Records) -> list[Claim]:
    """Claims on [K7, K9, L1, L2], from the records."""
    rows = []
    for depth in records.values("depth"):
        widths, found = errors(records, depth)
        for name, values in found.items():
            fit = slope(widths, values, statistic=root_mean_square)
            rows.append(
                within(
                    f"depth {depth}, widths {widths[0]} … {widths[-1]}: slope of the error of {name} against width",
                    {"NTK": "K9", "NNGP": "K7"}.get(name, "L1" if depth == 1 else "L2"),
                    fit.value, -0.6, -0.4, error=(fit.high - fit.low) / 4, predicted="-1/2 ± 0.1",
                )
            )  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of relative error of the kernel against width."""
    import matplotlib.pyplot as plt

    depths = records.values("depth")
    fig, axes = plt.subplots(1, len(depths), figsize=(3.9 * len(depths), 3.1), squeeze=False, layout="constrained")
    for axis, depth in zip(axes[0], depths):
        widths, found = errors(records, depth)
        line = np.array([widths[0], widths[-1]], float)
        for (name, values), marker in zip(found.items(), "osD^vPX"):
            middle = root_mean_square(values, 1)
            label = f"${name}$" if "_" in name else name
            axis.loglog(widths, middle, marker, ms=4.5, ls="-", lw=0.8, label=label)
        scale = power_law(widths, root_mean_square(found["NTK"], 1))
        axis.loglog(line, scale(widths)[0] * (line / line[0]) ** -0.5, "k--", lw=1, label="slope $-1/2$")
        axis.set(xlabel="width", ylabel="relative error of the kernel", title=f"{depth} hidden layer{'s'[: depth > 1]}")
        axis.legend(ncols=2)
    return fig


experiment = Experiment(
    name="wide_limit",
    source="S1",
    tags=("K7", "K9", "L1", "L2"),
    question="How fast do the kernels of a finite network converge to their infinite-width limits?",
    prediction="Relative error decays like width^(-1/2), for every layer's tangent kernel, the NTK and the NNGP [K9].",
    protocol="ReLU networks at initialization, 8 inputs in R^10, relative Frobenius error at several widths, float64.",
    verdict="Every slope of log error against log width lies in [-0.6, -0.4] with two standard errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"width": [32, 128, 512, 2048]}, seeds=48, depth=1),
    full=config(
        {"depth": [1], "width": [32, 128, 512, 2048, 8192, 32768]},
        {"depth": [3], "width": [32, 64, 128, 256, 512, 1024]},
        seeds=96,
    ),
    lanes=8,
    caveats="Only at initialization; for changes of the kernels in training see linearization_error and lazy_to_rich.",
)
