"""Numbers as people write them: one text is read by the format of its column, or in the only way it can be meant.

'920,905' is 920.905 in a column with decimal commas and 920905 in one with thousands separators; in a column without
commas it is neither, since a factor of 1,000 is never guessed. Pandas is not imported, so that a saved model can serve.
"""

import math
import re
from typing import Literal, NamedTuple

CURRENCY = "$€£¥₹"
DECIMAL_COMMA = re.compile(r"[-+]?\d+,\d+")
THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
BELOW_ONE = re.compile(r"[-+]?0+,\d+")
EUROPEAN = re.compile(r"[-+]?\d{1,3}(\.\d{3})*(,\d+)?|[-+]?\d+,\d+")
SURELY_EUROPEAN = re.compile(r"[-+]?\d{1,3}((\.\d{3})+,\d+|(\.\d{3}){2,})")
_PERHAPS_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_PLAIN = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_SPACED = re.compile(r"(?<=\d)[ \u00a0\u202f'’](?=\d{3}(\D|$))")
_PARTS = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+−]?)\s*(?P<prefix>[{CURRENCY}]|[A-Z]{{3}}(?=\s?\d))?\s*"
    rf"(?P<number>[-+−]?\d[\d.,]*|[-+−]?\.\d+)\s*(?P<unit>[{CURRENCY}%]|[^\d\s.,()+\-−][^\d()]{{0,11}})?\s*(?(open)\))"
)
_MISSING = {
    "", "-", "--", "–", "—", ".", "..", "?", "k.a.", "k. a.", "k.a", "keine angabe", "n.a.", "n. a.", "n.a", "n/a",
    "na", "n/d", "n.d.", "n. d.", "n.v.", "nan", "null", "none",
}  # fmt: skip


class NumberFormat(NamedTuple):
    """How the numbers of a column are written."""

    unit: str = ""
    """Currency, percent or unit that all values have."""
    commas: Literal["decimal", "thousands", ""] = ""
    points: bool = False
    """Whether points separate thousands."""
    example: str = ""
    """A value with thousands separators."""

    def __str__(self) -> str:
        commas = {"decimal": "decimal commas", "thousands": "commas as thousands separators", "": "no commas"}
        return f"{commas[self.commas]}, {f'the unit {self.unit}' if self.unit else 'no unit'}"


def marks_missing(text: str) -> bool:
    """Whether a text in a column of numbers or dates stands for a missing value, such as '-' or 'k.A.'."""
    return text.strip().casefold() in _MISSING


def split_unit(text: str) -> tuple[str, str] | None:
    """Return number and unit of a text, with a sign in front of the number; None if it is not a number."""
    parts = _PARTS.fullmatch(_SPACED.sub("", text.strip()))
    if parts is None or (parts["prefix"] and parts["unit"]):
        return None
    number = (parts["sign"] + parts["number"]).replace("−", "-")
    return f"-{number}" if parts["open"] else number, (parts["prefix"] or parts["unit"] or "").strip()


def read_number(text: str, format: NumberFormat) -> float:
    """Return a text as a number; NaN if it contradicts the format or can be read in two ways."""
    found = split_unit(text) or (text.strip(), "")
    if found[1] not in ("", format.unit):
        return math.nan
    plain = _with_points(found[0], format, bool(found[1]) and found[1] in CURRENCY)
    return float(plain) if _PLAIN.fullmatch(plain) else math.nan


def _with_points(number: str, format: NumberFormat, currency: bool) -> str:
    """Number with a decimal point and without separators of thousands; empty if its meaning is not certain."""
    swapped = number.replace(".", "").replace(",", ".")
    if format.commas == "decimal":
        if format.points or "," in number or number.count(".") > 1:
            return swapped if EUROPEAN.fullmatch(number) else ""
        return "" if _PERHAPS_THOUSANDS.fullmatch(number) else number
    grouped = THOUSANDS.fullmatch(number)
    if format.commas == "thousands":
        return number.replace(",", "") if grouped else number
    if SURELY_EUROPEAN.fullmatch(number) or BELOW_ONE.fullmatch(number):
        return swapped
    if grouped:
        return number.replace(",", "") if currency or number.count(",") > 1 or "." in number else ""
    return swapped if DECIMAL_COMMA.fullmatch(number) else number
