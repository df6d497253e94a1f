"""Figures of the chosen model at rows it had not seen: predicted against true, or how likely against how often; and of
the saved model along its inputs."""

from typing import TYPE_CHECKING

import numpy as np

from unlazy.comparison.report.figures import WIDTH, names_of, short
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.study.held_out import calibration
from unlazy.comparison.study.partial_dependence import Partial
from unlazy.lab.report.fonts import Names
from unlazy.lab.report.style import COLORS, house_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 400
"""Rows of a cloud: more hide each other."""
SEEN = 0.005
"""Components of a direction that are smaller would read 0.00."""


def held_out_figure(c: Findings) -> "Figure":
    """Predicted against true for a regression, calibration for classes."""
    return predicted_figure(c) if c.study.table.task == "regression" else calibration_figure(c)


def predicted_figure(c: Findings, level: float = 0.9) -> "Figure":
    """Test rows of one split: what was predicted, what was true; the band holds the share `level` of new rows."""
    from matplotlib import pyplot as plt

    assert c.held_out is not None
    predicted, truth = c.held_out.predicted[0][:POINTS, 0], c.held_out.truth[0][:POINTS]
    with house_style():
        figure, axes = plt.subplots(figsize=(WIDTH, WIDTH - 0.5))
        ends = np.array([min(predicted.min(), truth.min()), max(predicted.max(), truth.max())])
        ends = ends + 0.03 * np.ptp(ends) * np.array([-1, 1])
        axes.plot(ends, ends, color="#777777", linewidth=0.9, linestyle=":")
        radius = c.radius(level)
        if radius is not None:
            axes.fill_between(ends, ends - radius, ends + radius, color=COLORS[0], alpha=0.12, linewidth=0)
        axes.scatter(predicted, truth, s=12, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set(xlim=ends, ylim=ends, xlabel="predicted", ylabel="true")
        axes.fmt_xdata, axes.fmt_ydata = "predicted {:.4g}".format, "true {:.4g}".format
    return figure


def calibration_figure(c: Findings) -> "Figure":
    """How likely a class was said to be against how often it came, rows grouped by the former."""
    from matplotlib import pyplot as plt

    classes = c.study.table.classes
    assert c.held_out is not None and classes is not None
    found, names = calibration(c.held_out, classes), names_of(c)
    with house_style(names.fonts):
        figure, axes = plt.subplots(figsize=(WIDTH, WIDTH - 0.5))
        axes.plot([0, 1], [0, 1], color="#777777", linewidth=0.9, linestyle=":")
        for said, came, low, high, count in zip(*found):
            axes.plot([said, said], [low, high], color=COLORS[0], linewidth=1.2)
            axes.plot(said, came, "o", color=COLORS[0], label=f"{count} rows")
        what = f"of {short(names(str(classes[1])))}" if len(classes) == 2 else "of the likeliest class"
        axes.set_xlabel(f"probability {what}", parse_math=False)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), ylabel="share that had it")
        axes.fmt_xdata, axes.fmt_ydata = "said {:.2f}".format, "came {:.2f}".format
    return figure


def partial_figure(c: Findings) -> "Figure":
    """What the saved model predicts along the most important inputs, and along the first learned direction."""
    from matplotlib import pyplot as plt

    names = names_of(c)
    with house_style(names.fonts):
        count = len(c.partial)
        figure, axes = plt.subplots(
            -(-count // 2), 2, figsize=(WIDTH, 1.9 * -(-count // 2) + 0.4), sharey=True, squeeze=False
        )
        for one, ax in zip(c.partial, axes.flat):
            _along(ax, one, names)
        for ax in list(axes.flat)[count:]:
            ax.set_visible(False)
        lines = [short(names(line)) for line in c.partial[0].lines]
        what = "probability" if c.study.table.task == "classification" else ""
        told = f"{what} of {lines[0]}".removeprefix(" of ") if len(lines) == 1 else what
        figure.supylabel(told, fontsize=9, parse_math=False)
        if len(lines) > 1:
            handles = axes[0, 0].get_lines()[: len(lines)]
            legend = figure.legend(handles, lines, loc="outside upper left", ncols=3, fontsize=8)
            for text in legend.get_texts():
                text.set_parse_math(False)
    return figure


def _along(axes: "Axes", one: Partial, names: Names) -> None:
    """One panel: curves over numbers, marks over categories."""
    named = one.values.dtype.kind == "O"
    at = np.arange(len(one.values)) if named else one.values
    for line, color, mark, values in zip(one.lines, COLORS, "os^", one.means.T):
        axes.plot(at, values, marker=mark, color=color, linewidth=0 if named else 1.4, markersize=3.5, label=line)
    if named:
        axes.set_xticks(at, [short(names(str(v))) for v in one.values], rotation=30, ha="right", parse_math=False)
        axes.fmt_xdata = lambda x: f"{one.name} {one.values[round(x)]}"
    else:
        axes.fmt_xdata = lambda x: f"{one.name} {x:.4g}"
    axes.set_xlabel(short(names(one.name)), parse_math=False)
    axes.margins(0.08)


def direction_text(one: Partial) -> str:
    """0.81·bmi + 0.45·s5 − 0.20·age, …: the largest components of a direction, without those of half a percent."""
    terms = [f"{'−' if w < 0 else '+'} {abs(w):.2f}·{name}" for name, w in one.parts if abs(w) >= SEEN]
    return " ".join(terms).removeprefix("+ ") + (", …" if len(terms) == len(one.parts) else "")
