"""The verdict of `unlazy compare`: correctness, stability over splits, and time.

    python benchmarks/verdicts.py draws [--draws 40] [--rows 200] [--budget 120] [--jobs 1] [--record]
    python benchmarks/verdicts.py seeds TABLE.csv --target y [--seeds 20] [--budget 120] [--jobs 1] [--record]
    python benchmarks/verdicts.py time [--budget 120] [--record]

draws: isotropic samples of a Gaussian process in 4 dimensions, for which "pays" is wrong (target: at most 1 of 40), and
noisy single-index targets sin(2u·x) + (u·x)²/2 in 10 dimensions with three times as many rows, for which every other
verdict is wrong (target: at least 36 of 40 "pays").

seeds: one table with different splits (target: at most 2 of 20 differ from the most common verdict, not counting
"undecided").

time: the command on tables of many shapes, alone on the machine: wall-clock seconds from start to page (target: at most
the budget), and the number of training rows of the verdict (target: three quarters of tables up to 5,000 rows, at least
4,000 for larger tables).

Each comparison runs in a separate process; `--jobs` of them run in parallel.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from record import add_option, recorder

SHAPES = ((25, 1), (100, 2000), (442, 10), (2000, 1000), (3451, 8), (20_000, 30), (200_000, 10))
COMPARE = """
import json, sys
import numpy as np, unlazy
path, target, budget, seed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
given = np.load(path) if path.endswith(".npz") else None
if __name__ == "__main__":
    data = (given["X"], given["y"]) if given is not None else (path,)
    more = {} if given is not None else {"target": target}
    study = unlazy.StudyOptions(engine="inline", fit=False)
    c = unlazy.compare(*data, budget=budget, random_state=seed, study=study, **more)
    r = c.verdict.ratio
    print(json.dumps([c.verdict.word, r.value, r.low, r.high, max(c.study.sizes)]))
"""


def isotropic(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample of a Gaussian process with an isotropic kernel, with noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    squares = ((X[:, None] - X) ** 2).sum(2)
    L = np.linalg.cholesky(np.exp(-squares / 8) + 1e-9 * np.eye(n))
    return X, L @ rng.normal(size=n) + 0.1 * rng.normal(size=n)


def single_index(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Function of one direction of ten, with noise of a tenth of its variance."""
    rng = np.random.default_rng(seed)
    X, u = rng.normal(size=(n, 10)), rng.normal(size=10)
    s = X @ u / np.linalg.norm(u)
    f = np.sin(2 * s) + s**2 / 2
    return X, f + np.sqrt(0.1 * f.var()) * rng.normal(size=n)


def verdict(path: Path, target: str, budget: float, seed: int) -> list:
    """Verdict, ratio with its interval, and training rows, computed on one core."""
    asked = [sys.executable, "-c", COMPARE, str(path), target, str(budget), str(seed)]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{path} failed:\n{done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def several(cases: list[tuple[Path, str, float, int]], jobs: int) -> Counter:
    """Number of each verdict over all cases; each case is printed when it is finished."""

    def one(case: tuple[Path, str, float, int]) -> str:
        word, value, low, high, rows = verdict(*case)
        ratio = f"{value:.2f} [{low:.2f}, {high:.2f}]"
        print(f"{case[0].stem} seed {case[3]}: {word}, {ratio}, {rows} rows", flush=True)
        return word

    with ThreadPoolExecutor(jobs) as pool:
        return Counter(pool.map(one, cases))


def draws(given: argparse.Namespace, note, folder: Path) -> None:
    for name, make, n in (("isotropic", isotropic, given.rows), ("single index", single_index, 3 * given.rows)):
        cases = []
        for seed in range(given.draws):
            X, y = make(seed, n)
            path = folder / f"{name.replace(' ', '_')}_{seed}.npz"
            np.savez(path, X=X, y=y)
            cases.append((path, "", given.budget, 0))
        found = several(cases, given.jobs)
        print(f"{name}, {given.draws} draws of {n} rows: {dict(found)}")
        note(f"{name}, {n} rows: pays, of {given.draws}", found["pays"], "draws")


def seeds(given: argparse.Namespace, note, folder: Path) -> None:
    found = several([(given.table, given.target, given.budget, s) for s in range(given.seeds)], given.jobs)
    decided = Counter({w: k for w, k in found.items() if w != "undecided"})
    others = sum(decided.values()) - max(decided.values(), default=0)
    print(f"{given.table.name}, {given.seeds} seeds: {dict(found)}; {others} differ from the most common verdict")
    note(f"{given.table.stem}: seeds of {given.seeds} that leave the commonest verdict", others, "seeds")


def in_time(given: argparse.Namespace, note, folder: Path) -> None:
    for n, d in SHAPES:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(n, d))
        y = np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n)
        path = folder / f"table_{n}_{d}.csv"
        head = ",".join([*(f"x{j}" for j in range(d)), "y"])
        np.savetxt(path, np.column_stack([X, y]), fmt="%.5g", delimiter=",", header=head, comments="")
        start = time.monotonic()
        words = ["compare", path, "--target", "y", "--budget", f"{given.budget}s", "--out", folder / path.stem]
        asked = [sys.executable, "-m", "unlazy.cli", *map(str, words)]
        done = subprocess.run(asked, capture_output=True, text=True)
        took = time.monotonic() - start
        judged = re.search(r"trained on ([\d,]+) rows", done.stdout)
        rows = int(judged[1].replace(",", "")) if judged else 0
        verdict = next((line for line in done.stdout.splitlines() if line.strip()), "")
        print(
            f"{n} × {d}: {took:.1f} s of {given.budget:g}, {rows} rows, exit {done.returncode}; {verdict}", flush=True
        )
        note(f"{n} rows × {d} columns, budget {given.budget:g} s", took, "s")
        note(f"{n} rows × {d} columns, budget {given.budget:g} s: judged at", rows, "rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draws", "seeds", "time"])
    parser.add_argument("table", nargs="?", type=Path)
    parser.add_argument("--target")
    for name, usual in (("--draws", 40), ("--rows", 200), ("--seeds", 20), ("--jobs", 1)):
        parser.add_argument(name, type=int, default=usual)
    parser.add_argument("--budget", type=float, default=120.0)
    add_option(parser)
    given = parser.parse_args()
    if given.what == "seeds" and (given.table is None or given.target is None):
        parser.error("seeds needs a table and its --target")
    note = recorder(__file__, given.record)
    with tempfile.TemporaryDirectory() as folder:
        {"draws": draws, "seeds": seeds, "time": in_time}[given.what](given, note, Path(folder))


if __name__ == "__main__":
    main()
