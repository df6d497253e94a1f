"""Base class of the feature machines [D11]: encoding of columns, search of a metric, final fit and predictions."""

import abc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from unlazy._version import VERSION
from unlazy.core import arrays, devices
from unlazy.core.arrays import Labels, Points, dot
from unlazy.core.fingerprint import fingerprint
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.core.threads import half_threaded_blas, limit_threads, single_threaded_blas
from unlazy.estimators.base import Estimator, TrainingData, places_in
from unlazy.estimators.feature_search import KernelCandidate, SearchOptions, Selected, constants, select
from unlazy.estimators.feature_search.choices import (
    LabelChoice,
    choose_encoding,
    choose_labels,
    choose_labels_large,
    list_candidates,
)
from unlazy.estimators.feature_search.effort import Effort, find_effort
from unlazy.estimators.feature_search.ensemble import EnsembleMember, fit_member, unexplained_share
from unlazy.estimators.feature_search.final_fit import fit_all_rows
from unlazy.estimators.feature_search.kernel_model import (
    FinalFitProblem,
    KernelModel,
    mean_squared_gradients,
    predict_rows,
)
from unlazy.estimators.feature_search.progress import TOTAL, FitProgress, expected_work
from unlazy.estimators.feature_search.stage_checkpoints import Stages
from unlazy.estimators.feature_search.successive_halving import (
    HalvingCandidate,
    HalvingResult,
    compile_programs_ahead,
    retry_on_out_of_memory,
    successive_halving,
)
from unlazy.estimators.preprocessing.columns import ColumnScale, IntegerCodes, encoding_options
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.kernels.radial import Laplace
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.ridge import weighted_mean
from unlazy.training.rfm.iteration import apply_steps, isotropic_metric, metric_root, normalize_metric
from unlazy.training.rfm.partition import Tree

if TYPE_CHECKING:
    from unlazy.solvers.learning_curve import LearningCurve, Numbers
else:  # imported when a learning curve is asked for
    LearningCurve = Numbers = Any

IGNORED_IN_CHECKPOINT = ("progress", "checkpoint", "precision", "n_jobs")
"""Parameters on which the stages of a fit do not depend."""


class FeatureMachine(Estimator):
    """Base class: f(x) = b + Σ_i α_i k(Lx/h, Lx_i/h) for scaled columns, with M = LᵀL learned from gradients."""

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
    categorical: Sequence[str | int] | None
    robust: bool
    average: bool
    effort: str
    tolerance: float
    precision: str | None
    progress: ProgressOption
    checkpoint: str | Path | None
    n_jobs: int | None
    X_fit_: np.ndarray
    dual_coef_: np.ndarray
    intercept_: np.ndarray
    _others_: list[dict[str, Any]]
    _tree_: dict[str, np.ndarray] | None

    def __init__(
        self, kernel=None, *, metric=None, updates=8, iterate="best", rank=None, start=None, relative_bandwidth=None,
        relative_ridge=None, standardize=True, categorical=None, robust=True, average=True, effort="medium",
        tolerance=1e-3, precision=None, random_state=0, progress=False, checkpoint=None, n_jobs=None,
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
        self.categorical = categorical
        self.robust = robust
        self.average = average
        self.effort = effort
        self.tolerance = tolerance
        self.precision = precision
        self.random_state = random_state
        self.progress = progress
        self.checkpoint = checkpoint
        self.n_jobs = n_jobs

    def _fit(self, given: TrainingData, regression: bool) -> tuple[np.ndarray, TrainingData, np.ndarray]:
        """Set the fitted attributes; return held-out predictions, the merged rows they belong to, and the place of each
        given row among these, -1 if it has none."""
        candidates, robust = self._candidates(given.X.shape), regression and self._chooses_labels
        if len(given.X) > constants.SINGLE_SPLIT_ROWS:
            devices.initialize_in_background()  # few rows are fitted without JAX
        data, place, center, spread = _prepare(given, regression)
        order = self._order(len(data.X))
        self._others_, self.outliers_, self.clip_ = [], "kept", np.full(len(spread), np.inf)
        rows = np.sort(order[: self._effort.search_rows])
        with self._float64_scope():
            data, found = self._encode_columns(candidates, data, order)
            if len(data.X) == 1 or not np.any(data.Y):
                self._constant(candidates[0], data, bool(np.any(given.Y[:1] != given.Y)))
                held_out, part, rows = data.Y, data, np.arange(len(data.X))
            elif len(data.X) <= constants.SINGLE_SPLIT_ROWS:
                part = data.rows(rows)
                found = found or self._select(candidates, part)
                chosen = LabelChoice([(found, data)], self.outliers_, self.clip_)
                if robust:
                    chosen = choose_labels(found, data, rows, self._select, self._fit_member)
                held_out = self._fit_few_rows(chosen, part)
            else:
                held_out, part = self._fit_many_rows(candidates, data, order, robust)
                rows = order[-len(part.X) :]
        self.clip_ = self.clip_ * spread
        self.intercept_ = (self.intercept_ * spread + center).astype(self._dtype)
        self.dual_coef_ = (self.dual_coef_ * spread).astype(self._dtype)
        self.X_fit_ = self.X_fit_.astype(self._dtype)
        for other in self._others_:
            other["intercept"] = (other["intercept"] * spread + center).astype(self._dtype)
            other["dual_coef"] = (other["dual_coef"] * spread).astype(self._dtype)
        place = places_in(rows, len(data.X))[place]
        return held_out * spread + center, part._replace(Y=part.Y * spread + center), place

    def _order(self, n: int) -> np.ndarray:
        """Random permutation of the rows, from `random_state`."""
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        return np.random.default_rng(seed).permutation(n)

    def learning_curve(self, X: Points, y: Labels, sizes: Numbers | None = None) -> LearningCurve:
        """Predict the expected squared error for other numbers of training rows [G1, G2].

        It takes one search and no further refits. Kernel, bandwidth and update steps are chosen once, on all rows
        (1,200 random ones if there are more). The metric is then relearned without each quarter of the rows, and that
        quarter, on whose labels it does not depend, is evaluated. The improvement of the metric with more rows is
        extrapolated from metrics of a quarter, a half and three quarters of the rows. Averaging (up to 400 rows) and
        clipped labels (`robust`) are not included. The estimator itself is not changed. `unlazy.learning_curve(machine,
        X, y)` is equivalent.

        Parameters
        ----------
        X : array of shape (n, d)
            Training points; equal rows count as one.
        y : array of shape (n,) or (n, outputs)
            Targets or class labels. For classes the error is that of the scores, summed over one-hot labels.
        sizes : array of numbers, optional
            Numbers of rows at which to predict the error. Default: from a quarter of the rows to sixteen times as many.

        Returns
        -------
        LearningCurve
            The predicted errors with their uncertainty.

        Raises
        ------
        ValueError
            If all labels are equal, there are fewer than 40 rows, or `class_weight` is set.

        Examples
        --------
        >>> import numpy as np
        >>> from unlazy import FeatureMachineRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 3))
        >>> y = np.sin(X[:, 0])
        >>> curve = FeatureMachineRegressor().learning_curve(X, y)
        """
        machine = clone(self).set_params(average=False)
        with limit_threads(self.n_jobs):
            return machine._curve(*machine._targets(X, y), sizes)

    @abc.abstractmethod
    def _targets(self, X: Points, y: Labels) -> tuple[TrainingData, bool]:
        """Validate X and y; return them and whether this is regression."""

    def _curve(self, given: TrainingData, regression: bool, sizes: Numbers | None) -> LearningCurve:
        """Compute the learning curve of validated data."""
        from unlazy.estimators.feature_machine.learning_curve import metric_curve
        from unlazy.solvers.learning_curve import DEFAULT_SIZES, validate_sizes

        if given.weights is not None:
            raise ValueError("a learning curve needs equal weights: do not set class_weight")
        candidates = self._candidates(given.X.shape)
        data, _, _, spread = _prepare(given, regression)
        data, order = data._replace(weights=None), self._order(len(data.X))
        asked = validate_sizes(len(data.X) * DEFAULT_SIZES if sizes is None else sizes, len(data.X))
        if not np.any(data.Y):
            raise ValueError("a learning curve needs labels that are not all equal")
        with self._float64_scope():
            data, found = self._encode_columns(candidates, data, order)
            rows = order[: self._effort.search_rows]
            found = found or self._select(candidates, data.rows(np.sort(rows)))
            part = data.rows(rows)
            with single_threaded_blas():
                return metric_curve(found, part, part.Y * spread, asked, partial(self._metric_of, found, part))

    def _metric_of(self, found: Selected, data: TrainingData, rows: np.ndarray) -> np.ndarray:
        """Learn the metric by the chosen steps from the given rows."""
        some, kind = data.rows(rows), found.candidate.metric
        start = None if self.start is None else normalize_metric(self._one_step_metric(some), kind)
        return apply_steps(found.steps, some.X, some.Y, kind, rank=self.rank, start=start)

    def _encode_columns(
        self, candidates: list[KernelCandidate], data: TrainingData, order: np.ndarray
    ) -> tuple[TrainingData, Selected | None]:
        """Encode integer codes as numbers or categories, and scale the columns.

        The encoding is chosen on a small sample; if that sample is all rows, its search is returned as well.
        """
        asked = () if self.categorical is not None and hasattr(self, "encoder_") else self.categorical
        options = encoding_options(data.X, asked, self._column_names)
        options = options[:1] if self._effort.one_kernel else options
        codes, found = options[0], None
        if len(data.X) > 1 and np.any(data.Y):
            rows = np.sort(order[: constants.ENCODING_SEARCH_ROWS])
            quick = len(data.X) > constants.ENCODING_SEARCH_ROWS and self._effort.quick_encoding
            search = partial(self._select, quick=quick)
            codes, found = choose_encoding(options, data.rows(rows), self.standardize, candidates, search)
        self._codes_ = codes._asdict()
        X = codes(data.X)
        columns = ColumnScale.from_data(X, data.weights, self.standardize)
        self.offset_, self.scale_ = columns.offset, columns.scale
        return data._replace(X=columns(X)), found if len(data.X) <= constants.ENCODING_SEARCH_ROWS else None

    def _select(self, candidates: Sequence[KernelCandidate], part: TrainingData, quick: bool = False) -> Selected:
        """Search the best candidate on these rows."""
        begin = None if self.start is None else lambda rows: self._one_step_metric(part.rows(rows))
        steps = len(candidates) * (self._most_updates + 1)
        with single_threaded_blas(), ProgressDisplay("learning a metric", steps, show=self.progress) as shown:
            options = replace(self._search_options, quick=quick)
            return select(candidates, part, options, begin=begin, advance=shown.advance)

    def _fit_few_rows(self, chosen: LabelChoice, part: TrainingData) -> np.ndarray:
        """Fit each chosen trajectory on all rows; return held-out predictions of `part`."""
        fits = []
        for best, data in chosen.fits:
            share = 1 / len(chosen.fits) / sum(one.weight for one in (best, *best.ties))
            fits += [self._fit_member(one, data)._replace(weight=share * one.weight) for one in (best, *best.ties)]
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
        self.leave_one_out_error_ = (
            float(best.error) if chosen.outliers == "kept" else unexplained_share(held_out, part)
        )
        return held_out

    def _fit_member(self, found: Selected, data: TrainingData) -> EnsembleMember:
        """Learn the metric of one choice on all rows and fit it."""
        start = None if self.start is None else normalize_metric(self._one_step_metric(data), found.candidate.metric)
        with half_threaded_blas():
            return fit_member(found, data, self.rank, start)

    def _fit_many_rows(
        self, candidates: list[KernelCandidate], data: TrainingData, order: np.ndarray, robust: bool
    ) -> tuple[np.ndarray, TrainingData]:
        """Choose by successive halving, then fit all rows; return held-out predictions and their rows."""
        given = data
        compile_programs_ahead(candidates, data, self._most_updates > 0)
        if robust:
            rows = np.sort(order[: self._effort.search_rows])
            chosen = choose_labels_large(candidates[0], data, rows, self._select, self._fit_member)
            self.outliers_, self.clip_ = chosen.outliers, chosen.clip
            data = chosen.fits[0][1] if chosen.fits else data
        found, (model, problem, best) = retry_on_out_of_memory(
            partial(self._run_successive_halving, candidates, data, order)
        )
        kernel, _ = best.candidate
        self._remember(kernel, best.metric, problem.map, problem.bandwidth, best.updates)
        self.relative_ridge_, self.ridge_ = problem.relative_ridge, model.ridge
        self.leave_one_out_error_ = float(best.error)
        self.X_fit_, self.dual_coef_, self.intercept_ = model.centers, model.alpha, model.intercept
        self.solver_, self.converged_ = model.solver, model.converged
        self._tree_ = None if model.tree is None else model.tree._asdict()
        if not best.updates:  # a learned metric already consists of gradients
            self.feature_importances_ = self._importances(
                best.metric, mean_squared_gradients(model, problem, found.training)
            )
        if self.outliers_ == "kept":
            return best.scored.held_out, found.validation
        validation = given.rows(order[-len(found.validation.X) :])  # with their original labels
        self.leave_one_out_error_ = unexplained_share(best.scored.held_out, validation)
        return best.scored.held_out, validation

    def _run_successive_halving(
        self, candidates: list[KernelCandidate], data: TrainingData, order: np.ndarray
    ) -> tuple[HalvingResult, tuple[KernelModel, FinalFitProblem, HalvingCandidate]]:
        """Return the result of successive halving and the final fit."""
        stages = self._stages(candidates, data, order)
        fixed = (self.relative_bandwidth, self.relative_ridge)
        with ProgressDisplay("learning a metric", TOTAL, show=self.progress) as shown:
            fit_progress = FitProgress(shown, expected_work(len(data.X), len(candidates), self._most_updates))
            stages.done = fit_progress.done
            begin = None if self.start is None else self._one_step_metric
            found = successive_halving(
                candidates, data, order, self._search_options, begin=begin, advance=fit_progress.tick, stages=stages
            )
            return found, fit_all_rows(found, data, fixed, self.tolerance, self._key(), self.progress, stages)

    @property
    def _search_options(self) -> SearchOptions:
        return SearchOptions(
            self._most_updates, self.relative_bandwidth, self.relative_ridge, self.rank,
            last=self.iterate == "last", average=self.average and not self._effort.one_kernel,
        )  # fmt: skip

    @property
    def _effort(self) -> Effort:
        return find_effort(self.effort)

    @property
    def _most_updates(self) -> int:
        """Largest number of metric updates."""
        return 0 if self._effort.one_kernel else self.updates

    @property
    def _chooses_labels(self) -> bool:
        """Whether heavy-tailed labels may be clipped."""
        return self.robust and not self._effort.one_kernel

    def _candidates(self, shape: tuple[int, int]) -> list[KernelCandidate]:
        """Kernels and metrics to choose from for a table of this shape."""
        found = list_candidates(self, shape)
        if not self._effort.one_kernel:
            return found
        return [next(c for c in found if self.kernel is not None or isinstance(c.kernel, Laplace))]

    def _stages(self, candidates: list[KernelCandidate], data: TrainingData, order: np.ndarray) -> Stages:
        """Stages of this fit, including those that an earlier run has stored."""
        if self.checkpoint is None:
            return Stages()
        if self.random_state is None:
            raise ValueError(
                "random_state=None differs in each run, so a checkpoint cannot resume: set random_state to an int"
            )
        asked = {
            name: value for name, value in self.get_params(deep=False).items() if name not in IGNORED_IN_CHECKPOINT
        }
        asked["random_state"] = order  # the permutation that it produced
        problem = {"settings": fingerprint(VERSION, asked, candidates), "data": fingerprint(data)}
        kernels = [c.kernel for c in candidates]
        return Stages(kernels, Checkpoint(self.checkpoint, 0.0, problem))

    def _remember(self, kernel: Kernel, M: np.ndarray, L: np.ndarray, h: float, updates: int) -> None:
        """Set the attributes of kernel, metric and bandwidth."""
        self._base_, self.map_, self.bandwidth_ = kernel, L, float(h)
        self.metric_, self.n_updates_ = M, int(updates)
        self.feature_importances_ = self._importances(M)

    def _importances(self, M: np.ndarray, slopes: np.ndarray | None = None) -> np.ndarray:
        """Share of each column in the squared gradients, or in the metric if the fit is constant."""
        weight = M if M.ndim == 1 else np.diag(M).copy()
        if slopes is not None and np.isfinite(slopes).all() and slopes.sum() > 0:
            weight = slopes
        if self.categories_:
            weight = np.bincount(self._integer_codes.source(self._n_columns), weight, self._n_columns)
        weight = self._per_input(weight)
        return weight / weight.sum()

    def _constant(self, candidate: KernelCandidate, data: TrainingData, varied: bool) -> None:
        """Fit a constant, for a single row or label; if equal rows had labels that `varied`, the error is one."""
        M = isotropic_metric(data.X.shape[1], candidate.metric)
        self._remember(candidate.kernel, M, metric_root(M), 1.0, 0)
        self.ridge_ = self.relative_ridge_ = 0.0
        self.leave_one_out_error_ = float(varied)
        self.solver_, self._tree_ = "constant", None
        self.X_fit_, self.dual_coef_ = data.X[:1], np.zeros((1, data.Y.shape[1]))
        self.intercept_ = weighted_mean(data.Y, data.weights)

    def _one_step_metric(self, data: TrainingData) -> np.ndarray:
        """W¹ᵀW¹ of Algorithm 1 [D4], summed over outputs."""
        from unlazy.training.one_step.algorithm import learn_features

        X, total = jnp.asarray(data.X), np.zeros((data.X.shape[1],) * 2)
        for y in data.Y.T:
            W = np.asarray(learn_features(X, jnp.asarray(y), key=self._key()).W)
            total += dot(W.T, W)
        return total if np.trace(total) > 0 else np.eye(len(total))

    def standardized(self, X: Points) -> np.ndarray:
        """Encode and scale X as the fitted kernel sees it.

        Parameters
        ----------
        X : array of shape (m, d)
            Points.

        Returns
        -------
        array of shape (m, n_encoded)
            Rows with integer codes encoded and columns scaled.
        """
        return (self._integer_codes(self._validate_inputs(X)) - self.offset_.astype(self._dtype)) / self.scale_.astype(
            self._dtype
        )

    def _scores(self, X: Points) -> np.ndarray:
        """Evaluate f at the rows of X, shape (m, c)."""
        Z = self.standardized(X)
        tree = getattr(self, "_tree_", None)
        parts = (self.X_fit_, self.dual_coef_, self.intercept_, None if tree is None else Tree(**tree))
        model = KernelModel(*parts, self.solver_, self.ridge_)
        found = predict_rows(self._base_, self.map_, self.bandwidth_, model, Z, self._dtype)
        others = getattr(self, "_others_", [])
        found = found if not others else self.members_[0]["weight"] * found
        for one in others:
            model = KernelModel(self.X_fit_, one["dual_coef"], one["intercept"], None, self.solver_, one["ridge"])
            seen = predict_rows(one["kernel"], one["map"], one["bandwidth"], model, Z, self._dtype)
            found = found + one["weight"] * seen
        return found

    @property
    def members_(self) -> list[dict[str, Any]]:
        """The fits whose weighted mean is predicted, the best first; usually one."""
        check_is_fitted(self)
        first = {
            "kernel": self._base_, "metric": self.metric_, "map": self.map_, "bandwidth": self.bandwidth_,
            "updates": self.n_updates_, "relative_ridge": self.relative_ridge_, "ridge": self.ridge_,
            "dual_coef": self.dual_coef_, "intercept": self.intercept_,
        }  # fmt: skip
        others = getattr(self, "_others_", [])
        return [{**first, "weight": 1 - sum(one["weight"] for one in others)}, *others]

    @property
    def _integer_codes(self) -> IntegerCodes:
        """The fitted encoding of integer codes."""
        return IntegerCodes(**getattr(self, "_codes_", {}))  # not in files of earlier versions

    @property
    def coding_(self) -> str:
        """Encoding of columns that look like codes: "numbers", "categories" or "numbers and categories"."""
        check_is_fitted(self)
        return self._integer_codes.coding

    @property
    def categories_(self) -> dict[int | str, np.ndarray]:
        """Values of each column that is encoded as categories, by column name, or index if there are no names."""
        codes = self._integer_codes
        names = self._column_names
        return {j if names is None else names[j]: values for j, values in zip(codes.columns, codes.levels)}

    @property
    def kernel_(self) -> Kernel:
        """The fitted kernel, for the scaled columns."""
        check_is_fitted(self)
        return apply_metric(self._base_, self.map_.astype(self._dtype) / self.bandwidth_)

    def _float64_scope(self) -> Any:
        return arrays.precision("float64")


def _prepare(given: TrainingData, regression: bool) -> tuple[TrainingData, np.ndarray, np.ndarray, np.ndarray]:
    """Merge equal rows and scale the labels.

    Return the data, the merged row to which each given row belongs, and center and scale of the labels.
    """
    data, place = _to_float64(given).merge_and_place()
    if len(data.X) <= constants.SINGLE_SPLIT_ROWS:
        order = np.lexsort(data.X.T[::-1])  # make the fit independent of the order of rows
        data, place = data.rows(order), places_in(order, len(data.X))[place]
    center = weighted_mean(data.Y, data.weights)
    spread = np.sqrt(weighted_mean((data.Y - center) ** 2, data.weights))
    spread = np.where(spread > 0, spread, 1) if regression else np.ones_like(spread)
    return data._replace(Y=(data.Y - center) / spread), place, center, spread


def _to_float64(data: TrainingData) -> TrainingData:
    """Convert to float64: search and final fit are small and always run in float64 on the host."""
    w = data.weights
    return TrainingData(
        data.X.astype(np.float64), data.Y.astype(np.float64), None if w is None else w.astype(np.float64)
    )
