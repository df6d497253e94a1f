"""Many leaves are fitted only if a trial on a few of them predicts better."""

import numpy as np

from unlazy.core.arrays import precision
from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import final_fit, kernel_model
from unlazy.estimators.feature_search.final_fit import _partition_is_promising
from unlazy.estimators.feature_search.kernel_model import FinalFitProblem
from unlazy.estimators.feature_search.successive_halving import HalvingCandidate, HalvingResult
from unlazy.estimators.feature_search.trajectory import KernelCandidate, ScoredCandidate
from unlazy.estimators.named_kernels import unit_kernel


def test_a_trial_on_some_leaves_decides(monkeypatch):
    monkeypatch.setattr(final_fit, "max_exact_rows", lambda: 60)
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(640, 2))
    Y = np.sin(2 * X[:, :1])
    data = TrainingData(X, Y, None)
    learned, validation = data.rows(slice(512)), data.rows(slice(512, None))
    metric = np.eye(2) / 2
    choice = HalvingCandidate(
        KernelCandidate(unit_kernel("gaussian"), "full"),
        metric,
        1.0,
        ScoredCandidate((1.0, 1e-4), 0.5, validation.Y),
        1,
        512,
    )
    problem = FinalFitProblem(choice, np.eye(2), 1.0, 1e-3, None, False)
    with precision("float64"):
        for other, expected in ((np.zeros_like(validation.Y), True), (validation.Y, False)):
            scored = choice.scored._replace(held_out=other)
            found = HalvingResult(choice, validation, learned)
            assert _partition_is_promising(problem, found, choice._replace(scored=scored)) == expected


def test_a_ridge_below_rounding_is_increased():
    """Five hundred smooth rows on a line: K + 1e-20 is not positive to rounding, so the fit is made under a larger
    ridge, and still predicts."""
    X = np.linspace(-3, 3, 500)[:, None]
    data = TrainingData(X, np.sin(X), None)
    choice = HalvingCandidate(
        KernelCandidate(unit_kernel("gaussian"), "full"), np.eye(1), 1.0, ScoredCandidate((1.0, 1e-20), 0.5, X), 1, 500
    )
    problem = FinalFitProblem(choice, np.eye(1), 1.0, 1e-3, None, False)
    with precision("float64"):
        model = final_fit._fit_exact(problem, data)
        predicted = kernel_model.predict_rows(unit_kernel("gaussian"), problem.map, problem.bandwidth, model, X)
    assert 1e-20 < model.ridge <= 10 * final_fit.MAX_HIDDEN_RIDGE
    # the fit under a ridge of at most 1e-5 misses a smooth target by less than its square root
    np.testing.assert_allclose(predicted, np.sin(X), atol=3e-3)
