"""The findings in sentences; numbers appear only if they are informative."""

import math

import pandas as pd

from unlazy.comparison.data.leakage import Suspect
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import MAX_FACTOR, format_number, is_informative
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.more_rows import MoreRowsLaw
from unlazy.comparison.study.verdict import splits_may_decide
from unlazy.core.errors import join_names
from unlazy.measures.scaling_fit import Interval

_CHARACTER = {
    "low-dimensional": "The target looks low-dimensional: it varies along few directions of the inputs.",
    "smooth": "The target looks smooth: isotropic kernels do about as well as any other model.",
    "neither": "To these models, the target looks neither smooth in all directions nor low-dimensional.",
    "unknown": "",
}


def headline(c: Findings) -> str:
    """The verdict in one sentence."""
    ratio = c.verdict.ratio
    lazy, rich = (_title(c.verdict.picks[word]) for word in ("lazy", "rich"))
    n = c.study.sizes[-1]
    if c.verdict.word == "pays":
        return (
            f"Feature learning pays: with {n:,} training rows, the selected rich model ({rich}) has a {_term(c)} "
            f"{_times(ratio)} times lower than the selected lazy model ({lazy})."
        )
    if c.verdict.word == "noise":
        return (
            f"No measurable signal: with {n:,} training rows, no model predicts {c.study.table.target!r} significantly "
            f"better than {c.study.metric.constant} ({_term(c)} {_range(c.verdict.signal)} times as large)."
        )
    if c.study.measured < c.study.splits and not math.isfinite(ratio.high):
        how = f"only {c.study.measured} of {c.study.splits} test sets have rows of the class {str(c.study.rarest[0])!r}"
    elif c.study.splits < 2:
        how = f"only one split finished in time, with {n:,} training rows"
    elif not math.isfinite(ratio.high):
        how = f"only {c.study.splits} splits finished in time with {n:,} training rows, too few for an interval"
    elif not is_informative(ratio) and c.verdict.word == "does not pay":
        how = (
            f"with {n:,} training rows, the selected lazy model ({lazy}) has at most {ratio.high:.2f} times "
            f"the {_term(c)} of the selected rich model ({rich})"
        )
    elif not is_informative(ratio):
        how = f"with {n:,} training rows, splits differ more than the lazy ({lazy}) and rich ({rich}) models do"
    else:
        how = (
            f"with {n:,} training rows, the selected lazy model ({lazy}) has {_times(ratio)} times the {_term(c)} of "
            f"the selected rich model ({rich})"
        )
    if c.verdict.word == "does not pay":
        return f"Feature learning does not pay: {how}."
    if not c.verdict.has_signal:
        how = f"with {n:,} training rows, no model is significantly better than {c.study.metric.constant} yet"
    return f"Undecided: {how}; {what_would_decide(c)}."


def what_would_decide(c: Findings) -> str:
    """What would lead to a decision: a larger budget only if it would allow more rows or splits."""
    rows = c.study.table.total_rows
    if c.study.can_improve and not c.study.largest:
        return "a larger --budget would use more rows or splits"
    if c.study.can_improve and splits_may_decide(c.study, c.verdict):
        return "a larger --budget would run more splits"
    return f"these {rows:,} rows are not enough to decide, only more rows would help"


def sentences(c: Findings) -> list[str]:
    """The details below the headline."""
    suspects = [" ".join(suspect_lines(c))] if c.suspects else []
    if c.verdict.word == "noise":
        return [*suspects, "Without a signal, no model and no input can be recommended."]
    found = [*suspects, *_when(c), *_where(c), _CHARACTER[c.character], *_use(c), *_rare(c), *_more(c)]
    return [text for text in found if text]


def suspect_lines(c: Findings) -> list[str]:
    """Which inputs are suspicious and why, whether the models use them, and the error with and without them."""
    if not c.suspects:
        return []
    target = c.study.table.target
    reasons = [suspect_reason(one, target) for one in c.suspects]
    they, them = ("it", "it") if len(reasons) == 1 else ("they", "them")
    lines = [f"{'; '.join(reasons)}."]
    if {one.name for one in c.suspects} == set(map(str, c.study.table.frame.columns)):
        every = "The only input is" if len(reasons) == 1 else "All inputs are"
        return [*lines, f"{every} suspicious, so {they} {_is(reasons)} kept: nothing else is left to predict from."]
    if c.suspects_kept:
        lines.append(f"The models use {them}, as requested (--keep-suspects).")
    else:
        lines.append(f"No model uses {them}, and the saved model does not need {them}.")
    found = c.suspect_errors
    if found is None:
        without = "without" if c.suspects_kept else "with"
        lines.append(f"There was no time to measure the error {without} {them}; a larger --budget would give it.")
    elif math.isnan(found.with_them):
        label = str(c.study.rarest[0])
        lines.append(f"Their effect is unknown: the test sets of that comparison have no row of the class {label!r}.")
    else:
        before, after = (error_value(c, value) for value in (found.without_them, found.with_them))
        lines.append(
            f"On the same test rows, the {found.model} trained on {found.rows:,} rows has {before} without {them} and "
            f"{after} with {them}."
        )
    if not c.suspects_kept:
        lines.append(
            f"If {they} {_is(reasons)} known before {target!r} and meaningful for new rows, use {them} with "
            "--keep-suspects."
        )
    return lines


def suspect_reason(one: Suspect, target: str) -> str:
    """Why an input is suspicious."""
    if one.reason == "leak":
        share = percent(min(one.share, 0.9999))
        return f"{one.name!r} alone explains {share} of {target!r}, so it is a likely leak"
    return f"{one.name!r} looks like a row number or an identifier"


def _is(things: list[str]) -> str:
    return "is" if len(things) == 1 else "are"


def error_value(c: Findings, value: float) -> str:
    """An error in familiar units, in words."""
    if c.study.metric.name == "rmse":
        return f"an RMSE of {format_number(value)}"
    if c.study.metric.name == "average_precision":
        return f"an average precision of {value:.2f} for {str(c.study.rarest[0])!r}"
    if c.study.metric.name == "log_loss":
        return f"a log loss of {format_number(value)}"
    return f"{mistakes_text(value)} mistakes"


def mistakes_text(share: float) -> str:
    """A share of mistakes in percent with one decimal, as in tables."""
    return f"{100 * share:.1f}%"


def _when(c: Findings) -> list[str]:
    if c.verdict.word == "pays" and c.verdict.onset is not None:
        onset = f"{c.verdict.onset:,} training rows"
        return [f"It pays from {onset} or fewer." if c.verdict.onset == c.study.sizes[0] else f"It pays from {onset}."]
    return []


def _where(c: Findings) -> list[str]:
    s = c.structure
    if s is None:
        return []
    names = [str(name) for name in c.inputs[c.inputs["matters"]]["input"]]
    many = "direction accounts" if s.count == 1 else "directions account"
    lines = [
        f"{s.count} {many} for 90% of the average gradient outer product of the {_title(s.model)} "
        f"(effective rank {s.rank:.1f} of {len(s.eigenvalues)})."
    ]
    d = len(c.inputs)
    if names:
        some = join_names(names, 10)
        lines.append(f"Inputs that matter (permuting one raises the risk significantly), {len(names)} of {d}: {some}.")
    if c.verdict.word == "pays" and is_informative(c.isotropic):
        lines.append(f"Compared with the best isotropic kernel, the {_term(c)} is {_times(c.isotropic)} times lower.")
    return lines


def _use(c: Findings) -> list[str]:
    """The chosen model, its error, and models that are better or as good; without a decision it is not recommended."""
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    start = "Use" if c.verdict.word != "undecided" else "Selected so far is"
    known = f", {_performance(c, best)}" if c.study.measured else ""
    lines = [f"{start} the {best['model']}: trained on {best['n']:,} rows{known}."]
    equals = [_title(name) for name in c.as_good if name != c.chosen]
    better = [_title(name) for name in c.better]
    if better:
        lines.append(f"Significantly better: {', '.join(better)}.")
    if equals:
        lines.append(f"Not significantly different: {', '.join(equals)}.")
    if c.final is not None:
        lines.append(_saved(c))
    return lines


def _saved(c: Findings) -> str:
    """The error of the saved model, estimated on its training rows."""
    assert c.final is not None
    error = c.final.inner
    what = "" if c.final.name == c.chosen else f" ({_title(c.final.name)})"
    if c.study.table.task == "regression":
        size = math.sqrt(max(error, 0.0)) * float(c.study.table.y.std())
        return (
            f"The saved model{what} is fitted to {c.final.rows:,} rows; its RMSE, estimated on rows left out of its "
            f"fit, is {format_number(size)}."
        )
    return (
        f"The saved model{what} is fitted to {c.final.rows:,} rows; its Brier score, estimated on rows left out of its "
        f"fit, is {format_number(error)} times that of a constant."
    )


def error_text(c: Findings, row: pd.Series) -> str:
    """The error in familiar units: RMSE, share of misclassified rows, log loss or average precision."""
    if c.study.metric.name == "rmse":
        return f"{format_number(row['rmse'])} (RMSE, in units of {c.study.table.target})"
    if c.study.metric.name == "average_precision":
        return error_value(c, row["precision"]).removeprefix("an ")
    wrong = f"{mistakes_text(row['mistakes'])} misclassified"
    return f"{wrong} and log loss {format_number(row['log_loss'])}" if "log_loss" in row else wrong


def _performance(c: Findings, best: pd.Series) -> str:
    """Error of a model on test rows in familiar units, and relative to that of a constant (never 0% or 100%)."""
    metric, risk = c.study.metric, Interval(best["risk"], best["low"], best["high"])
    error, share, ends = error_text(c, best), percent(risk.value), ""
    if math.isfinite(risk.low) and not is_informative(risk):
        ends = f" (splits disagree by more than a factor of {MAX_FACTOR:g})"
    elif math.isfinite(risk.low):
        ends = f" [{percent(risk.low)}, {percent(risk.high)}]"
    if metric.name == "rmse":
        return f"its error on test rows is {error}, which leaves {share}{ends} of the variance unexplained"
    if metric.name == "average_precision":
        return f"it has an {error} on test rows"
    wrong = f"it misclassifies {mistakes_text(best['mistakes'])} of the test rows"
    if metric.name == "accuracy":
        return f"{wrong}, which is {share}{ends} of the mistakes of {metric.constant}"
    return f"{wrong}; its {metric.error} is {share}{ends} of that of {metric.constant}"


def _rare(c: Findings) -> list[str]:
    """How well a rare class is ranked."""
    if not c.study.rare or not c.study.measured:
        return []
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    label, share = c.study.rarest
    return [
        f"The class {str(label)!r} has {percent(share)} of the rows, and models are judged by how high they rank it: "
        f"average precision {best['precision']:.2f} (1 is perfect, and the shortfall is the distance from 1; a random "
        f"order has {format_number(c.constant_error, 2)}), area under the ROC curve {best['auc']:.2f} (a random order "
        "has 0.50)."
    ]


def _more(c: Findings) -> list[str]:
    """Predicted effect of more rows: by the law of the best fixed kernel, and by a power law through measured sizes."""
    law = c.law
    if law is None:
        return _power_law(c)
    what = "risk" if c.study.metric.measure == "risk" else "squared error of the probabilities"
    return [
        f"Doubling the rows would change the {what} of the best fixed kernel ({_title(law.name)}) from "
        f"{format_number(law.now)} with {law.rows:,} rows to {_range(law.twice)} with {2 * law.rows:,}, by its "
        f"predicted learning curve (a constant has 1){_uncalibrated(law)}.",
        *_power_law(c),
    ]


def _uncalibrated(law: MoreRowsLaw) -> str:
    return "" if law.calibrated else f"; it starts from {law.points:,} rows, and its interval is not checked that far"


def _power_law(c: Findings) -> list[str]:
    """Extrapolation of the chosen model's learning curve, if it is informative."""
    curve = c.curves.get(c.chosen)
    if curve is None or len(curve.sizes) < 3 or curve.risks.shape[1] < 2:
        return []
    n, twice, back = curve.sizes[-1], curve.extrapolate(2 * curve.sizes[-1]), curve.backtest()
    if twice is None or back is None or not is_informative(twice):
        return []
    return [
        f"Doubling the largest training size to {2 * n:,} rows would change the {_term(c)} of the {_title(c.chosen)} "
        f"from {format_number(float(curve.mean[-1]))} to {_range(twice)}, if the power law through the measured sizes "
        f"continues (fitted without the last size, it predicts {format_number(back[0])} there; measured: "
        f"{format_number(back[1])})."
    ]


def _title(name: str) -> str:
    return CANDIDATES[name].title if name else "none"


def _term(c: Findings) -> str:
    """Name of the error in technical sentences."""
    return c.study.metric.term


def _times(value: Interval) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def interval_text(row: pd.Series) -> str:
    """Risk of a row of the table of models, with its interval if there are enough splits."""
    value = Interval(float(row["risk"]), float(row["low"]), float(row["high"]))
    if math.isfinite(value.low) and not is_informative(value):
        return f"{format_number(value.value)} (splits disagree)"
    return _range(value)


def _range(value: Interval) -> str:
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        return format_number(value.value)
    return f"{format_number(value.value)} [{format_number(value.low)}, {format_number(value.high)}]"


def percent(share: float) -> str:
    """A share in percent; one below 100% is not rounded to 100%."""
    return f"{format_number(100 * share, 3 if share < 0.995 or share >= 1 else 4)}%"
