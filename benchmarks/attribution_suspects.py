"""Claim: `suspects()` finds at least as many wrong labels as the better of neighbors and loss, on every table.

In five tables 10% of the labels are replaced by another class. A network is trained on them, with weight decay and for
long without, and rows are ranked: by the network's loss, by the share of other labels among the 10 nearest neighbors,
and by `suspects()`. Printed is the share of wrong labels within the first 20% of the rows, the mean over seeds.

    python benchmarks/attribution_suspects.py [--only banana] [--seeds 3] [--record]
"""

import argparse
import itertools
import os
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from record import add_option, recorder  # noqa: E402
from scipy.spatial.distance import cdist  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402

from unlazy import TangentOptions, attribution  # noqa: E402

TABLES = ("digits", "banana", "phoneme", "balance_scale", "ann_thyroid")
SHARE, WITHIN, NEIGHBORS, ROWS, WIDTH, STEPS = 0.1, 0.2, 10, 500, 24, 2000
DECAYS = {"decayed": 1e-2, "overtrained": 0.0}


def load(name: str, folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standardized rows, labels of which some are wrong, and which those are."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
    else:
        tables = np.load(folder / "pmlb.npz")
        X, y = tables[f"{name}/X"].astype(float), tables[f"{name}/y"]
    y = np.unique(y, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    some = rng.permutation(len(X))[:ROWS]
    X, y = X[some], y[some]
    X = (X - X.mean(0)) / np.where(X.std(0) > 0, X.std(0), 1)
    wrong = rng.permutation(len(y)) < SHARE * len(y)
    y[wrong] = (y[wrong] + rng.integers(1, y.max() + 1, wrong.sum())) % (y.max() + 1)
    return X.astype(np.float32), y, wrong


def apply(params: list, X: jax.Array) -> jax.Array:
    """A network with two hidden layers."""
    for weight, bias in params[:-1]:
        X = jnp.tanh(X @ weight + bias)
    return X @ params[-1][0] + params[-1][1]


def train(X: np.ndarray, y: np.ndarray, decay: float, seed: int) -> list:
    """Full-batch Adam with a falling step."""
    rng = np.random.default_rng(seed)
    sizes = (X.shape[1], WIDTH, WIDTH, int(y.max()) + 1)
    shapes = list(itertools.pairwise(sizes))
    params = [(jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), jnp.float32), jnp.zeros(s[1])) for s in shapes]
    optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, STEPS))

    def objective(p: list) -> jax.Array:
        squares = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p))
        return optax.softmax_cross_entropy_with_integer_labels(apply(p, X), y).mean() + decay / 2 * squares

    @jax.jit
    def run(p: list) -> list:
        def step(carry: tuple, _: None) -> tuple:
            updates, state = optimizer.update(jax.grad(objective)(carry[0]), carry[1])
            return (optax.apply_updates(carry[0], updates), state), None

        return jax.lax.scan(step, (p, optimizer.init(p)), None, length=STEPS)[0][0]

    return run(params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=TABLES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for name in options.only:
        for kind, decay in DECAYS.items():
            shares = []
            for seed in range(options.seeds):
                X, y, wrong = load(name, options.folder, seed)
                params = train(X, y, decay, seed)
                known = max(decay, 1e-3)
                found = attribution((apply, params), X, y, X[:1], decay=known, options=TangentOptions(dtype="float64"))
                losses = optax.softmax_cross_entropy_with_integer_labels(apply(params, X), y)
                distances = cdist(X, X)
                np.fill_diagonal(distances, np.inf)
                near = np.argsort(distances, 1)[:, :NEIGHBORS]
                others = np.mean(y[near] != y[:, None], 1)
                suspects = found.suspects()
                first = round(WITHIN * len(y))
                orders = np.argsort(-others, kind="stable"), np.argsort(-np.asarray(losses)), suspects.rows
                shares.append([wrong[order[:first]].sum() / wrong.sum() for order in orders])
            neighbors, loss, ours = np.mean(shares, 0)
            holds = "holds" if ours >= max(neighbors, loss) else "does not hold"
            print(
                f"{name:14} {kind:12} neighbors {neighbors:.3f}  loss {loss:.3f}  suspects {ours:.3f}  {holds}",
                flush=True,
            )
            note(f"wrong labels found, {name} {kind}", ours, "share")


if __name__ == "__main__":
    main()
