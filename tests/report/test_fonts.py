"""Labels in any script are drawn if an installed font has the glyphs, and numbered otherwise; never as a box."""

import warnings

import pytest
from matplotlib import font_manager

from unlazy.core.pages.figure_style import figure_style
from unlazy.lab.report import fonts
from unlazy.lab.report.fonts import drawable_names

UNASSIGNED = "\U00050000"  # no font has it


def drawn(text, families=()):
    """Draw the figure with warnings as errors: Matplotlib warns of every missing glyph."""
    from matplotlib import pyplot as plt

    with figure_style(families), warnings.catch_warnings():
        warnings.simplefilter("error")
        figure, axes = plt.subplots(figsize=(1, 1))
        axes.set_xlabel(text, parse_math=False)
        figure.canvas.draw()
        plt.close(figure)


def test_common_letters_need_no_extra_font():
    assert drawable_names(["age", "naïve", "Größe", "β₂", "доход", "a$b"]) == ({}, ())
    drawn("naïve Größe β₂ доход a$b")


def test_names_that_no_font_has_are_numbered_and_explained():
    names = drawable_names(["age", f"a{UNASSIGNED}", f"{UNASSIGNED}b", "age"])
    assert [names(n) for n in ("age", f"a{UNASSIGNED}", f"{UNASSIGNED}b", "other")] == ["age", "[1]", "[2]", "other"]
    assert names.numbered == [("[1]", f"a{UNASSIGNED}"), ("[2]", f"{UNASSIGNED}b")]
    with pytest.raises(UserWarning, match="missing from font"):
        drawn(UNASSIGNED)
    drawn(names(f"a{UNASSIGNED}"), names.fonts)


def test_an_installed_font_that_has_the_letters_is_used():
    """Letters that matplotlib's STIX has and its usual font has not, according to the two files."""
    usual, other = (font_manager.get_font(font_manager.findfont(f)) for f in ("DejaVu Sans", "STIXGeneral"))
    letter = next(chr(code) for code in sorted(other.get_charmap()) if code > 0x2000 and not usual.get_char_index(code))
    fonts._fonts_with.cache_clear()
    names = drawable_names([f"x{letter}"])
    assert names(f"x{letter}") == f"x{letter}" and names.numbered == [] and len(names.fonts) == 1
    drawn(f"x{letter}", names.fonts)


def test_placeholders_are_not_letters():
    assert all("last resort" not in name.casefold() for name, _ in fonts._installed())
