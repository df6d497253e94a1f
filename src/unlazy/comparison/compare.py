"""`unlazy.compare`: whether feature learning pays on a table, with tables, figures, a fitted model and a page."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from unlazy.comparison.argument_parsing import parse_budget
from unlazy.comparison.data.leakage import find_suspects, leave_out
from unlazy.comparison.data.reading import read_table
from unlazy.comparison.data.table import EncodedTable, make_table
from unlazy.comparison.options import StudyOptions, TableOptions
from unlazy.comparison.report import figures, held_out_figures, prose
from unlazy.comparison.report.findings import Findings, chosen_model
from unlazy.comparison.report.page import write_page
from unlazy.comparison.study.final_fit import final_fits
from unlazy.comparison.study.metrics import choose_metric
from unlazy.comparison.study.model import interval_bounds, save_model
from unlazy.comparison.study.plan import BudgetClock
from unlazy.comparison.study.study import run_study
from unlazy.comparison.study.suspect_errors import measure_suspect_errors, set_aside
from unlazy.comparison.study.verdict import decide_verdict
from unlazy.comparison.study.workers import start_workers
from unlazy.core.progress import ProgressOption
from unlazy.lab.runner.engines import TrialEngine

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison(Findings):
    """Result of `unlazy.compare`.

    `print` it for the answer in words. Tables are pandas data frames; all of them are computed when first read.

    Attributes
    ----------
    verdict : Verdict
        `verdict.word` is 'pays', 'does not pay', 'undecided' or 'noise'; `verdict.ratio` is the risk of the best model
        with fixed features over that of the best model that learns features, with its 95% interval.
    models : pandas.DataFrame
        Each model at the largest training size it was run at, finalists first. A risk of 1 is that of a constant.
    inputs : pandas.DataFrame
        Importance of each input by permutation, and whether it matters significantly.
    directions : pandas.DataFrame
        Leading directions of the model that learned features, one column each.
    curve_table : pandas.DataFrame
        Risk of each trial: model, number of training rows, split.
    ratio_table : pandas.DataFrame
        Risk of each model over that of the chosen model, paired over splits.
    chosen : str
        Name of the recommended model.
    suspects : tuple of Suspect
        Inputs that may leak the target, identifiers and row numbers. Nothing else uses them, unless they are kept.
    suspects_kept : bool
        Whether the models have them as inputs after all: on request, or because there is no other input.
    suspect_errors : SuspectErrors or None
        Error of the chosen model with and without the suspects, on the same test rows; None if there are none, or if
        there was no time.
    law : MoreRowsLaw or None
        Predicted risk of the best fixed kernel with twice the rows.
    final : FinalModel or None
        The fitted model; None with `fit=False`.
    study : Study
        The table and the records of all trials.
    notes : tuple of str
        Automatic corrections, dropped rows and columns, and limits set by the budget.

    Examples
    --------
    >>> import numpy as np, unlazy
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> models = ("gaussian", "feature_machine")
    >>> c = unlazy.compare(X, X[:, 0] ** 2, budget=20, models=models, study=unlazy.StudyOptions(engine="inline"))
    >>> c.predict(X[:3]).shape
    (3,)
    """

    def __str__(self) -> str:
        return "\n".join([prose.headline(self), *prose.sentences(self), *(f"Note: {note}." for note in self.notes)])

    def predict(self, X: "ArrayLike | pd.DataFrame") -> np.ndarray:
        """Predict with the fitted model.

        Parameters
        ----------
        X : pandas.DataFrame or array of shape (n, columns)
            New rows. The columns of a data frame are matched by name.

        Returns
        -------
        numpy.ndarray of shape (n,)
            Predicted values, or class labels.

        Raises
        ------
        ValueError
            If no model was fitted (`fit=False`), or if columns are missing.
        """
        return self._model.predict(self._inputs(X))

    def predict_interval(self, X: "ArrayLike | pd.DataFrame", level: float = 0.9) -> np.ndarray:
        """Prediction intervals of a regression, from the residuals of held-out rows.

        The radius follows the row: it is learned from residuals of held-out rows with similar predictions and inputs,
        unless equal radii are as good, and scaled by an order statistic. No distribution is assumed, and the level
        holds on average over rows like those of the table. If no target of the table is negative, lower ends
        below zero are set to zero.

        Parameters
        ----------
        X : pandas.DataFrame or array of shape (n, columns)
            New rows.
        level : float, default 0.9
            Probability that an interval contains the target of a new row.

        Returns
        -------
        numpy.ndarray of shape (n, 2)
            Lower and upper ends.

        Raises
        ------
        ValueError
            If no model was fitted, if it predicts classes, or if there are too few held-out rows for `level`.
        """
        return interval_bounds(self._model, self._inputs(X), level)

    def save(self, path: str | Path) -> Path:
        """Save the fitted model to a file.

        `unlazy.load` and the command `unlazy predict` read it.

        Parameters
        ----------
        path : str or Path
            File to write, such as 'model.unlazy'.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ValueError
            If no model was fitted (`fit=False`).
        """
        self._model  # noqa: B018  raises if there is no model
        assert self.final is not None
        return save_model(self.final, path)

    def plot_curves(self) -> "Figure":
        """Plot learning curves with their standard deviations over splits.

        The curve of the chosen model is extrapolated beyond the largest training size.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        return figures.curves_figure(self)

    def plot_models(self) -> "Figure":
        """Plot the error of each model over that of the chosen model, paired over splits.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        return figures.models_figure(self)

    def plot_held_out(self) -> "Figure":
        """Plot true against predicted values of held-out rows, or the calibration of class probabilities.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        ValueError
            If the trials, read from an older store, have no predictions.
        """
        if self.held_out is None:
            raise ValueError("the stored trials have no predictions; run the comparison again with another store")
        return held_out_figures.held_out_figure(self)

    def plot_partial(self) -> "Figure":
        """Plot the partial dependence of the fitted model on the most important inputs and the first learned direction.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.

        Raises
        ------
        ValueError
            If no model was fitted (`fit=False`).
        """
        self._model  # noqa: B018  raises if there is no model
        return held_out_figures.partial_figure(self)

    def plot_structure(self) -> "Figure":
        """Plot the importance of the inputs and the spectrum of the average gradient outer product.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        return figures.structure_figure(self)

    def page(self, folder: str | Path) -> Path:
        """Write the results as a self-contained HTML page.

        Parameters
        ----------
        folder : str or Path
            Folder for compare.html and figures/*.png, *.pdf; created if needed.

        Returns
        -------
        Path
            The file compare.html.

        Raises
        ------
        UnlazyError
            If the folder cannot be written.
        """
        return write_page(self, Path(folder))

    @property
    def _model(self) -> Any:
        """The fitted pipeline; raise ValueError if there is none."""
        if self.final is None:
            raise ValueError("no model was fitted; call compare with study=StudyOptions(fit=True)")
        return self.final.model

    def _inputs(self, X: "ArrayLike | pd.DataFrame") -> "ArrayLike | pd.DataFrame":
        """The inputs of the model if X is an array that also has the columns that were left out, else X."""
        if hasattr(X, "columns") or not self.suspects or self.suspects_kept:
            return X
        array, mine = np.asarray(X), list(self.study.table.frame.columns)
        if array.ndim != 2 or array.shape[1] <= len(mine):
            return X
        frame = pd.DataFrame(array, columns=[f"x{j}" for j in range(array.shape[1])])
        return frame[mine] if set(mine) <= set(frame.columns) else X


def compare(
    X: "str | Path | ArrayLike | pd.DataFrame", y: "ArrayLike | pd.Series | None" = None, *, target: str | None = None,
    budget: str | float = "2m", models: Sequence[str] = (), table: TableOptions | None = None,
    study: StudyOptions | None = None, progress: ProgressOption = False, random_state: int = 0,
) -> Comparison:  # fmt: skip
    """Find out whether feature learning pays on a table, and fit the model that one would use.

    Inputs that look like leaks of the target, identifiers or row numbers are left out by default.

    Compares the best model with fixed features (kernels, random features) with the best model that learns features
    (feature machine [D11], trained network), with tree ensembles as a reference. Models are selected on training rows
    and compared on the test rows of several random splits.

    Parameters
    ----------
    X : pandas.DataFrame, array of shape (n, columns), str or Path
        Inputs; or the name of a CSV, Parquet or npz file, or of a toy dataset such as 'diabetes'.
    y : array of shape (n,) or pandas.Series, optional
        Targets. Omit them if `X` is a file, or a data frame that contains the column `target`.
    target : str, optional
        Column to predict.
    budget : str or float, default '2m'
        Time for the whole comparison: '90s', '2m', '1h' or a number of seconds.
    models : sequence of str, default ()
        Names of the models to compare, such as 'gaussian', 'feature_machine' and 'boosting'; by default all. At least
        one with fixed and one with learned features.
    table : TableOptions, optional
        Task, columns to remove, categorical columns, groups and times, and whether suspicious inputs are kept.
    study : StudyOptions, optional
        Folder of stored trials, workers, the measure of error, and whether a model is fitted at the end.
    progress : bool or callable, default False
        Whether to show progress bars, or a function called with a `Progress` after every trial.
    random_state : int, default 0
        Seed of the random splits.

    Returns
    -------
    Comparison
        The verdict, its evidence and the fitted model.

    Raises
    ------
    ValueError
        If arguments are inconsistent, or a model is unknown.
    UnlazyError
        If the file cannot be read, the table cannot be compared (too few rows, constant target, columns that mix text
        and numbers), or no split finishes within the budget.

    Examples
    --------
    >>> import numpy as np, unlazy
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> models = ("gaussian", "feature_machine")
    >>> c = unlazy.compare(X, X[:, 0] ** 2, budget=20, models=models, study=unlazy.StudyOptions(engine="inline"))
    >>> sorted(c.models["name"])
    ['feature_machine', 'gaussian']
    """
    clock = BudgetClock(parse_budget(budget))
    reading, study = dict(vars(table or TableOptions())), study or StudyOptions()
    keep_suspects = reading.pop("keep_suspects")
    if isinstance(X, str | Path):
        if y is not None:
            raise ValueError(f"the target of {X} is one of its columns; name it with target= and omit y")
        rows = read_table(X, target, **reading)
    else:
        rows = make_table(*_inputs_and_target(X, y, target), **reading)
    with (
        tempfile.TemporaryDirectory(prefix="unlazy-") as scratch,
        start_workers(study.engine, study.n_jobs, study.address) as workers,
    ):
        return compare_table(
            rows, clock=clock, models=tuple(models), store=study.store or scratch, workers=workers, progress=progress,
            study=study, keep_suspects=keep_suspects, seed=random_state,
        )  # fmt: skip


def compare_table(
    table: EncodedTable, *, clock: BudgetClock, store: str | Path, workers: TrialEngine, models: tuple[str, ...] = (),
    progress: ProgressOption = False, study: StudyOptions | None = None, keep_suspects: bool = False, seed: int = 0,
) -> Comparison:  # fmt: skip
    """Run the comparison on a validated table with a running clock and started workers.

    Inputs that may be leaks or identifiers are left out, unless `keep_suspects` is true or there is no other input. A
    small part of the budget shows the error of the chosen model with them.
    """
    options = study or StudyOptions()
    choose_metric(table, options.metric)  # report a metric that does not fit before any trial
    suspects = find_suspects(table)
    names = [one.name for one in suspects]
    alone = len(names) == table.frame.shape[1]
    rest = table if alone or not names else leave_out(table, names)
    kept = bool(names) and (keep_suspects or alone)
    inputs = table if kept else rest
    clock.aside = set_aside(clock) if names and not alone else 0.0
    found = run_study(
        inputs, budget=clock.budget, clock=clock, fit=options.fit, seed=seed, store=store, candidates=models,
        engine=workers, progress=progress,
    )  # fmt: skip
    found = replace(found, asked_metric=options.metric)
    verdict = decide_verdict(found)
    errors = final = law = None
    if clock.aside:
        other = replace(rest if kept else table, groups=inputs.groups)  # the same splits
        clock.aside = 0.0
        errors = measure_suspect_errors(
            found, other, chosen_model(found, verdict), clock, store=store, workers=workers, kept=kept, seed=seed,
            progress=progress,
        )  # fmt: skip
    if options.fit:
        final, law = final_fits(found, inputs, verdict, workers, clock, seed, store)
    return Comparison(found, verdict, final, law, suspects, kept, errors)


def _inputs_and_target(X: Any, y: Any, target: str | None) -> tuple[Any, Any]:
    """Separate inputs and target if `y` is a column of the data frame X."""
    if y is not None:
        return X, y
    if not isinstance(X, pd.DataFrame) or target not in X.columns:
        raise ValueError("pass y, or a data frame and the name of its target column: compare(frame, target='price')")
    return X.drop(columns=target), X[target]
