"""One self-contained page: the answer, its evidence, its rules; no network needed, readable on a phone and in print."""

from pathlib import Path
from typing import Any

from unlazy.comparison import verdict, words
from unlazy.comparison.figures import curves_figure, models_figure, structure_figure
from unlazy.comparison.findings import Findings
from unlazy.core.errors import UnlazyError
from unlazy.core.version import VERSION
from unlazy.report import template

_FIGURES = {
    "curves": "Learning curves: nested training rows, one deviation over splits; dashes continue the best model's law.",
    "models": "Every model at the largest size it was trained on.",
    "structure": "What the chosen rich model depends on: directions of its average gradient outer product, and inputs.",
}
_SHORT = {"pays": "Yes.", "does not pay": "No.", "undecided": "Undecided.", "noise": "There is nothing to learn."}


def write_page(c: Findings, folder: Path) -> Path:
    """Write compare.html and figures/*.png, *.pdf; returns the page's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figures = {"models": models_figure(c)}
        if len(c.study.sizes) > 1:  # one size is no curve
            figures["curves"] = curves_figure(c)
        if c.structure is not None:
            figures["structure"] = structure_figure(c)
        pictures = {name: template.picture(figure, folder, name, _FIGURES[name]) for name, figure in figures.items()}
        return template.write(
            folder / "compare.html", Path(__file__).with_name("compare.html"), **_answer(c),
            pictures={"structure": None, "curves": None} | pictures,
        )  # fmt: skip
    except OSError as error:
        raise UnlazyError(
            f"cannot write the page to {folder}: {error.strerror or error}; choose another --store"
        ) from error


def _answer(c: Findings) -> dict[str, Any]:
    """What the template says, figures aside."""
    table = c.study.table
    return {
        "word": c.verdict.word, "short": _SHORT[c.verdict.word], "headline": words.headline(c),
        "shape": f"{len(table)} rows, {table.frame.shape[1]} inputs, {table.task} of {table.target}",
        "sentences": words.sentences(c), "models": _models(c), "inputs": _inputs(c), "notes": c.notes,
        "rules": _rules(c), "version": VERSION,
    }  # fmt: skip


def _models(c: Findings) -> list[dict[str, str]]:
    rows = []
    for _, row in c.models.iterrows():
        if c.study.table.task == "classification":
            error = {"mistakes": f"{100 * row['mistakes']:.1f}%"}
        else:
            error = {"root mean square error": f"{row['rmse']:.4g}"}
        if c.study.rare:
            error |= {"average precision": f"{row['precision']:.2f}", "area under ROC": f"{row['auc']:.2f}"}
        risk = words.interval_text(row)
        rows.append({
            "model": row["model"], "family": row["family"], "training rows": f"{row['n']}", "risk": risk, **error,
            "seconds": f"{row['seconds']:.1f}",
        })  # fmt: skip
    return rows


def _inputs(c: Findings) -> list[dict[str, str]]:
    return [
        {
            "input": row["input"],
            "share of the rise when shuffled": f"{row['share']:.3g} [{row['low']:.3g}, {row['high']:.3g}]",
            "matters": "yes" if row["matters"] else "not surely",
        }
        for _, row in c.inputs.head(12).iterrows()
    ]


def _rules(c: Findings) -> tuple[str, ...]:
    """How it was done and what the words mean."""
    study = c.study
    ratios = "; ".join(f"n = {n}: {r.value:.2f} [{r.low:.2f}, {r.high:.2f}]" for n, r in c.verdict.ratios.items())
    judged = (
        "A rare class: what stands in for the risk in the verdict and the table is 1 - average precision of that "
        "class, over that of a guess.",
    )
    return (
        *(judged if study.rare else ()),
        f"All models are looked at on {study.sizes[0]} rows or fewer; the best lazy, rich and outside ones, by errors "
        "estimated on training rows, go on to the largest size, where the verdict is.",
        f"{study.splits} random splits test on {100 * study.overlap:.0f}% of the rows; training sizes "
        f"{', '.join(map(str, study.sizes))} are nested. Filling in, scaling, categories and all settings are learnt "
        "from training rows alone.",
        "Risk is the mean squared error (for classes that of the probabilities, the Brier score) over that of the best "
        "constant.",
        "At every split the best lazy and the best rich model are chosen by errors estimated on training rows. The "
        "logarithm of the ratio of their test risks is averaged over splits; since splits share rows, its variance is "
        f"that of Nadeau and Bengio (2003). Lazy over rich: {ratios}.",
        f"Pays: the 95% interval lies above {verdict.MARGIN}. Does not pay: it lies below {verdict.ENOUGH}. Noise: the "
        f"best model, chosen likewise, is not surely below {verdict.LITTLE} of the constant's risk, nor seems below "
        f"{verdict.SEEMS}, and the rows are no sliver of the table.",
    )
