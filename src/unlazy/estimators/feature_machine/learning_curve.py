"""Learning curve of a feature machine: the law of its kernel [G1, G2] under metrics learned in folds [D11].

A metric depends on the labels it was learned from, so leave-one-out over the coefficients alone is optimistic.
Therefore the update steps chosen by the search are repeated without one fold, and only the rows of that fold, each left
out of the coefficients, are evaluated; eigenvalues need no labels and are those of all rows. Together the folds measure
the bias as a function of the effective ridge, which the law of a fixed kernel extrapolates to other numbers of points.

More points also improve the metric: metrics learned from a quarter, a half and three quarters of the rows give risks
that decrease with the number of rows s of the metric, and this trend (theory.spectra.metric_law) is extrapolated to s =
m.

`benchmarks/learning_curve_law.py --machine` compares accuracy and cost with a power law fitted to refits. The curve
cannot predict that the search makes a worse choice at four times the rows.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float, Int

from unlazy.core.arrays import unit_roundoff
from unlazy.core.threads import run_parallel
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import Selected
from unlazy.products.metric_gram import metric_gram
from unlazy.solvers.learning_curve import (
    EvaluatedSpectrum,
    LearningCurve,
    LearningCurveLaw,
    evaluate_law,
    fit_law,
    noise_of,
    smallest_leave_one_out_error,
)
from unlazy.theory.spectra.metric_law import MEASURED_EXPONENT, THEORY_EXPONENT, metric_slope
from unlazy.training.rfm.iteration import metric_root

QUARTERS = 4
"""Number of folds."""
SHARES = ((0,), (0, 1), (0, 1, 2))
"""Quarters from which metrics are learned; each set is rotated through all four quarters."""
INTERCEPT_CONSTANT = 100.0
"""Constant added to the kernel in place of a free intercept, in units of k(x, x).

With 40 rows and a ridge as large as k(x, x) it shrinks the intercept by 1/4,000.
"""
SIGNIFICANT_Z = 3.0
"""Number of standard errors beyond which the metric of a fold counts as worse than that of another fold.

Such a metric has missed a direction, and the laws only describe small errors of directions.
"""

LearnMetric = Callable[[Int[np.ndarray, " s"]], np.ndarray]
"""Learns the metric from the rows at this index."""


def metric_curve(
    found: Selected,
    data: TrainingData,
    labels: Float[np.ndarray, "n c"],
    sizes: Float[np.ndarray, " m"],
    learn: LearnMetric,
) -> LearningCurve:
    """Compute the learning curve of the machine that a search has found.

    `data` are the rows in random order; `labels` are its labels in the units of the risk.
    """
    n = len(labels)
    if not found.updates:  # the plain kernel does not depend on labels
        plain = _spectrum_under_metric(found, data.X, np.zeros(n, bool), learn)
        floor = n * unit_roundoff(np.float64) * float(plain.eigenvalues[-1])
        return evaluate_law(fit_law([plain], labels, floor), noise_of([plain], labels), labels, sizes, np.zeros(0))
    quarter = (np.arange(n) // QUARTERS) % QUARTERS
    learned = [_without_failures(_spectra_of_shares(found, data.X, quarter, share, learn), labels) for share in SHARES]
    floor = n * unit_roundoff(np.float64) * max(float(one.eigenvalues[-1]) for some in learned for one in some)
    laws = [fit_law(some, labels, floor) for some in learned]
    curve = evaluate_law(laws[-1], noise_of(learned[-1], labels), labels, sizes, np.zeros(0))
    return _with_better_metric(curve, laws, np.array([len(share) * n / QUARTERS for share in SHARES]))


def _spectra_of_shares(
    found: Selected,
    X: Float[np.ndarray, "n d"],
    quarter: Int[np.ndarray, " n"],
    share: tuple[int, ...],
    learn: LearnMetric,
) -> list[EvaluatedSpectrum]:
    """Spectra of the chosen kernel under metrics of these quarters, rotated; each row is evaluated equally often."""
    turns = range(0, QUARTERS, 2 if len(share) == 2 else 1)  # there are only two distinct halves
    return run_parallel(
        [
            partial(_spectrum_under_metric, found, X, np.isin(quarter, (np.array(share) + t) % QUARTERS), learn)
            for t in turns
        ]
    )


def _spectrum_under_metric(
    found: Selected, X: Float[np.ndarray, "n d"], used: np.ndarray, learn: LearnMetric
) -> EvaluatedSpectrum:
    """Spectrum of the kernel under the metric learned from the `used` rows; the others are evaluated."""
    rows = metric_gram(found.candidate.kernel, X, metric_root(learn(np.flatnonzero(used))))
    K = rows.gram(found.final[0] * rows.default_bandwidth)
    values, vectors = np.linalg.eigh(K + INTERCEPT_CONSTANT * float(np.mean(np.diagonal(K))))
    return EvaluatedSpectrum(values, vectors, np.flatnonzero(~used))


def _without_failures(seen: list[EvaluatedSpectrum], labels: Float[np.ndarray, "n c"]) -> list[EvaluatedSpectrum]:
    """Keep the folds whose metric is not significantly worse than the best one."""
    errors = [smallest_leave_one_out_error(one, labels) for one in seen]
    best, spread = min(errors)
    return [one for one, (error, s) in zip(seen, errors) if error - best <= SIGNIFICANT_Z * np.hypot(s, spread)]


def _with_better_metric(
    curve: LearningCurve, laws: list[LearningCurveLaw], rows: Float[np.ndarray, " s"]
) -> LearningCurve:
    """Replace the metric of three quarters of the rows by the extrapolated metric of m rows.

    The value of a metric is measured at the given number of points, where the laws need not extrapolate. The
    uncertainty of its further improvement is the difference between the slowest law and the measured one.
    """
    log_risks = np.log([law.risks(curve.points).min() for law in laws])
    moves, errors = [], []
    for exponent in (MEASURED_EXPONENT, THEORY_EXPONENT):
        slope, error = metric_slope(rows, log_risks, exponent)
        way = curve.sizes**-exponent - rows[-1] ** -exponent
        moves.append(slope * way)
        errors.append(error * np.abs(way))
    factor, doubt = np.exp(moves[0]), np.exp(1.645 * np.hypot(errors[0], moves[0] - moves[1]))
    return dataclasses.replace(
        curve, risk=curve.risk * factor, low=curve.low * factor / doubt, high=curve.high * factor * doubt
    )
