"""HTML of plain text with mathematics: variables in italics, subscripts, superscripts, tags as links.

The texts of experiments are plain text, for the terminal. The formulas of the tags are stored as MathML in tags.json.
"""

import html
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

TAG = re.compile(r"\[([A-Z]\d{1,2}(?:(?:, |–|-)[A-Z]\d{1,2})*)\]")
_GROUP = r"\{([^{}]+)\}|\(([^()]+)\)|(-\d/\d|-?\d+\.\d+|-?[A-Za-z0-9α-ω½∞]+)"
_INDEX = re.compile(rf"(?<![A-Za-z_.])(He|[A-Za-zα-ωΑ-Ω])(['̂̃̄]*)_(?:{_GROUP})")
_POWER = re.compile(rf"(?<=[\w)\]}}‖>*])\^(?:{_GROUP})")
_LETTER = re.compile(r"(?<![\w'’&#./-])([b-zB-HJ-Zα-ωϕ])(?=[̂̃̄]?[⁰¹²³⁴-⁹⁻½ᵀ*]*(?:[^\w'’̂̃̄]|$))")


class Tag(NamedTuple):
    """A tag of the theory: name, explanation and formula, as HTML with MathML."""

    tag: str
    name: str
    text: str
    formula: str


@cache
def tags() -> dict[str, Tag]:
    """All tags."""
    found = json.loads(Path(__file__).with_name("tags.json").read_text(encoding="utf-8"))
    return {tag: Tag(tag, **entry) for tag, entry in found.items()}


def expand_tags(group: str) -> list[str]:
    """Expand 'K4, K5' and 'P1–P3' to single tags.

    Examples
    --------
    >>> from unlazy.core.pages.math_html import expand_tags
    >>> expand_tags("K4, P1–P3")
    ['K4', 'P1', 'P2', 'P3']
    """
    single: list[str] = []
    for part in group.split(", "):
        ends = re.findall(r"([A-Z])(\d+)", part)
        if len(ends) == 2 and ends[0][0] == ends[1][0]:
            single += [f"{ends[0][0]}{i}" for i in range(int(ends[0][1]), int(ends[1][1]) + 1)]
        else:
            single += [letter + number for letter, number in ends]
    return single


def tags_in(texts: Iterable[str]) -> list[Tag]:
    """Tags mentioned in brackets in the texts, each once, in the order of tags.json."""
    found = {tag for text in texts for group in TAG.findall(text) for tag in expand_tags(group)}
    return [entry for tag, entry in tags().items() if tag in found]


def typeset(text: str, links: str = "#") -> str:
    """Convert text to HTML with typeset mathematics; a tag links to `links` + tag.

    Examples
    --------
    >>> from unlazy.core.pages.math_html import typeset
    >>> typeset("n ≳ d^{p/2} samples [D7]")
    '<i>n</i> ≳ <i>d</i><sup><i>p</i>/2</sup> samples [<a href="#D7">D7</a>]'
    """
    parts = TAG.split(text)
    return "".join(_links(part, links) if k % 2 else _math(part) for k, part in enumerate(parts))


def _math(text: str) -> str:
    set_low = _INDEX.sub(lambda m: f"{m[1]}{m[2]}\ue000{_inner(m, 3)}\ue001", text)
    set_high = _POWER.sub(lambda m: f"\ue002{_inner(m, 1)}\ue003", set_low)
    escaped = _LETTER.sub("\ue004\\1\ue005", set_high)
    shown = html.escape(escaped)
    for mark, tag in zip("\ue000\ue001\ue002\ue003\ue004\ue005", ("<sub>", "</sub>", "<sup>", "</sup>", "<i>", "</i>")):
        shown = shown.replace(mark, tag)
    return shown


def _inner(match: re.Match[str], first: int) -> str:
    return next(part for part in match.groups()[first - 1 :] if part)


def _links(group: str, links: str) -> str:
    known = tags()
    return "[" + re.sub(
        r"[A-Z]\d{1,2}", lambda m: f'<a href="{links}{m[0]}">{m[0]}</a>' if m[0] in known else m[0], group
    ) + "]"  # fmt: skip
