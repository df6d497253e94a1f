"""How much a feature machine searches before its fit: `effort="low"`, `"medium"` or `"high"`."""

from typing import NamedTuple

from unlazy.core.errors import did_you_mean


class Effort(NamedTuple):
    """Limits of the search of one effort."""

    search_rows: int
    """Distinct rows on which kernel, metric, bandwidth, ridge and number of updates are chosen.

    This applies up to `constants.SINGLE_SPLIT_ROWS` rows; beyond, `successive_halving` uses growing sizes.
    """
    one_kernel: bool = False
    """Whether one kernel is fitted as it is: only bandwidth and ridge are chosen."""
    quick_encoding: bool = True
    """Whether encodings of integer codes are compared by short searches."""


EFFORTS = {
    "low": Effort(600, one_kernel=True),
    "medium": Effort(1200),
    "high": Effort(3000, quick_encoding=False),
}


def find_effort(name: object) -> Effort:
    """Return the limits of this effort; raise ValueError if there is none of this name."""
    if not isinstance(name, str) or name not in EFFORTS:
        raise ValueError(f"unknown effort {name!r}{did_you_mean(str(name), EFFORTS)}")
    return EFFORTS[name]
