"""Numbers as people write them: separators of thousands and decimals, currencies, percent, units, accounting.

'1,5' has a decimal comma; '1,023,763', or '1,244' next to '961', has thousands separators; so do '$1,244' and
'1 244 000'. '1.234,50' has both the European way. '1,244' alone is ambiguous and raises UnlazyError: a factor of 1,000
is never guessed. A unit is removed if all values have the same one; '(12)' is -12.
"""

import re
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from unlazy.core.errors import UnlazyError

_COMMA = re.compile(r"[-+]?\d+,\d+")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d*)?")
_BELOW_ONE = re.compile(r"[-+]?0+,\d+")
_EUROPEAN = re.compile(r"[-+]?\d{1,3}(\.\d{3})*(,\d+)?|[-+]?\d+,\d+")
_SURELY_EUROPEAN = re.compile(r"[-+]?\d{1,3}((\.\d{3})+,\d+|(\.\d{3}){2,})")
_SPACED = re.compile(r"(?<=\d)[ \u00a0\u202f'’](?=\d{3}(\D|$))")
_CURRENCY = "$€£¥₹"
_PARTS = re.compile(
    rf"(?P<open>\()?\s*(?P<sign>[-+−]?)\s*(?P<prefix>[{_CURRENCY}]|[A-Z]{{3}}(?=\s?\d))?\s*"
    rf"(?P<number>[-+−]?\d[\d.,]*|[-+−]?\.\d+)\s*(?P<unit>[{_CURRENCY}%]|[^\d\s.,()+\-−][^\d()]{{0,11}})?\s*(?(open)\))"
)


class NumberFormat(NamedTuple):
    """How the numbers of a column are written."""

    unit: str = ""
    """Currency, percent or unit that all values have."""
    commas: Literal["decimal", "thousands", ""] = ""
    example: str = ""
    """A value with thousands separators."""


def parse_numbers(texts: pd.Series) -> tuple[pd.Series, NumberFormat]:
    """Return texts as numbers, NaN where impossible, and how they are written."""
    plain = pd.to_numeric(texts, errors="coerce")
    odd = plain.isna()
    if not odd.any():
        return plain, NumberFormat()
    # most columns of text are not numbers: do not match all of their values
    if not texts[odd].iloc[:20].map(lambda t: bool(re.search(r"\d", t))).all():
        return plain, NumberFormat()
    bare, unit = _without_unit(texts, plain)
    numbers, commas = _with_commas(bare, str(texts.name), bool(unit) and unit in _CURRENCY)
    if numbers.notna().sum() <= plain.notna().sum():
        return plain, NumberFormat()
    example = ""
    if commas == "thousands":
        example = str(texts[bare.str.contains(",", regex=False)].iloc[0]).strip()
    return numbers, NumberFormat(unit, commas, example)


def _without_unit(texts: pd.Series, plain: pd.Series) -> tuple[pd.Series, str]:
    """Texts without the unit that all of them have; unchanged if they have different ones. Zeros need no unit."""
    parts = [_PARTS.fullmatch(_SPACED.sub("", text.strip())) for text in texts]
    if not all(parts):
        return texts.str.strip(), ""
    units = {(p["prefix"] or p["unit"] or "").strip() for p, value in zip(parts, plain) if p and value != 0}
    both = any(p and p["prefix"] and p["unit"] for p in parts)
    if len(units) != 1 or both:
        return texts.str.strip(), ""
    bare = []
    for p in parts:
        assert p is not None
        number = (p["sign"] + p["number"]).replace("−", "-")
        bare.append(f"-{number}" if p["open"] else number)
    return pd.Series(bare, index=texts.index, name=texts.name, dtype=object), units.pop()


def _with_commas(texts: pd.Series, name: str, currency: bool) -> tuple[pd.Series, Literal["decimal", "thousands", ""]]:
    """Return texts as numbers with commas read in the one way that fits all of them."""
    plain = pd.to_numeric(texts, errors="coerce")
    rest, numbers = texts[plain.isna()], texts[plain.notna()]
    if not len(rest):
        return plain, ""
    if texts.map(lambda t: bool(_SURELY_EUROPEAN.fullmatch(t))).any():
        if not texts.map(lambda t: bool(_EUROPEAN.fullmatch(t))).all():
            return plain, ""
        swapped = texts.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        return pd.to_numeric(swapped, errors="coerce"), "decimal"
    if not rest.map(lambda t: bool(_COMMA.fullmatch(t) or _THOUSANDS.fullmatch(t))).all():
        return plain, ""
    commas = _meaning(rest, numbers, plain, name, currency)
    if not commas:
        return plain, ""
    return pd.to_numeric(
        texts.str.replace(",", "." if commas == "decimal" else "", regex=False), errors="coerce"
    ), commas


def _meaning(
    rest: pd.Series, numbers: pd.Series, plain: pd.Series, name: str, currency: bool
) -> Literal["decimal", "thousands", ""]:
    """Meaning of the commas in `rest`, next to `numbers` without commas."""
    points = bool(numbers.str.contains(".", regex=False).any() or rest.str.contains(".", regex=False).any())
    several = bool((rest.str.count(",") > 1).any())
    whole = rest.map(lambda t: bool(_THOUSANDS.fullmatch(t))).all()
    if not whole or rest.map(lambda t: bool(_BELOW_ONE.match(t))).any():
        return "" if points or several else "decimal"
    largest = float(np.nanmax(plain.abs())) if len(numbers) else 0.0
    if points or several or currency or 100 <= largest < 1000:
        return "thousands"
    raise UnlazyError(
        f"column {name!r} has numbers such as {rest.iloc[0].strip()!r}: is this a thousands separator or a decimal "
        "comma? Write them without commas, or with a decimal point"
    )
