"""The answer in words: one sentence per finding, one chosen model throughout, numbers only where they say something."""

import math
from typing import TYPE_CHECKING

from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import SAYS, interval_says
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.core.errors import listed
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
    ratio = c.verdict.ratio
    lazy, rich = (_title(c.verdict.picks[word]) for word in ("lazy", "rich"))
    n = c.study.sizes[-1]
    if c.verdict.word == "pays":
        return (
            f"Feature learning pays: at {n} training rows the rich model chosen on them ({rich}) has {_risk(c)} "
            f"{_times(ratio)} times smaller than the lazy one ({lazy})."
        )
    if c.verdict.word == "noise":
        return (
            f"These inputs say nothing measurable about {c.study.table.target!r}: at {n} training rows no model, "
            f"chosen on them, is surely better than a constant ({_risk(c)} {_range(c.verdict.signal)} of the "
            "constant's)."
        )
    if c.study.splits < 2:
        how = f"only one split ended in time, at {n} training rows"
    elif not math.isfinite(ratio.high):
        how = f"only {c.study.splits} splits ended in time at {n} training rows, which show too little of their spread"
    elif not interval_says(ratio) and c.verdict.word == "does not pay":
        how = (
            f"at {n} training rows the lazy model chosen on them ({lazy}) has at most {ratio.high:.2f} times "
            f"{_the_risk(c)} of the rich one ({rich})"
        )
    elif not interval_says(ratio):
        how = f"at {n} training rows the splits differ more than lazy ({lazy}) and rich ({rich}) models do"
    else:
        how = (
            f"at {n} training rows the lazy model chosen on them ({lazy}) has {_times(ratio)} times {_the_risk(c)} of "
            f"the rich one ({rich})"
        )
    if c.verdict.word == "does not pay":
        return f"Feature learning does not pay: {how}."
    if not c.verdict.seen:
        how = f"at {n} training rows no model is surely better than a constant yet"
    return f"Undecided: {how}; {_would_tell(c)}."


def _would_tell(c: Findings) -> str:
    """What would decide: a larger budget only where it would reach more rows or splits."""
    rows = c.study.table.whole
    if c.study.more:
        return "a larger --budget would look at more rows or splits"
    return f"these {rows} rows do not tell, and only more of them would"


def sentences(c: Findings) -> list[str]:
    """Everything below the headline."""
    if c.verdict.word == "noise":
        return [
            *_suspects(c),
            "Which model to prefer, and which inputs matter, cannot be said where nothing is predicted.",
        ]
    found = [*_suspects(c), *_when(c), *_where(c), _CHARACTER[c.character], *_use(c), *_rare(c), *_more(c)]
    return [text for text in found if text]


def _suspects(c: Findings) -> list[str]:
    """Inputs to ask about, and the verdict without them."""
    lines = []
    for one in c.suspects:
        if one.why == "leak":
            told = f"alone explains {percent(min(one.share, 0.9999))} of {c.study.table.target!r}: a likely leak"
            ask = "Would it be known before the target is?"
        else:
            told, ask = "numbers or names the rows: an identifier", "Should it be an input?"
        lines.append(f"The input {one.name!r} {told}. {ask} If not, leave it out with --drop {one.name}.")
    if c.without is not None:
        names = ", ".join(repr(one.name) for one in c.suspects)
        lines.append(f"Without {names}: {headline(c.without)}")
    return lines


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
    many = "direction carries" if s.count == 1 else "directions carry"
    lines = [
        f"To the {_title(s.model)}, {s.count} {many} nine tenths of its average gradient outer product "
        f"(effective rank {s.rank:.1f} of {len(s.eigenvalues)})."
    ]
    d = len(c.inputs)
    if names:
        some = listed(names, 10)
        lines.append(f"Inputs that matter (shuffling one surely raises its risk), {len(names)} of {d}: {some}.")
    if c.verdict.word == "pays" and interval_says(c.isotropic):
        lines.append(f"Against the best isotropic kernel the risk is {_times(c.isotropic)} times smaller.")
    return lines


def _use(c: Findings) -> list[str]:
    """The chosen model, its error, and who is as good."""
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    text = f"Use the {best['model']}: trained on {best['n']} rows its error on others is {error_text(c, best)}"
    risk = Interval(best["risk"], best["low"], best["high"])
    lines = [f"{text}, which {_unexplained(c, risk)}."]
    equals = [_title(name) for name in c.as_good if name != c.chosen]
    better = [_title(name) for name in c.better]
    if better:
        lines.append(f"Surely better than it: {', '.join(better)}.")
    if equals:
        lines.append(f"Not surely worse or better than it: {', '.join(equals)}.")
    if c.final is not None:
        lines.append(_saved(c))
    return lines


def _saved(c: Findings) -> str:
    """The error of the very model that is saved, by its own held-out estimate."""
    assert c.final is not None
    own = c.final.inner
    what = "" if c.final.name == c.chosen else f" ({_title(c.final.name)})"
    if c.study.table.task == "regression":
        size = math.sqrt(max(own, 0.0)) * float(c.study.table.y.std())
        return (
            f"The saved model{what} is fitted to {c.final.rows} rows; by rows left out of its own fit its error is "
            f"{size:.3g} (root mean square)."
        )
    return (
        f"The saved model{what} is fitted to {c.final.rows} rows; by rows left out of its own fit its squared error is "
        f"{_number(own)} of a constant's."
    )


def error_text(c: Findings, row: "pd.Series") -> str:
    """An error in the units a reader knows: root mean squared error, or mistakes."""
    if c.study.table.task == "regression":
        return f"{row['rmse']:.3g} (root mean square, in units of {c.study.table.target})"
    return f"{100 * row['mistakes']:.1f}% mistakes"


def _unexplained(c: Findings, risk: Interval) -> str:
    """What a model leaves, never rounded to nothing or to all."""
    what = "variance" if c.study.table.task == "regression" else "squared error of a constant's probabilities"
    what = "average precision that a guess misses" if c.study.rare else what
    if not math.isfinite(risk.low):
        return f"leaves {percent(risk.value)} of the {what} unexplained"
    if not interval_says(risk):
        return f"leaves {percent(risk.value)} of the {what} (the splits disagree by more than a factor of {SAYS:g})"
    return f"leaves {percent(risk.value)} [{percent(risk.low)}, {percent(risk.high)}] of the {what} unexplained"


def _rare(c: Findings) -> list[str]:
    """How well a rare class is found, by what can see it."""
    if not c.study.rare:
        return []
    best = c.models[c.models["name"] == c.chosen].iloc[0]
    label, share = c.study.rarest
    return [
        f"The class {str(label)!r} is rare ({percent(share)} of the rows), so models are judged by how they rank it: "
        f"average precision {best['precision']:.2f} (guessing has {share:.2g}), area under the ROC curve "
        f"{best['auc']:.2f} (guessing has 0.50)."
    ]


def _more(c: Findings) -> list[str]:
    """What more data would buy: the law of the best fixed kernel, and the power law through measured sizes."""
    law = c.law
    if law is None:
        return _power_law(c)
    return [
        f"Twice the rows would bring the risk of the best fixed kernel ({_title(law.name)}) from {_number(law.now)} of "
        f"a constant's at {law.rows} rows to {_range(law.twice)} at {2 * law.rows}, by the law of its learning curve.",
        *_power_law(c),
    ]


def _power_law(c: Findings) -> list[str]:
    """The curve of the chosen model through the sizes that were measured, where they say something."""
    curve = c.curves.get(c.chosen)
    if curve is None or len(curve.sizes) < 3 or curve.risks.shape[1] < 2:
        return []
    n, twice, back = curve.sizes[-1], curve.extrapolated(2 * curve.sizes[-1]), curve.backtest()
    if twice is None or back is None or not interval_says(twice):
        return []
    return [
        f"Twice the rows of the largest size ({2 * n}) would bring the {_title(c.chosen)} from "
        f"{_number(float(curve.mean[-1]))} to {_range(twice)}, if the power law through its sizes goes on (without the "
        f"last size it predicts {_number(back[0])} there; measured {_number(back[1])})."
    ]


def _title(name: str) -> str:
    return CONTESTANTS[name].title if name else "none"


def _risk(c: Findings) -> str:
    return "a rank error (1 - average precision)" if c.study.rare else "a risk"


def _the_risk(c: Findings) -> str:
    return _risk(c).replace("a ", "the ", 1)


def _times(value: Interval) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def interval_text(row: "pd.Series") -> str:
    """A row of the table of models: its risk, and its interval where there are splits enough for one."""
    value = Interval(float(row["risk"]), float(row["low"]), float(row["high"]))
    if math.isfinite(value.low) and not interval_says(value):
        return f"{_number(value.value)} (splits disagree)"
    return _range(value)


def _range(value: Interval) -> str:
    if not (math.isfinite(value.low) and math.isfinite(value.high)):
        return _number(value.value)
    return f"{_number(value.value)} [{_number(value.low)}, {_number(value.high)}]"


def percent(share: float) -> str:
    """A share in percent that is not rounded to all."""
    return f"{100 * share:.3g}%" if share < 0.995 or share >= 1 else f"{100 * share:.4g}%"


def _number(value: float) -> str:
    return f"{value:.3g}"
