"""The answer at one glance, in a practitioner's words: what came out, how sure it is, what to do now."""

import math
from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import held_out_rows
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import interval_says
from unlazy.comparison.report.prose import error_text
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.comparison.study.plan import FEWEST
from unlazy.comparison.study.verdict import families, inner_logs
from unlazy.core.errors import listed

LITTLE, MUCH = 0.05, 0.15
"""Shares of the squared error that twice the rows would take away: below the first they hardly pay, above the second
they do."""
_LISTED = 6


class Glance(NamedTuple):
    """The title, the answer, how sure it is, and things to do as (about, text)."""

    title: str
    answer: str
    sure: str
    todo: tuple[tuple[str, str], ...]


def glance(c: Findings) -> Glance:
    """All of it, from the findings."""
    asks = _ask(c)
    if c.verdict.word == "noise":
        todo = [*asks, ("Model", "None is worth using: a constant is as good."), ("Inputs", "Look for others."),
                ("More rows", "They would not help, unless the effect is too small for these.")]  # fmt: skip
    else:
        todo = [*asks, ("Model", _model(c)), *_inputs(c), ("More rows", _rows(c))]
    return Glance(_TITLE[c.verdict.word], _answer(c), _sure(c), tuple(todo))


def lines(c: Findings) -> list[str]:
    """The same as lines of text: the title, the answer, how sure, then a line for each thing to do."""
    seen = glance(c)
    return [seen.title, seen.answer, f"How sure? {seen.sure}", *(f"{about}: {text}" for about, text in seen.todo)]


_TITLE = {
    "pays": "Learning features pays here.",
    "does not pay": "Learning features does not pay here.",
    "undecided": "Undecided: whether learning features pays here.",
    "noise": "There is nothing to learn here.",
}


def _answer(c: Findings) -> str:
    target = c.study.table.target
    if c.verdict.word == "pays":
        return (
            f"Models that learn from the table which combinations of the inputs matter predict {target!r} better than "
            "models whose view of the inputs is fixed beforehand."
        )
    if c.verdict.word == "does not pay":
        return (
            f"Models that learn from the table which combinations of the inputs matter predict {target!r} hardly "
            "better, or worse, than models whose view of the inputs is fixed beforehand."
        )
    if c.verdict.word == "noise":
        return f"From these inputs no model predicts {target!r} measurably better than a constant does."
    return (
        f"Whether models that learn which combinations of the inputs matter predict {target!r} better than models "
        "whose view of the inputs is fixed beforehand, these trials do not tell."
    )


def _sure(c: Findings) -> str:
    """The interval in words, and how many splits agree."""
    study, ratio = c.study, c.verdict.ratio
    how = f"trained on {study.sizes[-1]} rows and tested on {held_out_rows(study.table)} others, " + (
        f"{study.splits} times" if study.splits > 1 else "once"
    )
    lazy, rich = families(study).values()
    logs = inner_logs(study, study.sizes[-1], lazy, rich)
    if study.splits < 2:
        return f"Not at all yet: {how}, and one split shows no spread."
    if c.verdict.word == "undecided" and not math.isfinite(ratio.high):
        return f"Not sure: {how}, and two splits show too little of how much splits differ."
    if study.splits < FEWEST:
        how += ", and more often on fewer rows, which tell how much splits differ"
    if c.verdict.word == "noise":
        signal = c.verdict.signal
        return f"Quite: the best model’s error is {signal.low:.2f} to {signal.high:.2f} of the constant’s (95%); {how}."
    agree = f"{int(np.sum(logs > 0))} of {len(logs)} splits favor learning features; {how}"
    what = "rank error" if study.rare else "squared error"
    if c.verdict.word == "pays":
        return f"Sure (95%): the {what} is {ratio.low:.2f} to {ratio.high:.2f} times smaller; {agree}."
    if c.verdict.word == "does not pay":
        gain = 1 - 1 / ratio.high
        told = f"learning features would take away at most {_few(gain)} of the {what}" if gain > 0 else \
            f"learning features makes the {what} larger"  # fmt: skip
        return f"Sure (95%): {told}; {agree}."
    if not c.verdict.seen:
        return f"Not sure: no model is surely better than a constant yet; {how}."
    spread = f": the {what} without it is {ratio.low:.2f} to {ratio.high:.2f} times that with it (95%)"
    return f"Not sure: the splits differ too much to tell{spread if interval_says(ratio) else ''}; {agree}."


def _ask(c: Findings) -> list[tuple[str, str]]:
    """Inputs that may tell what no one would know come first."""
    leaks = [repr(one.name) for one in c.suspects if one.why == "leak"]
    names = [repr(one.name) for one in c.suspects if one.why != "leak"]
    lines = []
    if leaks:
        lines.append(f"Would {', '.join(leaks)} be known before {c.study.table.target!r} is? It tells it nearly alone.")
    if names:
        lines.append(f"Should {', '.join(names)} be an input? It numbers or names the rows.")
    return [("Ask first", " ".join([*lines, "Leave it out with --drop if not."]))] if lines else []


def _model(c: Findings) -> str:
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    saved = "" if c.final is None or c.final.name != c.chosen else ", which is saved as model.unlazy"
    error, guess = error_text(c, best), _constant(c)
    if c.study.rare:  # mistakes hardly see it
        label, share = c.study.rarest
        error = f"average precision {best['precision']:.2f} in finding {str(label)!r}"
        guess = f"{share:.2g} for guessing"
    text = f"Use the {best['model']}{saved}. On rows it had not seen: {error}, against {guess}."
    radius = c.radius(0.9)
    if radius is not None:
        text += f" Nine of ten predictions are off by less than {radius:.3g}."
    better = [CONTESTANTS[name].title for name in c.better]
    equals = [CONTESTANTS[name].title for name in c.as_good if name != c.chosen]
    if better:
        text += f" Surely better still: {listed(better, _LISTED)}."
    if equals:
        text += f" As good as it, as far as this tells: {listed(equals, _LISTED)}."
    return text


def _constant(c: Findings) -> str:
    """What a guess without inputs would do."""
    if c.study.table.task == "regression":
        last = c.study.records.where(contestant=c.chosen, n=c.study.sizes[-1])
        return f"{math.sqrt(float(np.mean(last.measure('constant')))):.3g} for always guessing the mean"
    counts = np.unique(c.study.table.y, return_counts=True)[1]
    return f"{100 * (1 - counts.max() / counts.sum()):.1f}% for always guessing the most frequent class"


def _inputs(c: Findings) -> list[tuple[str, str]]:
    if c.structure is None:
        return []
    names = [str(name) for name in c.inputs[c.inputs["matters"]]["input"]]
    if not names and c.study.splits < FEWEST:
        return [("Inputs", f"Which of the {len(c.inputs)} matter, so few splits do not tell; keep them all.")]
    if not names:
        return [("Inputs", f"None of the {len(c.inputs)} surely matters alone; keep them all.")]
    rest = len(c.inputs) - len(names)
    others = f"; the other {rest} may help or not" if rest else ""
    some = "surely matters" if len(names) == 1 else "surely matter"
    return [("Inputs", f"{listed(names, _LISTED)} {some} ({len(names)} of {len(c.inputs)}){others}.")]


def _rows(c: Findings) -> str:
    """What twice the rows would bring, and whether to fetch them."""
    told = _twice(c)
    if c.verdict.word == "undecided":
        if c.study.more:
            return f"First give it more time: a larger --budget looks at more rows or splits.{told}"
        return f"These {c.study.table.whole} rows do not tell; only more of them would.{told}"
    return told.strip() or "What more rows would bring cannot be said from these."


def _twice(c: Findings) -> str:
    law = c.law
    if law is None or not law.now > 0:
        return ""
    gain, least, most = (1 - v / law.now for v in (law.twice.value, law.twice.high, law.twice.low))
    middle, low, high = (f"{100 * max(share, 0.0):.0f}%" for share in (gain, least, most))
    said = f"{middle} [{low}, {high}]"
    advice = "they hardly pay" if gain < LITTLE else "they pay" if least > MUCH else "they may pay"
    return (
        f" Twice the rows ({law.rows} more) would take {said} off the squared error of the best model with fixed "
        f"features: {advice}."
    )


def _few(share: float) -> str:
    """A share that may be small, in whole percent."""
    return f"{100 * share:.0f}%" if share >= 0.01 else "1%"
