"""The learning curve of a feature machine: the law of its kernel [G1, G2] in metrics that were learned in folds [D11].

A metric has seen the labels it was learned from, and leave-one-out of the coefficients alone is too hopeful of them. So
the steps that a search has chosen are followed again without a fold, and only the fold's rows, each left out of the
coefficients, are measured; eigenvalues need no labels and are those of all rows. All folds together measure the bias as
a function of the effective ridge, which the law of a fixed kernel carries to other numbers of points.

More points make a better metric too: the same with metrics of a quarter, a half and three quarters of the rows gives
risks that fall with the rows s of the metric, and the law of that (theory.spectra.metric_law) is followed to s = m.

How far off it is beside a power law through refits, and at what cost: `benchmarks/learning_curve_law.py --machine`. A
machine that chooses worse at four times the rows cannot be foreseen.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from unlazy.core.precision import rounding
from unlazy.core.threads import together
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import Selected
from unlazy.products.metric_gram import view
from unlazy.solvers.learning_curve import Law, LearningCurve, Seen, curve_of, law_of, smallest_error
from unlazy.theory.spectra.metric_law import MEASURED, SLOWEST, metric_slope
from unlazy.training.rfm.iteration import root

QUARTERS = 4
SHARES = ((0,), (0, 1), (0, 1, 2))
"""Quarters of which metrics are learned, each turned round through all four."""
INTERCEPT = 100.0
"""What stands for a free intercept: a constant added to the kernel, in units of k(x, x). With 40 rows and a ridge as
large as k(x, x) it is shrunk by 1/4,000."""
APART = 3.0
"""Standard errors by which a fold's metric is surely worse than another's, and has missed what that has found: laws
speak of small errors of the directions, not of their discovery."""

Learn = Callable[[Int[np.ndarray, " s"]], np.ndarray]
"""The metric of some rows."""


def metric_curve(
    found: Selected, data: Training, labels: Float[np.ndarray, "n c"], sizes: Float[np.ndarray, " m"], learn: Learn
) -> LearningCurve:
    """The curve of the machine that a search has found, from these rows, which are in no order; `labels` are those of
    `data` in the units of the risk."""
    n = len(labels)
    if not found.updates:  # the plain kernel: nothing has seen a label
        plain = _seen(found, data.X, np.zeros(n, bool), learn)
        floor = n * rounding(np.float64) * float(plain.eigenvalues[-1])
        return curve_of(law_of([plain], labels, floor), labels, sizes, np.zeros(0))
    quarter = (np.arange(n) // QUARTERS) % QUARTERS
    learned = [_successes(_metrics(found, data.X, quarter, share, learn), labels) for share in SHARES]
    floor = n * rounding(np.float64) * max(float(one.eigenvalues[-1]) for some in learned for one in some)
    laws = [law_of(some, labels, floor) for some in learned]
    curve = curve_of(laws[-1], labels, sizes, np.zeros(0))
    return _moved(curve, laws, np.array([len(share) * n / QUARTERS for share in SHARES]))


def _metrics(
    found: Selected, X: Float[np.ndarray, "n d"], quarter: Int[np.ndarray, " n"], share: tuple[int, ...], learn: Learn
) -> list[Seen]:
    """The chosen kernel in metrics of these quarters, turned round; all rows are judged equally often."""
    turns = range(0, QUARTERS, 2 if len(share) == 2 else 1)  # two halves are all there are
    return together(
        [partial(_seen, found, X, np.isin(quarter, (np.array(share) + t) % QUARTERS), learn) for t in turns]
    )


def _seen(found: Selected, X: Float[np.ndarray, "n d"], used: np.ndarray, learn: Learn) -> Seen:
    rows = view(found.candidate.kernel, X, root(learn(np.flatnonzero(used))))
    K = rows.gram(found.final[0] * rows.usual)
    values, vectors = np.linalg.eigh(K + INTERCEPT * float(np.mean(np.diagonal(K))))
    return Seen(values, vectors, np.flatnonzero(~used))


def _successes(seen: list[Seen], labels: Float[np.ndarray, "n c"]) -> list[Seen]:
    """Those whose metric has found what the best of them has."""
    errors = [smallest_error(one, labels) for one in seen]
    best, spread = min(errors)
    return [one for one, (error, s) in zip(seen, errors) if error - best <= APART * np.hypot(s, spread)]


def _moved(curve: LearningCurve, laws: list[Law], rows: Float[np.ndarray, " s"]) -> LearningCurve:
    """The curve of the last law with the metric of m rows in place of that of three quarters of those at hand. What a
    metric is worth is measured at as many points as there are, where laws have nothing to foresee; how much further it
    improves is in doubt by as much as the slowest law differs from the measured one."""
    log_risks = np.log([law.risks(curve.points).min() for law in laws])
    moves, errors = [], []
    for exponent in (MEASURED, SLOWEST):
        slope, error = metric_slope(rows, log_risks, exponent)
        way = curve.sizes**-exponent - rows[-1] ** -exponent
        moves.append(slope * way)
        errors.append(error * np.abs(way))
    factor, doubt = np.exp(moves[0]), np.exp(1.645 * np.hypot(errors[0], moves[0] - moves[1]))
    return dataclasses.replace(
        curve, risk=curve.risk * factor, low=curve.low * factor / doubt, high=curve.high * factor * doubt
    )
