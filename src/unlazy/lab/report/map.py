"""All claims on one page, by question, each with its verdict and its way to the experiment: `unlazy map`.

Which question an experiment belongs to stands in map.toml, with the three categories of proofs that the tutorial on
optimization tells apart (what the gradient alone shows, what curvature shows, what the order of learning shows).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlazy.core.errors import UnlazyError
from unlazy.lab.claims import Claim
from unlazy.lab.experiment import Experiment
from unlazy.lab.report import math_html, template
from unlazy.lab.report.recorded_claims import Told, recorded, told

SIGNS = {"holds": "●", "undecided": "◐", "does not hold": "✕"}
"""Told apart without their colors."""
OWN = {"name": "Your own", "answer": "Experiments of yours with trials in this store.", "experiments": []}


@dataclass(frozen=True)
class Place:
    """One experiment on the map."""

    experiment: Experiment
    claims: Sequence[Told]
    origin: str
    """Where the verdicts come from."""
    category: int
    """Of the tutorial; 0 where it has none."""
    link: str
    """Its section in a report beside this page, where there is one."""

    @property
    def count(self) -> str:
        hold = sum(c.verdict == "holds" for c in self.claims)
        return f"{hold} of {len(self.claims)} hold" if self.claims else "not run yet"

    @property
    def signs(self) -> list[tuple[str, str, str]]:
        """Verdict, sign and statement of every claim."""
        return [(c.verdict, SIGNS[c.verdict], f"{c.statement}: {c.word}") for c in self.claims]


def layout() -> dict[str, list[dict[str, Any]]]:
    """Questions and categories, as map.toml has them."""
    return tomllib.loads(Path(__file__).with_name("map.toml").read_text(encoding="utf-8"))


def regions(
    experiments: Sequence[Experiment], measured: Mapping[str, Sequence[Claim]], report: str = ""
) -> list[tuple[dict[str, Any], list[Place]]]:
    """The questions, each with its experiments; `measured` are the reader's own claims, by name.

    `report` is the address of a page with the experiments' sections.
    """
    parts = layout()
    category = {name: c["number"] for c in parts["category"] for name in c["experiments"]}
    by_name = {e.name: e for e in experiments}

    def place(name: str) -> Place:
        mine = [told(c) for c in measured.get(name, ())]
        known, how = recorded(name) if not mine else ([], "")
        origin = "Measured here." if mine else f"As the project measured it ({how})." if known else ""
        there = f"{report}#{name}" if report and mine else ""
        return Place(by_name[name], mine or known, origin, category.get(name, 0), there)

    rest = [name for name in by_name if not any(name in q["experiments"] for q in parts["question"])]
    questions = [*parts["question"], *([{**OWN, "experiments": rest}] if rest else [])]
    return [(q, [place(name) for name in q["experiments"] if name in by_name]) for q in questions]


def _formulas(found: Sequence[tuple[dict[str, Any], list[Place]]]) -> list[math_html.Tag]:
    """The tags that the map speaks of."""
    places = [p for _, here in found for p in here]
    tags = [f"[{tag}]" for p in places for tag in p.experiment.tags]
    words = [t for p in places for t in (p.experiment.question, p.experiment.caveats, *(c.statement for c in p.claims))]
    return math_html.named([*tags, *words])


def write_map(
    experiments: Sequence[Experiment], measured: Mapping[str, Sequence[Claim]], folder: Path, provenance: str = ""
) -> Path:
    """Write map.html into `folder`; it leads into report.html where that lies beside it."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report = "report.html" if (folder / "report.html").exists() else ""
        found = regions(experiments, measured, report)
        everything = [c for _, places in found for p in places for c in p.claims]
        return template.write(
            folder / "map.html", Path(__file__).with_name("map.html"), regions=found, categories=layout()["category"],
            signs=SIGNS, counts={v: sum(c.verdict == v for c in everything) for v in SIGNS}, provenance=provenance,
            formulas=_formulas(found),
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the map to {folder}: {why}; choose another place with --out") from error
