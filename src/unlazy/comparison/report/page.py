"""The page of a comparison: one self-contained HTML file, readable offline, on a phone and in print."""

import datetime
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from unlazy._version import VERSION
from unlazy.comparison.report import prose
from unlazy.comparison.report.figures import (
    FAMILY_LABELS,
    MAX_INTERVAL_WIDTH,
    curve_models,
    curves_figure,
    figure_names,
    models_figure,
    structure_figure,
)
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.held_out_figures import MAX_POINTS, direction_text, held_out_figure, partial_figure
from unlazy.comparison.report.paired_ratios import format_number, ratio_text
from unlazy.comparison.report.prose import mistakes_text
from unlazy.comparison.report.summary import summarize
from unlazy.comparison.study import verdict
from unlazy.comparison.study.plan import MIN_SPLITS
from unlazy.core.errors import UnlazyError
from unlazy.core.pages import template
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CAPTIONS = {
    "models": "Error of each model divided by that of the chosen model on the same test rows{intervals}; right of the "
    "dotted line is worse. Hollow marks: models that were only screened, on fewer rows or splits.",
    "curves": "Error against the number of training rows, for the chosen model and the best model of each other "
    "family{bars}.",
    "structure": "Top: inputs that the model with learned features depends on, by the rise of its error when their "
    "values are permuted. Bottom: the number of directions it depends on (eigenvalues of the average gradient outer "
    "product).",
}
DPI = 180
"""Resolution of the figures in dots per inch, for phones and print."""
FIGURES = ("models", "curves", "held_out", "structure", "partial")
GLOSSARY = (
    ("fixed features (lazy)", "A model that compares rows by a similarity fixed before training: a kernel, or a "
     "network whose features do not change during training."),
    ("learns features (rich)", "A model that learns from the data which combinations of inputs matter."),
    ("trees (outside)", "Random forests and gradient boosting, for reference."),
    ("risk", "Mean squared error on test rows, divided by that of the best constant: 1 is no better than a constant, "
     "0 is exact. For classes, the squared error of the probabilities (Brier score). Other errors, such as the share "
     "of mistakes, are divided by that of a constant too where the table says so."),
    ("split", "A division of the rows into training and test rows: random, or by time if a column of times is named."),
    ("95% interval", "A range that contains the true value in 19 of 20 cases."),
)  # fmt: skip
"""Glossary of the page: a practitioner's term with the technical term in parentheses, and its definition."""


def write_page(c: Findings, folder: Path, date: str | None = None) -> Path:
    """Write compare.html and figures/*.png, *.pdf, and return the path of the page; `date` defaults to today."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = {}
        for name, figure in _drawn(c):
            figure.set_dpi(DPI)
            pictures[name] = template.picture(figure, folder, name, _caption(c, name), most=MAX_POINTS)
        return template.write(
            folder / "compare.html", Path(__file__).with_name("compare.html"), **_answer(c),
            pictures=dict.fromkeys(FIGURES) | pictures, date=date or datetime.date.today().isoformat(),
        )  # fmt: skip
    except OSError as error:
        raise UnlazyError(
            f"cannot write the page to {folder}: {error.strerror or error}; choose another --out"
        ) from error


def _drawn(c: Findings) -> "Iterator[tuple[str, Figure]]":
    """Yield the figures that are not empty, with their names."""
    yield "models", models_figure(c)
    if curve_models(c):  # at least two training sizes
        yield "curves", curves_figure(c)
    if c.held_out is not None:
        yield "held_out", held_out_figure(c)
    if c.structure is not None:
        yield "structure", structure_figure(c)
    if c.partial:
        yield "partial", partial_figure(c)


def _caption(c: Findings, name: str) -> str:
    """Caption of a figure."""
    if name == "held_out" and c.study.table.task == "regression":
        radius = c.radius(0.9)
        band = "" if radius is None else (
            f" Nine of ten residuals lie within ±{format_number(radius, 4)} (the band). The intervals of unlazy "
            "predict --interval 0.9 vary with the row."
        )  # fmt: skip
        return f"True against predicted {c.study.table.target} on test rows.{band}"
    if name == "held_out":
        return ("Calibration on test rows: observed frequency against predicted probability, with 95% intervals. The "
                "dotted line is perfect calibration.")  # fmt: skip
    if name == "partial":
        directions = [
            f" The first direction is {direction_text(p)}, in standard deviations." for p in c.partial if p.parts
        ]
        return "Partial dependence: mean prediction of the saved model when one input is set to a value." + "".join(
            directions
        )
    several = c.study.splits > 1
    return _CAPTIONS[name].format(
        intervals=", with 95% intervals" if several else " (one split, so there are no intervals)",
        bars="; bars are one standard deviation over splits" if several else "",
    )


def _answer(c: Findings) -> dict[str, Any]:
    """Values of the template, except the figures."""
    table = c.study.table
    shape = f"{table.total_rows:,} rows, {table.frame.shape[1]:,} inputs, {table.task} of {table.target}"
    return {
        "summary": summarize(c), "headline": prose.headline(c),
        "shape": f"{table.source} · {shape}".removeprefix(" · "), "sentences": prose.sentences(c),
        "models": _models(c), "inputs": _inputs(c), "notes": c.notes,
        "rules": _rules(c), "numbered": figure_names(c).numbered, "glossary": GLOSSARY, "version": VERSION,
    }  # fmt: skip


def _models(c: Findings) -> list[dict[str, str]]:
    """Rows of the table of models: error in familiar units, ratio to the chosen model, risk."""
    rows = []
    against = c.ratio_table.set_index("name")
    for _, row in c.models.iterrows():
        if c.study.table.task == "classification":
            error = {"misclassified": mistakes_text(row["mistakes"])}
        else:
            error = {"RMSE": format_number(row["rmse"], 4)}
        if c.study.rare:
            error |= {"average precision": f"{row['precision']:.2f}", "area under ROC": f"{row['auc']:.2f}"}
        if "log_loss" in row:
            error["log loss"] = format_number(row["log_loss"])
        rows.append({
            "model": row["model"], "kind": f"{FAMILY_LABELS[row['family']]} ({row['family']})", **error,
            "error / chosen model": _against(c, row["name"], against), "rows": f"{row['n']:,}",
            c.study.metric.label: prose.interval_text(row), "seconds": f"{row['seconds']:.1f}",
        })  # fmt: skip
    return rows


def _against(c: Findings, name: str, ratios: pd.DataFrame) -> str:
    """Paired ratio to the chosen model."""
    if name == c.chosen:
        return "chosen"
    if name not in ratios.index:
        return "no common rows"
    row = ratios.loc[name]
    return ratio_text(Interval(row["ratio"], row["low"], row["high"]))


def _inputs(c: Findings) -> list[dict[str, str]]:
    """Rows of the table of inputs."""
    return [
        {
            "input": row["input"],
            "significant": "unknown" if c.study.splits < 2 else "yes" if row["matters"] else "no",
            "share of permutation importance": _share(row["share"], row["low"], row["high"]),
        }
        for _, row in c.inputs.head(12).iterrows()
    ]  # fmt: skip


def _share(value: float, low: float, high: float) -> str:
    """A share in percent, with its interval if that is informative; one split has none."""
    if not math.isfinite(high - low):
        return f"{round(100 * value)}%"
    shown = (value, low, high) if high - low <= MAX_INTERVAL_WIDTH else (value,)
    first, *ends = (f"{round(100 * share)}%" for share in shown)
    return f"{first} [{', '.join(ends)}]" if ends else f"{first} (splits differ)"


def _rules(c: Findings) -> tuple[str, ...]:
    """Methods and rules of the verdict."""
    ratios = "; ".join(f"n = {n:,}: {ratio_text(ratio)}" for n, ratio in c.verdict.ratios.items())
    return (
        _metric_rule(c),
        f"{_screened(c)} The best lazy, rich and outside models, by errors estimated on training rows, are run at the "
        "largest training size, where the verdict is made.",
        f"{_divided(c)} Imputation, scaling, encoding of categories and all hyperparameters are learned from training "
        "rows only.",
        "In each split the best lazy and the best rich model are selected by errors estimated on training rows. The "
        "logarithm of the ratio of their test errors is averaged over splits. Splits share rows, so its variance is "
        f"that of Nadeau and Bengio (2003). Sizes with fewer than {MIN_SPLITS} splits use the variance of smaller "
        f"sizes too; if these have no more splits, there is no interval. Lazy over rich: {ratios}.",
        f"Pays: the 95% interval lies above {verdict.PAYS_ABOVE}. Does not pay: it lies below {verdict.NO_GAIN_BELOW}. "
        "Noise: the interval of the best model's error, relative to a constant, does not lie below "
        f"{verdict.SIGNAL_BOUND} but above {verdict.NOISE_ABOVE}, its value is not below {verdict.SIGNAL_VALUE}, and "
        "the training rows are not a small part of the table.",
    )


def _screened(c: Findings) -> str:
    """How many models were tried, and on how many rows first."""
    study = c.study
    tried = {r.params["candidate"] for r in study.records}
    first = next(iter(study.records)).params["n"]
    some = "All models are" if len(tried) == len(study.candidates) else (
        f"{len(tried)} of {len(study.candidates)} models {'is' if len(tried) == 1 else 'are'}"
    )  # fmt: skip
    return f"{some} tried on {first:,} rows first."


def _divided(c: Findings) -> str:
    """How rows are divided into training and test rows."""
    study, share = c.study, f"{100 * c.study.overlap:.0f}% of the rows"
    sizes = ", ".join(f"{n:,}" for n in study.sizes)
    if len(study.table.time):
        windows = f"The {study.splits} test windows have {share} each" if study.splits > 1 else \
            f"The test window has {share}"  # fmt: skip
        division = f"{windows}, and training rows are earlier"
    elif study.splits > 1:
        division = f"The {study.splits} random splits use {share} for testing"
    else:
        division = f"The random split uses {share} for testing"
    return f"{division}; the training size is {sizes}." if len(study.sizes) == 1 else \
        f"{division}; the training sizes {sizes} are nested."  # fmt: skip


def _metric_rule(c: Findings) -> str:
    """What the error of the verdict is, and which other ones may be asked for."""
    metric, label = c.study.metric, c.study.rarest[0] if c.study.table.task == "classification" else None
    what = {
        "rmse": "the mean squared error (risk)",
        "brier": "the mean squared error of the probabilities (Brier score, risk)",
        "accuracy": "the share of mistakes",
        "log_loss": "the log loss",
        "average_precision": f"1 - average precision of the class {str(label)!r}",
    }[metric.name]
    other = "" if metric.name == "rmse" else " Another one can be chosen with --metric."
    return f"Models are judged by {what}, divided by that of {metric.constant}.{other}"
