"""The summary of a comparison for practitioners: the answer, its confidence, and what to do."""

import math
from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import held_out_count
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import format_number, is_informative
from unlazy.comparison.report.prose import error_text
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.more_rows import MAX_ROWS
from unlazy.comparison.study.plan import MIN_SPLITS
from unlazy.comparison.study.verdict import finalists_by_family, inner_logs
from unlazy.core.errors import join_names

SMALL_GAIN, LARGE_GAIN = 0.05, 0.15
"""Relative reduction of the squared error by twice the rows: below the first they are hardly worth it, above the second
they are."""
_MAX_LISTED = 6


class Summary(NamedTuple):
    """Title, answer, confidence, and actions as (topic, text)."""

    title: str
    answer: str
    confidence: str
    actions: tuple[tuple[str, str], ...]


def summarize(c: Findings) -> Summary:
    """Summarize the findings."""
    asks = _questions(c)
    if c.verdict.word == "noise":
        actions = [
            *asks, ("Model", "None is worth using: a constant is as good."), ("Inputs", "Look for other inputs."),
            ("More rows", "They would not help, unless the effect is too small to be seen with these rows."),
        ]  # fmt: skip
    else:
        actions = [*asks, ("Model", _model(c)), *_inputs(c), ("More rows", _rows(c))]
    return Summary(_TITLE[c.verdict.word], _answer(c), _confidence(c), tuple(actions))


def summary_lines(c: Findings) -> list[str]:
    """The summary as lines of text: title, answer, confidence, then one line per action."""
    s = summarize(c)
    return [s.title, s.answer, f"Confidence: {s.confidence}", *(f"{topic}: {text}" for topic, text in s.actions)]


_TITLE = {
    "pays": "Feature learning pays off on this table.",
    "does not pay": "Feature learning does not pay off on this table.",
    "undecided": "Undecided whether feature learning pays off on this table.",
    "noise": "No signal: nothing to learn from these inputs.",
}


def _answer(c: Findings) -> str:
    target = c.study.table.target
    if c.verdict.word == "pays":
        return (
            f"Models that learn which combinations of the inputs matter predict {target!r} better than models with "
            "fixed features."
        )
    if c.verdict.word == "does not pay":
        return (
            f"Models that learn which combinations of the inputs matter predict {target!r} hardly better, or worse, "
            "than models with fixed features."
        )
    if c.verdict.word == "noise":
        return f"No model predicts {target!r} from these inputs measurably better than a constant."
    return (
        f"These trials do not show whether models that learn which combinations of the inputs matter predict "
        f"{target!r} better than models with fixed features."
    )


def _confidence(c: Findings) -> str:
    """The interval in words, and how many splits agree."""
    study, ratio = c.study, c.verdict.ratio
    how = f"Trained on {study.sizes[-1]:,} rows and tested on {held_out_count(study.table):,} others, " + (
        f"{study.splits} times" if study.splits > 1 else "once"
    )
    lazy, rich = finalists_by_family(study).values()
    logs = inner_logs(study, study.sizes[-1], lazy, rich)
    if study.splits < 2:
        return f"None yet. {how}; a single split does not show how much splits differ."
    if c.verdict.word == "undecided" and not math.isfinite(ratio.high):
        return f"Low. {how}; two splits are too few to show how much splits differ."
    if study.splits < MIN_SPLITS:
        how += ", and more often on fewer rows to see how much splits differ"
    if c.verdict.word == "noise":
        signal = c.verdict.signal
        return (
            f"Fairly high. The error of the best model is {signal.low:.2f} to {signal.high:.2f} times that of a "
            f"constant (95% interval). {how}."
        )
    agree = f"{int(np.sum(logs > 0))} of {len(logs)} splits favor feature learning. {how}"
    what = "rank error" if study.rare else "squared error"
    if c.verdict.word == "pays":
        return f"High (95%). The {what} is {ratio.low:.2f} to {ratio.high:.2f} times lower; {agree}."
    if c.verdict.word == "does not pay":
        gain = 1 - 1 / ratio.high
        effect = f"Feature learning would reduce the {what} by at most {_small_percent(gain)}" if gain > 0 else \
            f"Feature learning increases the {what}"  # fmt: skip
        return f"High (95%). {effect}; {agree}."
    if not c.verdict.has_signal:
        return f"Low. No model is significantly better than a constant yet. {how}."
    times = f"{ratio.low:.2f} to {ratio.high:.2f} times"
    spread = f": the {what} without feature learning is {times} that with it (95% interval)"
    return f"Low. The splits differ too much to decide{spread if is_informative(ratio) else ''}; {agree}."


def _questions(c: Findings) -> list[tuple[str, str]]:
    """Questions about suspicious inputs, which come first."""
    leaks = [repr(one.name) for one in c.suspects if one.reason == "leak"]
    names = [repr(one.name) for one in c.suspects if one.reason != "leak"]
    lines = []
    if leaks:
        verb, which = ("Is", "It") if len(leaks) == 1 else ("Are", "Each")
        known = f"{verb} {', '.join(leaks)} known before {c.study.table.target!r}?"
        lines.append(f"{known} {which} alone predicts the target almost perfectly.")
    if names:
        reason = "It looks like a row number or identifier." if len(names) == 1 else \
            "They look like row numbers or identifiers."  # fmt: skip
        lines.append(f"Should {', '.join(names)} be {'an input' if len(names) == 1 else 'inputs'}? {reason}")
    many = len(leaks) + len(names) > 1
    return (
        [("Check first", " ".join([*lines, f"If not, remove {'them' if many else 'it'} with --drop."]))]
        if lines
        else []
    )


def _model(c: Findings) -> str:
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    saved = "" if c.final is None or c.final.name != c.chosen else ", saved as model.unlazy"
    error, guess = error_text(c, best), _constant(c)
    if c.study.rare:  # the share of misclassified rows is insensitive to a rare class
        label, share = c.study.rarest
        error = f"average precision {best['precision']:.2f} for {str(label)!r}"
        guess = f"{share:.2g} by chance"
    text = f"Use the {best['model']}{saved}. On unseen rows: {error}, compared with {guess}."
    radius = c.radius(0.9)
    if radius is not None:
        text += f" 90% of predictions are off by less than {format_number(radius)}."
    better = [CANDIDATES[name].title for name in c.better]
    equals = [CANDIDATES[name].title for name in c.as_good if name != c.chosen]
    if better:
        text += f" Significantly better: {join_names(better, _MAX_LISTED)}."
    if equals:
        text += f" Not significantly different: {join_names(equals, _MAX_LISTED)}."
    return text


def _constant(c: Findings) -> str:
    """The error of a constant prediction."""
    if c.study.table.task == "regression":
        last = c.study.records.where(candidate=c.chosen, n=c.study.sizes[-1])
        error = math.sqrt(float(np.mean(last.measure("constant"))))
        return f"{format_number(error)} for always predicting the mean"
    counts = np.unique(c.study.table.y, return_counts=True)[1]
    return f"{100 * (1 - counts.max() / counts.sum()):.1f}% for always predicting the most frequent class"


def _inputs(c: Findings) -> list[tuple[str, str]]:
    if c.structure is None:
        return []
    names = [str(name) for name in c.inputs[c.inputs["matters"]]["input"]]
    if not names and c.study.splits < MIN_SPLITS:
        return [
            ("Inputs", f"There are too few splits to say which of the {len(c.inputs)} inputs matter; keep them all.")
        ]
    if not names:
        return [("Inputs", f"None of the {len(c.inputs)} inputs matters significantly on its own; keep them all.")]
    rest = len(c.inputs) - len(names)
    others = "" if not rest else "; the other one may or may not help" if rest == 1 else \
        f"; the other {rest} may or may not help"  # fmt: skip
    some = "matters" if len(names) == 1 else "matter"
    found = f"{join_names(names, _MAX_LISTED)} {some} significantly ({len(names)} of {len(c.inputs)} inputs)"
    return [("Inputs", f"{found}{others}.")]


def _rows(c: Findings) -> str:
    """The effect of twice the rows, and whether they are worth it."""
    effect = _twice(c)
    if c.verdict.word == "undecided":
        if c.study.can_improve:
            return f"First try a larger --budget, which uses more rows or splits.{effect}"
        return f"These {c.study.table.total_rows:,} rows are not enough to decide; only more rows would help.{effect}"
    return effect.strip() or "The effect of more rows cannot be predicted from these."


def _twice(c: Findings) -> str:
    law = c.law
    if law is None or not law.now > 0:
        return ""
    gain, least, most = (1 - v / law.now for v in (law.twice.value, law.twice.high, law.twice.low))
    middle, low, high = (f"{100 * max(share, 0.0):.0f}%" for share in (gain, least, most))
    reduction = f"{middle} [{low}, {high}]"
    advice = "hardly worth it" if gain < SMALL_GAIN else "worth it" if least > LARGE_GAIN else "may be worth it"
    far = "" if law.calibrated else f" (extrapolated from {MAX_ROWS} rows; the interval is not checked that far)"
    return (
        f" Doubling the rows ({law.rows:,} more) would reduce the squared error of the best model with fixed features "
        f"by {reduction}{far}: {advice}."
    )


def _small_percent(share: float) -> str:
    """A share in percent, rounded to at least 1%."""
    return f"{100 * share:.0f}%" if share >= 0.01 else "1%"
