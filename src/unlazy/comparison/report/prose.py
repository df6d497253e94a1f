"""The findings in sentences; numbers appear only if they are informative."""

import math

import pandas as pd

from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import MAX_FACTOR, format_number, is_informative
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.more_rows import MAX_ROWS, MoreRowsLaw
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
            f"Feature learning pays: with {n:,} training rows, the selected rich model ({rich}) has {_risk(c)} "
            f"{_times(ratio)} times lower than the selected lazy model ({lazy})."
        )
    if c.verdict.word == "noise":
        return (
            f"No measurable signal: with {n:,} training rows, no model predicts {c.study.table.target!r} significantly "
            f"better than a constant ({_risk(c).removeprefix('a ')} {_range(c.verdict.signal)} times that of the "
            "constant)."
        )
    if c.study.splits < 2:
        how = f"only one split finished in time, with {n:,} training rows"
    elif not math.isfinite(ratio.high):
        how = f"only {c.study.splits} splits finished in time with {n:,} training rows, too few for an interval"
    elif not is_informative(ratio) and c.verdict.word == "does not pay":
        how = (
            f"with {n:,} training rows, the selected lazy model ({lazy}) has at most {ratio.high:.2f} times "
            f"{_the_risk(c)} of the selected rich model ({rich})"
        )
    elif not is_informative(ratio):
        how = f"with {n:,} training rows, splits differ more than the lazy ({lazy}) and rich ({rich}) models do"
    else:
        how = (
            f"with {n:,} training rows, the selected lazy model ({lazy}) has {_times(ratio)} times {_the_risk(c)} of "
            f"the selected rich model ({rich})"
        )
    if c.verdict.word == "does not pay":
        return f"Feature learning does not pay: {how}."
    if not c.verdict.has_signal:
        how = f"with {n:,} training rows, no model is significantly better than a constant yet"
    return f"Undecided: {how}; {_what_would_decide(c)}."


def _what_would_decide(c: Findings) -> str:
    """What would lead to a decision: a larger budget only if it would allow more rows or splits."""
    rows = c.study.table.total_rows
    if c.study.can_improve:
        return "a larger --budget would use more rows or splits"
    return f"these {rows:,} rows are not enough to decide, only more rows would help"


def sentences(c: Findings) -> list[str]:
    """The details below the headline."""
    if c.verdict.word == "noise":
        return [*_suspects(c), "Without a signal, no model and no input can be recommended."]
    found = [*_suspects(c), *_when(c), *_where(c), _CHARACTER[c.character], *_use(c), *_rare(c), *_more(c)]
    return [text for text in found if text]


def _suspects(c: Findings) -> list[str]:
    """Suspicious inputs, and the verdict without them."""
    lines = []
    for one in c.suspects:
        if one.reason == "leak":
            problem = f"alone explains {percent(min(one.share, 0.9999))} of {c.study.table.target!r}: a likely leak"
            question = "Is it known before the target?"
        else:
            problem, question = "looks like a row number or an identifier", "Should it be an input?"
        lines.append(f"The input {one.name!r} {problem}. {question} If not, remove it with --drop {one.name}.")
    if c.without is not None:
        names = ", ".join(repr(one.name) for one in c.suspects)
        lines.append(f"Without {names}: {headline(c.without)}")
    return lines


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
        lines.append(f"Compared with the best isotropic kernel, the risk is {_times(c.isotropic)} times lower.")
    return lines


def _use(c: Findings) -> list[str]:
    """The chosen model, its error, and models that are better or as good."""
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    text = f"Use the {best['model']}: trained on {best['n']:,} rows, its error on test rows is {error_text(c, best)}"
    risk = Interval(best["risk"], best["low"], best["high"])
    lines = [f"{text}, which {_unexplained(c, risk)}."]
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
    """The error in familiar units: RMSE, or share of misclassified rows."""
    if c.study.table.task == "regression":
        return f"{format_number(row['rmse'])} (RMSE, in units of {c.study.table.target})"
    return f"{100 * row['mistakes']:.1f}% misclassified"


def _unexplained(c: Findings, risk: Interval) -> str:
    """The unexplained share, never rounded to 0% or 100%."""
    what = "variance" if c.study.table.task == "regression" else "Brier score of a constant"
    what = "average precision missed by chance" if c.study.rare else what
    if not math.isfinite(risk.low):
        return f"leaves {percent(risk.value)} of the {what} unexplained"
    if not is_informative(risk):
        return f"leaves {percent(risk.value)} of the {what} (splits disagree by more than a factor of {MAX_FACTOR:g})"
    return f"leaves {percent(risk.value)} [{percent(risk.low)}, {percent(risk.high)}] of the {what} unexplained"


def _rare(c: Findings) -> list[str]:
    """How well a rare class is ranked."""
    if not c.study.rare:
        return []
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    label, share = c.study.rarest
    return [
        f"The class {str(label)!r} is rare ({percent(share)} of the rows), so models are evaluated by how they rank "
        f"it: average precision {best['precision']:.2f} (chance: {share:.2g}), area under the ROC curve "
        f"{best['auc']:.2f} (chance: 0.50)."
    ]


def _more(c: Findings) -> list[str]:
    """Predicted effect of more rows: by the law of the best fixed kernel, and by a power law through measured sizes."""
    law = c.law
    if law is None:
        return _power_law(c)
    return [
        f"Doubling the rows would change the risk of the best fixed kernel ({_title(law.name)}) from "
        f"{format_number(law.now)} with {law.rows:,} rows to {_range(law.twice)} with {2 * law.rows:,}, by its "
        f"predicted learning curve (a constant has risk 1){_uncalibrated(law)}.",
        *_power_law(c),
    ]


def _uncalibrated(law: MoreRowsLaw) -> str:
    return "" if law.calibrated else f"; it starts from {MAX_ROWS} rows, and its interval is not checked that far"


def _power_law(c: Findings) -> list[str]:
    """Extrapolation of the chosen model's learning curve, if it is informative."""
    curve = c.curves.get(c.chosen)
    if curve is None or len(curve.sizes) < 3 or curve.risks.shape[1] < 2:
        return []
    n, twice, back = curve.sizes[-1], curve.extrapolate(2 * curve.sizes[-1]), curve.backtest()
    if twice is None or back is None or not is_informative(twice):
        return []
    return [
        f"Doubling the largest training size to {2 * n:,} rows would change the risk of the {_title(c.chosen)} from "
        f"{format_number(float(curve.mean[-1]))} to {_range(twice)}, if the power law through the measured sizes "
        f"continues (fitted without the last size, it predicts {format_number(back[0])} there; measured: "
        f"{format_number(back[1])})."
    ]


def _title(name: str) -> str:
    return CANDIDATES[name].title if name else "none"


def _risk(c: Findings) -> str:
    return "a rank error (1 - average precision)" if c.study.rare else "a risk"


def _the_risk(c: Findings) -> str:
    return _risk(c).replace("a ", "the ", 1)


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
