"""Labels in any script: installed fonts that have their glyphs, or numbers that are explained next to the figure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

PLACEHOLDER_FONTS = ("last resort", "lastresort", ".notdef")
"""Fonts that draw a placeholder box for every character."""
MAX_FONTS = 3
"""Maximum number of additional fonts; a table rarely mixes more scripts."""


class FigureNames(NamedTuple):
    """Labels drawn for each name, and the fallback fonts that they need."""

    drawn: dict[str, str]
    fonts: tuple[str, ...] = ()

    def __call__(self, name: str) -> str:
        return self.drawn.get(name, name)

    @property
    def numbered(self) -> list[tuple[str, str]]:
        """(number, name) of the names that no installed font can draw."""
        return [(drawn, name) for name, drawn in self.drawn.items() if drawn != name]


def drawable_names(names: Iterable[str]) -> FigureNames:
    """Labels for figures: the names themselves if installed fonts have all glyphs, else numbers."""
    names = list(dict.fromkeys(names))
    foreign = {name: missing for name in names if (missing := _missing(name))}
    if not foreign:
        return FigureNames({})
    fonts, left = _fonts_with(frozenset().union(*foreign.values()))
    number = {name: f"[{i}]" for i, name in enumerate((n for n in names if foreign.get(n, set()) & left), 1)}
    return FigureNames({name: number.get(name, name) for name in names}, fonts)


def _missing(text: str) -> frozenset[str]:
    """Characters that the default font lacks."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    other = {letter for letter in text if not letter.isascii() and not letter.isspace()}
    usual = get_font(findfont(FontProperties())) if other else None
    return frozenset(letter for letter in other if usual is not None and not usual.get_char_index(ord(letter)))


@lru_cache(maxsize=64)
def _fonts_with(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Font families that cover these characters, best first, and the characters that no font has."""
    left, chosen = letters, list[str]()
    has = {name: found for name, path in _installed() if (found := _covered(path, letters))}
    while left and has and len(chosen) < MAX_FONTS:
        best = max(has, key=lambda name: len(has[name] & left))  # the first in case of ties
        if not has[best] & left:
            break
        chosen.append(best)
        left = left - has[best]
    return tuple(chosen), left


def _installed() -> list[tuple[str, str]]:
    """Installed font families with one file each; upright sans-serif fonts of regular weight first."""
    from matplotlib.font_manager import fontManager

    def plain(font) -> tuple:  # type: ignore[no-untyped-def]
        heavy = font.weight not in (400, "normal", "regular", "book")
        return font.style != "normal", heavy, "sans" not in font.name.casefold(), font.name

    found: dict[str, str] = {}
    for font in sorted(fontManager.ttflist, key=plain):
        if not any(word in font.name.casefold() for word in PLACEHOLDER_FONTS):
            found.setdefault(font.name, font.fname)
    return list(found.items())


def _covered(path: str, letters: frozenset[str]) -> frozenset[str]:
    """The characters that the font has."""
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
        return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))
    except (OSError, RuntimeError):  # the file is missing or not a font
        return frozenset()
