"""The summary of a comparison for practitioners: the answer, its confidence, and what to do."""

import math
from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import held_out_count
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import format_number, is_informative
from unlazy.comparison.report.prose import error_text, error_value, mistakes_text, suspect_lines, what_would_decide
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.plan import MIN_SPLITS
from unlazy.comparison.study.suspect_errors import familiar_error
from unlazy.comparison.study.verdict import finalists_by_family, inner_logs
from unlazy.core.errors import join_names

SMALL_GAIN, LARGE_GAIN = 0.05, 0.15
"""Relative reduction of the squared error by twice the rows: below the first they are hardly worth it, above the second
they are."""
SAME_RATIO = 1.02
"""Errors within this factor are called about the same."""
_MAX_LISTED = 6


class Summary(NamedTuple):
    """Title, answer, confidence, and actions as (topic, text)."""

    title: str
    answer: str
    confidence: str
    actions: tuple[tuple[str, str], ...]


def summarize(c: Findings) -> Summary:
    """Summarize the findings."""
    lines = suspect_lines(c)
    asks = [("Check first" if c.suspects_kept else "Left out", " ".join(lines))] if lines else []
    if c.verdict.word == "noise":
        actions = [
            *asks, ("Model", f"None is worth using: {c.study.metric.constant} is as good."),
            ("Inputs", "Look for other inputs."),
            ("More rows", "They would not help, unless the effect is too small to be seen with these rows."),
        ]  # fmt: skip
    else:
        decide = [("To decide", _sentence(what_would_decide(c)))] if c.verdict.word == "undecided" else []
        actions = [*asks, *decide, ("Model", _model(c)), *_inputs(c), *_rows(c)]
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
        return f"No model predicts {target!r} from these inputs measurably better than {c.study.metric.constant}."
    if not c.verdict.has_signal:
        return f"In these trials no model predicts {target!r} significantly better than {c.study.metric.constant}."
    return f"{_so_far(c)} These trials do not show whether the difference is chance."


def _so_far(c: Findings) -> str:
    """What an undecided comparison has measured."""
    ratio, what = c.verdict.ratio.value, c.study.metric.error
    lazy, rich = (CANDIDATES[c.verdict.picks[word]].title for word in ("lazy", "rich"))
    if max(ratio, 1 / ratio) < SAME_RATIO:
        return f"So far the {rich} (learned features) and the {lazy} (fixed features) have about the same {what}."
    if c.study.metric.name != "brier":  # an error that people know
        top = c.study.records.where(n=c.study.sizes[-1])
        learned, fixed = (
            error_value(c, familiar_error(c.study.metric, top.where(candidate=c.verdict.picks[word])))
            for word in ("rich", "lazy")
        )
        return f"So far the {rich} (learned features) has {learned}, and the {lazy} (fixed features) {fixed}."
    less, more = (f"the {rich} (learned features)", f"the {lazy} (fixed features)")
    less, more = (less, more) if ratio > 1 else (more, less)
    lower = 100 * (1 - min(ratio, 1 / ratio))
    return f"So far {less} has a {what} that is {lower:.0f}% lower than that of {more}."


def _confidence(c: Findings) -> str:
    """The interval in words, and how many splits agree."""
    study, ratio = c.study, c.verdict.ratio
    how = f"Trained on {study.sizes[-1]:,} rows and tested on {held_out_count(study.table):,} others, " + (
        {1: "once", 2: "twice"}.get(study.splits, f"{study.splits} times")
    )
    lazy, rich = finalists_by_family(study).values()
    logs = inner_logs(study, study.sizes[-1], lazy, rich)
    if study.splits < 2:
        return f"None yet. {how}; a single split does not show how much splits differ."
    if c.verdict.word == "undecided" and not math.isfinite(ratio.high):
        few = "two splits are too few"
        if study.measured < study.splits:
            few = f"only {study.measured} of these test sets have rows of the class {str(study.rarest[0])!r}, too few"
        return f"Low. {how}; {few} to show how much splits differ."
    if study.splits < MIN_SPLITS:
        how += ", and more often on fewer rows to see how much splits differ"
    if c.verdict.word == "noise":
        signal = c.verdict.signal
        return (
            f"Fairly high. The {study.metric.error} of the best model is {signal.low:.2f} to {signal.high:.2f} times "
            f"that of {study.metric.constant} (95% interval). {how}."
        )
    agree = f"{int(np.sum(logs > 0))} of {len(logs)} splits favor feature learning. {how}"
    what = study.metric.error
    if c.verdict.word == "pays":
        return f"High (95%). The {what} is {ratio.low:.2f} to {ratio.high:.2f} times lower; {agree}."
    if c.verdict.word == "does not pay":
        gain = 1 - 1 / ratio.high
        effect = f"Feature learning would reduce the {what} by at most {_small_percent(gain)}" if gain > 0 else \
            f"Feature learning increases the {what}"  # fmt: skip
        return f"High (95%). {effect}; {agree}."
    if not c.verdict.has_signal:
        return f"Low. No model is significantly better than {study.metric.constant} yet. {how}."
    times = f"{ratio.low:.2f} to {ratio.high:.2f} times"
    spread = f": the {what} without feature learning is {times} that with it (95% interval)"
    return f"Low. The splits differ too much to decide{spread if is_informative(ratio) else ''}; {agree}."


def _sentence(text: str) -> str:
    """The text as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def _model(c: Findings) -> str:
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    saved = c.final is not None and c.final.name == c.chosen
    if c.verdict.word == "undecided":
        text = f"The saved model, model.unlazy, is the {best['model']}" if saved else f"Selected: the {best['model']}"
        text += ", selected by its error on training rows; another model may be as good."
    else:
        text = f"Use the {best['model']}{', saved as model.unlazy' if saved else ''}."
    if c.study.measured:
        text += f" On unseen rows: {error_text(c, best)}, compared with {_constant(c)}."
    else:
        text += f" Its error is unknown: no test set has a row of the class {str(c.study.rarest[0])!r}."
    radius = c.radius(0.9)
    if radius is not None:
        text += f" 90% of predictions of test rows are off by less than {format_number(radius)}."
    better = [CANDIDATES[name].title for name in c.better]
    equals = [CANDIDATES[name].title for name in c.as_good if name != c.chosen]
    if better:
        text += f" Significantly better: {join_names(better, _MAX_LISTED)}."
    if equals:
        text += f" Not significantly different: {join_names(equals, _MAX_LISTED)}."
    return text


def _constant(c: Findings) -> str:
    """The error of a constant prediction on the same test rows."""
    if c.study.table.task == "regression":
        return f"{format_number(c.constant_error)} for always predicting the mean"
    if c.study.rare:  # the share of mistakes is insensitive to a rare class
        return f"{format_number(c.constant_error, 2)} for a random order"
    return f"{mistakes_text(c.constant_error)} for always predicting the most frequent class"


def _inputs(c: Findings) -> list[tuple[str, str]]:
    if c.structure is None:
        return []
    names = [str(name) for name in c.inputs[c.inputs["matters"]]["input"]]
    keep = "" if c.suspects_kept else "; keep them all"
    if not names and c.study.splits < MIN_SPLITS:
        return [("Inputs", f"There are too few splits to say which of the {len(c.inputs)} inputs matter{keep}.")]
    if not names:
        return [("Inputs", f"None of the {len(c.inputs)} inputs matters significantly on its own{keep}.")]
    rest = len(c.inputs) - len(names)
    others = "" if not rest else "; the other one may or may not help" if rest == 1 else \
        f"; the other {rest} may or may not help"  # fmt: skip
    some = "matters" if len(names) == 1 else "matter"
    found = f"{join_names(names, _MAX_LISTED)} {some} significantly ({len(names)} of {len(c.inputs)} inputs)"
    return [("Inputs", f"{found}{others}.")]


def _rows(c: Findings) -> list[tuple[str, str]]:
    """The effect of twice the rows, and whether they are worth it."""
    effect = _twice(c)
    if c.verdict.word == "undecided" and not effect:
        return []
    return [("More rows", effect or "The effect of more rows cannot be predicted from these.")]


def _twice(c: Findings) -> str:
    law = c.law
    if law is None or not law.now > 0:
        return ""
    of = "" if c.study.table.task == "regression" else " of the probabilities"
    gain, least, most = (1 - v / law.now for v in (law.twice.value, law.twice.high, law.twice.low))
    if least < 0:  # the interval includes an increase
        middle, low, high = (_signed_percent(-share) for share in (gain, most, least))
        effect = f"change the squared error{of} of the best model with fixed features by {middle} [{low}, {high}]"
    else:
        middle, low, high = (f"{100 * share:.0f}%" for share in (gain, least, most))
        effect = f"reduce the squared error{of} of the best model with fixed features by {middle} [{low}, {high}]"
    unsure = "it is open whether that is worth it" if least < 0 else "may be worth it"
    advice = "hardly worth it" if gain < SMALL_GAIN else "worth it" if least > LARGE_GAIN else unsure
    far = "" if law.calibrated else f" (extrapolated from {law.points:,} rows; the interval is not checked that far)"
    return f"Doubling the rows ({law.rows:,} more) would {effect}{far}: {advice}."


def _signed_percent(share: float) -> str:
    """A change in percent with its sign; −0 is 0."""
    whole = round(100 * share)
    return f"{'−' if whole < 0 else '+' if whole > 0 else ''}{abs(whole)}%"


def _small_percent(share: float) -> str:
    """A share in percent, rounded to at least 1%."""
    return f"{100 * share:.0f}%" if share >= 0.01 else "1%"
