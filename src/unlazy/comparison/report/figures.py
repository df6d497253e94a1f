"""Figures of a comparison: error ratios to the chosen model, learning curves, and input importances.

They are narrow, so that their text is legible on a phone. Axes format their values (`fmt_xdata`) for the tooltips of
pages.
"""

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import format_number, is_informative, ratio_text
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.core.pages.figure_style import COLORS, figure_style
from unlazy.lab.report.fonts import FigureNames, drawable_names
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILY_LABELS = {"lazy": "fixed features", "rich": "learns features", "outside": "trees"}
"""FigureNames of the families for practitioners."""
WIDTH = 4.6
TITLE_WIDTH, LABEL_WIDTH = 52, 32
"""Characters of a title, and of a label below axes with long names at the left, that fit into WIDTH."""
_FAMILY = {"lazy": (COLORS[0], "o"), "rich": (COLORS[1], "s"), "outside": (COLORS[2], "^")}
MAX_INTERVAL_WIDTH = 1.0
"""Intervals of a share that are wider than this are not shown."""
_MAX_SHOWN = 15
"""Maximum number of inputs and directions in a figure."""
MAX_TICK_LABELS = 12
"""Number of tick labels that fit on an axis."""
_TICK_STEPS = (1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 7)
"""Candidate ticks in each decade of a logarithmic axis."""


def curves_figure(c: Findings) -> "Figure":
    """Risk of the chosen model and of the best of each other family against training rows, on logarithmic axes; bars
    are one standard deviation over splits, the dashed line extrapolates the chosen model."""
    from matplotlib import pyplot as plt

    with figure_style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        if not curve_models(c):
            axes.text(0.5, 0.5, "only one training size: increase the budget", ha="center")
            return figure
        for name in curve_models(c):
            curve, who = c.curves[name], CANDIDATES[name]
            color, mark = _FAMILY[who.family]
            low, high = curve.mean * np.exp(-curve.spread), curve.mean * np.exp(curve.spread)
            bars = np.abs(np.stack([curve.mean - low, high - curve.mean]))
            style: dict[str, Any] = {"color": color, "marker": mark, "linewidth": 1.4, "elinewidth": 0.7}
            (line, *_) = axes.errorbar(curve.sizes, curve.mean, bars, **style)
            line.set_label(who.title)
            if name == c.chosen and len(curve.sizes) > 2:
                _extrapolation(axes, curve, color, who.title)
        axes.set(xscale="log", yscale="log", xlabel="training rows")
        axes.set_title(textwrap.fill(error_label(c), TITLE_WIDTH), loc="left")
        _plain_ticks(axes.xaxis, [*c.study.sizes, *_beyond(c)])
        _plain_ticks(axes.yaxis, ticks(*axes.get_ylim()))
        axes.fmt_xdata = lambda n: f"{n:,.0f} rows"
        figure.legend(loc="outside upper left", fontsize=8)
    return figure


def curve_models(c: Findings) -> list[str]:
    """The chosen model and the best finalist of each other family, if they have a curve of at least two sizes."""
    found: dict[str, str] = {}
    names = [c.chosen, *(c.verdict.picks[word] for word in ("lazy", "rich")), *c.models["name"]]
    for name in names:
        curve = c.curves.get(name)
        if curve is not None and len(curve.sizes) > 1 and name in c.study.finalists:
            found.setdefault(CANDIDATES[name].family, name)
    return list(found.values())


def _beyond(c: Findings) -> list[int]:
    """Sizes to which the curve is extrapolated."""
    curve = c.curves.get(c.chosen)
    if curve is None or c.chosen not in curve_models(c) or len(curve.sizes) < 3:
        return []
    return [2 * curve.sizes[-1], 4 * curve.sizes[-1]]


def _extrapolation(axes, curve, color, title) -> None:  # type: ignore[no-untyped-def]
    n = np.geomspace(curve.sizes[-1], 4 * curve.sizes[-1], 5)
    found = [curve.extrapolate(float(m)) for m in n]
    axes.plot(n, [f.value for f in found], "--", color=color, linewidth=1, label=f"{title}, extrapolated")
    if all(is_informative(f) for f in found):
        axes.fill_between(n, [f.low for f in found], [f.high for f in found], color=color, alpha=0.15, linewidth=0)


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """At most `most` round numbers from low to high for a logarithmic axis, far enough apart that labels do not
    overlap."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (_TICK_STEPS, (1, 1.1, 1.2, 1.5, 2, 3, 5, 7), (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**d for d in decades for step in steps if low <= step * 10.0**d <= high]
        apart = min((math.log(b / a) for a, b in itertools.pairwise(found)), default=math.inf)
        if len(found) <= most and apart >= math.log(high / low) / MAX_TICK_LABELS:
            break
    found = found[:: max(1, -(-len(found) // most))]
    if len(found) > 1:
        return found
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(v) for v in values if low <= v <= high]


def _plain_ticks(axis, values: Sequence[float]) -> None:  # type: ignore[no-untyped-def]
    """Set ticks at exactly these values."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(values), [format_number(v) if v < 1000 else f"{v:,.0f}" for v in values])
    axis.set_minor_locator(NullLocator())


def error_label(c: Findings) -> str:
    """Axis label of the risk."""
    metric = c.study.metric
    if metric.name == "average_precision":
        return "1 − average precision, relative to chance"
    return f"{metric.error}, relative to {metric.constant}"


def models_figure(c: Findings) -> "Figure":
    """Error of each model over that of the chosen model, paired over splits, with 95% intervals; hollow marks are
    models that were only screened."""
    from matplotlib import pyplot as plt

    with figure_style():
        table = c.ratio_table
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.26 * len(table)))
        ends = [0.97, 1.03]
        for place, (_, row) in zip(range(len(table) - 1, -1, -1), table.iterrows()):
            color, mark = _FAMILY[row["family"]]
            value = Interval(row["ratio"], row["low"], row["high"])
            if is_informative(value):
                axes.plot([value.low, value.high], [place, place], color=color, linewidth=1.4)
                ends += [value.low, value.high]
            ends.append(value.value)
            face = color if row["finalist"] else "white"
            label = f"{row['model']}, {ratio_text(value)} times the error, with {row['n']:,} rows"
            axes.plot(value.value, place, mark, color=color, markerfacecolor=face, label=label)
        fewer = table["n"] < c.study.sizes[-1]
        names = [f"{m} ({n:,} rows)" if few else m for m, n, few in zip(table["model"], table["n"], fewer)]
        axes.set_yticks(range(len(table)), names[::-1])
        axes.axvline(1, color="#777777", linewidth=0.9, linestyle=":")
        low, high = min(ends) / 1.03, max(ends) * 1.03
        axes.set(xscale="log", xlim=(low, high), ylim=(-0.6, len(table) - 0.4))
        axes.set_xlabel(textwrap.fill(f"{_error_name(c)}, relative to the chosen model", LABEL_WIDTH))
        _plain_ticks(axes.xaxis, _around_one(low, high))
        axes.fmt_xdata = axes.fmt_ydata = lambda value: ""  # the labels have the values
        _family_legend(figure, table["family"])
    return figure


def _around_one(low: float, high: float) -> list[float]:
    """Ticks for ratios: 1 and others that do not crowd each other."""
    distance = math.log(high / low) / 7
    found = [1.0]
    for value in ticks(low, high):
        if all(abs(math.log(value / other)) >= distance for other in found):
            found.append(value)
    return sorted(found)


def _error_name(c: Findings) -> str:
    return "1 − average precision" if c.study.rare else c.study.metric.error


def _family_legend(figure, families) -> None:  # type: ignore[no-untyped-def]
    """One-line legend of the families."""
    from matplotlib.lines import Line2D

    kinds = [word for word in FAMILY_LABELS if word in set(families)]
    handles = [
        Line2D([], [], color=_FAMILY[w][0], marker=_FAMILY[w][1], linewidth=0, label=FAMILY_LABELS[w]) for w in kinds
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8, handletextpad=0.1, columnspacing=1)


def structure_figure(c: Findings) -> "Figure":
    """Top: rise of the risk when an input is permuted. Bottom: eigenvalues of the average gradient outer product."""
    from matplotlib import pyplot as plt

    names = figure_names(c)
    with figure_style(names.fonts):
        table = c.inputs.head(_MAX_SHOWN)
        height = 0.7 + 0.24 * max(3, len(table))
        ratios = {"height_ratios": [height, 1.9]}
        figure, (top, below) = plt.subplots(2, 1, figsize=(WIDTH, height + 1.9), gridspec_kw=ratios)
        if c.structure is None:
            top.text(0.5, 0.5, "no model learned features", ha="center")
            return figure
        for place, (_, row) in zip(range(len(table) - 1, -1, -1), table.iterrows()):
            color = COLORS[1] if row["matters"] else "#8a8a8a"
            if row["high"] - row["low"] <= MAX_INTERVAL_WIDTH:
                top.plot([row["low"], row["high"]], [place, place], color=color, linewidth=1.2)
            label = f"‘{row['input']}’, {format_number(100 * row['share'])}% of the importance"
            top.plot(row["share"], place, "o", color=color, label=label)
        top.set_yticks(range(len(table)), [shorten(names(name)) for name in table["input"]][::-1], parse_math=False)
        top.axvline(0, color="#777777", linewidth=0.9, linestyle=":")
        top.set(xlabel="share of the permutation importance", ylim=(-0.6, len(table) - 0.4))
        top.set_title("Inputs (orange: significant)", loc="left")
        top.fmt_xdata = top.fmt_ydata = lambda value: ""
        values = c.structure.eigenvalues[:_MAX_SHOWN]
        below.plot(np.arange(1, len(values) + 1), values, "o", color=COLORS[1], label="direction")
        below.set(xlabel="direction", ylabel="share of gradients", ylim=(-0.03, 1.05))
        below.set_title(f"Directions: effective rank {c.structure.rank:.1f}", loc="left")
        below.xaxis.get_major_locator().set_params(integer=True)
    return figure


def figure_names(c: Findings) -> FigureNames:
    """Labels of inputs, target, classes and categories; numbers for those that no installed font can draw."""
    table = c.study.table
    levels = [str(v) for one in c.partial if one.values.dtype.kind == "O" for v in one.values]
    classes = [] if table.classes is None else map(str, table.classes)
    return drawable_names(
        [*map(str, c.inputs["input"] if c.structure is not None else ()), table.target, *classes, *levels]
    )


def shorten(name: str, most: int = 22) -> str:
    """Shorten a name to fit next to a plot."""
    return name if len(name) <= most else name[: most - 1] + "…"
