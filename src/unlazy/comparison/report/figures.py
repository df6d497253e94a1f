"""Figures of a comparison: gaps to the chosen model, its learning curve beside its rivals', what the target depends on.

They are narrow, so that their text can be read where a page is as wide as a phone. Axes say their values in words
(`fmt_xdata`), which pages show under the pointer.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import gap_text, interval_says
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.lab.report.fonts import Names, drawable
from unlazy.lab.report.style import COLORS, house_style
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"lazy": "fixed features", "rich": "learns features", "outside": "trees"}
"""What the families are to a practitioner."""
WIDTH = 4.6
_FAMILY = {"lazy": (COLORS[0], "o"), "rich": (COLORS[1], "s"), "outside": (COLORS[2], "^")}
WIDE = 1.0
"""An interval of a share that is wider says nothing."""
_SHOWN = 15
"""Inputs and directions in a figure."""
TIGHTEST = 12
"""Names of ticks that an axis has room for."""
_STEPS = (1, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 7)
"""Ticks of a decade on a logarithmic axis."""


def curves_figure(c: Findings) -> "Figure":
    """Risk of the chosen model and of the best of the other kinds against training rows, on logarithmic axes; bars are
    one deviation over splits, dashes the chosen one's law."""
    from matplotlib import pyplot as plt

    with house_style():
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        if not rivals(c):
            axes.text(0.5, 0.5, "one size is no curve: give a larger budget", ha="center")
            return figure
        for name in rivals(c):
            curve, who = c.curves[name], CONTESTANTS[name]
            color, mark = _FAMILY[who.family]
            low, high = curve.mean * np.exp(-curve.spread), curve.mean * np.exp(curve.spread)
            bars = np.abs(np.stack([curve.mean - low, high - curve.mean]))
            style: dict[str, Any] = {"color": color, "marker": mark, "linewidth": 1.4, "elinewidth": 0.7}
            (line, *_) = axes.errorbar(curve.sizes, curve.mean, bars, **style)
            line.set_label(who.title)
            if name == c.chosen and len(curve.sizes) > 2:
                _extrapolation(axes, curve, color, who.title)
        axes.set(xscale="log", yscale="log", xlabel="rows trained on")
        axes.set_title(error_axis(c), loc="left")
        _plain_ticks(axes.xaxis, [*c.study.sizes, *_beyond(c)])
        _plain_ticks(axes.yaxis, ticks(*axes.get_ylim()))
        axes.fmt_xdata = lambda n: f"{n:.0f} rows"
        figure.legend(loc="outside upper left", fontsize=8)
    return figure


def rivals(c: Findings) -> list[str]:
    """The chosen model and the best finalist of each other kind, of those that have a curve: two sizes or more."""
    found: dict[str, str] = {}
    names = [c.chosen, *(c.verdict.picks[word] for word in ("lazy", "rich")), *c.models["name"]]
    for name in names:
        curve = c.curves.get(name)
        if curve is not None and len(curve.sizes) > 1 and name in c.study.finalists:
            found.setdefault(CONTESTANTS[name].family, name)
    return list(found.values())


def _beyond(c: Findings) -> list[int]:
    """Sizes of the dashes beyond the last."""
    curve = c.curves.get(c.chosen)
    if curve is None or c.chosen not in rivals(c) or len(curve.sizes) < 3:
        return []
    return [2 * curve.sizes[-1], 4 * curve.sizes[-1]]


def _extrapolation(axes, curve, color, title) -> None:  # type: ignore[no-untyped-def]
    n = np.geomspace(curve.sizes[-1], 4 * curve.sizes[-1], 5)
    found = [curve.extrapolated(float(m)) for m in n]
    axes.plot(n, [f.value for f in found], "--", color=color, linewidth=1, label=f"{title}, if its law goes on")
    if all(interval_says(f) for f in found):
        axes.fill_between(n, [f.low for f in found], [f.high for f in found], color=color, alpha=0.15, linewidth=0)


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Plain numbers from low to high on a logarithmic axis, at most so many, none so near another that their names
    would touch."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (_STEPS, (1, 1.1, 1.2, 1.5, 2, 3, 5, 7), (1, 1.5, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**d for d in decades for step in steps if low <= step * 10.0**d <= high]
        apart = min((math.log(b / a) for a, b in itertools.pairwise(found)), default=math.inf)
        if len(found) <= most and apart >= math.log(high / low) / TIGHTEST:
            break
    found = found[:: max(1, -(-len(found) // most))]
    if len(found) > 1:
        return found
    from matplotlib.ticker import MaxNLocator

    values = MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(low, high)
    return [float(v) for v in values if low <= v <= high]


def _plain_ticks(axis, values: Sequence[float]) -> None:  # type: ignore[no-untyped-def]
    """These values as they are, and no others."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(values), [f"{v:.3g}" if v < 1000 else f"{v:.0f}" for v in values])
    axis.set_minor_locator(NullLocator())


def error_axis(c: Findings) -> str:
    """What the risk is, to a practitioner."""
    if c.study.rare:
        return "1 − average precision, over a guess's"
    of = "guessing the mean" if c.study.table.task == "regression" else "guessing the shares"
    return f"squared error over that of {of}"


def models_figure(c: Findings) -> "Figure":
    """Error of every model over the chosen one's, paired over splits, with its 95% interval; hollow marks are of models
    that only the first look has seen."""
    from matplotlib import pyplot as plt

    with house_style():
        table = c.gap_table
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.26 * len(table)))
        ends = [0.97, 1.03]
        for place, (_, row) in zip(range(len(table) - 1, -1, -1), table.iterrows()):
            color, mark = _FAMILY[row["family"]]
            value = Interval(row["gap"], row["low"], row["high"])
            if interval_says(value):
                axes.plot([value.low, value.high], [place, place], color=color, linewidth=1.4)
                ends += [value.low, value.high]
            ends.append(value.value)
            face = color if row["finalist"] else "white"
            said = f"{row['model']}, {gap_text(value)} times the error, at {row['n']} rows"
            axes.plot(value.value, place, mark, color=color, markerfacecolor=face, label=said)
        fewer = table["n"] < c.study.sizes[-1]
        names = [f"{m} ({n} rows)" if few else m for m, n, few in zip(table["model"], table["n"], fewer)]
        axes.set_yticks(range(len(table)), names[::-1])
        axes.axvline(1, color="#777777", linewidth=0.9, linestyle=":")
        low, high = min(ends) / 1.03, max(ends) * 1.03
        axes.set(xscale="log", xlim=(low, high), ylim=(-0.6, len(table) - 0.4))
        axes.set_xlabel(f"{_what(c)} over the chosen model’s")
        _plain_ticks(axes.xaxis, _around_one(low, high))
        axes.fmt_xdata = axes.fmt_ydata = lambda value: ""  # the names say it
        _kinds(figure, table["family"])
    return figure


def _around_one(low: float, high: float) -> list[float]:
    """Ticks of ratios: one is among them, and none crowds another."""
    room = math.log(high / low) / 7
    found = [1.0]
    for value in ticks(low, high):
        if all(abs(math.log(value / other)) >= room for other in found):
            found.append(value)
    return sorted(found)


def _what(c: Findings) -> str:
    return "rank error" if c.study.rare else "squared error"


def _kinds(figure, families) -> None:  # type: ignore[no-untyped-def]
    """One line of legend: which mark is which kind."""
    from matplotlib.lines import Line2D

    kinds = [word for word in KINDS if word in set(families)]
    handles = [Line2D([], [], color=_FAMILY[w][0], marker=_FAMILY[w][1], linewidth=0, label=KINDS[w]) for w in kinds]
    figure.legend(handles=handles, loc="outside upper left", ncols=3, fontsize=8, handletextpad=0.1, columnspacing=1)


def structure_figure(c: Findings) -> "Figure":
    """Above: rise of the risk when an input is shuffled. Below: eigenvalues of the average gradient outer product."""
    from matplotlib import pyplot as plt

    names = names_of(c)
    with house_style(names.fonts):
        table = c.inputs.head(_SHOWN)
        height = 0.7 + 0.24 * max(3, len(table))
        ratios = {"height_ratios": [height, 1.9]}
        figure, (top, below) = plt.subplots(2, 1, figsize=(WIDTH, height + 1.9), gridspec_kw=ratios)
        if c.structure is None:
            top.text(0.5, 0.5, "no rich model took part", ha="center")
            return figure
        for place, (_, row) in zip(range(len(table) - 1, -1, -1), table.iterrows()):
            color = COLORS[1] if row["matters"] else "#8a8a8a"
            if row["high"] - row["low"] <= WIDE:
                top.plot([row["low"], row["high"]], [place, place], color=color, linewidth=1.2)
            said = f"‘{row['input']}’, {100 * row['share']:.3g}% of the rise"
            top.plot(row["share"], place, "o", color=color, label=said)
        top.set_yticks(range(len(table)), [short(names(name)) for name in table["input"]][::-1], parse_math=False)
        top.axvline(0, color="#777777", linewidth=0.9, linestyle=":")
        top.set(xlabel="share of the rise of the error when shuffled", ylim=(-0.6, len(table) - 0.4))
        top.set_title("Inputs (orange: surely matters)", loc="left")
        top.fmt_xdata = top.fmt_ydata = lambda value: ""
        values = c.structure.eigenvalues[:_SHOWN]
        below.plot(np.arange(1, len(values) + 1), values, "o", color=COLORS[1], label="direction")
        below.set(xlabel="direction", ylabel="share of gradients", ylim=(-0.03, 1.05))
        below.set_title(f"Directions: effective rank {c.structure.rank:.1f}", loc="left")
        below.xaxis.get_major_locator().set_params(integer=True)
    return figure


def names_of(c: Findings) -> Names:
    """How figures write inputs, target, classes and categories: as they are, or as numbers where no font has them."""
    table = c.study.table
    levels = [str(v) for one in c.partial if one.values.dtype.kind == "O" for v in one.values]
    classes = [] if table.classes is None else map(str, table.classes)
    return drawable([*map(str, c.inputs["input"] if c.structure is not None else ()), table.target, *classes, *levels])


def short(name: str, most: int = 22) -> str:
    """A name that fits beside a plot."""
    return name if len(name) <= most else name[: most - 1] + "…"
