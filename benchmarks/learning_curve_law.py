"""Claim: n rows predict the risk of the best fixed kernel at 4n rows, from one decomposition, and more accurately than
a power law through refits on the same rows.

For every table of at least 5n rows, kernels and bandwidths are compared by leave-one-out at n. For the best one, the
risk at 4n is predicted (unlazy.learning_curve) and measured by a fit to 4n rows, evaluated on other rows. The baseline
refits at n/8, n/4 and n/2 rows (two draws each, each with its own ridge by leave-one-out), adds leave-one-out at n, and
extrapolates a power law with a floor.

Times are CPU-seconds with one BLAS thread, since waiting threads count too. Both methods reuse the results of choosing
the kernel: the Gram matrix, whose blocks are used by refits, its decomposition and the errors at n. The additional cost
of the law is that of reading the curve, the cost of the baseline that of six decompositions of blocks. The ratio is
also reported with the decomposition at n counted for both; it then cannot reach a tenth, since the decompositions of
the blocks cost 0.29 of it.

With --machine the same is done for a feature machine with automatic choices, whose metric is relearned in folds. The
data then include single-index data with noise (20 columns), and the output shows how optimistic leave-one-out is in the
metric that has seen all labels.

    python benchmarks/learning_curve_law.py --data FOLDER [--machine] [--points 1000] [--seeds 0 1] [--record]
"""

import argparse
import time
import warnings
from contextlib import nullcontext
from pathlib import Path

import jax
import numpy as np
from record import add_option, recorder
from sklearn.base import clone

from unlazy import (
    Constant,
    FeatureMachineClassifier,
    FeatureMachineRegressor,
    Gaussian,
    Laplace,
    ProductLaplace,
    decompose,
    learning_curve,
)
from unlazy.core.arrays import dot
from unlazy.core.threads import single_threaded_blas
from unlazy.measures.scaling_fit import floored_laws
from unlazy.solvers.learning_curve import learning_curve_from_spectrum
from unlazy.theory.dynamics.leave_one_out import leave_one_out_residual
from unlazy.theory.dynamics.spectral_filters import rounding_floor

CLASSES = ("adult", "covtype", "higgs_11k", "mnist")
TABLES = (
    "california_housing", "uci_bike", "uci_elevators", "uci_kin40k", "uci_protein", "uci_pol", "uci_pumadyn32nm",
    *CLASSES,
)  # fmt: skip
OF_MACHINES = ("single_index", "single_index_even", *(t for t in TABLES if t != "mnist"), "uci_sml")
INDEX = {"single_index": lambda t: np.tanh(2 * t), "single_index_even": lambda t: t**2 - 1}
NOISE = 0.3
RIDGES = np.geomspace(1e-8, 1e3, 45)


def table(folder: Path, name: str, seed: int, rows: int) -> tuple[np.ndarray, ...]:
    """Standardized inputs and targets of `rows` rows, and of at most 4,000 others."""
    if name in INDEX:
        rng = np.random.default_rng(100 + seed)
        X, w = rng.normal(size=(rows + 4000, 20)), rng.normal(size=20)
        Y = (INDEX[name](X @ w / np.linalg.norm(w)) + NOISE * rng.normal(size=len(X)))[:, None]
        return X[:rows], Y[:rows], X[rows:], Y[rows:]
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
    """Kernels with several bandwidths, in units of the median distance."""
    some, other = X[:300, None], X[None, :300]
    far = np.median(np.sqrt(((some - other) ** 2).sum(-1)))
    blocks = np.median(np.abs(some - other).sum(-1))
    return [
        *(Gaussian(float(s * far)) for s in (0.5, 1, 2)), *(Laplace(float(s * far)) for s in (1, 3)),
        *(ProductLaplace(float(s * blocks)) for s in (1, 3)),
    ]  # fmt: skip


def best_ridge(kernel, X: np.ndarray, Y: np.ndarray) -> tuple[float, float]:
    """Best ridge by leave-one-out, and its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = decompose(kernel, X)
    errors = (np.asarray(found.leave_one_out(Y, RIDGES)) ** 2).sum(-1).mean(1)
    return float(RIDGES[np.argmin(errors)]), float(errors.min())


def measured(kernel, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, T: np.ndarray) -> tuple[float, float]:
    """Risk of a fit to all of X at Z, and its standard error."""
    mean = Y.mean(0)
    ridge = best_ridge(kernel, X, Y - mean)[0]
    K = np.asarray(kernel.gram(X))
    alpha = np.linalg.solve(K + ridge * np.eye(len(K)), Y - mean)
    wrong = ((np.asarray(kernel.gram(Z, X)) @ alpha + mean - T) ** 2).sum(1)
    return float(wrong.mean()), float(wrong.std() / np.sqrt(len(wrong)))


def refit(K: np.ndarray, Y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Risk at rows b of a fit to rows a, with the ridge chosen by leave-one-out: one decomposition of a block."""
    values, U = np.linalg.eigh(K[np.ix_(a, a)])
    mean = Y[a].mean(0)
    ridges = np.maximum(RIDGES, len(a) * np.finfo(float).eps * values[-1])
    filters = 1 / (np.maximum(values, 0)[:, None] + ridges)
    inside, diagonal = dot(U.T, Y[a] - mean), dot(U**2, filters)
    errors = sum((leave_one_out_residual(dot(U, filters * c[:, None]), diagonal) ** 2).mean(0) for c in inside.T)
    alpha = dot(U, filters[:, [int(np.argmin(errors))]] * inside)
    return float(((dot(K[np.ix_(b, a)], alpha) + mean - Y[b]) ** 2).sum(1).mean())


class Kernels:
    """The best of several kernels at the first n rows, with the intermediate results of choosing it."""

    def __init__(self, name: str, X: np.ndarray, Y: np.ndarray):
        tried = [(kernel, best_ridge(kernel, X, Y - Y.mean(0))[1]) for kernel in candidates(X)]
        self.kernel, self.error = min(tried, key=lambda one: one[1])
        self.label = type(self.kernel).__name__
        self.K = np.asarray(self.kernel.gram(X))
        means = self.K.mean(0)
        began = time.process_time()
        values, self.vectors = np.linalg.eigh(self.K - means - means[:, None] + means.mean())
        self.common = time.process_time() - began
        self.values = np.maximum(values, 0)

    def curve(self, X: np.ndarray, Y: np.ndarray, m: int):
        floor = float(rounding_floor(self.values))
        return learning_curve_from_spectrum(self.values, self.vectors, Y - Y.mean(0), [m], floor=floor, intercept=True)

    def check(self, X: np.ndarray, Y: np.ndarray, curve) -> None:
        """Check that the timed code agrees with the public API."""
        np.testing.assert_allclose(learning_curve(self.kernel, X, Y, curve.sizes).risk, curve.risk, rtol=1e-3)

    def measured(self, *parts: np.ndarray) -> tuple[float, float]:
        return measured(self.kernel, *parts)

    def part(self, X: np.ndarray, Y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        return refit(self.K, Y, a, b)

    def at_hand(self, X: np.ndarray, Y: np.ndarray) -> float:
        """Risk by leave-one-out."""
        return self.error


class Machines:
    """A feature machine, which is tuned again in every fit. Two classes are stored as one column."""

    label = "feature machine"
    common = 0.0

    def __init__(self, name: str, X: np.ndarray, Y: np.ndarray):
        self.classes = name in CLASSES
        self.machine = FeatureMachineClassifier() if self.classes else FeatureMachineRegressor()
        fitted = self.fitted(X, Y)
        self.promised = self.hopeful(fitted, X, Y)

    def targets(self, Y: np.ndarray) -> np.ndarray:
        codes = Y[:, 0] if Y.shape[1] == 1 else Y.argmax(1)
        return codes.astype(int) if self.classes else Y[:, 0]

    def fitted(self, X: np.ndarray, Y: np.ndarray):
        return clone(self.machine).fit(X, self.targets(Y))

    def hopeful(self, fitted, X: np.ndarray, Y: np.ndarray) -> float:
        """Leave-one-out error in the metric of all labels over the error on rows unseen by metric and coefficients."""
        seen, T = fitted.standardized(X), self.one_hot(Y)
        return best_ridge(fitted.kernel_ + Constant(100.0), seen, T - T.mean(0))[1] / self.risk_of(fitted, Y)

    def risk_of(self, fitted, Y: np.ndarray) -> float:
        return fitted.leave_one_out_error_ * float(self.one_hot(Y).var(0).sum())

    def one_hot(self, Y: np.ndarray) -> np.ndarray:
        return np.concatenate([1 - Y, Y], 1) if self.classes and Y.shape[1] == 1 else Y

    def curve(self, X: np.ndarray, Y: np.ndarray, m: int):
        return learning_curve(self.machine, X, self.targets(Y), [m])

    def measured(self, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, T: np.ndarray) -> tuple[float, float]:
        fitted, T = self.fitted(X, Y), self.one_hot(T)
        found = fitted._scores(Z)
        if self.classes:  # a small sample may lack a class
            found, some = np.zeros_like(T), found
            found[:, fitted.classes_] = some
        wrong = ((found - T) ** 2).sum(1)
        return float(wrong.mean()), float(wrong.std() / np.sqrt(len(wrong)))

    def check(self, X: np.ndarray, Y: np.ndarray, curve) -> None:
        """Nothing to check: the curve comes from the public API."""

    def part(self, X: np.ndarray, Y: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
        return self.measured(X[a], Y[a], X[b], Y[b])[0]

    def at_hand(self, X: np.ndarray, Y: np.ndarray) -> float:
        """Risk from the held-out predictions of the search."""
        return self.risk_of(self.fitted(X, Y), Y)


def foreseen_by_power_law(model: Kernels | Machines, X: np.ndarray, Y: np.ndarray, m: int) -> float:
    """Risk at m rows from a power law through refits on parts of the rows, each evaluated on the rest."""
    n, rng = len(X), np.random.default_rng(0)
    sizes, risks = [], []
    for size in (n // 8, n // 4, n // 2):
        found = []
        for _ in range(2):
            order = rng.permutation(n)
            a, b = order[:size], order[size:]
            found.append(model.part(X, Y, a, b))
        sizes.append(size)
        risks.append(np.mean(found))
    sizes.append(n)
    risks.append(model.at_hand(X, Y))
    return float(floored_laws(sizes, np.array([risks]))[0]([m])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--machine", action="store_true", help="use a feature machine instead of fixed kernels")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    n, make = options.points, Machines if options.machine else Kernels
    ours, theirs, inside, promised, seconds = [], [], [], [], np.zeros(4)
    with jax.enable_x64(True), nullcontext() if options.machine else single_threaded_blas():
        for name in options.tables or (OF_MACHINES if options.machine else TABLES):
            for seed in options.seeds:
                try:
                    X, Y, Z, T = table(options.data, name, seed, 4 * n)
                except ValueError:
                    continue
                model = make(name, X[:n], Y[:n])
                seconds[3] += model.common
                began = time.process_time()
                curve = model.curve(X[:n], Y[:n], 4 * n)
                seconds[0] += time.process_time() - began
                model.check(X[:n], Y[:n], curve)
                began = time.process_time()
                law = foreseen_by_power_law(model, X[:n], Y[:n], 4 * n)
                seconds[1] += time.process_time() - began
                began = time.process_time()
                truth, error = model.measured(X, Y, Z, T)
                seconds[2] += time.process_time() - began
                promised.append(getattr(model, "promised", np.nan))
                ours.append(curve.risk[0] / truth - 1)
                theirs.append(law / truth - 1)
                inside.append(curve.low[0] <= truth <= curve.high[0])
                off = curve.risk[0] / truth - 1
                print(
                    f"{name:20s} {seed} {model.label:14s} true {truth:.4g} ± {error:.2g}, predicted "
                    f"{curve.risk[0]:.4g} [{curve.low[0]:.4g}, {curve.high[0]:.4g}] ({off:+.1%}), "
                    f"power law {law:.4g} ({law / truth - 1:+.1%})", flush=True,
                )  # fmt: skip
    means = [float(np.mean(np.abs(np.log1p(errors)))) for errors in (ours, theirs)]
    ours, theirs = np.abs(ours), np.abs(theirs)
    own, whole = seconds[0] / seconds[1], (seconds[0] + seconds[3]) / (seconds[1] + seconds[3])
    print(f"median error {np.median(ours):.3f}, power law {np.median(theirs):.3f}; mean error of the logarithm "
          f"{means[0]:.3f}, power law {means[1]:.3f}; closer than the power law in {np.mean(ours < theirs):.2f}; "
          f"covered {np.mean(inside):.2f} of {len(inside)}; CPU-s {seconds[0]:.2f} and {seconds[1]:.2f} "
          f"({own:.2f}; with the decomposition at n {whole:.2f}), fits to 4n {seconds[2]:.1f}")  # fmt: skip
    of = f" ({'feature machine, ' if options.machine else ''}{n} rows)"
    note(f"median error at 4n{of}", float(np.median(ours)), "relative")
    note(f"median error of a power law{of}", float(np.median(theirs)), "relative")
    note(f"mean error of the logarithm at 4n{of}", means[0], "nats")
    note(f"mean error of the logarithm of a power law{of}", means[1], "nats")
    note(f"covered by 90% intervals{of}", float(np.mean(inside)), "share")
    note(f"CPU-s over those of the power law's refits{of}", float(own), "ratio")
    if not options.machine:
        note(f"CPU-s over the power law's, decomposition at n on both sides{of}", float(whole), "ratio")
    else:
        print(f"leave-one-out in the metric of all labels: {np.median(promised):.3f} of the unbiased error")
        note(f"leave-one-out in the metric of all labels over the honest{of}", float(np.median(promised)), "ratio")


if __name__ == "__main__":
    main()
