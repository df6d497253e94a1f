"""The report: claims and figures in one self-contained HTML page, readable offline, on a phone and in print."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unlazy.core.errors import UnlazyError
from unlazy.core.pages import math_html, template
from unlazy.core.pages.figure_style import figure_style
from unlazy.lab.claims import BASES, Claim
from unlazy.lab.experiment import Experiment, Records, file_names
from unlazy.lab.report.table import summary

SOURCES = {
    "S1": "Kernels, random features, wide networks",
    "S2": "What kernels cannot do and one gradient step can",
    "S3": "Beyond linearization",
    "S4": "Features that emerge from the inputs",
    "general": "General",
}


@dataclass(frozen=True)
class Section:
    """One experiment on the page."""

    name: str
    experiment: Experiment
    claims: Sequence[Claim]
    missing: str
    """Why there are no claims."""
    picture: template.Picture | None
    settings: Sequence[tuple[str, str]]
    trials: int
    seeds: int

    @property
    def title(self) -> str:
        """Title of the experiment."""
        return self.experiment.title

    @property
    def source(self) -> str:
        """Where the experiment comes from, in words."""
        return SOURCES[self.experiment.source]


def write_report(results: Sequence[tuple[Experiment, Records]], folder: Path, provenance: str = "") -> Path:
    """Write a report of experiments as a self-contained HTML page.

    Parameters
    ----------
    results : sequence of (Experiment, Records)
        Experiments and their stored trials.
    folder : Path
        Folder for report.html and figures/NAME.png, .pdf; created if needed.
    provenance : str, default ''
        Text of the footer.

    Returns
    -------
    Path
        The file report.html.

    Raises
    ------
    UnlazyError
        If the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        results = _by_source(results)
        names = file_names([experiment for experiment, _ in results])
        sections = [_section(name, *result, folder) for name, result in zip(names, results)]
        return template.write(
            folder / "report.html", Path(__file__).with_name("report.html"), sections=sections, provenance=provenance,
            summary=summary([c for s in sections for c in s.claims]), bases=BASES, formulas=_formulas(sections),
        )  # fmt: skip
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the report to {folder}: {why}; choose another folder with --out") from error


def _formulas(sections: Sequence[Section]) -> list[math_html.Tag]:
    """Formulas of the tags that the sections refer to."""
    parts = [f"[{tag}]" for s in sections for tag in (*s.experiment.tags, *(c.tag for c in s.claims))]
    words = [t for s in sections for t in (s.experiment.prediction, s.experiment.verdict, s.experiment.caveats)]
    return math_html.tags_in([*parts, *words])


def _by_source(results: Sequence[tuple[Experiment, Records]]) -> list[tuple[Experiment, Records]]:
    order = list(SOURCES)
    return sorted(results, key=lambda pair: order.index(pair[0].source))


def _section(name: str, experiment: Experiment, records: Records, folder: Path) -> Section:
    claims, missing = _claims(experiment, records)
    picture = None
    if not missing:
        with figure_style():
            statements = [c.statement for c in claims]
            picture = template.picture(experiment.figure(records), folder, name, experiment.question, statements)
    names = dict.fromkeys(name for r in records for name in r.params)
    settings = [(n, _values(records.values(n))) for n in names]
    return Section(
        name, experiment, claims, missing, picture, settings, len(records), len({r.seed for r in records})
    )  # fmt: skip


def _claims(experiment: Experiment, records: Records) -> tuple[list[Claim], str]:
    """The claims, or the reason why an unfinished sweep cannot be evaluated yet."""
    if not len(records):
        return [], "Not run yet."
    try:
        return experiment.claims(records), ""
    except (KeyError, IndexError, ValueError, ZeroDivisionError, FloatingPointError) as error:
        reason = f"{type(error).__name__}: {error}"
        return [], f"{len(records):,} stored trials are not enough to evaluate the claims ({reason})."


def _values(values: list) -> str:
    shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:10], "…", shown[-1]])
