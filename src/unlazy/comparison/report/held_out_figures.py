"""Figures of held-out predictions (true against predicted, or calibration) and of partial dependence."""

from typing import TYPE_CHECKING

import numpy as np

from unlazy.comparison.report.figures import WIDTH, figure_names, shorten
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.paired_ratios import format_number
from unlazy.comparison.study.held_out import calibration
from unlazy.comparison.study.partial_dependence import PartialDependence
from unlazy.core.pages.figure_style import COLORS, figure_style
from unlazy.lab.report.fonts import FigureNames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MAX_POINTS = 400
"""Maximum number of points in a scatter plot."""
MIN_COMPONENT = 0.005
"""Smaller components of a direction are not shown: they would read 0.00."""


def held_out_figure(c: Findings) -> "Figure":
    """True against predicted values for a regression, calibration for classes."""
    return predicted_figure(c) if c.study.table.task == "regression" else calibration_figure(c)


def predicted_figure(c: Findings, level: float = 0.9) -> "Figure":
    """True against predicted values of the test rows of one split; the band holds this share of residuals."""
    from matplotlib import pyplot as plt

    assert c.held_out is not None
    predicted, truth = c.held_out.predicted[0][:MAX_POINTS, 0], c.held_out.truth[0][:MAX_POINTS]
    with figure_style():
        figure, axes = plt.subplots(figsize=(WIDTH, WIDTH - 0.5))
        ends = np.array([min(predicted.min(), truth.min()), max(predicted.max(), truth.max())])
        ends = ends + 0.03 * np.ptp(ends) * np.array([-1, 1])
        axes.plot(ends, ends, color="#777777", linewidth=0.9, linestyle=":")
        radius = c.radius(level)
        if radius is not None:
            axes.fill_between(ends, ends - radius, ends + radius, color=COLORS[0], alpha=0.12, linewidth=0)
        axes.scatter(predicted, truth, s=12, color=COLORS[0], alpha=0.6, linewidths=0)
        axes.set(xlim=ends, ylim=ends, xlabel="predicted", ylabel="true")
        axes.fmt_xdata = lambda value: f"predicted {format_number(value, 4)}"
        axes.fmt_ydata = lambda value: f"true {format_number(value, 4)}"
        for axis in (axes.xaxis, axes.yaxis):
            plain_labels(axis)
    return figure


def calibration_figure(c: Findings) -> "Figure":
    """Observed frequency against predicted probability of a class, in bins."""
    from matplotlib import pyplot as plt

    classes = c.study.table.classes
    assert c.held_out is not None and classes is not None
    found, names = calibration(c.held_out, classes), figure_names(c)
    with figure_style(names.fonts):
        figure, axes = plt.subplots(figsize=(WIDTH, WIDTH - 0.5))
        axes.plot([0, 1], [0, 1], color="#777777", linewidth=0.9, linestyle=":")
        for predicted, observed, low, high, count in zip(*found):
            axes.plot([predicted, predicted], [low, high], color=COLORS[0], linewidth=1.2)
            axes.plot(predicted, observed, "o", color=COLORS[0], label=f"{count:,} rows")
        what = f"of {shorten(names(str(classes[1])))}" if len(classes) == 2 else "of the most probable class"
        axes.set_xlabel(f"predicted probability {what}", parse_math=False)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), ylabel="observed frequency")
        axes.fmt_xdata, axes.fmt_ydata = "predicted {:.2f}".format, "observed {:.2f}".format
    return figure


def partial_figure(c: Findings) -> "Figure":
    """Partial dependence of the saved model on the most important inputs and the first learned direction."""
    from matplotlib import pyplot as plt

    names = figure_names(c)
    with figure_style(names.fonts):
        count = len(c.partial)
        figure, axes = plt.subplots(
            -(-count // 2), 2, figsize=(WIDTH, 1.9 * -(-count // 2) + 0.4), sharey=True, squeeze=False
        )
        for one, ax in zip(c.partial, axes.flat):
            _along(ax, one, names)
        for ax in list(axes.flat)[count:]:
            ax.set_visible(False)
        lines = [shorten(names(line)) for line in c.partial[0].lines]
        what = "probability" if c.study.table.task == "classification" else ""
        label = f"{what} of {lines[0]}".removeprefix(" of ") if len(lines) == 1 else what
        figure.supylabel(label, fontsize=9, parse_math=False)
        if len(lines) > 1:
            handles = axes[0, 0].get_lines()[: len(lines)]
            legend = figure.legend(handles, lines, loc="outside upper left", ncols=3, fontsize=8)
            for text in legend.get_texts():
                text.set_parse_math(False)
    return figure


def _along(axes: "Axes", one: PartialDependence, names: FigureNames) -> None:
    """Draw one panel: curves for numbers, marks for categories."""
    named = one.values.dtype.kind == "O"
    at = np.arange(len(one.values)) if named else one.values
    for line, color, mark, values in zip(one.lines, COLORS, "os^", one.means.T):
        axes.plot(at, values, marker=mark, color=color, linewidth=0 if named else 1.4, markersize=3.5, label=line)
    if named:
        axes.set_xticks(at, [shorten(names(str(v))) for v in one.values], rotation=30, ha="right", parse_math=False)
        axes.fmt_xdata = lambda x: f"{one.name} {one.values[round(x)]}"
    else:
        axes.fmt_xdata = lambda x: f"{one.name} {axis_number(x, 4)}"
        plain_labels(axes.xaxis)
    plain_labels(axes.yaxis)
    axes.set_xlabel(shorten(names(one.name)), parse_math=False)
    axes.margins(0.08)


def axis_number(value: float, digits: int) -> str:
    """Format a number, with commas only from 10,000: it may be a year."""
    text = format_number(value, digits)
    return text.replace(",", "") if abs(value) < 10_000 else text


def plain_labels(axis: "Axis") -> None:
    """Label ticks with numbers as people write them, without a common factor; at most five, which are wide."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value, 6)))


def direction_text(one: PartialDependence) -> str:
    """The largest components of a direction, as in 0.81·bmi + 0.45·s5 − 0.20·age, …."""
    terms = [f"{'−' if w < 0 else '+'} {abs(w):.2f}·{name}" for name, w in one.parts if abs(w) >= MIN_COMPONENT]
    return " ".join(terms).removeprefix("+ ") + (", …" if len(terms) == len(one.parts) else "")
