"""Convergence of finite convolutional and attention networks to their kernels [C1, C3, C4].

Question. Do convolutional and attention networks converge to their NNGP and NTK as the width grows, and at what rate?
Prediction. [C1, C4] The empirical kernels are averages over about w channels, so the relative error of a random
network's kernel decays like w^{-1/2}: for convolution with a residual branch and global pooling, and for
self-attention.
Protocol. `convolution`: Conv 3, residual (ReLU, Conv 3), ReLU, global average pool, Dense, on 1-D signals of 5
positions with 3 channels. `attention`: Dense, ReLU, softmax self-attention, global average pool, Dense, on 5 tokens of
3 channels. σ_w = √2, σ_b = 0.1, 4 Gaussian points (the same for every seed), NTK parametrization, float64. NTK: one
output; NNGP: the mean over all outputs, whose number equals the width. Error ‖K_w - K_∞‖_F/‖K_∞‖_F, median over seeds
at each width: in pilot runs (32 to 160 seeds) a few draws of the attention network were such outliers that slopes of
the root mean square remained undecided.
Verdict. Slope of log error against log width in [-0.65, -0.35], with two standard errors (bootstrap over seeds), for
both kernels of both networks.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.networks.infinite_width import nngp_and_ntk
from unlazy.lab.claims import Claim, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.lab.experiments._draws import draw_parameters
from unlazy.layers import Conv, Dense, GlobalAvgPool, Layer, SelfAttention, residual, serial
from unlazy.measures.scaling_fit import slope
from unlazy.measures.tangent_drift import relative_change
from unlazy.networks import Network, tangent_kernel

POINTS, SHAPE, SIGMA_B = 4, (5, 3), 0.1


def description(name: str) -> Layer:
    """Architecture by name."""
    end = (GlobalAvgPool(), Dense(sigma_b=SIGMA_B))
    if name == "attention":
        return serial(Dense(sigma_b=SIGMA_B), "relu", SelfAttention(), *end)
    conv = Conv(3, sigma_b=SIGMA_B)
    return serial(conv, residual("relu", conv), "relu", *end)


def inputs() -> np.ndarray:
    """The input points, the same for every trial."""
    return np.random.default_rng(0).standard_normal((POINTS, *SHAPE))


@functools.cache
def limits(name: str) -> tuple[np.ndarray, np.ndarray]:
    """NNGP and NTK matrices, cached since they are the same for every width and seed."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        nngp, ntk = nngp_and_ntk(description(name), inputs())
        return np.asarray(nngp), np.asarray(ntk)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures ntk, nngp."""
    name, width = params["network"], params["width"]
    X = jnp.asarray(inputs())
    nngp, ntk = (jnp.asarray(K, X.dtype) for K in limits(name))
    network = Network(description(name), SHAPE, width=width, outputs=width)
    (start,) = draw_parameters((network,), key)
    f = network(start, X)
    return {
        "ntk": relative_change(ntk, tangent_kernel(lambda theta, X: network(theta, X)[:, 0], start, X)),
        "nngp": relative_change(nngp, dot(f, f.T) / width),
    }


def errors(records: Records, network: str) -> tuple[list[int], dict[str, np.ndarray]]:
    """Widths, and the relative errors of both kernels, each of shape (widths, seeds)."""
    chosen = records.where(network=network)
    widths = chosen.values("width")
    found = {k: np.stack([chosen.where(width=w).measure(k) for w in widths]) for k in ("ntk", "nngp")}
    return widths, found


def claims(records: Records) -> list[Claim]:
    """Claims on [C1, C3, C4], from the records."""
    rows = []
    for network in records.values("network"):
        widths, found = errors(records, network)
        for name, values in found.items():
            fit = slope(widths, values, statistic=np.median)
            rows.append(
                within(
                    f"{network}, widths {widths[0]} … {widths[-1]}: slope of log {name.upper()} error in log width",
                    "C4" if network == "attention" else "C1", fit.value, -0.65, -0.35, error=(fit.high - fit.low) / 4,
                    predicted="-1/2 ± 0.15",
                )
            )  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of relative error of the kernel against width."""
    import matplotlib.pyplot as plt

    networks = records.values("network")
    fig, axes = plt.subplots(1, len(networks), figsize=(3.9 * len(networks), 3.1), squeeze=False, layout="constrained")
    for axis, network in zip(axes[0], networks):
        widths, found = errors(records, network)
        for (name, values), marker in zip(found.items(), "os"):
            axis.loglog(widths, np.median(values, 1), f"{marker}-", ms=4.5, lw=0.8, label=name.upper())
        line = np.array([widths[0], widths[-1]], float)
        first = np.median(found["ntk"], 1)[0]
        axis.loglog(line, first * (line / line[0]) ** -0.5, "k--", lw=1, label="slope $-1/2$")
        axis.set(xlabel="width", ylabel="relative error of the kernel", title=network)
        axis.set_xticks(widths, [str(width) for width in widths])
        axis.set_xticks([], minor=True)
        axis.legend()
    return fig


experiment = Experiment(
    name="convolution_limit",
    source="S1",
    tags=("C1", "C3", "C4"),
    question="Do convolutional and attention networks converge to their kernels as the width grows?",
    prediction="Relative errors of NNGP and NTK decay like width^(-1/2) for both architectures [C1, C4].",
    protocol="A residual convolutional network on signals of 5 positions and softmax attention on 5 tokens, at "
    "initialization.",
    verdict="All slopes of log error in log width lie in [-0.65, -0.35], with two standard errors.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"network": ["convolution", "attention"], "width": [32, 256]}, seeds=192),
    full=config({"network": ["convolution", "attention"], "width": [32, 64, 128, 256, 512]}, seeds=256),
    lanes=8,
    caveats="Only at initialization.",
)
