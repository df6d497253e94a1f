"""Figures of the page of a run: plots of all measures over training steps, and one panel per layer.

They are narrow, so that their text is legible on a phone, and come with a text for those who do not see them.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from unlazy.core.pages.figure_style import COLORS
from unlazy.diagnostics.record import Check, Record
from unlazy.diagnostics.verdict import LAZY_GAP, MOVED, RICH_GAP, STILL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 4.6, 2.9
COLUMNS, PANELS = 2, 6
"""Panels of layers side by side, and in one figure."""
PANEL_HEIGHT = 1.25
MAX_PANELS = 48
"""Largest number of layers with a panel; of more, evenly spaced ones are drawn."""
EDGE_OF_STABILITY = 2.0
LOG_RANGE = 30.0
"""A measure that changes by more than this factor has a logarithmic axis."""
REGIME_COLORS = {"lazy": COLORS[5], "intermediate": "#dddddd", "rich": COLORS[4]}
_NEUTRAL = "#777777"


class Drawing(NamedTuple):
    """A figure with its caption and what it shows in words."""

    figure: "Figure"
    caption: str
    alt: str


class Line(NamedTuple):
    """A measure over the steps at which it was taken."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    errors: Sequence[float]


class Group(NamedTuple):
    """Measures that share a figure: names of the fields of a check and their labels."""

    title: str
    measures: Mapping[str, str]
    caption: str
    rulers: Mapping[str, float] = {}
    """Horizontal lines with their names."""


GROUPS = (
    Group("Loss and error on the probe points", {"loss": "loss", "error": "error"},
          "Mean cross-entropy or squared error, and the share of wrong labels or the squared error relative to that of "
          "a constant."),
    Group("Tangent kernel", {"kernel_movement": "movement", "kernel_distance": "distance"},
          "Change of the tangent kernel relative to that at initialization [W2], and its distance 1 - cos from it, "
          "which is blind to a change of scale; bars are two standard errors."),
    Group("Alignment and richness",
          {"label_alignment": "kernel with labels", "residual_alignment": "kernel with residual",
           "richness": "richness of the last features"},
          "Alignment of the tangent kernel with labels and with the residual [W3], and richness: 1 - alignment of the "
          "last features with the outputs, small if they carry nothing but the outputs [W4]."),
    Group("Change of the function", {"change": "change of the outputs"},
          "Change of the outputs on the probe points, relative to the outputs at initialization."),
    Group("Sharpness × step size", {"stability": "sharpness × step size"},
          "Largest eigenvalue of the Hessian of the loss times the step size [W5]; full-batch gradient descent is "
          "unstable above 2.", {"edge of stability": EDGE_OF_STABILITY}),
    Group("Sharpness", {"sharpness": "sharpness"}, "Largest eigenvalue of the Hessian of the loss [W5]."),
)  # fmt: skip


def measure_plots(record: Record) -> list[Drawing]:
    """The gap first, then every group of which something was measured."""
    chosen = [group for group in GROUPS if _lines(record, group.measures)]
    if any(group.title.startswith("Sharpness ×") for group in chosen):
        chosen = [group for group in chosen if group.title != "Sharpness"]
    gap = _gap_figure(record)
    return [*([gap] if gap else []), *(_group_figure(record, group) for group in chosen)]


def _series(checks: Sequence[Check], name: str, label: str) -> Line | None:
    """A measure at the checks after the start that took it; None if there are none."""
    taken = [c for c in checks if c.step > 0 and math.isfinite(getattr(c, name))]
    if not taken:
        return None
    errors = [getattr(c, f"{name}_error", math.nan) for c in taken]
    errors = [e if math.isfinite(e) else 0.0 for e in errors]
    return Line(label, [c.step for c in taken], [getattr(c, name) for c in taken], errors)


def _lines(record: Record, measures: Mapping[str, str]) -> list[Line]:
    return [line for name, label in measures.items() if (line := _series(record.checks, name, label)) is not None]


def _gap_figure(record: Record) -> Drawing | None:
    """The gap, the regimes, and the forecast for the end of the run."""
    from matplotlib import pyplot as plt

    line = _series(record.checks, "gap", "linearization gap")
    if line is None:
        return None
    ahead, end = record.verdict.forecast, record.planned_steps
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT))
    _plot(axes, line, COLORS[0])
    alt = _in_words([line])
    top = max(v + 2 * e for v, e in zip(line.values, line.errors))
    if ahead is not None and end is not None and end > line.steps[-1]:
        bars = [[ahead.gap - ahead.low], [ahead.high - ahead.gap]]
        axes.errorbar([end], [ahead.gap], bars, marker="o", mfc="white", color=COLORS[1], label="forecast", capsize=3)
        alt += f" Forecast for step {end}: {ahead.gap:.2g}, from {ahead.low:.2g} to {ahead.high:.2g}."
        top = max(top, ahead.high)
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    top = 1.1 * max(top, RICH_GAP + 0.1)
    edges = (0, LAZY_GAP, RICH_GAP, top)
    for name, color, low, high in zip(REGIME_COLORS, REGIME_COLORS.values(), edges, edges[1:]):
        axes.axhspan(low, high, color=color, alpha=0.18, linewidth=0)
        axes.text(0.01, (low + high) / 2, name, color="#555555", fontsize=8, va="center",
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set(ylim=(0, top))
    _finish(axes, "Linearization gap", [*line.steps, end or 1])
    caption = (
        "Share of the change of the function that is not linear in the parameters [W1], with two standard errors; the "
        "regime of a run is that of the gap at its end."
    )
    if "forecast" in axes.get_legend_handles_labels()[1]:
        caption += " The hollow mark is the forecast for the end, with its 95% interval."
    return Drawing(figure, caption, alt)


def _group_figure(record: Record, group: Group) -> Drawing:
    from matplotlib import pyplot as plt

    lines = _lines(record, group.measures)
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT))
    for line, color in zip(lines, COLORS):
        _plot(axes, line, color)
    for name, value in group.rulers.items():
        axes.axhline(value, color=_NEUTRAL, linewidth=0.9, linestyle=":")
        axes.text(0.01, value, name, color=_NEUTRAL, fontsize=8, va="bottom", transform=axes.get_yaxis_transform())
    values = [v for line in lines for v in line.values]
    if min(values) > 0 and max(values) > LOG_RANGE * min(values):
        axes.set(yscale="log")
    elif min(values) >= 0:
        axes.set(ylim=(0, 1.08 * max(*values, *group.rulers.values(), 1e-12)))
    _finish(axes, group.title, [step for line in lines for step in line.steps])
    if len(lines) > 1:
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, columnspacing=1.2, handlelength=1.4)
    return Drawing(figure, group.caption, _in_words(lines))


def _plot(axes: "Axes", line: Line, color: str) -> None:
    bars = [2 * e for e in line.errors] if any(line.errors) else None
    (drawn, *_) = axes.errorbar(line.steps, line.values, bars, color=color, marker="o", elinewidth=0.8)
    drawn.set_label(line.label)


def _finish(axes: "Axes", title: str, steps: Sequence[int]) -> None:
    """Title, and an axis of steps that is logarithmic if they spread."""
    axes.set_title(title, loc="left")
    axes.set_xlabel("training step")
    axes.fmt_xdata = _step_text
    _step_axis(axes, steps)


def _step_text(step: float) -> str:
    return f"step {step:,.0f}"


def _step_axis(axes: "Axes", steps: Sequence[int], most: int = 7) -> None:
    """A logarithmic axis with plain numbers if the steps spread."""
    from matplotlib.ticker import NullLocator

    low, high = min(steps), max(steps)
    if high <= 5 * low:
        axes.xaxis.set_major_formatter("{x:,.0f}")
        return
    axes.set_xscale("log")
    for factors in ((1, 2, 5), (1, 3), (1,)):
        values = [f * 10**k for k in range(len(str(high))) for f in factors if low <= f * 10**k <= high]
        if len(values) <= most:
            break
    values = values[:: -(-len(values) // most)]
    axes.set_xticks(values, [f"{v:,}" for v in values])
    axes.xaxis.set_minor_locator(NullLocator())


def _in_words(lines: Sequence[Line]) -> str:
    """First and last value of every line."""
    return " ".join(
        f"{line.label}: {line.values[0]:.3g} at step {line.steps[0]}"
        + (f", {line.values[-1]:.3g} at step {line.steps[-1]}." if len(line.steps) > 1 else ".")
        for line in lines
    )


# layers


def layer_panels(record: Record) -> list[Drawing]:
    """Movement of outputs and parameters of every layer: figures of up to six panels, all with the same axes."""
    names = list(dict.fromkeys(name for check in record.checks for name in check.layers))
    numbers = {name: i for i, name in enumerate(record.layer_movements, 1)}  # those of the verdict
    titles = {
        name: f"{numbers[name]} ({_short(name)})" if name in numbers
        else f"readout ({_short(name)})" if name in record.output_layers else _short(name)
        for name in names
    }  # fmt: skip
    lines = {name: found for name in names if (found := _layer_lines(record, name))}
    shown = _spread([*lines])
    values = [v for name in shown for line in lines[name] for v in line.values]
    steps = [step for name in shown for line in lines[name] for step in line.steps]
    drawings = []
    for first in range(0, len(shown), PANELS):
        part = {titles[name]: lines[name] for name in shown[first : first + PANELS]}
        figure = _panels(part, values, steps)
        alt = " ".join(f"Layer {title}, {_in_words(found)}" for title, found in part.items())
        drawings.append(Drawing(figure, f"Layers {' to '.join(_ends(part))}.", alt))
    return drawings


def _panels(lines: Mapping[str, Sequence[Line]], values: Sequence[float], steps: Sequence[int]) -> "Figure":
    """One panel per layer; the axes span the values and steps of all layers."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator

    rows = -(-len(lines) // COLUMNS)
    size = (WIDTH, 0.7 + PANEL_HEIGHT * rows)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=size, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes, (title, found) in zip(panels, lines.items()):
        for line, color in zip(found, COLORS):
            axes.plot(line.steps, line.values, "o-", color=color, label=line.label, markersize=2.5, linewidth=1.2)
        for edge in (STILL, MOVED):
            axes.axhline(edge, color=_NEUTRAL, linewidth=0.8, linestyle=":")
        axes.set_title(title, loc="left", fontsize=8, parse_math=False)
        axes.fmt_xdata = _step_text
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    for axes in panels[max(0, len(lines) - COLUMNS) : len(lines)]:
        axes.tick_params(labelbottom=True)
    panels[0].set(yscale="log", ylim=(max(min(*values, STILL) / 1.5, 1e-6), 1.5 * max(*values, MOVED)))
    panels[0].set_xlim(0.9 * min(steps), 1.1 * max(steps))
    panels[0].yaxis.set_major_locator(LogLocator(numticks=7))
    _step_axis(panels[0], steps, most=4)
    figure.supxlabel("training step", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=8)
    return figure


def _ends(titles: Mapping[str, object]) -> list[str]:
    """The first and the last title, or the only one."""
    names = list(titles)
    return list(dict.fromkeys([names[0], names[-1]]))


def _layer_lines(record: Record, name: str) -> list[Line]:
    """Movement of the outputs and of the parameters of a layer, as far as they were measured."""
    found = [_layer_series(record, name, *pair) for pair in (("movement", "outputs"), ("parameters", "parameters"))]
    return [line for line in found if line is not None]


def _layer_series(record: Record, name: str, measure: str, label: str) -> Line | None:
    """A measure of one layer, without zeros, which a logarithmic axis has no place for."""
    taken = [(c.step, getattr(c.layers[name], measure)) for c in record.checks if name in c.layers and c.step > 0]
    taken = [(step, value) for step, value in taken if math.isfinite(value) and value > 0]
    return Line(label, [s for s, _ in taken], [v for _, v in taken], []) if taken else None


def _spread(names: Sequence[str]) -> list[str]:
    """At most `MAX_PANELS` names, with the first and the last."""
    if len(names) <= MAX_PANELS:
        return list(names)
    return [names[round(i * (len(names) - 1) / (MAX_PANELS - 1))] for i in range(MAX_PANELS)]


def _short(name: str, most: int = 24) -> str:
    """The end of a long name, which tells layers apart."""
    return name if len(name) <= most else "…" + name[1 - most :]
