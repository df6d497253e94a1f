"""Claim: on large tables the feature machine without arguments ranks above LightGBM and xRFM with eight settings each.

Nine datasets of 8,000 to 561,012 training rows; a quarter of the rows are test rows (20,000 for covtype, the original
split for MNIST). Each method is tuned on training rows only. Reported are R² for regression, accuracy for
classification, and wall-clock seconds of fit and prediction. With --twice each fit is repeated, which shows the time
without compilation.

    python benchmarks/large_tables.py --data FOLDER --store large.jsonl          # resumes
    python benchmarks/large_tables.py --data FOLDER --methods machine --sets uci_protein covtype:100000 --record

LightGBM and xRFM are not dependencies; methods that are not installed are skipped and listed.
"""

import argparse
import functools
import importlib.util
import json
import time
import warnings
from pathlib import Path

import numpy as np
import tabular
from record import add_option, recorder

SETS = ("uci_kin40k", "uci_protein", "covtype:100000", "covtype:561012", "adult", "uci_bike", "uci_elevators",
        "higgs_11k", "mnist")  # fmt: skip
CLASSES = ("covtype", "adult", "higgs_11k", "mnist")
SEARCHED, CELLS = 100_000, 10**7
"""Maximum number of rows on which settings of LightGBM and xRFM are compared, and of cells for LightGBM (only MNIST has
more)."""
METHODS = {"machine": "unlazy", "lightgbm": "lightgbm", "xrfm": "xrfm"}


def split(folder: Path, which: str, seed: int) -> tuple[np.ndarray, ...]:
    """Training and test rows of `name` or `name:rows`; columns that are constant in the training rows are dropped."""
    name, _, rows = which.partition(":")
    if name == "mnist":
        with np.load(folder / "mnist.npz") as f:
            X, y, Z, truth = (f[k].astype(float) for k in ("X_train", "y_train", "X_test", "y_test"))
        X, Z = X.reshape(len(X), -1) / 255, Z.reshape(len(Z), -1) / 255
    else:
        X, y = tabular.load(folder, name)
        order = np.random.default_rng([seed, *name.encode()]).permutation(len(X))
        tests = 20_000 if name == "covtype" else len(X) // 4
        test, train = order[:tests], order[tests:][: int(rows) if rows else None]
        X, y, Z, truth = X[train], y[train], X[test], y[test]
    keep = np.ptp(X, axis=0) > 0
    return X[:, keep], y, Z[:, keep], truth


def machine(X, y, Z, classify, seed):
    """Predictions of the feature machine of unlazy without arguments, and what it chose."""
    from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor

    model = (FeatureMachineClassifier if classify else FeatureMachineRegressor)().fit(X, y)
    return model.predict(Z), f"{type(model._base_).__name__} {model.n_updates_} updates, {model.solver_}"


def lightgbm(X, y, Z, classify, seed):
    """Eight settings of leaves, rate and rows per leaf with early stopping on 20% of the rows (at most SEARCHED rows,
    CELLS cells and 1,000 rounds); the best is refitted on all rows."""
    import lightgbm as lgb

    kind = lgb.LGBMClassifier if classify else lgb.LGBMRegressor
    part = np.random.default_rng(seed).permutation(len(X))[: min(SEARCHED, CELLS // X.shape[1])]
    fit, rest = (part[rows] for rows in tabular.halves(len(part), y[part] if classify else None, seed))
    best, chosen = -np.inf, None
    for leaves in (31, 127):
        for rate in (0.05, 0.15):
            for least in (5, 40):
                setting = {"num_leaves": leaves, "learning_rate": rate, "min_child_samples": least}
                model = kind(**setting, n_estimators=1000, random_state=seed, verbose=-1)
                stop = [lgb.early_stopping(50, verbose=False)]
                model.fit(X[fit], y[fit], eval_set=[(X[rest], y[rest])], callbacks=stop)
                predicted = model.predict(X[rest])
                value = np.mean(predicted == y[rest]) if classify else -np.mean((predicted - y[rest]) ** 2)
                if value > best:
                    best, chosen = value, {**setting, "n_estimators": model.best_iteration_}
    return kind(**chosen, random_state=seed, verbose=-1).fit(X, y).predict(Z), str(chosen)


def xrfm(X, y, Z, classify, seed):
    """xRFM as in `tabular`, on the GPU if there is one; draws are compared on at most SEARCHED rows."""
    import torch

    where, say = "cuda" if torch.cuda.is_available() else "cpu", functools.partial(print, flush=True)
    return tabular.xrfm(X, y, Z, classify, seed, where=where, searched=SEARCHED, say=say), ""


def measure(folder: Path, which: str, method: str, seed: int, twice: bool) -> dict:
    X, y, Z, truth = split(folder, which, seed)
    classify = which.partition(":")[0] in CLASSES
    seconds = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(1 + twice):
            started = time.perf_counter()
            predicted, chosen = globals()[method](X, y, Z, classify, seed)
            seconds.append(round(time.perf_counter() - started, 2))
    score = np.mean(predicted == truth) if classify else 1 - np.mean((predicted - truth) ** 2) / np.var(truth)
    return {"set": which, "method": method, "seed": seed, "score": round(float(score), 5), "seconds": seconds,
            "n": len(X), "d": X.shape[1], "chosen": chosen}  # fmt: skip


def read(store: Path) -> list[dict]:
    return [json.loads(line) for line in store.read_text().splitlines() if line] if store.exists() else []


def table(records: list[dict], methods: list[str]) -> str:
    """Scores and seconds, and the mean rank over the (dataset, seed) pairs that every method has finished."""
    from scipy.stats import rankdata

    found = {(r["set"], r["seed"], r["method"]): r for r in records}
    cells = list(dict.fromkeys((r["set"], r["seed"]) for r in records))
    lines = ["| set | rows | " + " | ".join(methods) + " |", "|---" * (len(methods) + 2) + "|"]
    for cell in cells:
        have = [found.get((*cell, m)) for m in methods]
        n = next(r["n"] for r in have if r)
        words = ["" if r is None else f"{r['score']:.4f}, {r['seconds'][-1]:.1f} s" for r in have]
        lines.append(f"| {cell[0]} | {n} | " + " | ".join(words) + " |")
    whole = [[found[*c, m]["score"] for m in methods] for c in cells if all((*c, m) in found for m in methods)]
    if whole:
        ranks = np.mean([rankdata(-np.array(row)) for row in whole], 0)
        lines.append(f"| mean rank of {len(whole)} | | " + " | ".join(f"{v:.2f}" for v in ranks) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("large_tables.jsonl"))
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--twice", action="store_true", help="fit twice; the second fit does not compile")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    missing = [m for m in options.methods if importlib.util.find_spec(METHODS[m]) is None]
    if missing:
        print(f"not installed, skipped: {', '.join(missing)}")
    methods = [m for m in options.methods if m not in missing]
    done = {(r["set"], r["method"], r["seed"]) for r in read(options.store)}
    for seed in options.seeds:
        for which in options.sets:
            for method in methods:
                if (which, method, seed) in done:
                    continue
                record = measure(options.data, which, method, seed, options.twice)
                with options.store.open("a") as f:
                    f.write(json.dumps(record) + "\n")
                print(json.dumps(record), flush=True)
                note(
                    f"{method}, {which}, {'accuracy' if which.startswith(CLASSES) else 'R²'}", record["score"], "score"
                )
                note(f"{method}, {which}, fit and prediction", record["seconds"][-1], "s")
    print(table(read(options.store), methods))


if __name__ == "__main__":
    main()
