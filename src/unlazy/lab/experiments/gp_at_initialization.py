"""Wide random networks are Gaussian processes; the deviation at finite width [K6, K7].

Question. Is a random network, before any training, a draw from a Gaussian process with the NNGP kernel?
Prediction. [K7] As the width grows f(X) ~ N(0, Σ). At finite width w the excess kurtosis of a ReLU network without
biases is exactly 3((1 + 5/w)^L - 1): given the last hidden layer, f is Gaussian with variance q, and each of the L
hidden layers multiplies q by an independent mean of w squares with relative variance 5/w (E relu⁴/(E relu²)² = 6; for
products of this kind see Hanin & Nica 2020). So it decays like 15L/w.
Protocol. Many networks [K6] with L = 2 hidden layers, σ_w = √2, no biases, at 5 Gaussian inputs in R^8, float64. The
kurtosis is estimated from the conditional variance q (3 Var q/(E q)²), with a tenth of the sampling error of the direct
estimate.
Verdict. At the largest width the sample covariance, whitened by Σ, is the identity: the largest |z| of its 15 entries
(with standard errors from the sample, since tails are not Gaussian) is below the value that the largest of 15 scores
exceeds with probability 1e-4. At every width the kurtosis agrees with the formula: the largest |t| over widths is below
the corresponding bound for Student's t with (seeds - 1) degrees of freedom. Slope of log kurtosis in log width over the
upper half of the widths in [-1.15, -0.9].
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.kernels.networks.infinite_width import NNGP
from unlazy.lab.claims import Claim, at_most, within
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures import gaussian_test
from unlazy.measures.scaling_fit import power_law
from unlazy.networks.mlp import Network, Parameters
from unlazy.theory.infinite_width.architecture import MLP

INPUTS, POINTS, BATCH = 8, 5, 50
EDGES = np.linspace(-6, 6, 49)


def exact_kurtosis(width: float | Array | np.ndarray, depth: int) -> float | Array | np.ndarray:
    """3((1 + 5/w)^L - 1)."""
    return 3 * ((1 + 5 / width) ** depth - 1)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures second, fourth, covariance, kernel, kurtosis, histogram."""
    network = Network(MLP(params["depth"], width=params["width"]), INPUTS)
    X = jnp.asarray(np.random.default_rng(0).standard_normal((POINTS, INPUTS)))  # the same for every seed
    K = NNGP(network.mlp).gram(X)

    def draw(flat: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = _unpack(network, flat)
        hidden = network.hidden(weights, X[:1])
        return network(weights, X), 2 * jnp.mean(jnp.square(hidden))

    def batch(one: Any) -> tuple[jax.Array, jax.Array]:
        return jax.vmap(draw)(jax.random.normal(one, (BATCH, _size(network))))

    f, q = jax.lax.map(batch, jax.random.split(key, params["networks"] // BATCH))
    f, q = f.reshape(-1, POINTS), q.ravel()
    g = gaussian_test.whiten(f, jnp.zeros(POINTS), K)
    products = g[:, :, None] * g[:, None, :]
    inside = jnp.histogram(f[:, 0] / jnp.sqrt(K[0, 0]), bins=jnp.asarray(EDGES))[0]
    return {
        "second": products.mean(0), "fourth": jnp.square(products).mean(0), "covariance": dot(f.T, f) / f.shape[0],
        "kernel": K, "kurtosis": 3 * jnp.var(q, ddof=1) / jnp.square(K[0, 0]), "histogram": inside,
    }  # fmt: skip


def _layout(network: Network) -> Any:
    """Shapes and dtypes of the parameters."""
    return jax.eval_shape(network.init, jax.random.key(0))


def _size(network: Network) -> int:
    """Number of parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(_layout(network)))


def _unpack(network: Network, flat: jax.Array) -> Parameters:
    """Initial parameters [K6] from one vector of normals; one random call compiles much faster than one per layer."""
    leaves, tree = jax.tree.flatten(_layout(network))
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [flat[end - leaf.size : end].reshape(leaf.shape) for leaf, end in zip(leaves, ends)]
    return jax.tree.unflatten(tree, parts)


def claims(records: Records) -> list[Claim]:
    """Claims on [K6, K7], from the records."""
    widths = np.array(records.values("width"))
    depth = records[0].params["depth"]
    wide = records.where(width=widths[-1])
    count = len(wide) * wide[0].params["networks"]
    rows_, columns = np.triu_indices(POINTS)
    mean, square = (wide.measure(name).mean(0)[rows_, columns] for name in ("second", "fourth"))
    z = (mean - (rows_ == columns)) / np.sqrt((square - mean**2) / count)
    kurtosis = np.stack([records.where(width=w).measure("kurtosis") for w in widths])
    seeds = kurtosis.shape[1]
    t = (kurtosis.mean(1) - exact_kurtosis(widths, depth)) / (kurtosis.std(1, ddof=1) / np.sqrt(seeds))
    upper = slice((len(widths) - 1) // 2, None)
    slope = _slope(widths[upper], kurtosis[upper].mean(1))
    error = np.std([_slope(widths[upper], column) for column in kurtosis[upper].T], ddof=1) / np.sqrt(seeds)
    return [
        at_most(
            f"width {widths[-1]}: covariance of {count:,} networks against the NNGP: largest |z| of {len(z)}", "K7",
            float(np.abs(z).max()), gaussian_test.max_z_threshold(len(z)), basis="derived",
        ),
        at_most(
            f"excess kurtosis 3((1+5/w)^{depth} - 1) at {len(widths)} widths: largest |t|", "K7",
            float(np.abs(t).max()), gaussian_test.max_t_threshold(len(t), seeds - 1), basis="derived",
        ),
        within("slope of log kurtosis in log width", "K7", slope, -1.15, -0.9, error=float(error),
               predicted="-1, allowed -1.15 to -0.9"),
    ]  # fmt: skip


def _slope(widths: np.ndarray, values: np.ndarray) -> float:
    """Exponent of a power law."""
    return power_law(widths, values).exponent


def figure(records: Records) -> Figure:
    """Plot of density against f(x) / NNGP std."""
    import matplotlib.pyplot as plt

    widths = records.values("width")
    depth = records[0].params["depth"]
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(7.6, 2.7), layout="constrained")
    centers = (EDGES[1:] + EDGES[:-1]) / 2
    for width in (widths[0], widths[-1]):
        histogram = records.where(width=width).measure("histogram").sum(0)
        total = len(records.where(width=width)) * records[0].params["networks"]
        shown = histogram > 0
        left.semilogy(centers[shown], (histogram / total / np.diff(EDGES))[shown], "o", ms=2.5, label=f"width {width}")
    left.semilogy(centers, np.exp(-(centers**2) / 2) / np.sqrt(2 * np.pi), "k-", lw=1, label="Gaussian")
    left.set(xlabel="f(x) / NNGP std", ylabel="density", ylim=(1e-5, 20), title="output at initialization")
    left.legend(loc="upper center", ncols=2, fontsize=6.5)
    values = np.stack([records.where(width=w).measure("kurtosis") for w in widths])
    line = np.geomspace(widths[0], widths[-1], 50)
    error = 2 * values.std(1, ddof=1) / np.sqrt(values.shape[1])
    middle.errorbar(widths, values.mean(1), error, fmt="o", ms=4, label="networks, ± 2 s.e.")
    middle.loglog(line, exact_kurtosis(line, depth), "k-", lw=1, label=f"$3((1+5/w)^{depth}-1)$")
    middle.set(xscale="log", yscale="log", xlabel="width w", ylabel="excess kurtosis", title="deviation from Gaussian")
    middle.legend()
    wide = records.where(width=widths[-1])
    K, C = wide[0].measures["kernel"], wide.measure("covariance").mean(0)
    both = [min(K.min(), C.min()), max(K.max(), C.max())]
    right.plot(both, both, "k-", lw=1, label="equality")
    right.plot(K.ravel(), C.ravel(), "o", color="#009E73", label=f"width {widths[-1]}")
    right.set(xlabel="NNGP kernel", ylabel="covariance of networks", title="5 inputs, all pairs")
    right.legend()
    return fig


experiment = Experiment(
    name="gp_at_initialization",
    source="S1",
    tags=("K6", "K7"),
    question="Is a wide random network a draw from the Gaussian process with the NNGP kernel?",
    prediction="The covariance is the NNGP; the excess kurtosis 3((1 + 5/w)^L - 1) decays like 1/width [K7].",
    protocol="Thousands of ReLU networks with 2 hidden layers at 5 inputs, for a range of widths, float64.",
    verdict="Largest |z| of 15 covariances and largest |t| over widths below their 1e-4 bounds; slope of log kurtosis "
    "in [-1.15, -0.9].",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"width": [8, 32, 128]}, seeds=12, networks=500, depth=2),
    full=config({"width": [8, 16, 32, 64, 128, 256]}, seeds=24, networks=1000, depth=2),
    caveats="Off the diagonal the covariance of a finite network differs from the NNGP by O(1/width), which is below "
    "the noise here.",
)
