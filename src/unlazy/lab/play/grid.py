"""The risks that the last stage draws, measured by the laboratory: `python -m unlazy.lab.play.grid` writes them anew.

A few minutes of two cores. The experiment is `sample_complexity` [D9] with more dimensions and both degrees; finished
trials are stored under results/, so a stopped run goes on where it was. The page asks for nothing else that is heavy.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from unlazy.core.files import written_whole
from unlazy.lab.experiment import Records

FILE = Path(__file__).with_name("samples.json")
METHODS = ("one_step", "random", "ntk")
GRID: dict[str, list] = {
    "d": [5, 10, 20], "degree": [3, 4], "n": [32, 64, 128, 256, 512, 1024, 2048], "method": list(METHODS),
}  # fmt: skip
SEEDS = 3
DIGITS = 4
"""Significant ones: the risks' own spread over seeds is far larger."""


def summary(records: Records) -> dict[str, Any]:
    """Median, smallest and largest risk over seeds, method by method, by "d,degree", in the order of n."""
    risks: dict[str, dict[str, Any]] = {}
    for d in records.values("d"):
        for degree in records.values("degree"):
            part = records.where(d=d, degree=degree)
            risks[f"{d},{degree}"] = {
                method: [_three(part.where(method=method, n=n).measure("risk")) for n in records.values("n")]
                for method in records.values("method")
            }
    return {
        "experiment": "sample_complexity", "seeds": len({r.seed for r in records}), "width": records[0].params["width"],
        "n": records.values("n"), "d": records.values("d"), "degree": records.values("degree"), "risks": risks,
    }  # fmt: skip


def _three(values: np.ndarray) -> list[float]:
    found = (np.median(values), values.min(), values.max())
    return [float(f"{v:.{DIGITS}g}") for v in found]


def main() -> None:
    """Run what is not stored yet and write the file."""
    from unlazy import lab

    records = lab.run("sample_complexity", change=GRID, seeds=SEEDS)
    with written_whole(FILE) as aside:
        aside.write_text(json.dumps(summary(records), separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
