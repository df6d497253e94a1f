"""One self-contained page: every claim, every figure, no network needed; readable on a phone and in print."""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unlazy.core.claims import Claim
from unlazy.core.errors import UnlazyError
from unlazy.core.experiment import Experiment, Records, file_names
from unlazy.core.files import written_whole
from unlazy.report.style import house_style, save_figure
from unlazy.report.table import summary

SOURCES = {
    "S1": "Kernels, random features, wide networks",
    "S2": "What kernels cannot do, and one gradient step can",
    "S3": "Beyond linearisation",
    "S4": "Features that emerge from the inputs",
    "general": "The laboratory itself",
}

_STYLE = (Path(__file__).parent / "page.css").read_text()


def write_report(results: Sequence[tuple[Experiment, Records]], folder: Path, provenance: str = "") -> Path:
    """Write figures/NAME.png and .pdf and report.html into `folder`; returns the page's path."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        results = _by_source(results)
        names = file_names([experiment for experiment, _ in results])
        sections = [_section(name, *result, folder) for name, result in zip(names, results)]
        claims = [c for _, found in sections for c in found]
        page = folder / "report.html"
        with written_whole(page) as aside:
            aside.write_text(_page([html for html, _ in sections], names, claims, provenance), encoding="utf-8")
    except OSError as error:
        why = error.strerror or error
        raise UnlazyError(f"cannot write the report to {folder}: {why}; choose another place with --out") from error
    return page


def _by_source(results: Sequence[tuple[Experiment, Records]]) -> list[tuple[Experiment, Records]]:
    order = list(SOURCES)
    return sorted(results, key=lambda pair: order.index(pair[0].source))


def _section(name: str, experiment: Experiment, records: Records, folder: Path) -> tuple[str, list[Claim]]:
    claims, missing = _claims(experiment, records)
    words = [
        f'<section id="{escape(name)}"><h2>{escape(name.replace("_", " "))}</h2>',
        f'<p class="source">{escape(SOURCES[experiment.source])} · {escape(", ".join(experiment.tags))}</p>',
        f'<p class="question">{escape(experiment.question)}</p>',
        f"<p><b>Prediction.</b> {escape(experiment.prediction)}</p>",
        _claims_table(claims, missing),
        "" if missing else _figure(name, experiment, records, folder),
        f"<details><summary>Protocol and verdict rule</summary><p><b>Protocol.</b> {escape(experiment.protocol)}</p>"
        f"<p><b>Verdict rule.</b> {escape(experiment.verdict)}</p>{_settings(records)}</details>",
    ]
    if experiment.caveats:
        words.append(f"<p><b>What this does not show.</b> {escape(experiment.caveats)}</p>")
    return "\n".join([*words, "</section>"]), claims


def _claims(experiment: Experiment, records: Records) -> tuple[list[Claim], str]:
    """The claims, or why a half-finished sweep cannot be judged yet."""
    if not len(records):
        return [], "Nothing has been run yet."
    try:
        return experiment.claims(records), ""
    except (KeyError, IndexError, ValueError, ZeroDivisionError, FloatingPointError) as error:
        return [], f"{len(records)} stored trials are not enough to judge the claims ({type(error).__name__}: {error})."


def _claims_table(claims: Sequence[Claim], missing: str) -> str:
    if not claims:
        return f"<p>{escape(missing or 'No claims.')}</p>"
    rows = "".join(
        f'<tr><td>{escape(c.statement)} <span class="tag">[{escape(c.tag)}]</span></td>'
        f'<td data-label="theory">{escape(c.predicted)}</td>'
        f'<td data-label="measured" title="{escape(c.interval)}">{escape(c.measured_text)}</td>'
        f'<td data-label="verdict" class="{c.verdict.replace(" ", "-")}">{escape(c.verdict)}</td></tr>'
        for c in claims
    )
    head = "<tr><th>claim</th><th>theory</th><th>measured</th><th>verdict</th></tr>"
    return f'<table class="claims"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def _figure(name: str, experiment: Experiment, records: Records, folder: Path) -> str:
    if not len(records):
        return ""
    from matplotlib import pyplot as plt

    with house_style():
        figure = experiment.figure(records)
        try:
            png, pdf = save_figure(figure, folder / "figures", name)
        finally:
            plt.close(figure)
    data = base64.b64encode(png.read_bytes()).decode()
    return (
        f'<figure><img alt="{escape(experiment.question)}" src="data:image/png;base64,{data}">'
        f'<figcaption>{escape(experiment.question)} <a href="figures/{escape(pdf.name)}">PDF</a></figcaption></figure>'
    )


def _settings(records: Records) -> str:
    if not len(records):
        return ""
    names = list(dict.fromkeys(name for r in records for name in r.params))
    rows = "".join(f"<li><code>{escape(n)}</code> = {escape(_values(records.values(n)))}</li>" for n in names)
    seeds = len({r.seed for r in records})
    return f"<p><b>Settings.</b> {len(records)} trials, {seeds} seeds.</p><ul>{rows}</ul>"


def _values(values: list) -> str:
    shown = [f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:10], "…", shown[-1]])


def _page(sections: list[str], names: list[str], claims: list[Claim], provenance: str) -> str:
    links = " · ".join(f'<a href="#{escape(name)}">{escape(name.replace("_", " "))}</a>' for name in names)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>unlazy: theory against measurement</title><style>{_STYLE}</style></head>
<body><header><h1>Theory against measurement</h1>
<p class="summary">{escape(summary(claims))}</p><nav>{links}</nav></header>
<main>{"".join(sections)}</main>
<footer><p>Made by unlazy. {escape(provenance)}
Each verdict follows from the rule stated with its experiment.</p></footer>
</body></html>
"""
