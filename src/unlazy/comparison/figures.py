"""Three figures: learning curves, models at the largest size, what the target depends on."""

from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison.contestants import CONTESTANTS
from unlazy.comparison.findings import Findings
from unlazy.report.style import COLOURS, house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAMILY = {"lazy": COLOURS[0], "rich": COLOURS[1], "outside": COLOURS[2]}
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_SHOWN = 15
"""Inputs and directions in a figure."""


def curves_figure(c: Findings) -> "Figure":
    """Risk of the finalists against training rows on logarithmic axes; bars are one deviation over splits, dashes the
    chosen one's law."""
    from matplotlib import pyplot as plt

    with house_style():
        figure, axes = plt.subplots(figsize=(6.4, 4.2))
        count = {family: 0 for family in _FAMILY}
        best = c.chosen
        for name in c.models[c.models["finalist"]]["name"]:
            if name not in c.curves:
                continue
            curve, who = c.curves[name], CONTESTANTS[name]
            mark = _MARKS[count[who.family] % len(_MARKS)]
            count[who.family] += 1
            low, high = curve.mean * np.exp(-curve.spread), curve.mean * np.exp(curve.spread)
            bars = np.abs(np.stack([curve.mean - low, high - curve.mean]))
            style: dict[str, Any] = {"color": _FAMILY[who.family], "marker": mark, "alpha": 0.9, "linewidth": 1.2}
            axes.errorbar(curve.sizes, curve.mean, bars, elinewidth=0.7, label=f"{who.title} ({who.family})", **style)
            if name == best and len(curve.sizes) > 2:
                _extrapolation(axes, curve, _FAMILY[who.family])
        axes.axhline(1, color="#999999", linewidth=0.9, linestyle=":", label="constant")
        axes.set(xscale="log", yscale="log", xlabel="training rows n", ylabel="test risk / risk of the constant")
        axes.set_title("Lazy (blue), rich (orange), outside (green)")
        _plain_ticks(axes, c.study.sizes)
        figure.legend(loc="outside right upper", fontsize=7)
    return figure


def _extrapolation(axes, curve, colour) -> None:  # type: ignore[no-untyped-def]
    n = np.geomspace(curve.sizes[-1], 4 * curve.sizes[-1], 4)
    found = [curve.extrapolated(float(m)) for m in n]
    axes.plot(n, [f.value for f in found], "--", color=colour, linewidth=1, label="its law, 95%")
    axes.fill_between(n, [f.low for f in found], [f.high for f in found], color=colour, alpha=0.15, linewidth=0)


def _plain_ticks(axes, sizes) -> None:  # type: ignore[no-untyped-def]
    from matplotlib.ticker import NullFormatter, NullLocator, ScalarFormatter

    axes.set_xticks(list(sizes), [str(n) for n in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_ylim()
    if high / low < 10:
        ticks = [t for t in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5) if low <= t <= high]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])


def models_figure(c: Findings) -> "Figure":
    """Every model's risk with its 95% interval, best on top."""
    from matplotlib import pyplot as plt

    with house_style():
        table = c.models
        figure, axes = plt.subplots(figsize=(6.0, 0.5 + 0.28 * len(table)))
        for i, row in table.iterrows():
            place = len(table) - 1 - int(str(i))
            axes.plot([row["low"], row["high"]], [place, place], color=_FAMILY[row["family"]], linewidth=1.4)
            axes.plot(row["risk"], place, "o", color=_FAMILY[row["family"]])
        few = table["n"] < c.study.sizes[-1]
        names = [f"{m} ({n} rows)" if less else m for m, n, less in zip(table["model"], table["n"], few)]
        axes.set_yticks(range(len(table)), names[::-1])
        axes.axvline(1, color="#999999", linewidth=0.9, linestyle=":")
        axes.set(xlabel=f"test risk / risk of the constant, {c.study.sizes[-1]} training rows, 95% interval")
        wide = table["risk"].max() > 3 * table["risk"].min()
        axes.set_xscale("log" if wide else "linear")
    return figure


def structure_figure(c: Findings) -> "Figure":
    """Left: eigenvalues of the average gradient outer product. Right: rise of the risk when an input is shuffled."""
    from matplotlib import pyplot as plt

    with house_style():
        table = c.inputs.head(_SHOWN)
        figure, (left, right) = plt.subplots(1, 2, figsize=(6.6, max(2.6, 0.6 + 0.22 * len(table))))
        if c.structure is None:
            left.text(0.5, 0.5, "no rich model took part", ha="center")
            return figure
        values = c.structure.eigenvalues[:_SHOWN]
        left.bar(np.arange(1, len(values) + 1), values, color=COLOURS[1])
        left.set(xlabel="direction", ylabel="share of the gradients", title=f"effective rank {c.structure.rank:.1f}")
        place = np.arange(len(table))[::-1]
        colours = [COLOURS[1] if matters else "#bbbbbb" for matters in table["matters"]]
        right.barh(place, table["share"], color=colours)
        right.errorbar(
            table["share"], place, xerr=[table["share"] - table["low"], table["high"] - table["share"]], fmt="none",
            ecolor="#444444", elinewidth=0.7,
        )  # fmt: skip
        right.set_yticks(place, [_short(name) for name in table["input"]])
        right.set(xlabel="share of the rise of the risk when shuffled", title="inputs (orange: surely matters)")
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 22 else name[:21] + "…"
