"""What twice the rows would bring: the law of the best fixed kernel's learning curve [G1, G2], one decomposition.

Feature machines have such a law too (`FeatureMachine.learning_curve`), but it begins with a search: at 700 rows and
eight to 32 columns 5 to 8 CPU-seconds against 1 to 2 of a kernel, with more columns more, and a budget of two minutes
keeps six for it; nor is it nearer the truth, in the median, than a power law through refits, made here anyway.
"""

from typing import NamedTuple

import numpy as np

from unlazy.comparison.data.table import Table
from unlazy.comparison.study.contestants import CONTESTANTS
from unlazy.measures.scaling_fit import Interval

MOST = 700
"""Rows of the decomposition; beyond, the law reaches."""
FEWEST = 60
KERNELS = ("linear", "gaussian", "laplace", "product_laplace", "nngp", "ntk")


class Law(NamedTuple):
    """Risk of a fixed kernel in units of a constant's, at the rows there are and at twice as many (90%)."""

    name: str
    rows: int
    now: float
    twice: Interval


def law_of(table: Table, ranked: list[str], seed: int = 0) -> Law | None:
    """The law of the first of these contestants that is a kernel; None where there is none, or rows are few."""
    from unlazy.core.precision import precision
    from unlazy.estimators.preprocessing.table_encoder import TableEncoder
    from unlazy.solvers.path import learning_curve

    name = next((c for c in ranked if c in KERNELS), None)
    rows = np.unique(table.groups, return_index=True)[1]  # copies of a row tell on each other
    if name is None or len(rows) < FEWEST:
        return None
    some = np.sort(np.random.default_rng([seed, len(rows)]).permutation(rows)[:MOST])
    X = TableEncoder(target=table.target).fit_transform(table.frame.iloc[some], table.y[some])
    y, classes = table.y[some], table.classes
    with precision("float64"):
        model = CONTESTANTS[name].options[0](classes is not None, seed, len(some)).model.fit(X, y)
        Y = y[:, None] if classes is None else (y[:, None] == classes).astype(float)
        curve = learning_curve(model.kernel_, model.standardized(X), Y, [table.whole, 2 * table.whole])
    unit = curve.variance
    return Law(
        name, table.whole, float(curve.risk[0] / unit),
        Interval(*(float(v[1] / unit) for v in (curve.risk, curve.low, curve.high))),
    )  # fmt: skip
