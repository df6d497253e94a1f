"""Claim: the feature machine without arguments ranks first on tables, in less time than it takes to tune xRFM.

24 real datasets, at most 3,000 training (--rows) and 3,000 test rows each, one split per dataset (--seeds for more),
the same for every method; all methods are tuned on training rows. R² for regression, accuracy for classification; ranks
are averaged over datasets, and tied methods share a rank.

    python benchmarks/tabular.py --data FOLDER --store tabular.jsonl --jobs 2     # resumes
    python benchmarks/tabular.py --data FOLDER --store tabular.jsonl --table      # only the table (--record keeps it)

xRFM 0.4.5 (requires torch), LightGBM, CatBoost and RealMLP (pytabkit, requires torch) are not dependencies; methods
that are not installed are skipped. One thread per dataset; times are CPU-seconds of fit and prediction. With --rows
400, 1200 and so on it shows how ranks depend on the number of rows.
"""

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402  (threads must be set first)
from record import add_option, recorder  # noqa: E402

TESTS = 3000
REGRESSION = ("uci_airfoil", "uci_autompg", "uci_bike", "california_housing", "uci_concrete", "uci_elevators",
              "uci_energy", "uci_kin40k", "uci_pol", "uci_protein", "uci_pumadyn32nm", "uci_sml",
              "uci_wine")  # fmt: skip
CLASSIFICATION = ("adult", "covtype", "higgs_11k", "pmlb/ann_thyroid", "pmlb/churn", "pmlb/pendigits", "pmlb/phoneme",
                  "pmlb/satimage", "pmlb/spectf", "pmlb/tic_tac_toe", "pmlb/wine_quality_white")  # fmt: skip
IMPORTS = {
    "machine": ("unlazy.estimators.feature_machine.machines",),
    "xrfm": ("torch", "xrfm"),
    "lightgbm": ("lightgbm",),
    "catboost": ("catboost",),
    "realmlp": ("torch", "pytabkit"),
}
METHODS = ("machine", "xrfm", "lightgbm", "catboost", "realmlp", "laplace_l2", "laplace_l1", "forest", "boosting")


def load(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs (categories one-hot) and targets of one dataset."""
    if name.startswith("pmlb/"):
        with np.load(folder / "pmlb.npz") as f:
            return f[f"{name[5:]}/X"].astype(float), f[f"{name[5:]}/y"]
    with np.load(folder / f"{name}.npz") as f:
        arrays = {k: f[k] for k in f.files}
    X, y = arrays["X"].astype(float), arrays["y"].ravel()
    if name == "covtype":
        return np.hstack([X, one_hot(arrays["wilderness"]), one_hot(arrays["soil"])]), y
    if name == "adult":
        return np.hstack([X, *(one_hot(column) for column in arrays["X_cat"].T)]), y
    return X, y


def one_hot(codes: np.ndarray) -> np.ndarray:
    return (codes.ravel()[:, None] == np.unique(codes)[None]).astype(float)


def split(folder: Path, name: str, seed: int, rows: int) -> tuple[np.ndarray, ...]:
    """Random split with at most `rows` training rows; columns that are constant in the training rows are dropped."""
    X, y = load(folder, name)
    order = np.random.default_rng([seed, *name.encode()]).permutation(len(X))
    n_test = min(TESTS, len(X) // 4)
    test, train = order[:n_test], order[n_test : n_test + rows]
    keep = np.ptp(X[train], axis=0) > 0
    return X[train][:, keep], y[train], X[test][:, keep], y[test]


def standardized(X: np.ndarray, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardize columns by the training rows, except indicator columns (as xRFM recommends)."""
    plain = np.all(np.isin(X, (0.0, 1.0)), axis=0)
    center, scale = np.where(plain, 0, X.mean(0)), np.where(plain, 1, X.std(0))
    return (X - center) / scale, (Z - center) / scale


def halves(n: int, y: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """80% of the rows to fit and 20% for validation, stratified by class."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(n)
    counts = None if y is None else np.unique(y, return_counts=True)[1]
    return train_test_split(rows, test_size=0.2, random_state=seed,
                            stratify=y if counts is not None and counts.min() > 1 else None)  # fmt: skip


def quality(predicted: np.ndarray, y: np.ndarray, classes: np.ndarray | None) -> tuple[float, float]:
    """Validation score, larger is better: (R², R²), or accuracy with ties broken by the squared error."""
    if classes is None:
        value = 1 - np.mean((predicted.ravel() - y) ** 2) / np.var(y)
        return value, value
    target = (y[:, None] == classes[None]).astype(float)
    return float(np.mean(classes[np.argmax(predicted, 1)] == y)), -float(np.mean((predicted - target) ** 2))


def machine(X, y, Z, classify, seed):
    """Feature machine of unlazy without arguments."""
    from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor

    model = (FeatureMachineClassifier if classify else FeatureMachineRegressor)()
    return model.fit(X, y).predict(Z)


def xrfm(X, y, Z, classify, seed, draws=8, where="cpu", searched=None, say=None):
    """xRFM 0.4.5: the best of 8 draws from the search space of its authors' benchmark entry, by 20% of the rows.

    Draws use at most `searched` rows; with more rows, the best draw is refitted on 80% of them.
    """
    import torch

    torch.set_num_threads(1 if where == "cpu" else 8)
    X, Z = standardized(X, Z)
    classes, codes = np.unique(y, return_inverse=True) if classify else (None, None)
    center, scale = (0, 1) if classify else (y.mean(), y.std())
    target = codes if classify else (y - center) / scale
    rng, best, chosen = np.random.default_rng(seed), ((-np.inf, -np.inf), None), None
    part = np.arange(len(X)) if searched is None else np.random.default_rng(seed).permutation(len(X))[:searched]
    for draw in range(draws):
        exponent, between = rng.uniform(0.7, 1.4), rng.uniform(0, 0.8)
        kernel = "lpq" if rng.random() < 0.8 else "l2"
        model = {"kernel": kernel, "bandwidth": float(np.exp(rng.uniform(np.log(0.5), np.log(200)))),
                 "exponent": float(exponent), "diag": bool(rng.random() < 0.5),
                 "bandwidth_mode": "constant"}  # fmt: skip
        if kernel == "lpq":
            model["norm_p"] = float(exponent + (2 - exponent) * between)
        reg = float(np.exp(rng.uniform(np.log(1e-6), np.log(10))))
        started = time.perf_counter()
        try:
            found, value = _xrfm_fitted(X[part], target[part], classes, seed, where, model, reg)
        except Exception as error:
            print(f"xRFM draw failed: {error}", file=sys.stderr)
            continue
        if say is not None:
            say(f"xRFM draw {draw + 1} of {draws}: {value[0]:.4f} on held-out rows, {kernel}, "
                f"{time.perf_counter() - started:.1f} s")  # fmt: skip
        if value > best[0]:
            best, chosen = (value, (model, reg)), found
    if len(part) < len(X):
        chosen, _ = _xrfm_fitted(X, target, classes, seed, where, *best[1])
    predicted = _xrfm_values(chosen, Z, classify)
    return classes[np.argmax(predicted, 1)] if classify else predicted.ravel() * scale + center


def _xrfm_fitted(X, target, classes, seed, where, model, reg):
    """xRFM fitted to 80% of the rows with one setting, and its score on the rest."""
    import torch
    from xrfm import xRFM

    classify = classes is not None
    fit, rest = halves(len(X), target if classify else None, seed)
    kind = torch.int64 if classify else torch.float32
    inputs = [torch.tensor(X[rows], dtype=torch.float32) for rows in (fit, rest)]
    labels = [torch.tensor(target[rows] if classify else target[rows][:, None], dtype=kind) for rows in (fit, rest)]
    found = xRFM(rfm_params={"model": model, "fit": {"reg": reg, "iters": 5, "verbose": False,
                 "early_stop_rfm": True, "early_stop_multiplier": 1.1, "return_best_params": True}},
                 device=torch.device(where), tuning_metric="brier" if classify else "mse", verbose=False,
                 classification_mode="prevalence", random_state=seed, n_threads=1)  # fmt: skip
    found.fit(inputs[0], labels[0], inputs[1], labels[1])
    values = _xrfm_values(found, X[rest], classify)
    return found, quality(values, target[rest], np.arange(len(classes)) if classify else None)


def _xrfm_values(model, X, classify):
    inputs = X.astype(np.float32)
    return np.nan_to_num(np.asarray(model.predict_proba(inputs) if classify else model.predict(inputs)))


def laplace(X, y, Z, classify, seed, metric):
    """Laplace kernel ridge regression: bandwidth and ridge chosen on 20% of the rows, then refitted on all."""
    from scipy.linalg import cho_factor, cho_solve
    from scipy.spatial.distance import cdist

    X, Z = standardized(X, Z)
    classes = np.unique(y) if classify else None
    target = (y[:, None] == classes[None]).astype(float) if classify else y[:, None].astype(float)
    fit, rest = halves(len(X), y if classify else None, seed)
    D = cdist(X, X, metric)
    middle, best, chosen = np.median(D), (-np.inf, -np.inf), None
    for factor in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0):
        K = np.exp(-D / (factor * middle))
        for ridge in 10.0 ** np.arange(-6, 2):
            A = K[np.ix_(fit, fit)] + ridge * np.eye(len(fit))
            alpha = cho_solve(cho_factor(A, overwrite_a=True, check_finite=False), target[fit] - target[fit].mean(0))
            value = quality(K[np.ix_(rest, fit)] @ alpha + target[fit].mean(0), y[rest], classes)
            if value > best:
                best, chosen = value, (factor * middle, ridge)
    width, ridge = chosen
    alpha = cho_solve(cho_factor(np.exp(-D / width) + ridge * np.eye(len(D))), target - target.mean(0))
    predicted = np.exp(-cdist(Z, X, metric) / width) @ alpha + target.mean(0)
    return classes[np.argmax(predicted, 1)] if classify else predicted.ravel()


def laplace_l2(X, y, Z, classify, seed):
    return laplace(X, y, Z, classify, seed, "euclidean")


def laplace_l1(X, y, Z, classify, seed):
    return laplace(X, y, Z, classify, seed, "cityblock")


def lightgbm(X, y, Z, classify, seed):
    """Eight settings of leaves, rate and rows per leaf with early stopping on 20% of the rows; the best is refitted."""
    import lightgbm as lgb

    kind = lgb.LGBMClassifier if classify else lgb.LGBMRegressor
    fit, rest = halves(len(X), y if classify else None, seed)
    best, chosen = -np.inf, None
    for leaves in (8, 31):
        for rate in (0.03, 0.1):
            for least in (5, 20):
                setting = {"num_leaves": leaves, "learning_rate": rate, "min_child_samples": least}
                model = kind(**setting, n_estimators=2000, random_state=seed, n_jobs=1, verbose=-1)
                stop = [lgb.early_stopping(50, verbose=False)]
                model.fit(X[fit], y[fit], eval_set=[(X[rest], y[rest])], callbacks=stop)
                predicted = model.predict(X[rest])
                value = np.mean(predicted == y[rest]) if classify else -np.mean((predicted - y[rest]) ** 2)
                if value > best:
                    best, chosen = value, {**setting, "n_estimators": model.best_iteration_}
    return kind(**chosen, random_state=seed, n_jobs=1, verbose=-1).fit(X, y).predict(Z)


def catboost(X, y, Z, classify, seed):
    """CatBoost without arguments."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    kind = CatBoostClassifier if classify else CatBoostRegressor
    model = kind(random_seed=seed, thread_count=1, verbose=False, allow_writing_files=False)
    return np.ravel(model.fit(X, y).predict(Z))


def realmlp(X, y, Z, classify, seed):
    """RealMLP with tuned defaults; it holds 20% of the rows out to stop."""
    from pytabkit import RealMLP_TD_Classifier, RealMLP_TD_Regressor

    kind = RealMLP_TD_Classifier if classify else RealMLP_TD_Regressor
    return np.ravel(kind(random_state=seed, device="cpu", n_threads=1, verbosity=0).fit(X, y).predict(Z))


def forest(X, y, Z, classify, seed):
    """Random forest with 500 trees and the defaults of scikit-learn."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    model = (RandomForestClassifier if classify else RandomForestRegressor)(500, random_state=seed)
    return model.fit(X, y).predict(Z)


def boosting(X, y, Z, classify, seed):
    """Histogram gradient boosting: rate, leaves and rounds chosen on 20% of the rows, then refitted on all."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    kind = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    fit, rest = halves(len(X), y if classify else None, seed)
    best, chosen = -np.inf, None
    for rate in (0.03, 0.1):
        for leaves in (8, 31):
            model = kind(learning_rate=rate, max_leaf_nodes=leaves, max_iter=400, early_stopping=False,
                         random_state=seed).fit(X[fit], y[fit])  # fmt: skip
            staged = model.staged_predict(X[rest])
            for rounds, predicted in enumerate(staged, 1):
                value = np.mean(predicted == y[rest]) if classify else -np.mean((predicted - y[rest]) ** 2)
                if rounds % 20 == 0 and value > best:
                    best, chosen = value, {"learning_rate": rate, "max_leaf_nodes": leaves, "max_iter": rounds}
    return kind(**chosen, early_stopping=False, random_state=seed).fit(X, y).predict(Z)


def installed(method: str) -> bool:
    return all(importlib.util.find_spec(module.partition(".")[0]) for module in IMPORTS.get(method, ()))


def measure(folder: Path, name: str, method: str, seed: int, rows: int) -> dict:
    """One record: score on the test rows and CPU-seconds of this process."""
    X, y, Z, truth = split(folder, name, seed, rows)
    classify = name in CLASSIFICATION
    for module in IMPORTS.get(method, ("scipy.spatial", "sklearn.ensemble")):
        importlib.import_module(module)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted = globals()[method](X, y, Z, classify, seed)
    seconds = time.process_time() - started
    score = np.mean(predicted == truth) if classify else 1 - np.mean((predicted - truth) ** 2) / np.var(truth)
    return {"set": name, "method": method, "seed": seed, "score": round(float(score), 5), "seconds": round(seconds, 2),
            "rows": rows, "n": len(X), "d": X.shape[1]}  # fmt: skip


def read(store: Path, rows: int) -> list[dict]:
    """Stored records for this number of training rows."""
    lines = store.read_text().splitlines() if store.exists() else []
    return [r for r in map(json.loads, filter(None, lines)) if r["rows"] == rows]


def table(records: list[dict], methods: list[str], note) -> str:
    """Scores, mean ranks and times over the (dataset, seed) pairs that every method has finished."""
    from scipy.stats import rankdata

    found = {(r["set"], r["seed"], r["method"]): r for r in records}
    cells = [c for c in dict.fromkeys((r["set"], r["seed"]) for r in records)
             if all((*c, m) in found for m in methods)]  # fmt: skip
    cells.sort(key=lambda c: (c[0] in CLASSIFICATION, c))
    scores = np.array([[found[*c, m]["score"] for m in methods] for c in cells]).reshape(len(cells), len(methods))
    seconds = np.array([[found[*c, m]["seconds"] for m in methods] for c in cells]).reshape(scores.shape)
    ranks = np.array([rankdata(-row) for row in scores]).reshape(scores.shape)
    lines = ["| set | n | d | " + " | ".join(methods) + " |", "|---" * (len(methods) + 3) + "|"]
    for c, row in zip(cells, scores):
        r = found[*c, methods[0]]
        lines.append(f"| {c[0]} | {r['n']} | {r['d']} | " + " | ".join(f"{v:.4f}" for v in row) + " |")
    for label, values, unit in (
        ("mean rank", ranks.mean(0), "rank"), ("CPU-seconds, all sets", seconds.sum(0), "CPU-s"),
    ):  # fmt: skip
        for method, value in zip(methods, values):
            note(f"{label}, {method}, {len(cells)} sets", value, unit)
        lines.append(f"| {label} | | | " + " | ".join(f"{v:.2f}" for v in values) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("tabular.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--sets", nargs="*", default=[*REGRESSION, *CLASSIFICATION])
    parser.add_argument("--methods", nargs="*", default=[m for m in METHODS if installed(m)])
    parser.add_argument("--rows", type=int, default=3000, help="maximum number of training rows")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--table", action="store_true", help="only print the table of stored results")
    add_option(parser)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.data, options.sets[0], options.methods[0], options.seeds[0], options.rows)))
        return
    if not options.table:
        run(options)
    print(table(read(options.store, options.rows), options.methods, recorder(__file__, options.record)))


def run(options: argparse.Namespace) -> None:
    """Run every unfinished (dataset, method, seed) in a separate process, to measure its CPU time."""
    from concurrent.futures import ThreadPoolExecutor

    done = {(r["set"], r["method"], r["seed"]) for r in read(options.store, options.rows)}
    tasks = [(s, m, k) for k in options.seeds for s in options.sets for m in options.methods if (s, m, k) not in done]

    def work(task: tuple[str, str, int]) -> None:
        name, method, seed = task
        command = [sys.executable, __file__, "--data", str(options.data), "--sets", name, "--methods", method,
                   "--seeds", str(seed), "--rows", str(options.rows), "--one"]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            print(f"{name} {method}: failed\n{ended.stderr[-1500:]}", file=sys.stderr, flush=True)
            return
        line = ended.stdout.strip().splitlines()[-1]
        with options.store.open("a") as f:
            f.write(line + "\n")
        print(line, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, tasks))


if __name__ == "__main__":
    main()
