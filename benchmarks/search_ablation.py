"""Which constants of the feature machine's search matter: every mechanism is switched off in turn.

The tables and splits of tabular.py, at most 1,000 training rows (--rows). One process per table fits the machine
without arguments once to compile, then as it is and with each variant of `VARIANTS`. Printed are, for every variant,
the mean change of the score (R² or accuracy) with its standard error over tables, on how many tables it was better and
worse by more than 0.002, the mean rank between the variants, and the CPU time of fits relative to the search as it is.

    python benchmarks/search_ablation.py --data FOLDER --store ablation.jsonl            # resumes
    python benchmarks/search_ablation.py --data FOLDER --store ablation.jsonl --table    # only the table

With --record the changes and their errors are kept.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from record import add_option, recorder
from tabular import CLASSIFICATION, REGRESSION, split

NEVER, ALWAYS = 10**9, 0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
VARIANTS = {
    "as it is": {},
    "no rotations": {"ROTATIONS_PER_SIZE": 0},
    "no averaging of candidates": {"AVERAGING_ROWS": ALWAYS},
    "no clipped labels": {"MIN_CLIPPED": NEVER},
    "no pilot sample": {"PILOT_ROWS": NEVER},
    "pilot keeps only the best kernel": {"DROP_FACTOR": 1.0},
    "no slow updates": {"SLOW_START_FACTOR": ALWAYS},
    "slow updates at full power": {"SLOW_POWER": 1.0},
    "no noise floor": {"NOISE_FLOOR": 0.0},
    "no screening of columns": {"SCREENING_COLUMNS": NEVER},
    "only kernels as good as the best continue": {"WITHIN_REACH": 1.0},
    "no patience": {"PATIENCE": 1, "SLOW_PATIENCE": 1},
    "updates until the error stops falling": {"WORTH_ANOTHER_UPDATE": 1.0},
    "updates only for gains of 5%": {"WORTH_ANOTHER_UPDATE": 0.95},
    "takeover by any gain": {"TAKEOVER_FACTOR": 1.0},
    "only the best kernel is examined further": {"COMPETITIVE_FACTOR": 1.0},
    "coarse tuning": {"TUNING_GAIN": 0.05, "FINAL_TUNING_GAIN": 1e-2},
    "gradients of any fit": {"MAX_LEARNING_RIDGE": float("inf")},
    "two folds": {"FOLDS": 2},
    "encodings by 200 rows": {"ENCODING_SEARCH_ROWS": 200},
}


def measure(folder: Path, name: str, rows: int, seed: int, wanted: list[str]) -> None:
    """Print one record per variant."""
    from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
    from unlazy.estimators.feature_search import constants

    X, y, Z, truth = split(folder, name, seed, rows)
    classify = name in CLASSIFICATION
    kind = FeatureMachineClassifier if classify else FeatureMachineRegressor
    original = {key: getattr(constants, key) for changes in VARIANTS.values() for key in changes}
    warnings.simplefilter("ignore")
    kind().fit(X, y)  # compiles
    for variant in wanted:
        for key, value in (original | VARIANTS[variant]).items():
            setattr(constants, key, value)
        started = time.process_time()
        predicted = kind().fit(X, y).predict(Z)
        seconds = time.process_time() - started
        score = np.mean(predicted == truth) if classify else 1 - np.mean((predicted - truth) ** 2) / np.var(truth)
        record = {
            "set": name,
            "variant": variant,
            "score": float(score),
            "seconds": seconds,
            "rows": rows,
            "seed": seed,
        }
        print(json.dumps(record), flush=True)


def read(store: Path, rows: int) -> dict[tuple[str, int, str], dict]:
    lines = store.read_text().splitlines() if store.exists() else []
    return {(r["set"], r["seed"], r["variant"]): r for r in map(json.loads, lines) if r["rows"] == rows}


def run(options: argparse.Namespace) -> None:
    """Run what is missing, table by table."""
    for seed in options.seeds:
        for name in options.sets:
            found = read(options.store, options.rows)
            missing = [v for v in options.variants if (name, seed, v) not in found]
            if not missing:
                continue
            command = [sys.executable, __file__, "--data", str(options.data), "--rows", str(options.rows), "--one"]
            command += ["--sets", name, "--seeds", str(seed), "--variants", *missing]
            pipe = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD)
            with options.store.open("a") as out, pipe as child:
                for line in child.stdout:
                    out.write(line)
                    out.flush()
            print(f"{name}, seed {seed}: exit status {child.returncode}", flush=True)


def table(options: argparse.Namespace) -> str:
    """The comparison over the tables on which every variant is finished."""
    from scipy.stats import rankdata

    found = read(options.store, options.rows)
    cells = [c for c in dict.fromkeys((s, k) for s, k, _ in found) if all((*c, v) in found for v in options.variants)]
    values = np.array(
        [[[found[*c, v][what] for v in options.variants] for c in cells] for what in ("score", "seconds")]
    )
    scores, seconds = values
    change = scores - scores[:, :1]
    ranks = np.mean([rankdata(-row) for row in scores], 0)
    note = recorder(__file__, options.record)
    lines = [f"{len(cells)} tables, at most {options.rows} rows",
             f"{'':44}{'change':>10}{'± error':>10}{'better':>8}{'worse':>7}{'rank':>7}{'CPU':>7}"]  # fmt: skip
    for i, variant in enumerate(options.variants):
        delta = change[:, i]
        error = delta.std(ddof=1) / np.sqrt(len(delta))
        note(f"change of the score, {variant}, {len(cells)} tables", float(delta.mean()), "R² or accuracy")
        cpu = seconds[:, i].sum() / seconds[:, 0].sum()
        lines.append(f"{variant:44}{delta.mean():10.5f}{error:10.5f}{np.sum(delta > 2e-3):8d}{np.sum(delta < -2e-3):7d}"
                     f"{ranks[i]:7.2f}{cpu:7.2f}")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, default=Path("ablation.jsonl"))
    parser.add_argument("--sets", nargs="*", default=[*REGRESSION, *CLASSIFICATION])
    parser.add_argument("--variants", nargs="*", default=[*VARIANTS], choices=[*VARIANTS], metavar="NAME")
    parser.add_argument("--rows", type=int, default=1000, help="maximum number of training rows")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--table", action="store_true", help="only print the table of stored results")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    add_option(parser)
    options = parser.parse_args()
    if options.one:
        return measure(options.data, options.sets[0], options.rows, options.seeds[0], options.variants)
    if not options.table:
        run(options)
    print(table(options))


if __name__ == "__main__":
    main()
