"""Claim: from n rows the risk of the best fixed kernel at 4n rows is foreseen, by one decomposition and better than by
a power law through refits on the same rows.

For every table of at least 5n rows: kernels and bandwidths are compared by leave-one-out at n; of the best, the risk at
4n is foreseen (unlazy.learning_curve), and measured by a fit to 4n rows on the others. The opponent refits at n/8, n/4
and n/2 rows (two draws each), adds leave-one-out at n, and continues a power law with a floor.

    python benchmarks/learning_curve_law.py --data FOLDER [--points 1000] [--seeds 0 1] [--record]
"""

import argparse
import time
import warnings
from pathlib import Path

import jax
import numpy as np
from record import add_option, recorder

from unlazy import Gaussian, Laplace, ProductLaplace, decompose, learning_curve
from unlazy.measures.scaling_fit import floored_laws

CLASSES = ("adult", "covtype", "higgs_11k", "mnist")
TABLES = (
    "california_housing", "uci_bike", "uci_elevators", "uci_kin40k", "uci_protein", "uci_pol", "uci_pumadyn32nm",
    *CLASSES,
)  # fmt: skip
RIDGES = np.geomspace(1e-8, 1e3, 45)


def table(folder: Path, name: str, seed: int, rows: int) -> tuple[np.ndarray, ...]:
    """Standardised inputs and targets of `rows` rows, and of at most 4,000 others."""
    with np.load(folder / f"{name}.npz") as file:
        X, y = (file["X_train"], file["y_train"]) if name == "mnist" else (file["X"], file["y"])
    order = np.random.default_rng(seed).permutation(len(X))[: rows + 4000]
    if len(order) < 1.25 * rows:
        raise ValueError("too few rows")
    X, y = X[order].reshape(len(order), -1).astype(float), np.ravel(y[order])
    if name in CLASSES:
        labels = np.unique(y)
        Y = (y[:, None] == labels[-1:] if len(labels) == 2 else y[:, None] == labels).astype(float)
    else:
        Y = y[:, None].astype(float)
    spread = X[:rows].std(0)
    X = (X - X[:rows].mean(0))[:, spread > 0] / spread[spread > 0]
    return X[:rows], Y[:rows], X[rows:], Y[rows:]


def candidates(X: np.ndarray) -> list:
    """Kernels of several bandwidths, in units of the median distance."""
    some, other = X[:300, None], X[None, :300]
    far = np.median(np.sqrt(((some - other) ** 2).sum(-1)))
    blocks = np.median(np.abs(some - other).sum(-1))
    return [
        *(Gaussian(float(s * far)) for s in (0.5, 1, 2)), *(Laplace(float(s * far)) for s in (1, 3)),
        *(ProductLaplace(float(s * blocks)) for s in (1, 3)),
    ]  # fmt: skip


def best_ridge(kernel, X: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
    """By leave-one-out, and its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        left_out = np.asarray(decompose(kernel, X).leave_one_out(Y, RIDGES))
    errors = (left_out**2).sum(-1).mean(1)
    return float(RIDGES[np.argmin(errors)]), float(errors.min())


def measured(kernel, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, T: np.ndarray) -> tuple[float, float]:
    """Risk of a fit to all of X at Z, and its standard error."""
    mean = Y.mean(0)
    ridge, _ = best_ridge(kernel, X, Y - mean)
    K = np.asarray(kernel.gram(X))
    alpha = np.linalg.solve(K + ridge * np.eye(len(K)), Y - mean)
    wrong = ((np.asarray(kernel.gram(Z, X)) @ alpha + mean - T) ** 2).sum(1)
    return float(wrong.mean()), float(wrong.std() / np.sqrt(len(wrong)))


def foreseen_by_power_law(kernel, X: np.ndarray, Y: np.ndarray, m: int) -> float:
    """Refits on parts of the rows, judged on the rest, and a law through them."""
    n, rng = len(X), np.random.default_rng(0)
    sizes, risks = [], []
    for size in (n // 8, n // 4, n // 2):
        found = []
        for _ in range(2):
            order = rng.permutation(n)
            a, b = order[:size], order[size:]
            found.append(measured(kernel, X[a], Y[a], X[b], Y[b])[0])
        sizes.append(size)
        risks.append(np.mean(found))
    sizes.append(n)
    risks.append(best_ridge(kernel, X, Y - Y.mean(0))[1])
    return float(floored_laws(sizes, np.array([risks]))[0]([m])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    n = options.points
    ours, theirs, inside, seconds = [], [], [], np.zeros(2)
    with jax.enable_x64(True):
        for name in options.tables:
            for seed in options.seeds:
                try:
                    X, Y, Z, T = table(options.data, name, seed, 4 * n)
                except ValueError:
                    continue
                kernel = min(candidates(X[:n]), key=lambda k: best_ridge(k, X[:n], Y[:n] - Y[:n].mean(0))[1])
                began = time.process_time()
                curve = learning_curve(kernel, X[:n], Y[:n], [4 * n])
                seconds[0] += time.process_time() - began
                began = time.process_time()
                law = foreseen_by_power_law(kernel, X[:n], Y[:n], 4 * n)
                seconds[1] += time.process_time() - began
                truth, error = measured(kernel, X, Y, Z, T)
                ours.append(abs(curve.risk[0] / truth - 1))
                theirs.append(abs(law / truth - 1))
                inside.append(curve.low[0] <= truth <= curve.high[0])
                off = curve.risk[0] / truth - 1
                print(
                    f"{name:20s} {seed} {type(kernel).__name__:14s} true {truth:.4g} ± {error:.2g}, foreseen "
                    f"{curve.risk[0]:.4g} [{curve.low[0]:.4g}, {curve.high[0]:.4g}] ({off:+.1%}), "
                    f"power law {law:.4g} ({law / truth - 1:+.1%})", flush=True,
                )  # fmt: skip
    print(f"median error {np.median(ours):.3f}, power law {np.median(theirs):.3f}; covered {np.mean(inside):.2f} of "
          f"{len(inside)}; CPU-s {seconds[0]:.1f} against {seconds[1]:.1f}")  # fmt: skip
    note("median error at 4n", float(np.median(ours)), "relative")
    note("median error of a power law", float(np.median(theirs)), "relative")
    note("covered by 90% intervals", float(np.mean(inside)), "share")


if __name__ == "__main__":
    main()
