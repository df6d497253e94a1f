"""One self-contained page: the answer, its evidence, its rules; no network needed, readable on a phone and in print."""

import base64
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from unlazy import report
from unlazy.comparison import verdict as rules
from unlazy.comparison import words
from unlazy.comparison.figures import curves_figure, models_figure, structure_figure
from unlazy.comparison.findings import Findings
from unlazy.core.errors import UnlazyError
from unlazy.core.files import written_whole
from unlazy.core.version import VERSION
from unlazy.report.style import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURES = {
    "curves": "Learning curves: nested training rows, one deviation over splits; dashes continue the best model's "
    "law.",
    "models": "Every model at the largest training size.",
    "structure": "What the chosen rich model depends on: directions of its average gradient outer product, and inputs.",
}
_CLEAN = "<li>Nothing was mended, left out or cut short.</li>"


def write_page(c: Findings, folder: Path) -> Path:
    """Write compare.html and figures/*.png, *.pdf; returns the page's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = {"curves": curves_figure(c), "models": models_figure(c)}
        if c.structure is not None:
            figures["structure"] = structure_figure(c)
        shown = {name: _figure(figure, name, folder) for name, figure in figures.items()}
        page = folder / "compare.html"
        with written_whole(page) as aside:
            aside.write_text(_page(c, shown), encoding="utf-8")
    except OSError as error:
        raise UnlazyError(
            f"cannot write the page to {folder}: {error.strerror or error}; choose another --store"
        ) from error
    return page


def _figure(figure: "Figure", name: str, folder: Path) -> str:
    from matplotlib import pyplot as plt

    try:
        png, pdf = save_figure(figure, folder / "figures", name)
    finally:
        plt.close(figure)
    data = base64.b64encode(png.read_bytes()).decode()
    text = escape(_FIGURES[name])
    return (
        f'<figure><img alt="{text}" src="data:image/png;base64,{data}"><figcaption>{text} '
        f'<a href="figures/{pdf.name}">PDF</a></figcaption></figure>'
    )


def _page(c: Findings, figures: dict[str, str]) -> str:
    style = (Path(report.__file__).parent / "page.css").read_text()
    table = c.study.table
    shape = f"{len(table)} rows, {table.frame.shape[1]} inputs, {table.task} of {table.target}"
    answers = "".join(f"<li>{escape(text)}</li>" for text in words.sentences(c))
    notes = "".join(f"<li>{escape(note)}.</li>" for note in c.notes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Does feature learning pay? {escape(c.verdict.word)}</title><style>{style}</style></head>
<body><header><h1>Does feature learning pay here? {escape(_short(c))}</h1>
<p class="source">{escape(shape)}</p><p class="summary">{escape(words.headline(c))}</p></header>
<main><section><ul>{answers}</ul>{figures["curves"]}</section>
<section><h2>Models</h2>{_models(c)}{figures["models"]}</section>
<section><h2>Directions and inputs</h2>{figures.get("structure", "")}{_inputs(c)}</section>
<section><h2>Notes</h2><ul>{notes or _CLEAN}</ul>{_rules(c)}</section></main>
<footer><p>Made by unlazy {VERSION}.</p></footer>
</body></html>
"""


def _short(c: Findings) -> str:
    return {"pays": "Yes.", "does not pay": "No.", "undecided": "Undecided.", "noise": "There is nothing to learn."}[
        c.verdict.word
    ]


def _models(c: Findings) -> str:
    word = "mistakes" if c.study.table.task == "classification" else "rmse"
    rows = []
    for _, row in c.models.iterrows():
        error = f"{100 * row[word]:.1f}%" if word == "mistakes" else f"{row[word]:.4g}"
        cells = {
            "family": row["family"], "risk": f"{row['risk']:.3g} [{row['low']:.3g}, {row['high']:.3g}]",
            "mistakes" if word == "mistakes" else "root mean square error": error,
            "seconds": f"{row['seconds']:.1f}",
        }  # fmt: skip
        rows.append((row["model"], cells))
    return _table("model", rows)


def _inputs(c: Findings) -> str:
    rows = [
        (row["input"], {"share of the rise when shuffled": f"{row['share']:.3g} [{row['low']:.3g}, {row['high']:.3g}]",
                        "matters": "yes" if row["matters"] else "not surely"})
        for _, row in c.inputs.head(12).iterrows()
    ]  # fmt: skip
    return _table("input", rows) if rows else ""


def _table(first: str, rows: list[tuple[str, dict[str, str]]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in [first, *rows[0][1]])
    body = "".join(
        f"<tr><td>{escape(str(name))}</td>"
        + "".join(f'<td data-label="{escape(k)}">{escape(str(v))}</td>' for k, v in cells.items())
        + "</tr>"
        for name, cells in rows
    )
    return f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _rules(c: Findings) -> str:
    study = c.study
    ratios = "; ".join(f"n = {n}: {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]" for n, r in c.verdict.ratios.items())
    lines = (
        f"{study.splits} random splits test on {100 * study.overlap:.0f}% of the rows; training sizes "
        f"{', '.join(map(str, study.sizes))} are nested. Filling in, scaling, categories and all settings are learnt "
        "from training rows alone.",
        "Risk is the mean squared error (for classes that of the probabilities, the Brier score) over that of the best "
        "constant.",
        "At every split the best lazy and the best rich model are chosen by errors estimated on training rows. The "
        "logarithm of the ratio of their test risks is averaged over splits; since splits share rows, its variance is "
        f"that of Nadeau and Bengio (2003). Lazy over rich: {ratios}.",
        f"Pays: the 95% interval lies above {rules.MARGIN}. Does not pay: it lies below {rules.ENOUGH}. Noise: the "
        f"best model, chosen likewise, is not surely below {rules.LITTLE} of the constant's risk, nor seems below "
        f"{rules.SEEMS}.",
    )
    return "<details><summary>Rules</summary>" + "".join(f"<p>{escape(line)}</p>" for line in lines) + "</details>"
