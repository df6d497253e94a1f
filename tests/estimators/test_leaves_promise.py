"""Many leaves are fitted only where a look at a few of them says that they predict better."""

import numpy as np

from unlazy.core.precision import precision
from unlazy.estimators.base import Training
from unlazy.estimators.feature_search import last_fit
from unlazy.estimators.feature_search.growth import Contender, Grown
from unlazy.estimators.feature_search.last_fit import Problem, _leaves_promise
from unlazy.estimators.feature_search.trajectory import Candidate, Judged
from unlazy.estimators.named_kernels import UNIT


def test_a_look_at_some_leaves_decides(monkeypatch):
    monkeypatch.setattr(last_fit, "most_exact", lambda: 60)
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(640, 2))
    Y = np.sin(2 * X[:, :1])
    data = Training(X, Y, None)
    learnt, judging = data.rows(slice(512)), data.rows(slice(512, None))
    metric = np.eye(2) / 2
    contender = Contender(Candidate(UNIT["gaussian"], "full"), metric, 1.0, Judged((1.0, 1e-4), 0.5, judging.Y), 1, 512)
    problem = Problem(contender, np.eye(2), 1.0, 1e-3, None, False)
    with precision("float64"):
        for other, expected in ((np.zeros_like(judging.Y), True), (judging.Y, False)):
            judged = contender.judged._replace(held_out=other)
            found = Grown(contender, judging, learnt)
            assert _leaves_promise(problem, found, contender._replace(judged=judged)) == expected
