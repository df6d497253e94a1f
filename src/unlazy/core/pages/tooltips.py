"""Positions and values of the points in a figure, for the tooltips of pages."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POINTS = 40
"""Maximum number of points of one curve; longer ones are thinned to keep pages small."""

Mark = tuple[int, int, str, str, str]
"""Position in thousandths of the figure from its left and top edges, name of the curve, x and y as text."""


def figure_marks(figure: "Figure", most: int = MAX_POINTS) -> list[Mark]:
    """Points of all curves and scatter plots inside their axes, for a figure that has been drawn (with final layout).

    Values have four significant digits, unless the axes define `fmt_xdata` or `fmt_ydata`.
    """
    found: list[Mark] = []
    for axes in figure.axes:
        for name, data, places in _curves(axes):
            inside = axes.bbox.containsx, axes.bbox.containsy
            shares = places / figure.bbox.size
            for at in np.unique(np.linspace(0, len(data) - 1, min(len(data), most)).round().astype(int)):
                if np.isfinite(places[at]).all() and all(test(v) for test, v in zip(inside, places[at])):
                    across, up = np.round(1000 * shares[at]).astype(int)
                    x, y = (text(v) for text, v in zip(_formatters(axes), data[at]))
                    found.append((int(across), 1000 - int(up), name, x, y))
    return found


def _formatters(axes: "Axes") -> tuple[Callable[[float], str], Callable[[float], str]]:
    """Formatters of x and y."""
    return axes.fmt_xdata or "{:.4g}".format, axes.fmt_ydata or "{:.4g}".format


def claims_by_curve(figure: "Figure", statements: Sequence[str]) -> dict[str, list[int]]:
    """Map each named curve to the numbers (from 1) of the claims whose statements contain all words of its name.

    A figure can set other words as the gid of the artist. A curve that matches no claim is mapped to all claims.
    """
    words = [_words(statement) for statement in statements]
    found: dict[str, list[int]] = {}
    for axes in figure.axes:
        for artist in (*axes.get_lines(), *axes.collections):
            asked = _words(artist.get_gid() or _name(artist))
            chosen = [i for i, has in enumerate(words, 1) if asked and asked <= has]
            found.setdefault(_name(artist), chosen or list(range(1, len(words) + 1)))
    return found


def _words(text: str) -> set[str]:
    return set(re.findall(r"[^\W_]+", text.casefold()))


def _curves(axes: "Axes") -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, data and pixel coordinates of each curve; reference lines (across the axes, or without name and marker) are
    skipped."""
    curves: list[tuple[Any, np.ndarray, Any]] = []
    for line in axes.get_lines():
        ruler = line.get_transform() is not axes.transData
        if not ruler and (_name(line) or line.get_marker() not in ("None", "", None)):
            curves.append((line, np.asarray(line.get_xydata(), float), axes.transData))
    for cloud in axes.collections:
        offsets = np.asarray(cloud.get_offsets(), float)
        if cloud.get_offset_transform() is axes.transData and len(offsets):
            curves.append((cloud, offsets.reshape(-1, 2), axes.transData))
    return [(_name(artist), data, move.transform(data)) for artist, data, move in curves if data.size]


def _name(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label.replace("$", "")
