"""Claim: attribution by an exact solve predicts what retraining on half of the rows gives.

The linear datamodelling score (LDS): for random halves of the training rows, the sum of their scores is compared with
the measured value of a query after training on that half, by the rank correlation over halves, averaged over queries.
Networks of `attribution_settings.py`; halves are trained from the same initialization. Bars: .88 with decay and a gap
of at most .2, .65 at α = 1 with decay. `attribution_peers.py` measures EKFAC, TRAK and dattri beside it.

    python benchmarks/attribution_truth.py [--only concrete] [--halves 50] [--record]
"""

import argparse
import os
import time
from pathlib import Path

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "2")

import jax  # noqa: E402
import numpy as np  # noqa: E402
from attribution_settings import SETTINGS, Setting, centered, load, measured, network, train  # noqa: E402
from record import add_option, recorder  # noqa: E402
from scipy.stats import spearmanr  # noqa: E402

from unlazy import TangentOptions, attribution  # noqa: E402


def lds(scores: np.ndarray, halves: np.ndarray, truth: np.ndarray) -> float:
    """Mean rank correlation over queries of predicted (queries, n) and true (halves, queries) values."""
    predicted = np.stack([scores[:, half].sum(1) for half in halves])
    return float(np.mean([spearmanr(a, b).statistic for a, b in zip(predicted.T, truth.T)]))


def truth_of(setting: Setting, folder: Path, count: int) -> tuple:
    """The trained network, halves, and measured values of the queries after training on each."""
    rows = load(setting, folder)
    rng = np.random.default_rng(1)
    n = len(rows.X)
    halves = np.stack([np.sort(rng.permutation(n)[: n // 2]) for _ in range(count)])
    apply, start = network(setting)
    f = centered(setting, apply, start)
    whole = jax.tree.map(lambda leaf: leaf[0], train(setting, rows, np.arange(n)[None]))
    retrained = train(setting, rows, halves)
    truth = np.asarray(jax.vmap(lambda p: measured(f(p, rows.queries), rows.targets))(retrained))
    return rows, f, start, whole, halves, truth


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="settings whose name contains one of these")
    parser.add_argument("--halves", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--methods", nargs="*", default=["auto"], help="of TangentOptions")
    add_option(parser)
    options = parser.parse_args()
    note = recorder(__file__, options.record)
    for setting in SETTINGS:
        if options.only and not any(word in setting.name for word in options.only):
            continue
        began = time.perf_counter()
        rows, f, start, whole, halves, truth = truth_of(setting, options.folder, options.halves)
        trained = time.perf_counter() - began
        for method in options.methods:
            began = time.process_time()
            decay = setting.decay * setting.alpha**2 or None
            found = attribution(
                (f, whole), rows.X, rows.y, rows.queries, None if rows.y.dtype.kind == "f" else rows.targets,
                decay=decay, reference=start, options=TangentOptions(method=method, dtype="float64"),
            )  # fmt: skip
            score = lds(found.scores, halves, truth)
            seconds = time.process_time() - began
            print(
                f"{setting.name:28} {method:10} LDS {score:.3f}  gap since the start {found.training_gap:.2f}, of half "
                f"the rows {found.gap:.2f}  {seconds:.1f} CPU-s (retraining {trained:.0f} s)", flush=True,
            )  # fmt: skip
            note(f"LDS {setting.name}, {method}", score, "rank correlation")


if __name__ == "__main__":
    main()
