"""Many leaves are fitted only where a look at a few of them says that they predict better."""

import numpy as np

from unlazy.core.precision import precision
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import final_fit
from unlazy.estimators.feature_search.final_fit import Problem, _leaves_promise
from unlazy.estimators.feature_search.successive_halving import Contender, Grown
from unlazy.estimators.feature_search.trajectory import Candidate, Judged
from unlazy.estimators.named_kernels import UNIT


def test_a_look_at_some_leaves_decides(monkeypatch):
    monkeypatch.setattr(final_fit, "most_exact", lambda: 60)
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(640, 2))
    Y = np.sin(2 * X[:, :1])
    data = Training(X, Y, None)
    learned, judging = data.rows(slice(512)), data.rows(slice(512, None))
    metric = np.eye(2) / 2
    contender = Contender(Candidate(UNIT["gaussian"], "full"), metric, 1.0, Judged((1.0, 1e-4), 0.5, judging.Y), 1, 512)
    problem = Problem(contender, np.eye(2), 1.0, 1e-3, None, False)
    with precision("float64"):
        for other, expected in ((np.zeros_like(judging.Y), True), (judging.Y, False)):
            judged = contender.judged._replace(held_out=other)
            found = Grown(contender, judging, learned)
            assert _leaves_promise(problem, found, contender._replace(judged=judged)) == expected


def test_a_ridge_that_rounding_hides_is_raised():
    """Five hundred smooth rows on a line: K + 1e-20 is not positive to rounding, so the fit is made under a larger
    ridge, and still predicts."""
    X = np.linspace(-3, 3, 500)[:, None]
    data = Training(X, np.sin(X), None)
    contender = Contender(Candidate(UNIT["gaussian"], "full"), np.eye(1), 1.0, Judged((1.0, 1e-20), 0.5, X), 1, 500)
    problem = Problem(contender, np.eye(1), 1.0, 1e-3, None, False)
    with precision("float64"):
        model = final_fit._exactly(problem, data)
        predicted = final_fit.predictions(UNIT["gaussian"], problem.map, problem.bandwidth, model, X)
    assert 1e-20 < model.ridge <= 10 * final_fit.HIDDEN
    # the fit under a ridge of at most 1e-5 misses a smooth target by less than its square root
    np.testing.assert_allclose(predicted, np.sin(X), atol=3e-3)
