"""`unlazy.compare(X, y)`: the comparison as a value, its tables as pandas, its figures, its model and its page."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison.cli_options import parse_budget
from unlazy.comparison.data.leakage import suspects
from unlazy.comparison.data.reading import read_table
from unlazy.comparison.data.table import Table, make_table
from unlazy.comparison.report import figures, held_out_figures, prose
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.page import write_page
from unlazy.comparison.study.final_fit import ending
from unlazy.comparison.study.model import model_interval, save_model
from unlazy.comparison.study.plan import Clock
from unlazy.comparison.study.study import run_study
from unlazy.comparison.study.verdict import judge
from unlazy.comparison.study.workers import begun
from unlazy.lab.runner.engines import Engine

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison(Findings):
    """Findings that can be printed, drawn, written as a page, and asked for predictions."""

    def __str__(self) -> str:
        return "\n".join([prose.headline(self), *prose.sentences(self), *(f"Note: {note}." for note in self.notes)])

    def predict(self, X: Any) -> np.ndarray:
        """Predictions of the fitted model; columns are matched by name."""
        return self._model.predict(X)

    def save(self, path: str | Path) -> Path:
        """Write the fitted model to a file for `unlazy.load` and `unlazy predict`."""
        self._model  # noqa: B018  the sentence, where there is none
        assert self.final is not None
        return save_model(self.final, path)

    def plot_curves(self) -> "Figure":
        """Learning curves with their spread, and the best one's law beyond the last size."""
        return figures.curves_figure(self)

    def plot_models(self) -> "Figure":
        """Every model's error over the chosen one's, paired over splits."""
        return figures.models_figure(self)

    def predict_interval(self, X: Any, level: float = 0.9) -> np.ndarray:
        """Ends of prediction intervals, (rows, 2), from residuals of held-out rows: for numbers, not for classes."""
        return model_interval(self._model, X, level)

    def plot_held_out(self) -> "Figure":
        """Predicted against true at rows not trained on; for classes how likely against how often."""
        if self.held_out is None:
            raise ValueError("the trials kept no predictions: run the comparison again with another store")
        return held_out_figures.held_out_figure(self)

    def plot_partial(self) -> "Figure":
        """What the fitted model predicts along the most important inputs and the first learned direction."""
        self._model  # noqa: B018  the sentence, where there is none
        return held_out_figures.partial_figure(self)

    def plot_structure(self) -> "Figure":
        """Spectrum of the average gradient outer product, and the inputs that matter."""
        return figures.structure_figure(self)

    def page(self, folder: str | Path) -> Path:
        """Write compare.html, which needs nothing else, and figures/*.png into `folder`."""
        return write_page(self, Path(folder))

    @property
    def _model(self) -> Any:
        if self.final is None:
            raise ValueError("no model was fitted: call compare with fit=True")
        return self.final.model


def compare(
    X: Any, y: Any = None, *, target: str | None = None, task: str | None = None, budget: str | float = "2m",
    models: tuple[str, ...] = (), drop: tuple[str, ...] = (), categorical: tuple[str, ...] = (),
    group: str | None = None, time: str | None = None,
    store: str | Path | None = None, jobs: int | None = None, engine: Any = "local", address: str | None = None,
    progress: bool = True, fit: bool = True, seed: int = 0,
) -> Comparison:  # fmt: skip
    """Does feature learning pay on these data?

    `X` is a frame or an array of inputs with targets `y`, or a file (CSV, Parquet, npz) or toy set with the column
    `target`. `budget` is the time until the answer ("90s", "2m"); `store` a folder in which finished trials are kept,
    so that a second call, or one with a larger budget, goes on where the first was stopped; `seed` draws other
    splits; `engine`, `jobs` and `address` are those of `lab.runner.run`. Rows with one value of the column `group` stay
    on the same side of every split; with a column `time` later rows are predicted from earlier ones.

    >>> c = unlazy.compare(X, y, budget="1m")
    >>> c.verdict.word, c.verdict.ratio, c.models, c.inputs[c.inputs.matters]
    """
    clock = Clock(parse_budget(budget))
    options: dict[str, Any] = {
        "task": task, "drop": tuple(drop), "categorical": tuple(categorical), "group": group, "time": time,
    }  # fmt: skip
    if isinstance(X, str | Path):
        if y is not None:
            raise ValueError(f"{X} brings its own target: name its column with target=, and leave y out")
        table = read_table(X, target, **options)
    else:
        table = make_table(*_given(X, y, target), **options)
    with tempfile.TemporaryDirectory(prefix="unlazy-") as scratch, begun(engine, jobs, address) as workers:
        return compare_table(
            table, clock=clock, models=tuple(models), store=scratch if store is None else store, workers=workers,
            progress=progress, fit=fit, seed=seed,
        )  # fmt: skip


def compare_table(
    table: Table, *, clock: Clock, store: str | Path, workers: Engine, models: tuple[str, ...] = (),
    progress: bool = True, fit: bool = True, seed: int = 0,
) -> Comparison:  # fmt: skip
    """The same for a table that was read already, by a clock that runs already and workers that are begun. Where an
    input is a likely leak the verdict is given without it as well, in the second half of the time."""
    doubtful = suspects(table)
    options: dict[str, Any] = {"store": store, "contestants": models, "engine": workers, "progress": progress}
    without = final = law = None
    first = clock.part(0.5) if doubtful else clock
    study = run_study(table, budget=first.budget, clock=first, fit=fit and not doubtful, seed=seed, **options)
    if doubtful:
        rest = table.without([s.name for s in doubtful])
        second = run_study(rest, budget=clock.budget / 2, clock=clock, fit=fit, seed=seed, **options)
        without = Findings(second, judge(second), None)
    verdict = judge(study)
    if fit:
        final, law = ending(study, table, verdict, workers, clock, seed, store)
    return Comparison(study, verdict, final, law, doubtful, without)


def _given(X: Any, y: Any, target: str | None) -> tuple[Any, Any]:
    import pandas as pd

    if y is not None:
        return X, y
    if not isinstance(X, pd.DataFrame) or target not in X.columns:
        raise ValueError("give y, or a frame and the name of its target column: compare(frame, target='price')")
    return X.drop(columns=target), X[target]
