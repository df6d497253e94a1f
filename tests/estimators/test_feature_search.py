"""Held-out labels do not influence the metric that is scored on them."""

import numpy as np
import pytest

from unlazy.estimators.base import TrainingData
from unlazy.estimators.feature_search import KernelCandidate, SearchOptions, constants, select
from unlazy.estimators.feature_search.ensemble import fit_member
from unlazy.estimators.feature_search.held_out import Folds
from unlazy.estimators.feature_search.search import Search, Selected
from unlazy.estimators.feature_search.trajectory import MetricTrajectory, ScoredCandidate
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products.metric_gram import metric_gram
from unlazy.solvers.ridge import fit_ridge
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.options import RFMOptions
from unlazy.training.rfm.iteration import RfmStep, learn


def noise(n=90, d=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, 1))


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize(
    "candidate", [KernelCandidate(Gaussian(1.0), "full"), KernelCandidate(ProductLaplace(1.0), "diagonal")]
)
def test_labels_of_a_fold_do_not_change_its_metric(x64, candidate, leave_one_out):
    """Labels of fold 0 replaced: the metrics scored on fold 0 are the same, those scored on fold 1 are not."""
    X, Y = noise(40, 5)
    fold = np.arange(40) % 2
    planted = np.where(fold[:, None] == 0, 1e3 * noise(40, 5, seed=1)[1], Y)
    matrices = []
    for labels in (Y, planted):
        folds = Folds(TrainingData(X, labels, None), fold, leave_one_out)
        search = Search(folds, SearchOptions(relative_bandwidth=1.0, relative_ridge=1e-2))
        (run,) = search.start_trajectories([candidate])
        for _ in range(2):
            search.update(run)
        matrices.append(run.metrics)
    for t in (1, 2):
        # the closed form subtracts what the fold contributed: exact but for rounding, here of labels 1e3 times larger
        np.testing.assert_allclose(matrices[0][t][0], matrices[1][t][0], rtol=0, atol=1e-9)
        assert np.abs(matrices[0][t][1] - matrices[1][t][1]).max() > 1e-2


def test_folds_are_predicted_by_the_other_rows(x64):
    """Ridge regression with an intercept, solved as a bordered system; 40 rows at a ridge of 1e-2 round to 1e-12."""
    X, Y = noise(60, 3)
    fold, w = np.arange(60) % 2, np.linspace(0.5, 2, 60)
    folds = Folds(TrainingData(X, Y, w), fold, leave_one_out=False)
    views = folds.views(Gaussian(1.0), folds.isotropic_metrics("diagonal"))
    found = folds.score(views, (0.7, 1e-2)).held_out
    for k, view in enumerate(views):
        rest, own = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        h = 0.7 * view.default_bandwidth
        M = folds.isotropic_metrics("diagonal")[k]
        D = (((X[:, None] - X[None]) ** 2) * M).sum(2)
        K = np.exp(-D / (2 * h * h))
        bordered = np.block([[K[np.ix_(rest, rest)] + 1e-2 * np.diag(1 / w[rest]), np.ones((30, 1))],
                             [np.ones((1, 30)), np.zeros((1, 1))]])  # fmt: skip
        solved = np.linalg.solve(bordered, np.append(Y[rest], 0))
        np.testing.assert_allclose(found[own, 0], K[np.ix_(own, rest)] @ solved[:-1] + solved[-1], rtol=0, atol=1e-10)
    assert folds.final.leave_one_out and folds.final.final is folds.final


def test_near_ties_are_decided_by_the_final_evidence(x64, monkeypatch):
    """Two candidates whose errors by half of the rows are within 5%: leave-one-out chooses; one far behind never."""
    X, Y = noise(60, 3)
    folds = Folds(TrainingData(X, Y, None), np.arange(60) % 2, leave_one_out=False)
    search = Search(folds, SearchOptions())
    kernels = [Laplace(1.0), Gaussian(1.0), ProductLaplace(1.0)]
    runs = []
    for kernel, error in zip(kernels, (0.50, 0.52, 0.53)):
        scored = ScoredCandidate((1.0, 1e-2), error, np.zeros_like(Y))
        runs.append(MetricTrajectory(KernelCandidate(kernel, "diagonal"), scored, folds.isotropic_metrics("diagonal")))
    final = {id(kernels[0]): 0.4, id(kernels[1]): 0.3, id(kernels[2]): 0.2}
    monkeypatch.setattr(Folds, "views", lambda self, kernel, metrics: [kernel])
    monkeypatch.setattr(
        Folds, "score", lambda self, views, place: ScoredCandidate(place, final[id(views[0])], np.zeros_like(Y))
    )
    assert search._best_by_final_evidence(runs) is runs[1]  # the third is beyond 5%
    assert Search(folds.final, SearchOptions())._best_by_final_evidence(runs) is runs[0]
    final[id(kernels[1])] = 0.45
    assert search._best_by_final_evidence(runs) is runs[0]


def test_what_half_of_the_rows_do_not_show_is_searched_by_leave_one_out(x64, monkeypatch):
    """If the other fold explains nothing the search is repeated; of noise both find nothing."""
    monkeypatch.setattr(constants, "HALVES_ROWS", 50)
    asked = []
    run = Search.run
    monkeypatch.setattr(
        Search, "run", lambda self, *given: (asked.append(self.evidence.leave_one_out), run(self, *given))[1]
    )
    X, noisy = noise(90, 2)
    for Y, expected in ((noisy, [False, True]), (X[:, :1] + 0.1 * noisy, [False])):
        asked.clear()
        candidate = KernelCandidate(Gaussian(1.0), "diagonal")
        select([candidate], TrainingData(X, Y, None), SearchOptions(updates=1), folds=2)
        assert asked == expected


def test_pure_noise_predicts_no_gain(x64):
    """y independent of x: the honest error cannot be below 1 by more than chance, the naive one is far below.

    Standard deviation of a mean of 90 squares of normal numbers, relative: √(2/90) = 0.15; the best of a few iterates
    and ridges is at most about two of them low. The mean over five data sets is within 0.15.
    """
    honest, naive = [], []
    for seed in range(5):
        X, Y = noise(seed=seed)
        candidate = KernelCandidate(Gaussian(1.0), "full")
        place = {"relative_ridge": 1e-2, "relative_bandwidth": 1.0}
        honest.append(select([candidate], TrainingData(X, Y, None), SearchOptions(updates=3, last=True, **place)).error)
        options = RFMOptions(relative_bandwidth=1.0)
        last = learn(candidate.kernel, X, Y, updates=3, relative_ridge=1e-2, options=options)[-1]
        naive.append(fit_ridge(metric_gram(candidate.kernel, X, last.map).gram(last.bandwidth), Y, 1e-2).error)
    assert np.mean(honest) > 0.85
    assert np.mean(naive) < 0.6


@pytest.mark.slow
def test_select_learns_a_metric_and_records_its_steps(x64):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 8))
    Y = np.sin(2 * X[:, :1]) + X[:, 1:2]
    kernels = [KernelCandidate(Laplace(1.0), "diagonal"), KernelCandidate(Gaussian(1.0), "full")]
    found = select(kernels, TrainingData(X, Y, None), SearchOptions(updates=4))
    assert found.updates >= 1 and len(found.steps) == found.updates
    plain = min(e for _, t, e in found.table if t == 0)
    assert found.error < 0.3 * plain
    assert found.held_out.shape == Y.shape and np.isfinite(found.held_out).all()


@pytest.mark.slow
def test_a_smooth_kernel_may_replace_a_rough_one(x64):
    """A rough kernel is not needed once its metric is known: the last kernel can be another than the first."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 10))
    Y = (X[:, :1] * X[:, 1:2]) + 0.01 * rng.normal(size=(150, 1))
    found = select(
        [KernelCandidate(Laplace(1.0), "diagonal"), KernelCandidate(Gaussian(1.0), "diagonal")],
        TrainingData(X, Y, None),
        SearchOptions(updates=4),
    )
    alone = select([KernelCandidate(Laplace(1.0), "diagonal")], TrainingData(X, Y, None), SearchOptions(updates=4))
    assert found.error <= alone.error


def index_among(n, d, seed=0):
    """A single index of all columns, with noise of a tenth of the variance."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    s = X.sum(1) / np.sqrt(d)
    y = np.sin(2 * s) + s**2 / 2
    return X, (y + np.sqrt(0.1 * y.var()) * rng.normal(size=n))[:, None]


@pytest.mark.slow
def test_candidates_far_behind_on_few_rows_are_dropped(x64, monkeypatch):
    """An oblique index: lengths of columns say nothing, the full metric finds it, on 200 rows as on 400."""
    monkeypatch.setattr(constants, "PILOT_ROWS", 200)
    X, Y = index_among(400, 5)
    Y = Y / Y.std()
    candidates = [KernelCandidate(ProductLaplace(1.0), "diagonal"), KernelCandidate(Gaussian(1.0), "full")]
    search = Search(Folds(TrainingData(X, Y, None), np.arange(400) // 200), SearchOptions(updates=2))
    best, *raced = search.run(candidates)
    assert [run.candidate for run in raced] == candidates[1:] and best.candidate.metric == "full"
    assert (
        select(candidates, TrainingData(X, Y, None), SearchOptions(updates=1)).table[0][0] == 1
    )  # the table names candidates, not places in the race
    monkeypatch.setattr(constants, "DROP_FACTOR", np.inf)
    assert len(search.run(candidates)) == 3


def test_plain_kernels_are_settled_on_all_rows(x64, monkeypatch):
    """Nothing to learn of a metric: bandwidth and ridge end downhill of where few rows had put them."""
    monkeypatch.setattr(constants, "PILOT_ROWS", 60)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    Y = np.sin(3 * X[:, :1]) + np.cos(3 * X[:, 1:]) + 0.1 * rng.normal(size=(300, 1))
    search = Search(Folds(TrainingData(X, Y / Y.std(), None), np.arange(300) % 2), SearchOptions())
    (run,) = search.start_trajectories([KernelCandidate(Gaussian(1.0), "diagonal")])
    found = search.select_update(run, 0, False)
    h, rho = found.final
    views = search.evidence.views(run.candidate.kernel, run.metrics[0])
    around = [(h * a, rho * b) for a, b in ((2, 1), (0.5, 1), (1, 10**0.5), (1, 10**-0.5))]
    assert found.error <= run.errors[0]
    assert found.error * (1 - 1e-4) <= min(search.evidence.score(views, place).error for place in around)


@pytest.mark.parametrize("kernel", [ProductLaplace(1.0), Gaussian(1.0)])
def test_very_many_columns_are_screened_where_few_matter(x64, monkeypatch, kernel):
    """One input of 60: the first update keeps few columns in every fold, the one that matters among them, and the
    metric of all rows is that of the same steps; where all matter alike nothing is left out."""
    monkeypatch.setattr(constants, "SCREENING_COLUMNS", 50)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 60))
    sparse, dense = np.sin(2 * X[:, :1]), X.sum(1, keepdims=True) / np.sqrt(60)
    for Y, kept in ((sparse, range(1, 40)), (dense, [60])):
        search = Search(Folds(TrainingData(X, Y / Y.std(), None), np.arange(240) % 2), SearchOptions())
        (run,) = search.start_trajectories([KernelCandidate(kernel, "diagonal")])
        search.update(run)
        assert all(np.count_nonzero(M) in kept and (M[0] > 0) for M in run.metrics[1])
        assert run.steps[0].floor == (constants.NOISE_FLOOR if Y is sparse else 0.0)
        views = search.evidence.views(kernel, run.metrics[1])
        assert search.evidence.score(views, run.scored[1].place).error == pytest.approx(run.errors[1], rel=1e-9)


def test_patience_ends_if_another_candidate_explains_much():
    """A kernel that explains nothing gets further updates, unless another has left it far behind."""
    scored = [ScoredCandidate((1.0, 1.0), error, np.zeros((1, 1))) for error in (0.95, 0.94)]
    run = MetricTrajectory(KernelCandidate(Gaussian(1.0), "diagonal"), scored[0], [np.ones(1)])
    run.scored = scored
    assert run.is_promising(0.93) and not run.is_promising(0.3)
    assert run.projected_error == pytest.approx(0.94**2 / 0.95)


def test_a_rotation_that_helps_is_kept_with_many_rows(x64, monkeypatch):
    """With more rows than the first search uses, a gain of a thousandth suffices; with fewer it must be significant."""
    X, Y = index_among(200, 4)
    best = MetricTrajectory(
        KernelCandidate(Gaussian(1.0), "full"), ScoredCandidate((1.0, 1e-2), 0.1, 0.9 * Y), [np.eye(4) / 4] * 2
    )
    other = best.rotate_directions(1.0)
    other.scored = [ScoredCandidate((1.0, 1e-2), 0.0995, 0.9 * Y)]
    for look, taken in ((60, True), (200, False)):
        monkeypatch.setattr(constants, "PILOT_ROWS", look)
        search = Search(Folds(TrainingData(X, Y, None), np.arange(200) % 2), SearchOptions())
        assert search._rotation_helps(other, best) is taken


def test_the_last_steps_of_a_metric_use_all_rows(x64, monkeypatch):
    """Earlier steps use a sample if the error is small: labels outside of it matter to the last step alone."""
    monkeypatch.setattr(constants, "EARLY_STEP_ROWS", 20)
    X, Y = noise(60, 3)
    outside = np.setdiff1d(np.arange(60), evenly_spaced_rows(60, 20))[7]
    changed = Y.copy()
    changed[outside] += 5
    step = RfmStep(Gaussian(1.0), 1.0, 1e-2)
    candidate = KernelCandidate(Gaussian(1.0), "diagonal")
    for last, error, matters in ((1, 0.05, True), (-10, 0.05, False), (-10, 0.5, True)):
        monkeypatch.setattr(constants, "LAST_STEPS", last)  # -10: no step counts as one of the last
        found = Selected(candidate, 2, (step, step), (1.0, 1e-2), Y, error, ())
        one, other = (fit_member(found, TrainingData(X, labels, None), None).metric for labels in (Y, changed))
        assert (np.abs(one - other).max() > 1e-3) == matters
