"""Figures of a scaling check: all exponents with their limits, and sizes of layers against the width."""

import math
from typing import TYPE_CHECKING

from unlazy.core.pages.figure_style import COLORS
from unlazy.diagnostics.scaling.exponents import Exponents
from unlazy.diagnostics.scaling.rules import LIMITS, Finding
from unlazy.diagnostics.scaling.texts import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 24
"""Largest number of exponents in a figure; errors come first."""
LAYERS = 8
"""Largest number of layers in a plot of sizes, evenly spaced."""


def scaling_figure(check: Exponents) -> "Figure":
    """Exponents beside the coordinate check, in one figure."""
    from matplotlib.figure import Figure

    known = [f for f in check.findings if f.excess.known][:SHOWN]
    columns = 2 if check.coordinates else 1
    figure = Figure(figsize=(5 * columns, 1.2 + 0.22 * max(len(known), 10)), layout="constrained")
    axes = figure.subplots(1, columns, squeeze=False)[0]
    draw_exponents(axes[0], known)
    if check.coordinates:
        draw_sizes(axes[1], check, "changes")
    return figure


def exponents_figure(check: Exponents) -> "Figure":
    """All exponents, errors first."""
    from matplotlib.figure import Figure

    known = [f for f in check.findings if f.excess.known][:SHOWN]
    figure = Figure(figsize=(6.0, 0.9 + 0.24 * len(known)), layout="constrained")
    draw_exponents(figure.subplots(), known)
    return figure


def sizes_figure(check: Exponents, what: str) -> "Figure":
    """Sizes of the outputs of layers ("before"), or of their changes ("changes"), against the width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    draw_sizes(figure.subplots(), check, what)
    return figure


def draw_exponents(axes: "Axes", findings: list[Finding]) -> None:
    """One row per exponent; the band is what a correct network may show."""
    names = [f"{f.name} ({label(f)})" for f in findings]
    for row, finding in enumerate(findings):
        limit, error = LIMITS[finding.quantity], finding.excess.error
        axes.plot([-limit, limit], [row, row], color="#dddddd", linewidth=7, solid_capstyle="butt")
        axes.errorbar(
            finding.excess.value, row, xerr=2 * error if math.isfinite(error) else None, fmt="o", markersize=4,
            color=COLORS[3] if finding.wrong else COLORS[0],
        )  # fmt: skip
    axes.axvline(0, color="gray", linewidth=0.8)
    axes.set_yticks(range(len(findings)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="exponent minus the right one", title="right: 0 (bands: limits; red: wrong)")


def draw_sizes(axes: "Axes", check: Exponents, what: str) -> None:
    """Means over seeds, with logarithmic axes."""
    names = list(check.coordinates[0].before)
    names = [names[i * len(names) // LAYERS] for i in range(LAYERS)] if len(names) > LAYERS else names
    for name in names:
        means = []
        for width in check.widths:
            values = [getattr(c, what).get(name, math.nan) for c in check.coordinates if c.sizes["width"] == width]
            means.append(sum(values) / len(values) if values else math.nan)
        axes.plot(check.widths, means, marker="o", markersize=3, linewidth=1, label=name)
    title = "outputs of layers at initialization" if what == "before" else "change of outputs of layers"
    axes.set(xscale="log", yscale="log", xlabel="width", ylabel="root mean square", title=title)
    axes.set_xticks(check.widths, [str(n) for n in check.widths])
    axes.minorticks_off()
    axes.legend(fontsize=6)
