"""Numbers as people write them: separators of thousands and decimals, currencies, percent, units, accounting.

'1,5' has a decimal comma; '1,023,763', or '1,244' next to '961', has thousands separators; so do '$1,244' and
'1 244 000'. '1.234,50' has both the European way. '1,244' alone is ambiguous and raises UnlazyError: a factor of 1,000
is never guessed. A unit is removed if nearly all values have the same one; '(12)' is -12.

The format of a column is found from the texts with a digit, most of which must fit it. The others are no numbers.
"""

from collections import Counter
from typing import Literal

import numpy as np
import pandas as pd

from unlazy.core.errors import UnlazyError
from unlazy.estimators.preprocessing.number_texts import (
    BELOW_ONE,
    CURRENCY,
    DECIMAL_COMMA,
    EUROPEAN,
    SURELY_EUROPEAN,
    THOUSANDS,
    NumberFormat,
    split_unit,
)

_MOST = 0.9
"""Share of the texts with a digit that must fit a format."""
_FEWEST_WITH_DIGIT = 0.5
"""Share of the texts that must have a digit; else a column is not one of numbers with a unit or with commas."""
_LOOKED_AT = 200


def parse_numbers(texts: pd.Series) -> tuple[pd.Series, NumberFormat]:
    """Return texts as numbers, NaN where impossible, and how they are written."""
    plain = pd.to_numeric(texts, errors="coerce")
    if plain.notna().all():
        return plain, NumberFormat()
    digits = texts.str.contains(r"\d").astype(bool)
    if digits.mean() < _FEWEST_WITH_DIGIT or not _may_be_numbers(texts[digits & plain.isna()]):
        return plain, NumberFormat()
    bare, unit = _without_unit(texts[digits], plain[digits])
    numbers, commas = _with_commas(bare, str(texts.name), bool(unit) and unit in CURRENCY)
    if numbers.notna().sum() <= plain.notna().sum():
        return plain, NumberFormat()
    example = ""
    if commas == "thousands":
        example = str(texts[bare.index[bare.str.contains(",", regex=False)][0]]).strip()
    points = commas == "decimal" and bool(bare[numbers.notna()].str.contains(".", regex=False).any())
    return numbers.reindex(texts.index), NumberFormat(unit, commas, points, example)


def _may_be_numbers(odd: pd.Series) -> bool:
    """Whether some of the texts that are no plain numbers have commas or a unit; most columns of text do not."""
    some = odd.iloc[:: max(1, len(odd) // _LOOKED_AT)]
    return any(split_unit(text) for text in some)


def _without_unit(texts: pd.Series, plain: pd.Series) -> tuple[pd.Series, str]:
    """The texts that have the unit of nearly all of them, without it. Zeros need no unit."""
    parts = [split_unit(text) for text in texts]
    counts = Counter(p[1] for p, value in zip(parts, plain) if p and value != 0)
    if not counts:
        return texts.str.strip(), ""
    unit = counts.most_common(1)[0][0]
    fits = [p is not None and (p[1] == unit or value == 0) for p, value in zip(parts, plain)]
    if np.mean(fits) < _MOST:
        return texts.str.strip(), ""
    bare = [p[0] for p, fit in zip(parts, fits) if p and fit]
    return pd.Series(bare, index=texts.index[fits], name=texts.name, dtype=object), unit


def _with_commas(texts: pd.Series, name: str, currency: bool) -> tuple[pd.Series, Literal["decimal", "thousands", ""]]:
    """Return texts as numbers with commas read in the one way that fits nearly all of them."""
    plain = pd.to_numeric(texts, errors="coerce")
    rest, numbers = texts[plain.isna()], texts[plain.notna()]
    if not len(rest):
        return plain, ""
    few = (1 - _MOST) * len(texts)
    if texts.map(lambda t: bool(SURELY_EUROPEAN.fullmatch(t))).any():
        fits = texts.map(lambda t: bool(EUROPEAN.fullmatch(t))).astype(bool)
        if (~fits).sum() > few:
            return plain, ""
        swapped = texts.where(fits).str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        return pd.to_numeric(swapped, errors="coerce"), "decimal"
    fits = rest.map(lambda t: bool(DECIMAL_COMMA.fullmatch(t) or THOUSANDS.fullmatch(t))).astype(bool)
    if not fits.any() or (~fits).sum() > few:
        return plain, ""
    commas = _meaning(rest[fits], numbers, plain, name, currency)
    if not commas:
        return plain, ""
    kept = texts.where(plain.notna() | fits.reindex(texts.index, fill_value=False))
    return pd.to_numeric(
        kept.str.replace(",", "." if commas == "decimal" else "", regex=False), errors="coerce"
    ), commas


def _meaning(
    rest: pd.Series, numbers: pd.Series, plain: pd.Series, name: str, currency: bool
) -> Literal["decimal", "thousands", ""]:
    """Meaning of the commas in `rest`, next to `numbers` without commas."""
    points = bool(numbers.str.contains(".", regex=False).any() or rest.str.contains(".", regex=False).any())
    several = bool((rest.str.count(",") > 1).any())
    whole = rest.map(lambda t: bool(THOUSANDS.fullmatch(t))).all()
    if not whole or rest.map(lambda t: bool(BELOW_ONE.match(t))).any():
        return "" if points or several else "decimal"
    largest = float(np.nanmax(plain.abs())) if len(numbers) else 0.0
    if points or several or currency or 100 <= largest < 1000:
        return "thousands"
    raise UnlazyError(
        f"column {name!r} has numbers such as {rest.iloc[0].strip()!r}: is this a thousands separator or a decimal "
        "comma? Write them without commas, or with a decimal point"
    )
