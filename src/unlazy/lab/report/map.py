"""The map of claims (`unlazy map`): all claims on one page, grouped by question, with verdicts and links.

map.toml assigns each experiment to a question and to one of the three categories of proofs of the tutorial on
optimization (based on gradients, on curvature, on the order of learning).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

from unlazy.core.errors import UnlazyError
from unlazy.core.pages import math_html, template
from unlazy.lab.claims import Claim
from unlazy.lab.experiment import Experiment
from unlazy.lab.report.recorded_claims import ClaimSummary, recorded, summarize_claim

SIGNS = {"holds": "●", "undecided": "◐", "does not hold": "✕"}
"""Symbols of the verdicts, distinguishable without color."""


class Question(TypedDict):
    """A question of the map, with its answer and the names of its experiments."""

    name: str
    answer: str
    experiments: list[str]


class Category(TypedDict):
    """A category of proofs."""

    number: int
    experiments: list[str]


class Layout(TypedDict):
    """The contents of map.toml."""

    question: list[Question]
    category: list[Category]


USER_QUESTION: Question = {
    "name": "Your experiments",
    "answer": "Your own experiments in this store.",
    "experiments": [],
}


@dataclass(frozen=True)
class MapEntry:
    """One experiment on the map."""

    experiment: Experiment
    claims: Sequence[ClaimSummary]
    origin: str
    """Source of the verdicts."""
    category: int
    """Category of proof; 0 if it has none."""
    link: str
    """Link to its section in report.html; empty if there is none."""

    @property
    def count(self) -> str:
        """Number of claims that hold."""
        hold = sum(c.verdict == "holds" for c in self.claims)
        return f"{hold} of {len(self.claims)} hold" if self.claims else "not run yet"

    @property
    def signs(self) -> list[tuple[str, str, str]]:
        """Verdict, symbol and statement of each claim."""
        return [(c.verdict, SIGNS[c.verdict], f"{c.statement}: {c.word}") for c in self.claims]


def layout() -> Layout:
    """Questions and categories of map.toml."""
    return cast(Layout, tomllib.loads(Path(__file__).with_name("map.toml").read_text(encoding="utf-8")))


def map_questions(
    experiments: Sequence[Experiment], measured: Mapping[str, Sequence[Claim]], report: str = ""
) -> list[tuple[Question, list[MapEntry]]]:
    """The questions with their experiments.

    `measured` maps experiments to claims measured by the user; `report` is the address of the report page.
    """
    parts = layout()
    category = {name: c["number"] for c in parts["category"] for name in c["experiments"]}
    by_name = {e.name: e for e in experiments}

    def entry(name: str) -> MapEntry:
        mine = [summarize_claim(c) for c in measured.get(name, ())]
        known, how = recorded(name) if not mine else ([], "")
        origin = "Measured here." if mine else f"Recorded by the project ({how})." if known else ""
        there = f"{report}#{name}" if report and mine else ""
        return MapEntry(by_name[name], mine or known, origin, category.get(name, 0), there)

    rest = [name for name in by_name if not any(name in q["experiments"] for q in parts["question"])]
    yours: Question = {**USER_QUESTION, "experiments": rest}
    questions = [*parts["question"], *([yours] if rest else [])]
    return [(q, [entry(name) for name in q["experiments"] if name in by_name]) for q in questions]


def _formulas(found: Sequence[tuple[Question, list[MapEntry]]]) -> list[math_html.Tag]:
    """Formulas of the tags that the map refers to."""
    places = [p for _, here in found for p in here]
    tags = [f"[{tag}]" for p in places for tag in p.experiment.tags]
    words = [t for p in places for t in (p.experiment.question, p.experiment.caveats, *(c.statement for c in p.claims))]
    return math_html.tags_in([*tags, *words])


def write_map(
    experiments: Sequence[Experiment], measured: Mapping[str, Sequence[Claim]], folder: Path, provenance: str = ""
) -> Path:
    """Write the map of claims.

    Parameters
    ----------
    experiments : sequence of Experiment
        Experiments to show.
    measured : mapping of str to sequence of Claim
        Claims measured by the user, by name of the experiment. For other experiments the claims recorded by the
        project are shown.
    folder : Path
        Folder for map.html. If it contains report.html, the map links to it.
    provenance : str, default ''
        Text of the footer.

    Returns
    -------
    Path
        The file map.html.

    Raises
    ------
    UnlazyError
        If the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report = "report.html" if (folder / "report.html").exists() else ""
        found = map_questions(experiments, measured, report)
        everything = [c for _, places in found for p in places for c in p.claims]
        return template.write(
            folder / "map.html", Path(__file__).with_name("map.html"), regions=found, categories=layout()["category"],
            signs=SIGNS, counts={v: sum(c.verdict == v for c in everything) for v in SIGNS}, provenance=provenance,
            formulas=_formulas(found),
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the map to {folder}: {why}; choose another folder with --out") from error
