"""Risks for the stage on sample complexity; `python -m unlazy.lab.play.grid` computes them again.

This takes a few minutes on two cores. The experiment is `sample_complexity` [D9] with more dimensions and both degrees;
finished trials are stored under results/, so an interrupted run can be resumed.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from unlazy import lab
from unlazy.core.files import atomic_write
from unlazy.lab.experiment import Records

FILE = Path(__file__).with_name("samples.json")
METHODS = ("one_step", "random", "ntk")
GRID: dict[str, list] = {
    "d": [5, 10, 20], "degree": [3, 4], "n": [32, 64, 128, 256, 512, 1024, 2048], "method": list(METHODS),
}  # fmt: skip
SEEDS = 3
DIGITS = 4
"""Significant digits of the risks; their variation over seeds is much larger."""


def summary(records: Records) -> dict[str, object]:
    """Median, smallest and largest risk over seeds, in the order of n, by method and by "d,degree"."""
    risks: dict[str, dict[str, Any]] = {}
    for d in records.values("d"):
        for degree in records.values("degree"):
            part = records.where(d=d, degree=degree)
            risks[f"{d},{degree}"] = {
                method: [_median_and_range(part.where(method=method, n=n).measure("risk")) for n in records.values("n")]
                for method in records.values("method")
            }
    return {
        "experiment": "sample_complexity", "seeds": len({r.seed for r in records}), "width": records[0].params["width"],
        "n": records.values("n"), "d": records.values("d"), "degree": records.values("degree"), "risks": risks,
    }  # fmt: skip


def _median_and_range(values: np.ndarray) -> list[float]:
    found = (np.median(values), values.min(), values.max())
    return [float(f"{v:.{DIGITS}g}") for v in found]


def main() -> None:
    """Run the trials that are not stored yet and write the file."""
    records = lab.run("sample_complexity", change=GRID, seeds=SEEDS)
    with atomic_write(FILE) as aside:
        aside.write_text(json.dumps(summary(records), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
