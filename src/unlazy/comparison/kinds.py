"""What a column holds: numbers, categories or dates; a column of both text and numbers is refused, naming both."""

import re
import warnings
from typing import TYPE_CHECKING, Literal

import numpy as np

from unlazy.core.errors import UnlazyError
from unlazy.estimators.table_encoder import category_text

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "category", "date"]
_DATE = re.compile(r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([T ]\d{1,2}:\d{2}.*)?\s*")
_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*")


def kind_of(series: "pd.Series", allow_mixed: bool = False, remedy: str = "") -> Kind:
    """Numbers, categories or dates, by its values; a sentence where text and numbers are mixed."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_numeric_dtype(series):
        if pd.api.types.is_complex_dtype(series):
            raise UnlazyError(f"column {str(series.name)!r} holds complex numbers; give its parts as two columns")
        return "numeric"
    if pd.api.types.is_datetime64_any_dtype(series) or pd.api.types.is_timedelta64_dtype(series):
        return "date"
    values = series.dropna()
    if isinstance(series.dtype, pd.CategoricalDtype):
        return "category"
    texts = values.map(str)
    number = _numbers(texts).notna()
    if number.all():
        return "numeric"
    if number.any() and not allow_mixed:
        words = ", ".join(repr(w) for w in texts[~number].unique()[:3])
        name = str(series.name)
        raise UnlazyError(
            f"column {name!r} mixes numbers with text ({int((~number).sum())} of {len(values)} values, such as "
            f"{words}); "
            "leave those cells empty where they mean missing, or "
            f"{remedy or f'take it for categories with --categorical {name}'}"
        )
    if _dates(texts):
        return "date"
    return "category"


def as_number(series: "pd.Series") -> np.ndarray:
    """float64, NaN where missing."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series) or pd.api.types.is_bool_dtype(series):
        return series.to_numpy(dtype=np.float64, na_value=np.nan)
    numbers = _numbers(series.dropna().map(str)).astype(np.float64)
    return numbers.reindex(series.index).to_numpy(dtype=np.float64)


def as_category(series: "pd.Series") -> np.ndarray:
    """Text, None where missing; 3.0 and 3 are the same category."""
    missing = series.isna().to_numpy()
    return np.array([None if gone else category_text(v) for v, gone in zip(series, missing)], dtype=object)


def _numbers(texts: "pd.Series") -> "pd.Series":
    """Numbers where a text is one, also with a decimal comma if all that are not plain numbers have one."""
    import pandas as pd

    plain = pd.to_numeric(texts, errors="coerce")
    rest = texts[plain.isna()]
    if len(rest) and rest.map(lambda t: bool(_COMMA.fullmatch(t))).all():
        return pd.to_numeric(texts.str.replace(",", ".", regex=False), errors="coerce")
    return plain


def _dates(texts: "pd.Series") -> bool:
    import pandas as pd

    some = texts.iloc[:200]
    if not some.map(lambda t: bool(_DATE.fullmatch(t))).all():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(pd.to_datetime(some, errors="coerce", format="mixed").notna().mean() > 0.9)
