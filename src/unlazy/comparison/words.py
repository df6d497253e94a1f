"""The answer in words: one sentence per finding, numbers with their intervals."""

import math
from typing import TYPE_CHECKING

from unlazy.comparison.contestants import CONTESTANTS
from unlazy.comparison.findings import Findings
from unlazy.measures.learning_curve import Curve
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    import pandas as pd

_CHARACTER = {
    "low-dimensional": "The target is closest to low-dimensional: it varies along few directions of the inputs.",
    "smooth": "The target is closest to smooth: kernels to which all directions are alike do about as well as "
    "anything.",
    "neither": "The target is neither smooth in all directions alike nor low-dimensional to the models tried here.",
    "unknown": "",
}


def headline(c: Findings) -> str:
    """The verdict in one sentence."""
    ratio = _times(c.verdict.ratio)
    lazy, rich = (_title(c.verdict.picks[word]) for word in ("lazy", "rich"))
    n = c.study.sizes[-1]
    if c.verdict.word == "pays":
        return (
            f"Feature learning pays: at {n} training rows the rich model chosen on them ({rich}) has a risk {ratio} "
            f"times smaller than the lazy one ({lazy})."
        )
    if c.verdict.word == "noise":
        return (
            f"These inputs say nothing measurable about {c.study.table.target!r}: at {n} training rows no model, "
            f"chosen on them, is surely better than a constant (risk {_range(c.verdict.signal)} of the constant's)."
        )
    how = (
        f"at {n} training rows the lazy model chosen on them ({lazy}) has {ratio} times the risk of the rich one "
        f"({rich})"
    )
    if c.verdict.word == "does not pay":
        return f"Feature learning does not pay: {how}."
    return f"Undecided: {how}; more rows or a larger --budget would tell."


def sentences(c: Findings) -> list[str]:
    """Everything below the headline."""
    found = [*_noise(c)] if c.verdict.word == "noise" else [*_when(c), *_where(c), _CHARACTER[c.character]]
    return [text for text in [*found, *_use(c), *_more(c)] if text]


def _noise(c: Findings) -> list[str]:
    return ["Which model to prefer, and which inputs matter, cannot be said where nothing is predicted."]


def _when(c: Findings) -> list[str]:
    if c.verdict.word == "pays" and c.verdict.onset is not None:
        smallest = c.verdict.onset == c.study.sizes[0]
        return [f"It pays from {'at most ' if smallest else 'about '}{c.verdict.onset} training rows on."]
    return []


def _where(c: Findings) -> list[str]:
    s = c.structure
    if s is None:
        return []
    names = [str(name) for name in c.inputs[c.inputs["matters"]]["input"]]
    listed = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    many = "direction carries" if s.count == 1 else "directions carry"
    lines = [
        f"To the {_title(s.model)}, {s.count} {many} nine tenths of its average gradient outer product "
        f"(effective rank {s.rank:.1f} of {len(s.eigenvalues)})."
    ]
    d = len(c.inputs)
    if names:
        lines.append(f"Inputs that matter (shuffling one surely raises its risk), {len(names)} of {d}: {listed}.")
    if c.verdict.word == "pays" and math.isfinite(c.isotropic.value):
        lines.append(f"Against the best isotropic kernel the risk is {_times(c.isotropic)} times smaller.")
    return lines


def _use(c: Findings) -> list[str]:
    best = c.models.iloc[0]
    lines = []
    if c.verdict.word != "noise":
        risk = c.expected
        what = "variance" if c.study.table.task == "regression" else "Brier score"
        explained = f"{100 * (1 - risk.value):.0f}% of the {what}"
        lines.append(
            f"Use the {best['model']}: trained on {c.study.sizes[-1]} rows its expected error is "
            f"{error_text(c, best)}; the best model's risk is {_range(risk)} of a constant's, so "
            f"it explains {explained}."
        )  # fmt: skip
    return lines


def error_text(c: Findings, row: "pd.Series") -> str:
    """An error in the units a reader knows: root mean squared error, or mistakes."""
    if c.study.table.task == "regression":
        return f"{row['rmse']:.3g} (root mean square, in units of {c.study.table.target})"
    return f"{100 * row['mistakes']:.1f}% mistakes"


def _more(c: Findings) -> list[str]:
    """What more data would buy, for the best model."""
    curve: Curve | None = c.curves.get(str(c.models.iloc[0]["name"]))
    if curve is None or len(curve.sizes) < 3 or c.verdict.word == "noise":
        return []
    n, law = curve.sizes[-1], curve.law()
    twice, back = curve.extrapolated(2 * n), curve.backtest()
    assert law is not None and twice is not None and back is not None
    floor = f"{_number(law.floor)} + " if law.floor > 0 else ""
    return [
        f"Twice the rows ({2 * n}) would bring its risk from {_number(float(curve.mean[-1]))} to {_range(twice)}, if "
        f"its curve ({floor}c·n^{law.exponent:.2f}) goes on (without the last size it predicts {_number(back[0])} "
        f"there; measured {_number(back[1])})."
    ]  # fmt: skip


def _title(name: str) -> str:
    return CONTESTANTS[name].title if name else "none"


def _times(value: Interval) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _range(value: Interval) -> str:
    return f"{_number(value.value)} [{_number(value.low)}, {_number(value.high)}]"


def _number(value: float) -> str:
    return f"{value:.3g}"
