"""Names in any script: fonts of this machine that have their letters, or numbers to be explained beside the figure."""

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

PLACEHOLDERS = ("last resort", "lastresort", ".notdef")
"""Fonts that have a box for every letter and a letter for none."""
MOST = 3
"""Fonts added at most: a table rarely mixes more scripts."""


class Names(NamedTuple):
    """What a figure writes for each name, and the fonts it writes with after the usual one."""

    drawn: dict[str, str]
    fonts: tuple[str, ...] = ()

    def __call__(self, name: str) -> str:
        return self.drawn.get(name, name)

    @property
    def beside(self) -> list[tuple[str, str]]:
        """(number, name) of those that no font here can write."""
        return [(drawn, name) for name, drawn in self.drawn.items() if drawn != name]


def drawable(names: Iterable[str]) -> Names:
    """Names as they are where the usual font, or others that are installed, have all their letters; else numbers."""
    names = list(dict.fromkeys(names))
    foreign = {name: missing for name in names if (missing := _missing(name))}
    if not foreign:
        return Names({})
    fonts, left = _fonts_with(frozenset().union(*foreign.values()))
    number = {name: f"[{i}]" for i, name in enumerate((n for n in names if foreign.get(n, set()) & left), 1)}
    return Names({name: number.get(name, name) for name in names}, fonts)


def _missing(text: str) -> frozenset[str]:
    """Letters that the usual font has not."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    other = {letter for letter in text if not letter.isascii() and not letter.isspace()}
    usual = get_font(findfont(FontProperties())) if other else None
    return frozenset(letter for letter in other if usual is not None and not usual.get_char_index(ord(letter)))


@lru_cache(maxsize=64)
def _fonts_with(letters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Families that have these letters, the one that has most first, and the letters that none has."""
    left, chosen = letters, list[str]()
    has = {name: found for name, path in _installed() if (found := _covered(path, letters))}
    while left and has and len(chosen) < MOST:
        best = max(has, key=lambda name: len(has[name] & left))  # of equals the first
        if not has[best] & left:
            break
        chosen.append(best)
        left = left - has[best]
    return tuple(chosen), left


def _installed() -> list[tuple[str, str]]:
    """Families and files, upright ones of ordinary weight and without serifs first; one file a family."""
    from matplotlib.font_manager import fontManager

    def plain(font) -> tuple:  # type: ignore[no-untyped-def]
        heavy = font.weight not in (400, "normal", "regular", "book")
        return font.style != "normal", heavy, "sans" not in font.name.casefold(), font.name

    found: dict[str, str] = {}
    for font in sorted(fontManager.ttflist, key=plain):
        if not any(word in font.name.casefold() for word in PLACEHOLDERS):
            found.setdefault(font.name, font.fname)
    return list(found.items())


def _covered(path: str, letters: frozenset[str]) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        font = get_font(path)
        return frozenset(letter for letter in letters if font.get_char_index(ord(letter)))
    except (OSError, RuntimeError):  # a file that is gone, or no font
        return frozenset()
