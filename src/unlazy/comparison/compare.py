"""`unlazy.compare(X, y)`: the comparison as a value, its tables as pandas, its figures, its model and its page."""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unlazy.comparison import findings, words
from unlazy.comparison.curves import Curve
from unlazy.comparison.final import Final, final_model, save_model
from unlazy.comparison.study import Study, parse_budget, run_study
from unlazy.comparison.table import Table, make_table, read_table
from unlazy.comparison.verdict import Verdict, judge
from unlazy.measures.scaling_fit import Interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Comparison:
    """Does feature learning pay on this table? The answer is `verdict.word`; all else is its evidence."""

    study: Study
    verdict: Verdict
    final: Final | None
    """The fitted model that can be saved; None where none was asked for."""

    @cached_property
    def models(self) -> "pd.DataFrame":
        """Every model at the largest size, best first. Risk 1 is the constant's; low and high its 95% interval."""
        return findings.models_table(self.study)

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Learning curves by model."""
        return findings.curves(self.study)

    @cached_property
    def curve_table(self) -> "pd.DataFrame":
        """Every trial's risk: model, n, split, risk, error estimated on training rows, seconds of work."""
        names = {"contestant": "model", "inner": "training_error", "work": "seconds_of_work"}
        frame = self.study.records.frame().rename(columns=names)
        kept = ["model", "n", "split", "risk", "training_error", "seconds_of_work"]
        return frame[[*kept, *(["mistakes"] if "mistakes" in frame else [])]]

    @cached_property
    def structure(self) -> findings.Structure | None:
        return findings.structure(self.study, self.verdict)

    @cached_property
    def inputs(self) -> "pd.DataFrame":
        """Every input: its share of the rise of the risk when inputs are shuffled, and whether it surely matters."""
        import pandas as pd

        if self.structure is None:
            return pd.DataFrame({"input": [], "share": [], "low": [], "high": [], "matters": np.zeros(0, bool)})
        return findings.inputs_table(self.study, self.structure)

    @cached_property
    def directions(self) -> "pd.DataFrame":
        """Leading directions of the rich model, a column each, in units of standardised inputs."""
        import pandas as pd

        from unlazy.estimators.table_encoder import TableEncoder

        if self.structure is None or self.structure.directions is None:
            return pd.DataFrame()
        V = self.structure.directions
        names = TableEncoder().fit(self.study.table.frame, self.study.table.y).names_
        index = names if len(names) == V.shape[1] else None
        return pd.DataFrame(V.T, index=index, columns=[f"direction {k + 1}" for k in range(len(V))])

    @cached_property
    def isotropic(self) -> Interval:
        """Risk of the best isotropic kernel over that of the best rich model."""
        return findings.isotropic_ratio(self.study)

    @cached_property
    def expected(self) -> Interval:
        """Risk to expect of the best model, in units of the constant's."""
        return findings.expected_risk(self.study)

    @cached_property
    def character(self) -> findings.Character:
        """Whether the target is closer to smooth, low-dimensional, or neither."""
        return findings.character(self.study, self.verdict, self.models, self.structure)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was mended, left out or cut short."""
        return (*self.study.table.notes, *self.study.notes, *(self.final.notes if self.final else ()))

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
        from unlazy.comparison.figures import curves_figure

        return curves_figure(self)

    def plot_models(self) -> "Figure":
        """Every model's risk at the largest size."""
        from unlazy.comparison.figures import models_figure

        return models_figure(self)

    def plot_structure(self) -> "Figure":
        """Spectrum of the average gradient outer product, and the inputs that matter."""
        from unlazy.comparison.figures import structure_figure

        return structure_figure(self)

    def page(self, folder: str | Path) -> Path:
        """Write compare.html, which needs nothing else, and figures/*.png into `folder`."""
        from unlazy.comparison.page import write_page

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
    final = final_model(study, table, findings.models_table(study)) if fit else None
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
