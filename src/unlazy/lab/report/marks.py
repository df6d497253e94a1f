"""What a figure has drawn and where, so that a page can say the values under the pointer."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 40
"""Points of one curve: a smooth one is thinned, so that many experiments stay one small page."""

Mark = tuple[int, int, str, str, str]
"""Thousandths of the figure from its left and from its top, then what is there: curve, x and y."""


def marks(figure: "Figure", most: int = MOST) -> list[Mark]:
    """The points of every curve and cloud inside their axes, of a figure that has been drawn: layouts settle then.

    Axes may say their values otherwise than in four digits, or not at all (matplotlib's `fmt_xdata`, `fmt_ydata`)."""
    found: list[Mark] = []
    for axes in figure.axes:
        for name, data, places in _curves(axes):
            inside = axes.bbox.containsx, axes.bbox.containsy
            shares = places / figure.bbox.size
            for at in np.unique(np.linspace(0, len(data) - 1, min(len(data), most)).round().astype(int)):
                if np.isfinite(places[at]).all() and all(test(v) for test, v in zip(inside, places[at])):
                    across, up = np.round(1000 * shares[at]).astype(int)
                    x, y = (said(v) for said, v in zip(_spoken(axes), data[at]))
                    found.append((int(across), 1000 - int(up), name, x, y))
    return found


def _spoken(axes: "Axes") -> tuple[Callable[[float], str], Callable[[float], str]]:
    """How the axes say an x and a y."""
    return axes.fmt_xdata or "{:.4g}".format, axes.fmt_ydata or "{:.4g}".format


def behind(figure: "Figure", statements: Sequence[str]) -> dict[str, list[int]]:
    """Of every named curve the claims, from 1, that it stands behind: those whose statement has all of its words.

    A figure that knows better gives the artist such words as its gid. A curve whose words no claim has stands for all.
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
    """Name, data and pixels of each. Lines across the whole picture and those without a name or a mark are rulers."""
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
