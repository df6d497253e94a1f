"""Neurons cluster on real images too, if the initialization is small [P7].

Question: do a network's weights align with a few directions when it learns to classify two digits?
Prediction [P4, P7]: from a small initialization (σ_w = 5e-4) the gradient soon dominates, and all neurons align with
it; from a larger one (σ_w = 0.01) the network is lazier: equally accurate, with little change in weight directions.
Protocol: 0 against 1 of scikit-learn's 8×8 digits, or of an MNIST-like file, centered and scaled by one factor [P2] to
root mean square norm 2; 100 truncated ReLUs in antisymmetric pairs, σ_a = 0.03, hinge loss, 200 full-batch gradient
steps of size 0.1. Measured on one neuron per pair: the median |cosine| between two neurons before and after training,
and a permutation test: under the null hypothesis that training does not change the distribution of directions, the
directions of any neuron before and after training are exchangeable (measures.neurons.clustering_test, 999
permutations).
Verdict: small initialization: median |cosine| ≤ 0.15 before and ≥ 0.85 after training, with p ≤ 0.01, for every seed;
larger initialization: ≤ 0.5 after training; test accuracy ≥ 0.97 for both.
"""

from functools import cache
from pathlib import Path

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.errors import UnlazyError
from unlazy.lab.claims import Claim, at_least, at_most
from unlazy.lab.experiment import Experiment, Figure, Measures, Params, Records, config
from unlazy.measures.neurons import clustering_test, plane_embedding
from unlazy.measures.risk import accuracy
from unlazy.tasks.images import digits, idx_images, npz_images
from unlazy.tasks.table import TableTask
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.two_steps import pattern_network

SMALL, LARGE = 5e-4, 1e-2
SIGMA_A, RATE, STEPS = 0.03, 0.1, 200
LENGTH = 2.0
WIDTH, MOST = 100, 1000
"""Number of neurons, and maximum number of training images and of test images."""


@cache
def images(file: str | None) -> TableTask:
    """Images of 0 and 1 from scikit-learn's digits, an npz file, or a folder with idx files of training images."""
    if file is None:
        return digits((0, 1))
    path = Path(file)
    if path.is_dir():
        found = [sorted(path.glob(f"train*{kind}*")) for kind in ("images", "labels")]
        if not all(found):
            raise UnlazyError(f"no train*images* and train*labels* idx files found in {path}")
        return idx_images(found[0][0], found[1][0], (0, 1))
    try:
        return npz_images(path, classes=(0, 1))
    except UnlazyError:
        return npz_images(path, "X_train", "y_train", (0, 1))


@jax.jit
def fit(
    X: Array, y: Array, test: Array, truth: Array, sigma: ArrayLike, key: PRNGKeyArray
) -> tuple[Array, Array, Array]:
    """Weights of one neuron per pair before and after training, and the test accuracy."""
    network = pattern_network(X.shape[1], WIDTH, sigma_w=1.0, sigma_b=1.0, sigma_a=SIGMA_A)
    first, head = network.init(key, "antisymmetric")
    start = (jax.tree.map(lambda part: sigma * part, first), head)
    end = descend(network, start, Data(X, y), steps=STEPS, step_size=RATE, loss="hinge").params
    half = WIDTH // 2
    return start[0].weight.T[:half], end[0].weight.T[:half], accuracy(network(end, test), truth)


def trial(params: Params, key: PRNGKeyArray) -> Measures:
    """One trial; measures before, after, p_value, accuracy, points."""
    table = images(params["file"])
    key_rows, key_start = jax.random.split(key)
    n = min(MOST, int(0.7 * table.size))
    data = table.sample(key_rows, min(table.size, n + MOST))
    X = np.asarray(data.X) - np.asarray(data.X[:n]).mean(0)  # mean of the training images only
    X *= LENGTH / np.sqrt(np.mean(np.sum(X[:n] ** 2, 1)))
    before, after, score = fit(X[:n], data.y[:n], X[n:], data.y[n:], params["sigma"], key_start)
    found = clustering_test(np.asarray(before), np.asarray(after))
    drawn = [plane_embedding(np.concatenate([W, -W])).points for W in (np.asarray(before), np.asarray(after))]
    return {
        "before": found.before, "after": found.after, "p_value": found.p_value, "accuracy": score,
        "points": np.stack(drawn),
    }  # fmt: skip


def dataset_name(file: str | None) -> str:
    """Dataset name for claims and figures."""
    return "digits" if file is None else Path(file).stem


def claims(records: Records) -> list[Claim]:
    """Claims on [P7], from the records."""
    rows = []
    for file in records.values("file"):
        here, what = Records(r for r in records if r.params["file"] == file), dataset_name(file)
        small, large = here.where(sigma=SMALL), here.where(sigma=LARGE)
        if len(small):
            rows += [
                at_most(f"{what}: median |cosine| between neurons at initialization, worst seed", "P7",
                        float(small.measure("before").max()), 0.15),
                at_least(f"{what}: median |cosine| between neurons after training, worst seed", "P7",
                         float(small.measure("after").min()), 0.85),
                at_most(f"{what}: p-value of this increase (permutation test), worst seed", "P7",
                        float(small.measure("p_value").max()), 0.01),
            ]  # fmt: skip
        if len(large):
            rows.append(at_most(f"{what}: lazy initialization σ_w = 0.01, median |cosine| after training, worst seed",
                                "P7", float(large.measure("after").max()), 0.5))  # fmt: skip
        for start, mine in (("small", small), ("lazy", large)):
            if len(mine):
                rows.append(at_least(f"{what}: test accuracy from the {start} initialization, worst seed", "P7",
                                     float(mine.measure("accuracy").min()), 0.97))  # fmt: skip
    return rows


def figure(records: Records) -> Figure:
    """Plot of the records."""
    import matplotlib.pyplot as plt

    files = records.values("file")
    fig, axes = plt.subplots(len(files), 4, figsize=(9.6, 2.6 * len(files)), squeeze=False, layout="constrained")
    for row, file in zip(axes, files):
        here = Records(r for r in records if r.params["file"] == file)
        for i, sigma in enumerate((SMALL, LARGE)):
            mine = here.where(sigma=sigma)
            for j, stage in enumerate(("before", "after")):
                axis = row[2 * i + j]
                if not len(mine):
                    axis.set_axis_off()
                    continue
                points = mine[0].measures["points"][j]
                half = len(points) // 2
                axis.scatter(*points[:half].T, s=12, alpha=0.5, lw=0, color="C0")
                axis.scatter(*points[half:].T, s=12, alpha=0.5, lw=0, color="C1")
                middle = np.median(mine.measure(stage))
                when = "initial" if j == 0 else "final"
                axis.set_title(f"$\\sigma_w$ = {sigma:g}, {when}: $|\\cos|$ = {middle:.2f}")
                reach = 1.15 * np.abs(points).max()
                axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        row[0].set_ylabel(f"{dataset_name(file)}: w (blue), -w (orange)")
    return fig


experiment = Experiment(
    name="real_images",
    source="S4",
    tags=("P7",),
    question="Do a network's weights align with a few directions when it learns real images?",
    prediction="From a small initialization all neurons align; from a larger one the network is lazy and equally "
    "accurate [P7].",
    protocol="0 against 1 of scikit-learn's digits (or `file`), 100 neurons, hinge loss, 200 full-batch steps; "
    "5 seeds.",
    verdict="Median |cosine| ≤ 0.15 before, ≥ 0.85 after training with p ≤ 0.01; ≤ 0.5 with lazy initialization; "
    "accuracy ≥ 0.97.",
    trial=trial,
    claims=claims,
    figure=figure,
    quick=config({"sigma": [SMALL, LARGE]}, seeds=5, file=None),
    full=config({"sigma": [SMALL, LARGE]}, seeds=20, file=None),
    vectorized=False,
    precision="float32",
    choices={"file": ("mnist.npz",)},
    caveats=(
        "`--set file=PATH` takes an npz file (x_train, y_train) or a folder of idx files. The p-value tests whether "
        "the distribution of directions changed toward clustering; with 999 permutations it is at least 0.001, and "
        "small changes reach it too: the effect size is the median |cosine|."
    ),
)
