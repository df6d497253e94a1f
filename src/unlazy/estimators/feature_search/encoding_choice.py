"""Choice of the encoding of integer codes by held-out errors of short searches on a sample of the rows.

Categories are tried only if there are columns that look like codes (`integer_codes`). A plain kernel cannot decide,
since categories often help only once a metric has been learned on them.
"""

from collections.abc import Callable, Sequence

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.search import Selected
from unlazy.estimators.feature_search.trajectory import standardized_difference
from unlazy.estimators.preprocessing.column_scale import ColumnScale
from unlazy.estimators.preprocessing.integer_codes import IntegerCodes


def choose_encoding(
    options: Sequence[IntegerCodes], data: Training, standardize: bool, search: Callable[[Training], Selected]
) -> tuple[IntegerCodes, Selected | None]:
    """Return the encoding with the smallest held-out error, and its search.

    The first encoding is kept unless another one is better by the factor thresholds.TAKEOVER_FACTOR.
    """
    if len(options) == 1:
        return options[0], None
    found: list[Selected] = []
    for codes in options:
        found.append(search(_read(codes, data, standardize)))
        if standardized_difference(found[-1].held_out, found[0].held_out, data) > 1:
            break  # indicators next to the numbers are significantly worse: do not try them in place of the numbers
    best = min(range(len(found)), key=lambda i: found[i].error)
    best = best if found[best].error < thresholds.TAKEOVER_FACTOR * found[0].error else 0
    return options[best], found[best]


def _read(codes: IntegerCodes, data: Training, standardize: bool) -> Training:
    X = codes(data.X)
    return data._replace(X=ColumnScale.from_data(X, data.weights, standardize)(X))
