"""One self-contained page: the answer, its evidence, its rules; no network needed, readable on a phone and in print."""

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlazy._version import VERSION
from unlazy.comparison.report import prose
from unlazy.comparison.report.figures import (
    KINDS,
    WIDE,
    curves_figure,
    models_figure,
    names_of,
    rivals,
    structure_figure,
)
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.held_out_figures import POINTS, direction_text, held_out_figure, partial_figure
from unlazy.comparison.report.paired_ratios import gap_text
from unlazy.comparison.report.summary import glance
from unlazy.comparison.study import verdict
from unlazy.comparison.study.plan import FEWEST
from unlazy.core.errors import UnlazyError
from unlazy.lab.report import template
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_CAPTIONS = {
    "models": "Every model against the chosen one: error over its error on the same test rows, with 95% intervals "
    "where splits tell them; right of the line is worse. Hollow: seen in the first look only, on fewer rows or splits.",
    "curves": "Error against rows trained on, for the chosen model and the best of each other kind; bars are one "
    "deviation over splits.",
    "structure": "Above, which inputs the rich model needs: its error rises when their values are shuffled. Below, how "
    "many combinations of inputs it follows (directions of its average gradient outer product).",
}
SHARP = 180
"""Dots per inch: a phone has three to a point of the page, print more."""
FIGURES = ("models", "curves", "held_out", "structure", "partial")
WORDS = (
    ("fixed features (lazy)", "A model that compares rows by a similarity chosen before the data came: a kernel, or a "
     "network whose features do not move while it trains."),
    ("learns features (rich)", "A model that finds out from the data which combinations of inputs matter, and compares "
     "rows by those."),
    ("trees (outside)", "Forests and boosting: neither of both, good models to measure against."),
    ("risk", "The error on rows not trained on, squared and averaged, over that of the best constant: 1 knows nothing, "
     "0 is exact. For classes the squared error of the probabilities (Brier score)."),
    ("split", "One random division of the rows into those trained on and those tested on."),
    ("95% interval", "Where the value lies, as far as the splits tell: 19 of 20 such intervals are right."),
)  # fmt: skip
"""Words of the page, a practitioner's first, the field's in brackets."""


def write_page(c: Findings, folder: Path, date: str | None = None) -> Path:
    """Write compare.html and figures/*.png, *.pdf; returns the page's path. `date` is today's, unless it is given."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {}
        for name, figure in _drawn(c):
            figure.set_dpi(SHARP)
            pictures[name] = template.picture(figure, folder, name, _caption(c, name), most=POINTS)
        return template.write(
            folder / "compare.html", Path(__file__).with_name("compare.html"), **_answer(c),
            pictures=dict.fromkeys(FIGURES) | pictures, date=date or datetime.date.today().isoformat(),
        )  # fmt: skip
    except OSError as error:
        raise UnlazyError(
            f"cannot write the page to {folder}: {error.strerror or error}; choose another --store"
        ) from error


def _drawn(c: Findings) -> "Iterator[tuple[str, Figure]]":
    """Figures by name, one at a time: those that the findings have something to show in."""
    yield "models", models_figure(c)
    if rivals(c):  # one size is no curve
        yield "curves", curves_figure(c)
    if c.held_out is not None:
        yield "held_out", held_out_figure(c)
    if c.structure is not None:
        yield "structure", structure_figure(c)
    if c.partial:
        yield "partial", partial_figure(c)


def _caption(c: Findings, name: str) -> str:
    """What a figure shows."""
    if name == "held_out" and c.study.table.task == "regression":
        radius = c.radius(0.9)
        band = "" if radius is None else (
            f" The band is ±{radius:.4g}: nine of ten new rows lie within so much of their prediction, by the order "
            "statistic of held-out residuals (unlazy predict --interval 0.9)."
        )  # fmt: skip
        return f"Predicted against true, for {c.study.table.target} at rows not trained on.{band}"
    if name == "held_out":
        return ("Calibration at rows not trained on: how likely a class was said to be, and how often it came, with "
                "95% intervals. On the dotted line the probabilities are right.")  # fmt: skip
    if name == "partial":
        told = [f" The first direction is {direction_text(p)}, in units of deviations." for p in c.partial if p.parts]
        return "What the saved model predicts on average when one input is set and all else stays as it is." + "".join(
            told
        )
    return _CAPTIONS[name]


def _answer(c: Findings) -> dict[str, Any]:
    """What the template says, figures aside."""
    table = c.study.table
    shape = f"{table.whole} rows, {table.frame.shape[1]} inputs, {table.task} of {table.target}"
    return {
        "glance": glance(c), "headline": prose.headline(c), "shape": f"{table.source} · {shape}".removeprefix(" · "),
        "sentences": prose.sentences(c), "models": _models(c), "inputs": _inputs(c), "notes": c.notes,
        "rules": _rules(c), "beside": names_of(c).beside, "words": WORDS, "version": VERSION,
    }  # fmt: skip


def _models(c: Findings) -> list[dict[str, str]]:
    """A row a model: its error in the target's units, that against the chosen one, then what the field calls risk."""
    rows = []
    against = c.gap_table.set_index("name")
    for _, row in c.models.iterrows():
        if c.study.table.task == "classification":
            error = {"mistakes": f"{100 * row['mistakes']:.1f}%"}
        else:
            error = {"root mean square error": f"{row['rmse']:.4g}"}
        if c.study.rare:
            error |= {"average precision": f"{row['precision']:.2f}", "area under ROC": f"{row['auc']:.2f}"}
        rows.append({
            "model": row["model"], "kind": f"{KINDS[row['family']]} ({row['family']})", **error,
            "error over the chosen’s": _against(c, row["name"], against), "rows": f"{row['n']}",
            "risk": prose.interval_text(row), "seconds": f"{row['seconds']:.1f}",
        })  # fmt: skip
    return rows


def _against(c: Findings, name: str, gaps: "pd.DataFrame") -> str:
    """The paired gap to the chosen model."""
    if name == c.chosen:
        return "chosen"
    if name not in gaps.index:
        return "not on the same rows"
    row = gaps.loc[name]
    return gap_text(Interval(row["gap"], row["low"], row["high"]))


def _inputs(c: Findings) -> list[dict[str, str]]:
    return [
        {
            "input": row["input"], "matters": "yes" if row["matters"] else "not surely",
            "share of the rise when shuffled": _share(row["share"], row["low"], row["high"]),
        }
        for _, row in c.inputs.head(12).iterrows()
    ]  # fmt: skip


def _share(value: float, low: float, high: float) -> str:
    """A share in percent, with its interval where that says something; one split has none."""
    if not math.isfinite(high - low):
        return f"{round(100 * value)}%"
    first, *ends = (f"{round(100 * share)}%" for share in (value, *((low, high) if high - low <= WIDE else ())))
    return f"{first} [{', '.join(ends)}]" if ends else f"{first} (splits differ)"


def _rules(c: Findings) -> tuple[str, ...]:
    """How it was done and what the words mean."""
    study = c.study
    ratios = "; ".join(f"n = {n}: {gap_text(ratio)}" for n, ratio in c.verdict.ratios.items())
    judged = (
        "A rare class: what stands in for the risk in the verdict and the table is 1 - average precision of that "
        "class, over that of a guess.",
    )
    return (
        *(judged if study.rare else ()),
        f"All models are looked at on {study.sizes[0]} rows or fewer; the best lazy, rich and outside ones, by errors "
        "estimated on training rows, go on to the largest size, where the verdict is.",
        f"{study.splits} random splits test on {100 * study.overlap:.0f}% of the rows; training sizes "
        f"{', '.join(map(str, study.sizes))} are nested. Filling in, scaling, categories and all settings are learned "
        "from training rows alone.",
        "Risk is the mean squared error (for classes that of the probabilities, the Brier score) over that of the best "
        "constant.",
        "At every split the best lazy and the best rich model are chosen by errors estimated on training rows. The "
        "logarithm of the ratio of their test risks is averaged over splits; since splits share rows, its variance is "
        f"that of Nadeau and Bengio (2003). Sizes with fewer than {FEWEST} splits take their spread from smaller ones "
        f"too; where these have no more, nothing is sure. Lazy over rich: {ratios}.",
        f"Pays: the 95% interval lies above {verdict.MARGIN}. Does not pay: it lies below {verdict.ENOUGH}. Noise: the "
        f"best model, chosen likewise, is not surely below {verdict.LITTLE} of the constant's risk, nor seems below "
        f"{verdict.SEEMS}, and the rows are no sliver of the table.",
    )
