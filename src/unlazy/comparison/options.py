"""Options of `unlazy.compare` that most calls leave at their defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unlazy.comparison.study.metrics import check_metric
from unlazy.core.errors import check_positive_integer
from unlazy.lab.runner.engines import TrialEngine


@dataclass(frozen=True)
class TableOptions:
    """How `unlazy.compare` reads a table: the task and the roles of columns.

    Parameters
    ----------
    task : {'regression', 'classification'}, optional
        Inferred from the target by default.
    drop : sequence of str, default ()
        Columns to remove.
    categorical : sequence of str, default ()
        Columns of numbers to treat as categories.
    group : str, optional
        Column of groups, such as patients. A group is never in both training and test rows.
    time : str, optional
        Column of times. Later rows are predicted from earlier ones.
    keep_suspects : bool, default False
        Whether inputs that look like leaks of the target, identifiers or row numbers are used. By default they are left
        out of all models, and their effect on the error is reported.

    Raises
    ------
    ValueError
        If `task` is unknown, or if `drop` or `categorical` is a string instead of a sequence of strings.

    Examples
    --------
    >>> from unlazy import TableOptions
    >>> TableOptions(drop=["id"], categorical=["month"]).drop
    ('id',)
    """

    task: str | None = None
    drop: Sequence[str] = ()
    categorical: Sequence[str] = ()
    group: str | None = None
    time: str | None = None
    keep_suspects: bool = False

    def __post_init__(self) -> None:
        if self.task not in (None, "regression", "classification"):
            raise ValueError(f"task must be 'regression' or 'classification', got {self.task!r}")
        for name in ("drop", "categorical"):
            columns = getattr(self, name)
            if isinstance(columns, str):
                raise ValueError(f"{name} must be a sequence of column names, got {columns!r}; pass [{columns!r}]")
            object.__setattr__(self, name, tuple(columns))


@dataclass(frozen=True)
class StudyOptions:
    """Where the trials of `unlazy.compare` run and are stored, the error they are judged by, and the final fit.

    Parameters
    ----------
    store : str or Path, optional
        Folder for finished trials. A second call with the same store, or with a larger budget, resumes from them. By
        default nothing is stored.
    n_jobs : int, optional
        Number of worker processes; by default one per core.
    engine : {'local', 'dask', 'inline'} or TrialEngine, default 'local'
        Where trials run: in worker processes, on a Dask cluster, or in this process.
    address : str, optional
        Address of a Dask scheduler, as tcp://host:port.
    fit : bool, default True
        Fit the chosen model to all rows at the end, for `predict` and `save`.
    metric : {'rmse', 'brier', 'accuracy', 'log_loss', 'average_precision'}, optional
        Measure of error of the verdict. By default 'rmse' for a regression. For two classes, 'average_precision' of the
        smaller one if it has less than a tenth of the rows, else 'brier', the squared error of the probabilities. For
        more classes, 'log_loss' if one has more than 80% of the rows, else 'accuracy'.

    Raises
    ------
    ValueError
        If `n_jobs` is not a positive integer, or `metric` is unknown.

    Examples
    --------
    >>> from unlazy import StudyOptions
    >>> StudyOptions(engine="inline", fit=False).store is None
    True
    """

    store: str | Path | None = None
    n_jobs: int | None = None
    engine: str | TrialEngine = "local"
    address: str | None = None
    fit: bool = True
    metric: str | None = None

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.n_jobs is not None:
            check_positive_integer("n_jobs", self.n_jobs)
