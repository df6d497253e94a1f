"""Figures and measured claims from stored records: docs/figures/NAME.png and src/unlazy/lab/report/recorded/NAME.json.

    python docs/collect.py results [--config full] [NAME …]

Nothing is run here. A name without records is left as it is.
"""

import argparse
import json
from pathlib import Path

from unlazy import lab
from unlazy.core.pages.figure_style import figure_style
from unlazy.lab.report.recorded_claims import FOLDER, record
from unlazy.lab.runner.catalog import all_experiments

FIGURES = Path(__file__).parent / "figures"
COLORS = 128
"""A palette is enough for line figures and makes the files four times smaller."""


def collect(name: str, store: Path, config: str) -> bool:
    from PIL import Image

    experiment = lab.find(name)
    records = lab.load(experiment, config, store=store)
    if not len(records):
        return False
    with figure_style():
        figure = experiment.figure(records)
        path = FIGURES / f"{name}.png"
        figure.savefig(path, dpi=120)
    Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)
    kept = json.dumps(record(experiment.claims(records), config, len(records)), ensure_ascii=False, indent=1)
    (FOLDER / f"{name}.json").write_text(kept + "\n", encoding="utf-8")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--config", choices=["quick", "full"], default="quick")
    given = parser.parse_args()
    for name in given.names or [e.name for e in all_experiments()]:
        print(f"{name:28s} {'written' if collect(name, given.store, given.config) else 'no records'}")


if __name__ == "__main__":
    main()
