"""Predicted risk with twice the rows: the learning curve of the best fixed kernel [G1, G2], from one
eigendecomposition.

Feature machines have such a prediction too (`FeatureMachine.learning_curve`), but it starts with a search: with 700
rows and 8 to 32 columns it takes 5 to 8 CPU seconds, a kernel 1 to 2, and a budget of two minutes reserves six. In the
median it is not more accurate than a power law through refits, which the comparison has anyway.
"""

from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import EncodedTable
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.core.arrays import precision
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.measures.scaling_fit import Interval

MAX_ROWS = 700
"""Rows of the eigendecomposition; the law extrapolates beyond."""
MIN_ROWS = 60
MIN_SHARE = 0.5
"""With fewer groups than this share of the rows there is no law: one row of each group says little about new groups,
and more rows would be rows of known ones."""
KERNELS = ("linear", "gaussian", "laplace", "product_laplace", "nngp", "ntk")


class MoreRowsLaw(NamedTuple):
    """Risk of a fixed kernel relative to a constant, with the current rows and with twice as many (90% interval)."""

    name: str
    rows: int
    now: float
    twice: Interval
    points: int
    """Number of rows that the law is fitted to; at most MAX_ROWS."""
    calibrated: bool = True
    """Whether intervals have been checked for so many rows."""


def fit_more_rows_law(table: EncodedTable, ranked: list[str], seed: int = 0) -> MoreRowsLaw | None:
    """Law of the first of these candidates that is a kernel; None if there is none, or too few rows or groups."""
    from unlazy.solvers.path import learning_curve

    name = next((c for c in ranked if c in KERNELS), None)
    rows = np.unique(table.groups, return_index=True)[1]  # identical rows would leak into each other
    if name is None or len(rows) < max(MIN_ROWS, MIN_SHARE * len(table)):
        return None
    some = np.sort(np.random.default_rng([seed, len(rows)]).permutation(rows)[:MAX_ROWS])
    X = TableEncoder(target=table.target).fit_transform(table.frame.iloc[some], table.y[some])
    y, classes = table.y[some], table.classes
    with precision("float64"):
        model = CANDIDATES[name].options[0](classes is not None, seed, len(some)).model.fit(X, y)
        Y = y[:, None] if classes is None else (y[:, None] == classes).astype(float)
        curve = learning_curve(model.kernel_, model.standardized(X), Y, [table.total_rows, 2 * table.total_rows])
    unit = curve.variance
    return MoreRowsLaw(
        name, table.total_rows, float(curve.risk[0] / unit),
        Interval(*(float(v[1] / unit) for v in (curve.risk, curve.low, curve.high))), len(some),
        bool(curve.calibrated[1]),
    )  # fmt: skip
