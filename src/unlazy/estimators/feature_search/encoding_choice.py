"""Before the search: how to read the table, by the held-out errors of short searches on some of the rows.

What is not in doubt is not looked at: codes are tried only where columns look like codes (`codes`). A plain kernel
would not do as a judge: categories often pay only once a metric has been learned on them.
"""

from collections.abc import Callable, Sequence

from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import thresholds
from unlazy.estimators.feature_search.search import Selected
from unlazy.estimators.feature_search.trajectory import difference
from unlazy.estimators.preprocessing.column_scale import Columns
from unlazy.estimators.preprocessing.integer_codes import Codes


def best_reading(
    options: Sequence[Codes], data: Training, standardize: bool, search: Callable[[Training], Selected]
) -> tuple[Codes, Selected | None]:
    """The reading of the smallest held-out error, and the search that found it; the first one, where another is not
    better by a share that counts (rules.TAKES_OVER)."""
    if len(options) == 1:
        return options[0], None
    found: list[Selected] = []
    for codes in options:
        found.append(search(_read(codes, data, standardize)))
        if difference(found[-1].held_out, found[0].held_out, data) > 1:
            break  # indicators beside the numbers are surely worse: no need to try them in their place
    best = min(range(len(found)), key=lambda i: found[i].error)
    best = best if found[best].error < thresholds.TAKES_OVER * found[0].error else 0
    return options[best], found[best]


def _read(codes: Codes, data: Training, standardize: bool) -> Training:
    X = codes(data.X)
    return data._replace(X=Columns.of(X, data.weights, standardize)(X))
