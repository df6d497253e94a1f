"""Compare two stores of trials, measure by measure, for example those of two releases.

    python benchmarks/compare_stores.py before after [--rename draws=drawn] [--largest 5] [--record]

Trials are matched by experiment, parameters and seed, and measures by name (`--rename old=new` if a release renamed
one). Differences of arrays are relative to their largest entry. The claims of the installed release are then evaluated
on the trials that both stores have.
"""

import argparse
import math
import sqlite3
from collections import defaultdict
from pathlib import Path

import numpy as np
from record import add_option, recorder

from unlazy.lab.claims import Claim
from unlazy.lab.experiment import Record, Records
from unlazy.lab.runner.catalog import find, own_experiments
from unlazy.lab.runner.serialization import canonical_json, unpack
from unlazy.lab.runner.store import FILE

Trials = dict[tuple[str, int], dict]
"""(parameters as text, seed) → measures."""


def main() -> None:
    """Print one line per experiment with its largest differences below it, then the claims that changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    parser.add_argument("--largest", type=int, default=3, help="number of measures to print per experiment")
    parser.add_argument("--above", type=float, default=1e-9, help="smallest relative difference to print")
    add_option(parser)
    given = parser.parse_args()
    note = recorder(__file__, given.record)
    renamed = dict(pair.split("=", 1) for pair in given.rename)
    before, after = (read(folder, renamed) for folder in (given.before, given.after))
    print(f"{'experiment':<27} trials  only one  figures  equal bits  largest difference")
    for name in sorted(before.keys() | after.keys()):
        off = trials(name, before.get(name, {}), after.get(name, {}), given.largest, given.above)
        note(f"{name}: largest relative difference", off, "ratio") if math.isfinite(off) else None
    changed = 0
    for name in sorted(before.keys() & after.keys()):
        both = before[name].keys() & after[name].keys()
        changed += claims(name, *({key: side[name][key] for key in both} for side in (before, after)))
    print(f"{changed} claims changed their verdict")
    note("claims with another verdict", changed, "claims")


def read(folder: Path, renamed: dict[str, str]) -> dict[str, Trials]:
    """Finished trials of a store by experiment; the latest version of each."""
    found: dict[str, Trials] = defaultdict(dict)
    db = sqlite3.connect(f"{(folder / FILE).absolute().as_uri()}?mode=ro", uri=True)
    query = "SELECT experiment, params, seed, measures, arrays FROM trial WHERE status = 'done' ORDER BY version"
    for name, params, seed, numbers, arrays in db.execute(query):
        found[name][params, seed] = {renamed.get(k, k): v for k, v in unpack(numbers, arrays).items()}
    db.close()
    return found


def difference(a: object, b: object) -> float:
    """max|a - b| over the largest |a| or |b|; 0 for equal strings and equal NaNs, ∞ for different shapes."""
    if isinstance(a, str) or isinstance(b, str):
        return 0.0 if a == b else math.inf
    x, y = np.asarray(a, float), np.asarray(b, float)
    finite = np.isfinite(x)
    if x.shape != y.shape or not np.array_equal(np.where(finite, 0, x), np.where(np.isfinite(y), 0, y), equal_nan=True):
        return math.inf
    x, y = x[finite], y[finite]
    scale = max(np.abs(x).max(initial=0), np.abs(y).max(initial=0))
    return float(np.abs(x - y).max(initial=0) / scale) if scale else 0.0


def trials(name: str, before: Trials, after: Trials, largest: int, above: float) -> float:
    """Print how much the measures of one experiment differ; return the largest relative difference."""
    both = before.keys() & after.keys()
    rows, lone = [], set()
    for key in both:
        lone |= before[key].keys() ^ after[key].keys()
        rows += [(difference(v, after[key][m]), m, *key) for m, v in before[key].items() if m in after[key]]
    rows.sort(key=lambda row: -row[0])
    apart, equal = len(before.keys() ^ after.keys()), sum(row[0] == 0 for row in rows)
    most = rows[0][0] if rows else math.nan
    print(f"{name:<27} {len(both):>6} {apart:>9} {len(rows):>8} {equal:>11}  {most:.2g}")
    if lone:
        print(f"    measured in one store only: {', '.join(sorted(lone))}")
    worst: dict[str, tuple] = {}
    for row in rows:
        if row[0] > above:
            worst.setdefault(row[1], row)
    for off, measure, params, seed in list(worst.values())[:largest]:
        old, new = (np.ravel(side[params, seed][measure])[:3] for side in (before, after))
        print(f"    {off:.2g} {measure}: {old} → {new}, seed {seed} of {params}")
    return most


def claims(name: str, before: Trials, after: Trials) -> int:
    """Print how the claims of two sets of trials differ; return the number of changed verdicts."""
    try:
        old, new = (_claims(name, side) for side in (before, after))
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:  # as the report does
        print(f"{name}: not enough trials to evaluate ({error})")
        return 0
    same, held = sum(a == b for a, b in zip(old, new)), sum(c.verdict == "holds" for c in new)
    print(f"{name}: {len(new)} claims, {held} hold, {same} equal to the bit")
    for a, b in zip(old, new):
        if a.verdict != b.verdict or a.measured_text != b.measured_text:
            change = "" if a.verdict == b.verdict else f" ({a.verdict} → {b.verdict})"
            print(f"    {a.statement}: {a.measured_text} → {b.measured_text}{change}")
    return sum(a.verdict != b.verdict for a, b in zip(old, new))


def _claims(name: str, side: Trials) -> list[Claim]:
    experiment = own_experiments([name])[0][0] if ":" in name else find(name)
    points = {canonical_json(point): point for point in experiment.quick.points() + experiment.full.points()}
    place = {text: i for i, text in enumerate(points)}
    keys = sorted((key for key in side if key[0] in points), key=lambda key: (place[key[0]], key[1]))
    return experiment.claims(Records([Record(points[params], seed, side[params, seed]) for params, seed in keys]))


if __name__ == "__main__":
    main()
