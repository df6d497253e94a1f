"""A user's own table from the command line: compare, fit, predict."""

from pathlib import Path
from typing import Annotated

import typer

from unlazy.cli.errors import plainly, say

app = typer.Typer()
began: float | None = None
"""When the command was given, which `main` knows: a budget counts from there, imports included."""

Data = Annotated[
    str | None, typer.Argument(metavar="DATA", help="CSV, Parquet or npz file, or a toy set such as digits.")
]
Toy = Annotated[str | None, typer.Option("--data", help="The same, as an option.")]
Target = Annotated[str | None, typer.Option(help="The column to predict.")]
Task = Annotated[str | None, typer.Option(help="regression or classification (default: recognized).")]
Drop = Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")]
Categorical = Annotated[list[str] | None, typer.Option(help="A column of numbers that are names; may be repeated.")]
Delimiter = Annotated[str | None, typer.Option(help="What separates the columns of a CSV (default: recognized).")]
Budget = Annotated[str, typer.Option(help="How long it may take: 90s, 2m, 1h.")]
Models = Annotated[list[str] | None, typer.Option("--model", help="Only these models; may be repeated.")]
Jobs = Annotated[int | None, typer.Option(help="How many workers (default: one per core).")]
Where = Annotated[str, typer.Option("--engine", help="local, dask or inline.")]
Address = Annotated[str | None, typer.Option(help="A dask scheduler, as tcp://host:port.")]
Folder = Annotated[Path, typer.Option("--store", help="Where trials, page and model are kept.")]
Seed = Annotated[int, typer.Option(min=0, help="Draws other splits; the answer should not depend on it.")]
Group = Annotated[str | None, typer.Option(help="A column of groups: a group is never trained and tested on.")]
Time = Annotated[str | None, typer.Option(help="A column of time: later rows are predicted from earlier ones.")]
Resume = Annotated[bool, typer.Option("--resume/--fresh", help="Use what is stored, or run all and keep no trial.")]


@app.command()
def compare(
    data: Data = None, toy: Toy = None, target: Target = None, task: Task = None, budget: Budget = "2m",
    model: Models = None, drop: Drop = None, categorical: Categorical = None, delimiter: Delimiter = None,
    jobs: Jobs = None, engine: Where = "local", address: Address = None, store: Folder = Path("compare"),
    resume: Resume = True, seed: Seed = 0, group: Group = None, time: Time = None,
) -> None:  # fmt: skip
    """Does feature learning pay on my data? The answer, a page, and a model for `unlazy predict`."""
    with plainly():
        import os
        import tempfile

        from unlazy.core.compilation_cache import kept_programs

        os.environ.update(kept_programs())  # before JAX is imported
        from unlazy.comparison.cli_options import file_of, parse_budget
        from unlazy.comparison.study.workers import begun

        source, seconds = _source(data, toy), parse_budget(budget)
        file_of(source)  # what is wrong with the words of the command is said before workers begin
        with tempfile.TemporaryDirectory(prefix="unlazy-") as scratch, begun(engine, jobs, address) as workers:
            from unlazy.comparison.compare import compare_table
            from unlazy.comparison.study.plan import Clock

            clock = Clock(seconds, began)
            table = _table(source, target, task, delimiter, drop, categorical, group=group, time=time)
            found = compare_table(
                table, clock=clock, models=tuple(model or ()), store=store if resume else scratch, workers=workers,
                seed=seed,
            )  # fmt: skip
        _print(found)
        kept = found.save(_made(store) / "model.unlazy")
        typer.echo(f"The model: {kept} (unlazy predict {kept} NEWDATA)")
        typer.echo(f"The page: {found.page(store)}")


@app.command()
def fit(
    data: Data = None, toy: Toy = None, target: Target = None,
    model: Annotated[str, typer.Option(help="Which model.")] = "feature_machine",
    task: Task = None, drop: Drop = None, categorical: Categorical = None, delimiter: Delimiter = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("model.unlazy"),
) -> None:  # fmt: skip
    """Fit one named model to a table, tuned on it, and save it for `unlazy predict`."""
    with plainly():
        from unlazy.comparison.study.contestants import CONTESTANTS, find
        from unlazy.comparison.study.model import fit_table, save_model

        if not find(model).saveable:
            able = ", ".join(name for name, c in CONTESTANTS.items() if c.saveable)
            raise ValueError(f"{model} cannot be saved, since files hold no code; choose one of {able}")
        table = _table(_source(data, toy), target, task, delimiter, drop, categorical)
        found = fit_table(table, model)
        kept = save_model(found, out)
        typer.echo(
            f"{find(model).title} fitted to {found.rows} rows; error estimated on them {found.inner:.3g} of a "
            "constant's"
        )
        typer.echo(f"The model: {kept} (unlazy predict {kept} NEWDATA)")


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A file that compare or fit wrote.")],
    data: Annotated[str, typer.Argument(metavar="NEWDATA", help="CSV, Parquet or npz file.")],
    out: Annotated[Path | None, typer.Option(help="A CSV file to write (default: standard output).")] = None,
    delimiter: Delimiter = None,
    interval: Annotated[
        float | None, typer.Option(help="Add the ends of intervals that hold this share of new rows, such as 0.9.")
    ] = None,
) -> None:  # fmt: skip
    """Predictions of a saved model for the rows of a table; columns are matched by name."""
    with plainly():
        from unlazy.comparison.study.model import predictions
        from unlazy.lab.report.csv_export import write_csv

        frame = predictions(model, data, delimiter, interval)
        try:
            text = write_csv(frame, out)
        except OSError as error:
            raise ValueError(f"cannot write {out}: {error.strerror or error}; choose another place") from error
        if text is not None:
            typer.echo(text, nl=False)
        else:
            typer.echo(f"{out}: {len(frame)} predictions")


def _table(source, target, task, delimiter, drop, categorical, **more):  # type: ignore[no-untyped-def]
    """The checked table, its notes said."""
    from unlazy.comparison.data.reading import read_table

    lists = (tuple(drop or ()), tuple(categorical or ()))
    table = read_table(source, target, task=task, delimiter=delimiter, drop=lists[0], categorical=lists[1], **more)
    for note in table.notes:
        say(f"note: {note}")
    return table


def _source(data: str | None, toy: str | None) -> str:
    if (data is None) == (toy is None):
        raise ValueError("name one table: a CSV, Parquet or npz file, or a toy set such as digits")
    return str(data or toy)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make the folder {folder}: {error.strerror or error}; choose another --store"
        ) from error
    return folder


def _print(found) -> None:  # type: ignore[no-untyped-def]
    """The answer in plain words, then in the field's, then the table of models."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from unlazy.comparison.report import prose
    from unlazy.comparison.report.summary import lines

    title, *rest = lines(found)
    typer.echo(f"\n{title}")
    for text in rest:
        typer.echo(f"- {text}")
    typer.echo(f"\nIn the field's words: {prose.headline(found)}")
    for text in prose.sentences(found):
        typer.echo(f"- {text}")
    console = Console()
    error = "mistakes" if "mistakes" in found.models else "rmse"
    table = Table(box=box.SIMPLE_HEAD, title="Models, finalists first", title_justify="left")
    for name in ("model", "family", "rows", "risk / constant's", error, "seconds"):
        table.add_column(name, overflow="fold")
    for _, row in found.models.iterrows():
        shown = f"{100 * row[error]:.1f}%" if error == "mistakes" else f"{row[error]:.4g}"
        interval = prose.interval_text(row)
        cells = (row["model"], row["family"], str(row["n"]), interval.replace("[", "\\["), shown)
        table.add_row(*cells, f"{row['seconds']:.1f}")
    console.print()
    console.print(table)
    for note in found.notes[len(found.study.table.notes) :]:
        say(f"note: {note}")
