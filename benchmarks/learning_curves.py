"""Claim: more rows never make a feature machine worse: its error at n, 2n, 4n, … rises by at most one standard error.

Training rows are the first n of one permutation; test rows are the same for all sizes. The standard error is that of
the paired difference of two sizes over test rows. The error is the squared error over the variance, or the
misclassification rate.

    python benchmarks/learning_curves.py --data FOLDER --store curves.jsonl --record          # resumes
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import large_tables
import numpy as np
from record import add_option, recorder

SETS = ("uci_kin40k", "uci_protein", "uci_bike", "uci_elevators", "covtype", "adult")


def errors(folder: Path, which: str, n: int, seed: int) -> tuple[np.ndarray, float]:
    """Errors of all test rows for a machine fitted to the first n rows, and the seconds of fit and prediction."""
    X, y, Z, truth = large_tables.split(folder, which, seed)
    started = time.perf_counter()
    classify = which in large_tables.CLASSES
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        predicted, _ = large_tables.machine(X[:n], y[:n], Z, classify, seed)
    wrong = (predicted != truth).astype(float) if classify else (predicted - truth) ** 2 / np.var(truth)
    return wrong, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("learning_curves.jsonl"))
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--smallest", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=16_000)
    parser.add_argument("--seed", type=int, default=0)
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    kept = {}
    if options.store.exists():
        kept = {(r["set"], r["n"]): r for r in map(json.loads, options.store.read_text().splitlines())}
    for which in options.sets:
        rows = len(large_tables.split(options.data, which, options.seed)[0])
        before, n = None, options.smallest
        while n <= min(options.largest, rows):
            if (which, n) not in kept:
                wrong, seconds = errors(options.data, which, n, options.seed)
                kept[which, n] = {"set": which, "n": n, "seconds": round(seconds, 1), "errors": wrong.tolist()}
                with options.store.open("a") as f:
                    f.write(json.dumps(kept[which, n]) + "\n")
            wrong = np.array(kept[which, n]["errors"])
            line = f"{which} {n} rows: error {wrong.mean():.5f}, {kept[which, n]['seconds']} s"
            if before is not None:
                rise = wrong - before
                deviation = rise.std() / np.sqrt(len(rise))
                line += f", change {rise.mean():+.5f}, standard error {deviation:.5f}"
                line += "" if rise.mean() <= deviation else ": WORSE"
                note(f"{which}, {n} rows, rise of the error in standard errors", rise.mean() / deviation, "s.e.")
            print(line, flush=True)
            before, n = wrong, 2 * n


if __name__ == "__main__":
    main()
