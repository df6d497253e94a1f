"""Experiments from the command line: list, show, run, report, map, export, demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unlazy.cli.errors import plainly, say

if TYPE_CHECKING:
    from unlazy.lab.claims import Claim
    from unlazy.lab.experiment import Config, Experiment, Records
    from unlazy.lab.runner.store import Store

app = typer.Typer()

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]... | all", help="Experiments, or all of them.")]
Full = Annotated[bool, typer.Option("--full", help="The full configuration instead of the quick one.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE[,VALUE]", help="Other values of a setting.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds per point.")]
Jobs = Annotated[int | None, typer.Option(help="How many workers (default: one per core).")]
Where = Annotated[str, typer.Option("--engine", help="local, dask or inline.")]
Address = Annotated[str | None, typer.Option(help="A dask scheduler, as tcp://host:port.")]
Folder = Annotated[Path, typer.Option("--store", help="Where finished trials are kept.")]
Resume = Annotated[bool, typer.Option("--resume/--fresh", help="Use what is stored, or run all and keep nothing.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write to (default: the store's).")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 when a claim does not hold.")]

_RESULTS = Path("results")


@app.command()
def demo(jobs: Jobs = None, store: Folder = _RESULTS) -> None:
    """Run the quick experiments that tell the story; print their claims and write one page."""
    with plainly():
        from unlazy import lab

        chosen = [e for e in lab.all_experiments() if e.demo]
        if not chosen:
            raise ValueError("no experiment is part of the demo")
        results = _run([(e, e.quick) for e in chosen], store, "local", jobs, None)
        wrong = _print_claims(results)
        _write_report(results, store)
        raise typer.Exit(1 if wrong.broken or _failed(results) else 0)


@app.command(name="list")
def list_experiments() -> None:
    """Every experiment, its source and its question."""
    with plainly():
        from rich.console import Console
        from rich.table import Table

        from unlazy import lab

        table = Table("name", "source", "tags", "question", box=None, pad_edge=False)
        for e in lab.all_experiments():
            table.add_row(f"[bold]{e.name}[/bold]", e.source, " ".join(e.tags), e.question)
        Console().print(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    failures: Annotated[bool, typer.Option("--failures", help="Tracebacks of stored trials that failed.")] = False,
    store: Folder = _RESULTS,
) -> None:
    """One experiment: question, prediction, protocol, verdict rule, source, settings; claims if trials are stored."""
    with plainly():
        from unlazy import lab
        from unlazy.lab.runner.store import FILE

        try:
            experiment = lab.find(name)
        except ValueError:
            if ":" in name or not (store / FILE).exists():
                raise
            with lab.Store(store, create=False) as kept:
                experiment = _named(name, kept)
        if failures:
            with lab.Store(store, create=False) as kept:
                for failure in kept.everything(experiment).failed:
                    typer.echo(f"{failure.params}, seed {failure.seed}\n{failure.traceback}")
        else:
            _describe(experiment)
            _stored_claims(experiment, store)


@app.command()
def run(
    names: Names = None, full: Full = False, change: Set = None, seeds: Seeds = None, jobs: Jobs = None,
    engine: Where = "local", address: Address = None, store: Folder = _RESULTS, resume: Resume = True,
    strict: Strict = False,
) -> None:  # fmt: skip
    """Run experiments and print their claims; what is stored already is not run again."""
    with plainly():
        chosen = _chosen(names, full, change, seeds)
        results = _run(chosen, store if resume else None, engine, jobs, address)
        wrong = _print_claims(results)
        raise typer.Exit(1 if wrong.broken or _failed(results) or (strict and wrong.refuted) else 0)


@app.command()
def report(
    names: Names = None, full: Full = False, change: Set = None, seeds: Seeds = None, out: Out = None,
    store: Folder = _RESULTS, strict: Strict = False,
) -> None:  # fmt: skip
    """Figures, claims and one page from what is stored, your own experiments too; nothing is run."""
    with plainly():
        from unlazy import lab

        results = []
        with lab.Store(store, create=False) as kept:
            for experiment, config in _chosen(names or ["all"], full, change, seeds, kept):
                records, size = kept.records(experiment, config.points(), config.seeds), config.size
                if 0 < len(records) < size:
                    say(f"note: {experiment.name}: {len(records)} of {size} trials are stored")
                results += [(experiment, records)] if len(records) else []
        if not results:
            raise ValueError(f"nothing of this is stored in {store}; run it first: unlazy run")
        wrong = _print_claims(results)
        _write_report(results, store, out)
        raise typer.Exit(1 if wrong.broken or (strict and wrong.refuted) else 0)


@app.command(name="map")
def write_map(out: Out = None, store: Folder = _RESULTS) -> None:
    """One page with all claims by question: what kernels can do, what features add, what stays hard.

    Verdicts are those of your store; of what you have not run, those the project measured. Nothing is run."""
    with plainly():
        from unlazy import lab
        from unlazy.lab.report import map as report_map
        from unlazy.lab.runner.store import FILE

        chosen, mine = lab.all_experiments(), {}
        if (store / FILE).exists():
            with lab.Store(store, create=False) as kept:
                chosen = [*chosen, *_own(kept)]
                stored = [(e, kept.records(e, e.quick.points(), e.quick.seeds)) for e in chosen]
            whole = [(e, records) for e, records in stored if len(records) == e.quick.size]
            mine = {e.name: e.claims(records) for e, records in whole}
            for e, records in stored:
                if 0 < len(records) < e.quick.size:
                    say(f"note: {e.name}: {len(records)} of {e.quick.size} trials are stored; unlazy run {e.name}")
        page = report_map.write_map(chosen, mine, out or store)
        typer.echo(f"{len(mine)} of {len(chosen)} experiments as measured here, the others as the project did.")
        typer.echo(f"The page: {page}")


@app.command()
def export(
    names: Names = None, kind: Annotated[str, typer.Option("--format", help="csv or parquet.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="The folder to write to (default: STORE/export).")] = None,
    store: Folder = _RESULTS,
) -> None:  # fmt: skip
    """Every stored trial of the named experiments, one table each."""
    with plainly():
        from unlazy import lab
        from unlazy.lab.experiment import file_names
        from unlazy.lab.report.export import export as write

        if kind not in ("csv", "parquet"):
            raise ValueError(f"--format must be csv or parquet, got {kind!r}")
        folder = out or store / "export"
        with lab.Store(store, create=False) as kept:
            tables = [(e, kept.everything(e)) for e in _experiments(names or ["all"], kept)]
        tables = [(e, records) for e, records in tables if len(records)]
        if not tables:
            raise ValueError(f"nothing of this is stored in {store}; run it first: unlazy run")
        for name, (_, records) in zip(file_names([e for e, _ in tables]), tables):
            path = folder / f"{name}.{kind}"
            write(records, path)
            typer.echo(f"{path}: {len(records)} trials")


class _Wrong:
    """What the claims table has that is not as it should be."""

    refuted = False
    broken = False


def _experiments(names: list[str] | None, kept: "Store | None" = None) -> "list[Experiment]":
    """The experiments of these names; those of the user's own that `kept` has trials of are found by name too."""
    from unlazy import lab

    if not names:
        raise ValueError("name one or more experiments (unlazy list shows them), or all")
    if names == ["all"]:
        return [*lab.all_experiments(), *_own(kept)]
    return [_named(name, kept) for name in dict.fromkeys(names)]


def _named(name: str, kept: "Store | None") -> "Experiment":
    """The package's experiment of this name, or one of the user's own with trials in `kept`."""
    from unlazy import lab

    try:
        return lab.find(name)
    except ValueError:
        own = [] if ":" in name else _own(kept, name)
        if not own:
            raise
    if len(own) > 1:
        places = " and ".join(e.identity for e in own)
        raise ValueError(f"{name!r} is the name of {places}; say which, as module:attribute")
    return own[0]


def _own(kept: "Store | None", name: str | None = None) -> "list[Experiment]":
    """The user's own experiments (of this name) with trials in `kept`; a note for those that are not found again."""
    from unlazy import lab

    if kept is None:
        return []
    found = [identity for identity in kept.identities() if name in (None, identity.partition(":")[2])]
    own, missing = lab.own_experiments(found)
    for sentence in missing:
        say(f"note: {sentence}")
    return own


def _chosen(
    names: list[str] | None, full: bool, change: list[str] | None, seeds: int | None, kept: "Store | None" = None
) -> "list[tuple[Experiment, Config]]":
    """Experiments with their configurations; every bad value is found here, before anything runs."""
    from unlazy.lab.runner.settings import choose, parse_changes

    changes = parse_changes(change or [])
    return [(e, choose(e, "full" if full else "quick", seeds, changes)) for e in _experiments(names, kept)]


def _run(
    chosen: "list[tuple[Experiment, Config]]", store: Path | None, engine: str, jobs: int | None, address: str | None
) -> "list[tuple[Experiment, Records]]":
    """One set of workers for all of them."""
    from unlazy import lab

    workers = lab.open_engine(engine, jobs, address)
    try:
        return [(e, lab.run(e, c, store=store, engine=workers)) for e, c in chosen]
    finally:
        workers.close()


def _failed(results: "list[tuple[Experiment, Records]]") -> bool:
    for experiment, records in results:
        if records.failed:
            say(f"unlazy show {experiment.name} --failures prints the tracebacks (of the same --store)")
    return any(records.failed for _, records in results)


def _print_claims(results: "list[tuple[Experiment, Records]]") -> _Wrong:
    from unlazy.lab.report.table import print_claims

    wrong, rows = _Wrong(), []
    for experiment, records in results:
        claims: list[Claim] = []
        try:
            claims = experiment.claims(records) if len(records) else []
        except Exception as error:  # too few records, say: the others still have something to tell
            say(f"note: the claims of {experiment.name} could not be computed: {type(error).__name__}: {error}")
            wrong.broken = True
        rows.append((experiment, claims))
        wrong.refuted |= any(claim.verdict == "does not hold" for claim in claims)
    print_claims(rows)
    return wrong


def _write_report(results: "list[tuple[Experiment, Records]]", store: Path, out: Path | None = None) -> None:
    from unlazy import lab
    from unlazy.lab.report.page import write_report

    with lab.Store(store, create=False) as kept:
        places = dict.fromkeys(str(place) for e, _ in results for place in kept.environments(e))
    typer.echo(f"The page: {write_report(results, out or store, 'Ran with ' + '; '.join(places) + '.')}")


def _stored_claims(experiment: "Experiment", store: Path) -> None:
    """What the stored trials of the quick configuration say, where there are any."""
    from unlazy import lab
    from unlazy.lab.runner.store import FILE

    if (store / FILE).exists() and len(records := lab.load(experiment, "quick", store=store)):
        _print_claims([(experiment, records)])


def _describe(experiment: "Experiment") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for word in ("question", "prediction", "protocol", "verdict", "caveats"):
        if getattr(experiment, word):
            table.add_row(Text(word, "bold"), Text(" ".join(getattr(experiment, word).split())))
    table.add_row(Text("source", "bold"), Text(f"{experiment.source} [{', '.join(experiment.tags)}]"))
    for word, config in (("quick", experiment.quick), ("full", experiment.full)):
        settings = [dict(config.fixed), *map(dict, config.grids)]
        lines = [f"{k} = {v if not isinstance(v, list | tuple) else ', '.join(map(str, v))}"
                 for part in settings for k, v in part.items()]  # fmt: skip
        count = f"{len(config.points())} points × {config.seeds} seeds"
        table.add_row(Text(word, "bold"), Text("\n".join([count, *lines])))
    console = Console()
    console.print(Text(experiment.name, "bold"))
    console.print(table)
