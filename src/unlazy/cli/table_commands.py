"""Commands for the user's tables: compare, fit, predict."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import print_stderr, report_errors

app = typer.Typer()
began: float | None = None
"""Start time of the command, set by `main`: the budget includes the imports."""

Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="CSV, Excel, Parquet or npz file, or a toy dataset such as digits.")
]
Toy = Annotated[str | None, typer.Option("--data", help="The same as DATA.")]
Target = Annotated[str | None, typer.Option(help="Column to predict.")]
Task = Annotated[str | None, typer.Option(help="regression or classification (default: inferred from the target).")]
Drop = Annotated[list[str] | None, typer.Option(help="Column to remove; may be repeated.")]
Categorical = Annotated[
    list[str] | None, typer.Option(help="Column of numbers or text to treat as categories; may be repeated.")
]
Delimiter = Annotated[str | None, typer.Option(help="Delimiter of a CSV file (default: detected).")]
Budget = Annotated[str, typer.Option(help="Time limit for the whole command: 90s, 2m, 1h.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Compare only this model; may be repeated.")]
Jobs = Annotated[int | None, typer.Option("--n-jobs", help="Number of worker processes (default: one per core).")]
EngineName = Annotated[str, typer.Option("--engine", help="local, dask or inline.")]
Address = Annotated[str | None, typer.Option(help="Address of a Dask scheduler, as tcp://host:port.")]
Folder = Annotated[Path, typer.Option("--out", help="Folder for trials, page and model.")]
KeepSuspects = Annotated[
    bool,
    typer.Option(
        "--keep-suspects",
        help="Use inputs that look like leaks, identifiers or row numbers; text with a different value in nearly every "
        "row needs --categorical instead.",
    ),
]
MetricName = Annotated[
    str | None,
    typer.Option(
        "--metric", help="rmse; accuracy, log_loss, brier or average_precision (default: the one that fits the target)."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random splits.")]
Group = Annotated[str | None, typer.Option(help="Column of groups; a group is never in both training and test rows.")]
Time = Annotated[str | None, typer.Option(help="Column of times; later rows are predicted from earlier ones.")]
Resume = Annotated[bool, typer.Option("--resume/--fresh", help="Reuse stored trials, or run all without storing them.")]


@app.command()
def compare(
    data: Data = None, toy: Toy = None, target: Target = None, task: Task = None, budget: Budget = "2m",
    model: Models = None, drop: Drop = None, categorical: Categorical = None, delimiter: Delimiter = None,
    jobs: Jobs = None, engine: EngineName = "local", address: Address = None, out: Folder = Path("compare"),
    resume: Resume = True, seed: Seed = 0, group: Group = None, time: Time = None,
    keep_suspects: KeepSuspects = False, metric: MetricName = None,
) -> None:  # fmt: skip
    """Find out whether feature learning pays on a table; write a page and a model for `unlazy predict`."""
    with report_errors():
        from unlazy.comparison.argument_parsing import parse_budget, resolve_source
        from unlazy.comparison.study.metrics import check_metric
        from unlazy.comparison.study.workers import start_workers

        source, seconds = _source(data, toy), parse_budget(budget)
        resolve_source(source)  # report bad arguments before workers start
        check_metric(metric)
        with tempfile.TemporaryDirectory(prefix="unlazy-") as scratch, start_workers(engine, jobs, address) as workers:
            from unlazy.comparison.compare import compare_table
            from unlazy.comparison.options import StudyOptions
            from unlazy.comparison.study.plan import BudgetClock

            clock = BudgetClock(seconds, began)
            table = _table(source, target, task, delimiter, drop, categorical, group=group, time=time)
            found = compare_table(
                table, clock=clock, models=tuple(model or ()), store=out if resume else scratch, workers=workers,
                progress=True, study=StudyOptions(metric=metric), keep_suspects=keep_suspects, seed=seed,
            )  # fmt: skip
        _print(found)
        saved = found.save(_make_folder(out) / "model.unlazy")
        typer.echo(f"Model: {saved} (use it with: unlazy predict {saved} NEWDATA)")
        typer.echo(f"Page: {found.page(out)}")


@app.command()
def fit(
    data: Data = None, toy: Toy = None, target: Target = None,
    model: Annotated[str, typer.Option(help="Model to fit.")] = "feature_machine",
    task: Task = None, drop: Drop = None, categorical: Categorical = None, delimiter: Delimiter = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("model.unlazy"),
) -> None:  # fmt: skip
    """Tune and fit one model to a table, and save it for `unlazy predict`."""
    with report_errors():
        from unlazy.comparison.argument_parsing import resolve_source
        from unlazy.comparison.report.paired_ratios import format_number
        from unlazy.comparison.study.candidates import CANDIDATES, find_candidate
        from unlazy.comparison.study.model import fit_table, save_model
        from unlazy.core.errors import did_you_mean

        able = [name for name, c in CANDIDATES.items() if c.saveable]
        if model not in CANDIDATES:
            raise ValueError(f"unknown model {model!r}{did_you_mean(model, able)}")
        if model not in able:
            raise ValueError(f"{model} cannot be saved to a file without code; choose one of {', '.join(able)}")
        source = _source(data, toy)
        resolve_source(source)
        _make_folder(out.parent)  # before the fit
        if out.is_dir():
            raise ValueError(f"{out} is a folder; name a file with --out, such as {out / 'model.unlazy'}")
        table = _table(source, target, task, delimiter, drop, categorical, splits=False)
        _print_suspects(table)
        found = fit_table(table, model)
        saved = save_model(found, out)
        typer.echo(
            f"{find_candidate(model).title} fitted to {found.rows:,} rows; estimated squared error "
            f"{format_number(found.inner)} times that of a constant"
        )
        typer.echo(f"Model: {saved} (use it with: unlazy predict {saved} NEWDATA)")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File written by compare or fit.")],
    data: Annotated[str, typer.Argument(metavar="NEWDATA", help="CSV, Excel, Parquet or npz file.")],
    out: Annotated[Path | None, typer.Option(help="CSV file to write (default: standard output).")] = None,
    delimiter: Delimiter = None,
    interval: Annotated[
        float | None, typer.Option(help="Add prediction intervals of this level, such as 0.9.")
    ] = None,
) -> None:  # fmt: skip
    """Predict the rows of a table with a saved model; columns are matched by name."""
    with report_errors():
        from unlazy.comparison.study.model import predict_file
        from unlazy.lab.report.csv_export import write_csv

        frame = predict_file(model, data, delimiter, interval)
        try:
            text = write_csv(frame, out)
        except OSError as error:
            raise ValueError(f"cannot write {out}: {error.strerror or error}; choose another file") from error
        if text is not None:
            typer.echo(text, nl=False)
        else:
            typer.echo(f"{out}: {len(frame):,} predictions")


def _table(source, target, task, delimiter, drop, categorical, splits=True, **more):  # type: ignore[no-untyped-def]
    """Read and validate the table, and print its notes; those on splits only if there are `splits`."""
    from unlazy.comparison.data.group_notes import without_split_notes
    from unlazy.comparison.data.reading import read_table

    lists = (tuple(drop or ()), tuple(categorical or ()))
    table = read_table(source, target, task=task, delimiter=delimiter, drop=lists[0], categorical=lists[1], **more)
    for note in table.notes if splits else without_split_notes(table.notes, table.frame):
        print_stderr(f"note: {note}")
    return table


def _print_suspects(table) -> None:  # type: ignore[no-untyped-def]
    """Print a note on each input that may not be known, or not be meaningful, for new rows."""
    from unlazy.comparison.data.leakage import find_suspects
    from unlazy.comparison.report.prose import suspect_reason

    for one in find_suspects(table):
        reason = suspect_reason(one, table.target)
        print_stderr(f"note: {reason}; the model uses it, and --drop {one.name} leaves it out")


def _source(data: str | None, toy: str | None) -> str:
    """The file or toy dataset, given as argument or as option."""
    if (data is None) == (toy is None):
        raise ValueError("pass one table: a CSV, Excel, Parquet or npz file, or a toy dataset such as digits")
    return str(data or toy)


def _make_folder(folder: Path) -> Path:
    """Create the folder; raise ValueError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot create the folder {folder}: {error.strerror or error}; choose another --out"
        ) from error
    return folder


def _print(found) -> None:  # type: ignore[no-untyped-def]
    """Print the summary, the details in technical terms, and the table of models."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from unlazy.comparison.report import prose
    from unlazy.comparison.report.paired_ratios import format_number
    from unlazy.comparison.report.summary import summary_lines

    title, *rest = summary_lines(found)
    typer.echo(f"\n{title}")
    for text in rest:
        typer.echo(f"- {text}")
    typer.echo(f"\nIn technical terms: {prose.headline(found)}")
    for text in prose.sentences(found):
        typer.echo(f"- {text}")
    console = Console()
    titles = {"rmse": "RMSE", "precision": "average precision", "log_loss": "log loss", "mistakes": "misclassified"}
    error = next(name for name in titles if name in found.models)
    table = Table(box=box.SIMPLE_HEAD, title="Models, finalists first", title_justify="left")
    for name in ("model", "family", "rows", found.study.metric.label, titles[error], "seconds"):
        table.add_column(name, overflow="fold")
    for _, row in found.models.iterrows():
        shown = f"{100 * row[error]:.1f}%" if error == "mistakes" else format_number(row[error], 4)
        interval = prose.interval_text(row)
        cells = (row["model"], row["family"], f"{row['n']:,}", interval.replace("[", "\\["), shown)
        table.add_row(*cells, f"{row['seconds']:.1f}")
    console.print()
    console.print(table)
    for note in found.notes[len(found.study.table.notes) :]:
        print_stderr(f"note: {note}")
