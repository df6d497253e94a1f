"""What both feature machines are [D11]: columns read, a metric searched for and learned, the last fit, predictions."""

import abc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from unlazy._version import VERSION
from unlazy.core.fingerprint import fingerprint
from unlazy.core.linalg import dot
from unlazy.core.progress import Display
from unlazy.core.threads import at_most, half_the_cores, one_thread_each
from unlazy.estimators.base import Estimator, Training
from unlazy.estimators.feature_machine.candidates import choices
from unlazy.estimators.feature_machine.learning_curve import metric_curve
from unlazy.estimators.feature_search import Candidate, Selected, select, thresholds
from unlazy.estimators.feature_search.averaging import Member, learned, mean_error
from unlazy.estimators.feature_search.encoding_choice import best_reading
from unlazy.estimators.feature_search.final_fit import Model, Problem, last_fit, predictions, squared_slopes
from unlazy.estimators.feature_search.progress import WHOLE, Course, parts
from unlazy.estimators.feature_search.robust_labels import Chosen, milder, robustly
from unlazy.estimators.feature_search.stages import Stages
from unlazy.estimators.feature_search.successive_halving import Contender, Grown, grown, with_room
from unlazy.estimators.preprocessing.column_scale import Columns
from unlazy.estimators.preprocessing.integer_codes import Codes, readings
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.learning_curve import DEFAULT_SIZES, LearningCurve, Numbers, checked_sizes
from unlazy.solvers.ridge.intercept import mean
from unlazy.training.one_step.algorithm import learn_features
from unlazy.training.rfm.iteration import follow, isotropic, normalized, root
from unlazy.training.rfm.partition import Tree

SEARCH = 1200
"""Distinct rows among which kernel, metric, bandwidth, ridge and the number of updates are chosen, where there are at
most `feature_search.rules.MANY`; beyond, choices are made again at larger sizes (`feature_search.growth`)."""
UNKEPT = ("progress", "checkpoint", "precision", "n_jobs")
"""Parameters that a fit's stages do not depend on."""


class FeatureMachine(Estimator):
    """f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h) of standardized columns, M = LᵀL learned from gradients of earlier fits."""

    _renamed: ClassVar = {"bandwidth": "relative_bandwidth", "ridge": "relative_ridge"}
    kernel: str | Kernel | None
    metric: str | None
    updates: int
    iterate: str
    rank: int | None
    start: str | None
    relative_bandwidth: float | None
    relative_ridge: float | None
    standardize: bool
    categories: Any
    robust: bool
    average: bool
    tolerance: float
    precision: str | None
    progress: bool
    checkpoint: str | Path | None
    n_jobs: int | None
    X_fit_: np.ndarray
    dual_coef_: np.ndarray
    intercept_: np.ndarray
    _others_: list[dict[str, Any]]
    _tree_: dict[str, np.ndarray] | None

    def __init__(
        self, kernel=None, *, metric=None, updates=8, iterate="best", rank=None, start=None, relative_bandwidth=None,
        relative_ridge=None, standardize=True, categories=None, robust=True, average=True, tolerance=1e-3,
        precision=None, random_state=0, progress=False, checkpoint=None, n_jobs=None,
    ):  # fmt: skip
        self.kernel = kernel
        self.metric = metric
        self.updates = updates
        self.iterate = iterate
        self.rank = rank
        self.start = start
        self.relative_bandwidth = relative_bandwidth
        self.relative_ridge = relative_ridge
        self.standardize = standardize
        self.categories = categories
        self.robust = robust
        self.average = average
        self.tolerance = tolerance
        self.precision = precision
        self.random_state = random_state
        self.progress = progress
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs

    def _fit(self, given: Training, regression: bool) -> tuple[np.ndarray, Training]:
        """Sets the fitted attributes; predictions of rows by fits that never saw them, and those rows."""
        candidates = choices(self, given.X.shape)
        data, center, spread = _prepared(given, regression)
        order = self._order(len(data.X))
        self._others_, self.outliers_, self.clip_ = [], "kept", np.full(len(spread), np.inf)
        rows = np.sort(order[:SEARCH])
        with self._double_scope():
            data, found = self._read(candidates, data, order)
            if len(data.X) == 1 or not np.any(data.Y):
                self._constant(candidates[0], data, bool(np.any(given.Y[:1] != given.Y)))
                held_out, part = data.Y, data
            elif len(data.X) <= thresholds.MANY:
                part = data.rows(rows)
                found = found or self._select(candidates, part)
                chosen = Chosen([(found, data)], self.outliers_, self.clip_)
                if regression and self.robust:
                    chosen = robustly(found, data, rows, self._select, self._learned)
                held_out = self._learn(chosen, part)
            else:
                held_out, part = self._grow(candidates, data, order, regression and self.robust)
        self.clip_ = self.clip_ * spread
        self.intercept_ = (self.intercept_ * spread + center).astype(self._dtype)
        self.dual_coef_ = (self.dual_coef_ * spread).astype(self._dtype)
        self.X_fit_ = self.X_fit_.astype(self._dtype)
        for other in self._others_:
            other["intercept"] = (other["intercept"] * spread + center).astype(self._dtype)
            other["dual_coef"] = (other["dual_coef"] * spread).astype(self._dtype)
        return held_out * spread + center, part._replace(Y=part.Y * spread + center)

    def _order(self, n: int) -> np.ndarray:
        """All rows, as `random_state` draws them."""
        return np.random.default_rng(int(jax.random.randint(self._key(), (), 0, 2**31 - 1))).permutation(n)

    def learning_curve(self, X: Any, y: Any, sizes: Numbers | None = None) -> LearningCurve:
        """What would more rows bring? Expected squared error of this machine, from more rows than there are, with one
        search and no further refit [G1, G2]; `unlazy.learning_curve(machine, X, y)` is the same.

        The kernel, its bandwidth and the steps of the metric are chosen once, among all rows (1,200 drawn ones, where
        there are more); the metric is then relearned without every quarter of the rows, and these, whose labels it has
        not seen, are measured. What a better metric will bring is read off metrics of a quarter, a half and three
        quarters of the rows. `sizes` are by default a quarter of the rows to sixteen times as many. Of classes the
        error is that of the scores, one-hot labels summed over classes; equal rows count as one. Neither averages
        (up to 400 rows) nor clipped labels (`robust`) are in it. The machine itself is left as it was.

        >>> print(FeatureMachineRegressor().learning_curve(X, y))
        """
        machine = clone(self).set_params(average=False)
        with at_most(self.n_jobs):
            return machine._curve(*machine._targets(X, y), sizes)

    @abc.abstractmethod
    def _targets(self, X: Any, y: Any) -> tuple[Training, bool]:
        """Checked rows and labels, and whether these are numbers."""

    def _curve(self, given: Training, regression: bool, sizes: Numbers | None) -> LearningCurve:
        if given.weights is not None:
            raise ValueError("a learning curve counts rows alike: leave class_weight out")
        candidates = choices(self, given.X.shape)
        data, _, spread = _prepared(given, regression)
        data, order = data._replace(weights=None), self._order(len(data.X))
        asked = checked_sizes(len(data.X) * DEFAULT_SIZES if sizes is None else sizes, len(data.X))
        if not np.any(data.Y):
            raise ValueError("a learning curve needs labels that are not all equal")
        with self._double_scope():
            data, found = self._read(candidates, data, order)
            part = data.rows(np.sort(order[:SEARCH]))
            found = found or self._select(candidates, part)
            part = data.rows(order[:SEARCH])
            with one_thread_each():
                return metric_curve(found, part, part.Y * spread, asked, partial(self._metric_of, found, part))

    def _metric_of(self, found: Selected, data: Training, rows: np.ndarray) -> np.ndarray:
        """The metric of the chosen steps from some rows."""
        some, kind = data.rows(rows), found.candidate.metric
        start = None if self.start is None else normalized(self._one_step(some), kind)
        return follow(found.steps, some.X, some.Y, kind, rank=self.rank, start=start)

    def _read(self, candidates: list[Candidate], data: Training, order: np.ndarray) -> tuple[Training, Selected | None]:
        """Columns as numbers or as categories, in units of their own spread. Which is chosen on rows that do not judge
        later; where they are all there is, their search is the search."""
        options = readings(data.X, self.categories, getattr(self, "feature_names_in_", None))
        codes, found = options[0], None
        if len(data.X) > 1 and np.any(data.Y):
            rows = np.sort(order[: thresholds.LOOK])
            codes, found = best_reading(
                options, data.rows(rows), self.standardize, lambda part: self._select(candidates, part)
            )
        self._codes_ = codes._asdict()
        X = codes(data.X)
        columns = Columns.of(X, data.weights, self.standardize)
        self.offset_, self.scale_ = columns.offset, columns.scale
        return data._replace(X=columns(X)), found if len(data.X) <= thresholds.LOOK else None

    def _select(self, candidates: Sequence[Candidate], part: Training) -> Selected:
        begin = None if self.start is None else lambda rows: self._one_step(part.rows(rows))
        steps = len(candidates) * (self.updates + 1)
        with one_thread_each(), Display("learning a metric", steps, show=self.progress) as shown:
            found = select(
                candidates, part.X, part.Y, weights=part.weights, updates=self.updates,
                relative_bandwidth=self.relative_bandwidth, relative_ridge=self.relative_ridge, rank=self.rank,
                begin=begin, last=self.iterate == "last", average=self.average, advance=shown.advance,
            )  # fmt: skip
        return found

    def _learn(self, chosen: Chosen, part: Training) -> np.ndarray:
        """Every trajectory chosen and its last fit, on all rows; held-out predictions of `part`."""
        fits = []
        for best, data in chosen.fits:
            share = 1 / len(chosen.fits) / sum(one.weight for one in (best, *best.equals))
            fits += [self._learned(one, data)._replace(weight=share * one.weight) for one in (best, *best.equals)]
        best, data = chosen.fits[0]
        first = fits[0]
        self._remember(first.kernel, first.metric, first.map, first.bandwidth, first.updates)
        self.relative_ridge_, self.ridge_ = first.relative_ridge, first.ridge
        self.X_fit_, self.dual_coef_, self.intercept_ = data.X, first.dual_coef, first.intercept
        self.solver_, self._tree_ = "cholesky", None
        self._others_ = [fit._asdict() for fit in fits[1:]]
        self.feature_importances_ = sum(fit.weight * self._importances(fit.metric, fit.slopes) for fit in fits)
        self.outliers_, self.clip_ = chosen.outliers, chosen.clip
        held_out = np.mean([found.held_out for found, _ in chosen.fits], 0)
        self.leave_one_out_error_ = float(best.error) if chosen.outliers == "kept" else mean_error(held_out, part)
        return held_out

    def _learned(self, found: Selected, data: Training) -> Member:
        start = None if self.start is None else normalized(self._one_step(data), found.candidate.metric)
        with half_the_cores():
            return learned(found, data, self.rank, start)

    def _grow(
        self, candidates: list[Candidate], data: Training, order: np.ndarray, robust: bool
    ) -> tuple[np.ndarray, Training]:
        """Choices at growing sizes, then the last fit to all rows; predictions of held-out rows, and those rows."""
        given = data
        if robust:
            chosen = milder(candidates[0], data, np.sort(order[:SEARCH]), self._select, self._learned)
            self.outliers_, self.clip_ = chosen.outliers, chosen.clip
            data = chosen.fits[0][1] if chosen.fits else data
        found, (model, problem, best) = with_room(partial(self._fits, candidates, data, order))
        kernel, _ = best.candidate
        self._remember(kernel, best.metric, problem.map, problem.bandwidth, best.updates)
        self.relative_ridge_, self.ridge_ = problem.relative_ridge, model.ridge
        self.leave_one_out_error_ = float(best.error)
        self.X_fit_, self.dual_coef_, self.intercept_ = model.centers, model.alpha, model.intercept
        self.solver_, self.converged_ = model.solver, model.converged
        self._tree_ = None if model.tree is None else model.tree._asdict()
        if not best.updates:  # a metric that moved is the gradients' own
            self.feature_importances_ = self._importances(best.metric, squared_slopes(model, problem, found.learned))
        if self.outliers_ == "kept":
            return best.judged.held_out, found.judging
        judging = given.rows(order[-len(found.judging.X) :])  # with the labels they have
        self.leave_one_out_error_ = mean_error(best.judged.held_out, judging)
        return best.judged.held_out, judging

    def _fits(
        self, candidates: list[Candidate], data: Training, order: np.ndarray
    ) -> tuple[Grown, tuple[Model, Problem, Contender]]:
        """What the choices were, and the last fit."""
        stages = self._stages(candidates, data, order)
        fixed = (self.relative_bandwidth, self.relative_ridge)
        with Display("learning a metric", WHOLE, show=self.progress) as shown:
            course = Course(shown, parts(len(data.X), len(candidates), self.updates))
            stages.done = course.done
            found = grown(
                candidates, data, order, updates=self.updates, bandwidth=self.relative_bandwidth,
                ridge=self.relative_ridge, rank=self.rank, begin=None if self.start is None else self._one_step,
                last=self.iterate == "last", advance=course.tick, stages=stages,
            )  # fmt: skip
            return found, last_fit(found, data, fixed, self.tolerance, self._key(), self.progress, stages)

    def _stages(self, candidates: list[Candidate], data: Training, order: np.ndarray) -> Stages:
        """The stages of this fit, those that an earlier run has kept among them."""
        if self.checkpoint is None:
            return Stages()
        if self.random_state is None:
            raise ValueError("random_state=None draws anew in every run, and a checkpoint continues one: give a number")
        asked = {name: value for name, value in self.get_params(deep=False).items() if name not in UNKEPT}
        asked["random_state"] = order  # what came of it
        problem = {"settings": fingerprint(VERSION, asked, candidates), "data": fingerprint(data)}
        kernels = [c.kernel for c in candidates]
        return Stages(kernels, Checkpoint(self.checkpoint, 0.0, problem))

    def _remember(self, kernel: Kernel, M: np.ndarray, L: np.ndarray, h: float, updates: int) -> None:
        self._base_, self.map_, self.bandwidth_ = kernel, L, float(h)
        self.metric_, self.n_updates_ = M, int(updates)
        self.feature_importances_ = self._importances(M)

    def _importances(self, M: np.ndarray, slopes: np.ndarray | None = None) -> np.ndarray:
        """Shares of the columns in the squared gradients of the last fit, whether or not the metric moved; in the
        metric where the fit is constant."""
        weight = M if M.ndim == 1 else np.diag(M).copy()
        if slopes is not None and np.isfinite(slopes).all() and slopes.sum() > 0:
            weight = slopes
        if self.categories_:
            weight = np.bincount(self._read_as.source(self.n_features_in_), weight, self.n_features_in_)
        return weight / weight.sum()

    def _constant(self, candidate: Candidate, data: Training, varied: bool) -> None:
        """Nothing to learn: one row, or one label; where equal rows have labels that `varied`, all of that is error."""
        M = isotropic(data.X.shape[1], candidate.metric)
        self._remember(candidate.kernel, M, root(M), 1.0, 0)
        self.ridge_ = self.relative_ridge_ = 0.0
        self.leave_one_out_error_ = float(varied)
        self.solver_, self._tree_ = "constant", None
        self.X_fit_, self.dual_coef_ = data.X[:1], np.zeros((1, data.Y.shape[1]))
        self.intercept_ = mean(data.Y, data.weights)

    def _one_step(self, data: Training) -> np.ndarray:
        """W¹ᵀW¹ of Algorithm 1 [D4], summed over outputs."""
        X, total = jnp.asarray(data.X), np.zeros((data.X.shape[1],) * 2)
        for y in data.Y.T:
            W = np.asarray(learn_features(self._key(), X, jnp.asarray(y)).W)
            total += dot(W.T, W)
        return total if np.trace(total) > 0 else np.eye(len(total))

    def standardized(self, X: Any) -> np.ndarray:
        """Rows as the fitted kernel sees them: codes read, columns in units of their own spread."""
        return (self._read_as(self._inputs(X)) - self.offset_.astype(self._dtype)) / self.scale_.astype(self._dtype)

    def _scores(self, X: Any) -> np.ndarray:
        """f at the rows of X, (m, c)."""
        Z = self.standardized(X)
        tree = getattr(self, "_tree_", None)
        parts = (self.X_fit_, self.dual_coef_, self.intercept_, None if tree is None else Tree(**tree))
        model = Model(*parts, self.solver_, self.ridge_)
        found = predictions(self._base_, self.map_, self.bandwidth_, model, Z, self._dtype)
        others = getattr(self, "_others_", [])
        found = found if not others else self.members_[0]["weight"] * found
        for one in others:
            model = Model(self.X_fit_, one["dual_coef"], one["intercept"], None, self.solver_, one["ridge"])
            seen = predictions(one["kernel"], one["map"], one["bandwidth"], model, Z, self._dtype)
            found = found + one["weight"] * seen
        return found

    @property
    def members_(self) -> list[dict[str, Any]]:
        """The fits whose weighted mean is predicted, the best first: most often one."""
        check_is_fitted(self)
        first = {
            "kernel": self._base_, "metric": self.metric_, "map": self.map_, "bandwidth": self.bandwidth_,
            "updates": self.n_updates_, "relative_ridge": self.relative_ridge_, "ridge": self.ridge_,
            "dual_coef": self.dual_coef_, "intercept": self.intercept_,
        }  # fmt: skip
        others = getattr(self, "_others_", [])
        return [{**first, "weight": 1 - sum(one["weight"] for one in others)}, *others]

    @property
    def _read_as(self) -> Codes:
        return Codes(**getattr(self, "_codes_", {}))  # files of earlier versions hold none

    @property
    def coding_(self) -> str:
        """How columns that look like codes are read: 'numbers', 'categories' or 'numbers and categories'."""
        check_is_fitted(self)
        return self._read_as.coding

    @property
    def categories_(self) -> dict[Any, np.ndarray]:
        """The values of every column that is read as categories, by its name where there are names, else its number."""
        codes = self._read_as
        names = getattr(self, "feature_names_in_", None)
        return {j if names is None else str(names[j]): values for j, values in zip(codes.columns, codes.levels)}

    @property
    def kernel_(self) -> Kernel:
        """The fitted kernel, of standardized columns."""
        check_is_fitted(self)
        return mapped(self._base_, self.map_.astype(self._dtype) / self.bandwidth_)

    def _double_scope(self) -> Any:
        from unlazy.core.precision import precision

        return precision("float64")


def _prepared(given: Training, regression: bool) -> tuple[Training, np.ndarray, np.ndarray]:
    """Equal rows as one, labels in units of their own spread; their center and spread."""
    data = _double(given).merged()
    if len(data.X) <= thresholds.MANY:
        data = data.rows(np.lexsort(data.X.T[::-1]))  # the order of rows is not information
    center = mean(data.Y, data.weights)
    spread = np.sqrt(mean((data.Y - center) ** 2, data.weights))
    spread = np.where(spread > 0, spread, 1) if regression else np.ones_like(spread)
    return data._replace(Y=(data.Y - center) / spread), center, spread


def _double(data: Training) -> Training:
    """Search and last fit run in float64 on the host whatever the estimator's precision: they are small."""
    w = data.weights
    return Training(data.X.astype(np.float64), data.Y.astype(np.float64), None if w is None else w.astype(np.float64))
