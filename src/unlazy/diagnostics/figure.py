"""Plots of a monitor's record over training steps."""

import math
from typing import TYPE_CHECKING

from unlazy.diagnostics.record import Record
from unlazy.diagnostics.verdict import LAZY_GAP, RICH_GAP

NAMED = 10
"""Largest number of layers in a legend."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(record: Record) -> "Figure":
    """Gap with its forecast, loss, tangent kernel, and movement of every layer's outputs, over steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 2)
    _gap(axes[0, 0], record)
    _lines(axes[0, 1], record, {"loss": "loss", "error": "error"}, "on the probe points")
    names = {"kernel_movement": "movement", "kernel_distance": "distance", "label_alignment": "alignment with labels",
             "residual_alignment": "alignment with residual", "richness": "richness"}  # fmt: skip
    _lines(axes[1, 0], record, names, "tangent kernel and last features")
    _layers(axes[1, 1], record)
    figure.suptitle(str(record.verdict), fontsize=9, wrap=True)
    return figure


def _gap(axes: "Axes", record: Record) -> None:
    shown = [c for c in record.checks if not math.isnan(c.gap)]
    axes.set(title="linearization gap", xlabel="step", xscale="log")
    if not shown:
        return
    axes.errorbar([c.step for c in shown], [c.gap for c in shown], [2 * c.gap_error for c in shown], marker=".")
    for edge, label in ((LAZY_GAP, "lazy below"), (RICH_GAP, "rich above")):
        axes.axhline(edge, color="gray", linewidth=0.8, linestyle=":")
        axes.text(0.01, edge, label, transform=axes.get_yaxis_transform(), color="gray", fontsize=8, va="bottom")
    ahead, end = record.verdict.forecast, record.planned_steps
    if ahead is not None and end is not None and end > shown[-1].step:
        error = [[ahead.gap - ahead.low], [ahead.high - ahead.gap]]
        axes.errorbar([end], [ahead.gap], error, marker="o", linestyle="", label="forecast")
        axes.legend()
    axes.set_ylim(bottom=0)  # limits that are set before plotting would cut off gaps above 1


def _lines(axes: "Axes", record: Record, names: dict[str, str], title: str) -> None:
    axes.set(title=title, xlabel="step", xscale="log")
    for key, label in names.items():
        shown = [c for c in record.checks if not math.isnan(getattr(c, key))]
        if shown:
            axes.plot([c.step for c in shown], [getattr(c, key) for c in shown], marker=".", label=label)
    if axes.lines:
        axes.legend()


def _layers(axes: "Axes", record: Record) -> None:
    """One line per layer, from dark (first) to light (last); the legend names evenly spaced ones."""
    from matplotlib import colormaps

    axes.set(title="movement of layer outputs", xlabel="step", xscale="log")
    names = list(record.layer_movements)
    last = max(1, len(names) - 1)
    spread = min(len(names), NAMED)
    named = {round(i * last / max(1, spread - 1)) for i in range(spread)}
    for i, name in enumerate(names):
        shown = [c for c in record.checks if name in c.layers and not math.isnan(c.layers[name].movement)]
        axes.plot(
            [c.step for c in shown], [c.layers[name].movement for c in shown], marker=".",
            color=colormaps["viridis"](0.9 * i / last), label=name if i in named else None,
        )  # fmt: skip
    if axes.lines:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
