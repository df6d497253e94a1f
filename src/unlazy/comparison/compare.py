"""`unlazy.compare(X, y)`: the comparison as a value, its tables as pandas, its figures, its model and its page."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison import figures, words
from unlazy.comparison.findings import Findings, models_table
from unlazy.comparison.model import final_model, save_model
from unlazy.comparison.page import write_page
from unlazy.comparison.reading import read_table
from unlazy.comparison.study import parse_budget, run_study
from unlazy.comparison.table import Table, make_table
from unlazy.comparison.verdict import judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison(Findings):
    """Findings that can be printed, drawn, written as a page, and asked for predictions."""

    def __str__(self) -> str:
        return "\n".join([words.headline(self), *words.sentences(self), *(f"Note: {note}." for note in self.notes)])

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
        """Every model's risk at the largest size."""
        return figures.models_figure(self)

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
    store: str | Path | None = None, jobs: int | None = None, engine: Any = "local", address: str | None = None,
    progress: bool = True, fit: bool = True,
) -> Comparison:  # fmt: skip
    """Does feature learning pay on these data?

    `X` is a frame or an array of inputs with targets `y`, or a file (CSV, Parquet, npz) or toy set with the column
    `target`. `budget` is the time to spend ("90s", "2m"); `store` a folder in which finished trials are kept, so that
    a second call goes on where the first was stopped; `engine`, `jobs` and `address` are those of `lab.run`.

    >>> c = unlazy.compare(X, y, budget="1m")
    >>> c.verdict.word, c.verdict.ratio, c.models, c.inputs[c.inputs.matters]
    """
    seconds = parse_budget(budget)
    if isinstance(X, str | Path):
        if y is not None:
            raise ValueError(f"{X} brings its own target: name its column with target=, and leave y out")
        table = read_table(X, target, task=task, drop=tuple(drop), categorical=tuple(categorical))
    else:
        table = _given(X, y, target, task, tuple(drop), tuple(categorical))
    with tempfile.TemporaryDirectory(prefix="unlazy-") as scratch:
        return compare_table(
            table, budget=seconds, models=tuple(models), store=scratch if store is None else store, jobs=jobs,
            engine=engine, address=address, progress=progress, fit=fit,
        )  # fmt: skip


def compare_table(
    table: Table, *, budget: float, store: str | Path, models: tuple[str, ...] = (), jobs: int | None = None,
    engine: Any = "local", address: str | None = None, progress: bool = True, fit: bool = True,
) -> Comparison:  # fmt: skip
    """The same for a table that was read already."""
    study = run_study(
        table, budget=budget, store=store, contestants=models, jobs=jobs, engine=engine, address=address,
        progress=progress,
    )  # fmt: skip
    verdict = judge(study)
    final = final_model(study, table, models_table(study)) if fit else None
    return Comparison(study, verdict, final)


def _given(
    X: Any, y: Any, target: str | None, task: str | None, drop: tuple[str, ...], categorical: tuple[str, ...]
) -> Table:
    import pandas as pd

    if y is None:
        if not isinstance(X, pd.DataFrame) or target not in X.columns:
            raise ValueError("give y, or a frame and the name of its target column: compare(frame, target='price')")
        X, y = X.drop(columns=target), X[target]
    return make_table(X, y, task=task, drop=drop, categorical=categorical)
