"""Commands for experiments: list, show, run, report, map, export, demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import unlazy
from unlazy.cli.errors import print_stderr, report_errors
from unlazy.core.errors import did_you_mean

if TYPE_CHECKING:
    from unlazy.lab.claims import Claim
    from unlazy.lab.experiment import Config, Experiment, Records
    from unlazy.lab.experiments import Description
    from unlazy.lab.runner.store import Store

app = typer.Typer()


def _complete_name(incomplete: str) -> list[str]:
    """Names of experiments that begin with this, for the shell."""
    from unlazy.lab.experiments import read_index

    return [d.name for d in read_index() if d.name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_complete_name)]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]... | all", help="Names of experiments, or all.", autocompletion=_complete_name),
]
Full = Annotated[bool, typer.Option("--full", help="Use the full configuration instead of the quick one.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE[,VALUE]", help="Override a parameter.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds per grid point.")]
Jobs = Annotated[int | None, typer.Option("--n-jobs", help="Number of worker processes (default: one per core).")]
Where = Annotated[str, typer.Option("--engine", help="Where trials run: local, dask or inline.")]
Address = Annotated[str | None, typer.Option(help="Address of a dask scheduler, as tcp://host:port.")]
Folder = Annotated[Path, typer.Option("--store", help="Folder of the stored trials.")]
Resume = Annotated[bool, typer.Option("--resume/--fresh", help="Reuse stored trials, or run all and store nothing.")]
Out = Annotated[Path | None, typer.Option(help="Output folder (default: the store).")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with code 1 if a claim does not hold.")]

_RESULTS = Path("results")


@app.command()
def demo(jobs: Jobs = None, store: Folder = _RESULTS) -> None:
    """Run a selection of quick experiments, print their claims and write a report."""
    with report_errors():
        chosen = [e for e in unlazy.lab.all_experiments() if e.demo]
        if not chosen:
            raise ValueError("no experiment is part of the demo")
        results = _run([(e, e.quick) for e in chosen], store, "local", jobs, None)
        problems = _print_claims(results)
        _write_report(results, store)
        raise typer.Exit(1 if problems.broken or _failed(results) else 0)


@app.command(name="list")
def list_experiments() -> None:
    """List all experiments with their source and question."""
    with report_errors():
        from rich.console import Console
        from rich.table import Table

        table = Table("name", "source", "tags", "question", box=None, pad_edge=False)
        for e in _descriptions():
            table.add_row(f"[bold]{e.name}[/bold]", e.source, " ".join(e.tags), e.question)
        Console().print(table)


@app.command()
def show(
    name: Name,
    failures: Annotated[bool, typer.Option("--failures", help="Print the tracebacks of failed trials.")] = False,
    store: Folder = _RESULTS,
) -> None:
    """Describe an experiment: question, prediction, protocol, verdict rule, configurations, claims of stored trials."""
    with report_errors():
        from unlazy.lab.experiments import describe, read_index

        known, stored = {d.name: d for d in read_index()}, _stored_identities(store)
        if name in known and not failures and name not in stored:
            return _print_description(known[name])
        if name not in known and ":" not in name and all(name != i.partition(":")[2] for i in stored):
            raise ValueError(f"no experiment {name!r}{did_you_mean(name, known)}")  # without importing JAX
        experiment = _find_in_store(name, store)
        if failures:
            with unlazy.lab.Store(store, create=False) as kept:
                for failure in kept.everything(experiment).failed:
                    typer.echo(f"{failure.params}, seed {failure.seed}\n{failure.traceback}")
        else:
            _print_description(describe(experiment))
            _stored_claims(experiment, store)


@app.command()
def run(
    names: Names = None, full: Full = False, change: Set = None, seeds: Seeds = None, jobs: Jobs = None,
    engine: Where = "local", address: Address = None, store: Folder = _RESULTS, resume: Resume = True,
    strict: Strict = False,
) -> None:  # fmt: skip
    """Run experiments and print their claims; stored trials are not run again."""
    with report_errors():
        chosen = _select(names, full, change, seeds)
        results = _run(chosen, store if resume else None, engine, jobs, address)
        problems = _print_claims(results)
        raise typer.Exit(1 if problems.broken or _failed(results) or (strict and problems.refuted) else 0)


@app.command()
def report(
    names: Names = None, full: Full = False, change: Set = None, seeds: Seeds = None, out: Out = None,
    store: Folder = _RESULTS, strict: Strict = False,
) -> None:  # fmt: skip
    """Write a report (figures and claims) from stored trials, including your own experiments; nothing is run."""
    with report_errors():
        results = []
        with unlazy.lab.Store(store, create=False) as kept:
            for experiment, config in _select(names or ["all"], full, change, seeds, kept):
                records, size = kept.records(experiment, config.points(), config.seeds), config.size
                if 0 < len(records) < size:
                    print_stderr(f"note: {experiment.name}: {len(records)} of {size} trials are stored")
                results += [(experiment, records)] if len(records) else []
        if not results:
            raise ValueError(f"{store} contains no trials of these experiments; run them first: unlazy run")
        problems = _print_claims(results)
        _write_report(results, store, out)
        raise typer.Exit(1 if problems.broken or (strict and problems.refuted) else 0)


@app.command(name="map")
def write_map(out: Out = None, store: Folder = _RESULTS) -> None:
    """Write one page with all claims by question: what kernels can do, what features add, what remains hard.

    Verdicts come from your store, and from the recorded results of the project for experiments that you have not run.
    Nothing is run."""
    with report_errors():
        from unlazy.lab.report import map as report_map
        from unlazy.lab.runner.store import FILE

        chosen, mine = unlazy.lab.all_experiments(), {}
        if (store / FILE).exists():
            with unlazy.lab.Store(store, create=False) as kept:
                chosen = [*chosen, *_user_experiments(kept)]
                stored = [(e, kept.records(e, e.quick.points(), e.quick.seeds)) for e in chosen]
            whole = [(e, records) for e, records in stored if len(records) == e.quick.size]
            mine = {e.name: e.claims(records) for e, records in whole}
            for e, records in stored:
                if 0 < len(records) < e.quick.size:
                    print_stderr(
                        f"note: {e.name}: {len(records)} of {e.quick.size} trials are stored; to complete them: "
                        f"unlazy run {e.name}"
                    )
        page = report_map.write_map(chosen, mine, out or store)
        typer.echo(f"{len(mine)} of {len(chosen)} experiments from your store, the others from the recorded results.")
        typer.echo(f"Page: {page}")


@app.command()
def export(
    names: Names = None, kind: Annotated[str, typer.Option("--format", help="File format: csv or parquet.")] = "csv",
    out: Annotated[Path | None, typer.Option(help="Output folder (default: STORE/export).")] = None,
    store: Folder = _RESULTS,
) -> None:  # fmt: skip
    """Export all stored trials, one table per experiment."""
    with report_errors():
        from unlazy.lab.experiment import file_names
        from unlazy.lab.report.export import export as write

        if kind not in ("csv", "parquet"):
            raise ValueError(f"--format must be csv or parquet, got {kind!r}")
        folder = out or store / "export"
        with unlazy.lab.Store(store, create=False) as kept:
            tables = [(e, kept.everything(e)) for e in _experiments(names or ["all"], kept)]
        tables = [(e, records) for e, records in tables if len(records)]
        if not tables:
            raise ValueError(f"{store} contains no trials of these experiments; run them first: unlazy run")
        for name, (_, records) in zip(file_names([e for e, _ in tables]), tables):
            path = folder / f"{name}.{kind}"
            write(records, path)
            typer.echo(f"{path}: {len(records)} trials")


class _Problems:
    """Problems with the claims: some do not hold (`refuted`), or could not be computed (`broken`)."""

    refuted = False
    broken = False


def _experiments(names: list[str] | None, kept: "Store | None" = None) -> "list[Experiment]":
    """Experiments by name, including user-defined experiments with trials in the store."""
    if not names:
        raise ValueError("name one or more experiments (see unlazy list), or all")
    if names == ["all"]:
        return [*unlazy.lab.all_experiments(), *_user_experiments(kept)]
    return [_find_experiment(name, kept) for name in dict.fromkeys(names)]


def _find_experiment(name: str, kept: "Store | None") -> "Experiment":
    """The built-in experiment of this name, or a user-defined one with trials in the store."""
    try:
        return unlazy.lab.find(name)
    except ValueError:
        own = [] if ":" in name else _user_experiments(kept, name)
        if not own:
            raise
    if len(own) > 1:
        places = " and ".join(e.identity for e in own)
        raise ValueError(f"{name!r} is ambiguous: {places}; specify one as module:attribute")
    return own[0]


def _find_in_store(name: str, store: Path) -> "Experiment":
    """The built-in experiment of this name, or a user-defined one with trials in the store, if there is a store."""
    from unlazy.lab.runner.store import FILE

    if not (store / FILE).exists():
        return unlazy.lab.find(name)
    with unlazy.lab.Store(store, create=False) as kept:
        return _find_experiment(name, kept)


def _user_experiments(kept: "Store | None", name: str | None = None) -> "list[Experiment]":
    """User-defined experiments (of this name) with stored trials; print a note for each that cannot be imported."""
    if kept is None:
        return []
    found = [identity for identity in kept.identities() if name in (None, identity.partition(":")[2])]
    own, missing = unlazy.lab.own_experiments(found)
    for message in missing:
        print_stderr(f"note: {message}")
    return own


def _select(
    names: list[str] | None, full: bool, change: list[str] | None, seeds: int | None, kept: "Store | None" = None
) -> "list[tuple[Experiment, Config]]":
    """Experiments with their configurations; all values are validated before anything runs."""
    from unlazy.lab.runner.settings import parse_changes, resolve_config

    changes = parse_changes(change or [])
    return [(e, resolve_config(e, "full" if full else "quick", seeds, changes)) for e in _experiments(names, kept)]


def _run(
    chosen: "list[tuple[Experiment, Config]]", store: Path | None, engine: str, jobs: int | None, address: str | None
) -> "list[tuple[Experiment, Records]]":
    """Run all experiments with one pool of workers."""
    from unlazy.lab.runner.engines import opened_engine

    with opened_engine(engine, jobs, address) as workers:
        return [(e, unlazy.lab.run(e, c, store=store, engine=workers, progress=True)) for e, c in chosen]


def _failed(results: "list[tuple[Experiment, Records]]") -> bool:
    """Whether any trial failed; print how to see the tracebacks."""
    for experiment, records in results:
        if records.failed:
            print_stderr(f"to see the tracebacks: unlazy show {experiment.name} --failures (with the same --store)")
    return any(records.failed for _, records in results)


def _print_claims(results: "list[tuple[Experiment, Records]]") -> _Problems:
    """Print the table of claims."""
    from unlazy.lab.report.table import print_claims

    problems, rows = _Problems(), []
    for experiment, records in results:
        claims: list[Claim] = []
        try:
            claims = experiment.claims(records) if len(records) else []
        except Exception as error:  # for example too few records; the other experiments are still reported
            print_stderr(
                f"note: the claims of {experiment.name} could not be computed: {type(error).__name__}: {error}"
            )
            problems.broken = True
        rows.append((experiment, claims))
        problems.refuted |= any(claim.verdict == "does not hold" for claim in claims)
    print_claims(rows)
    return problems


def _write_report(results: "list[tuple[Experiment, Records]]", store: Path, out: Path | None = None) -> None:
    """Write the report page and print its path."""
    from unlazy.lab.report.page import write_report

    with unlazy.lab.Store(store, create=False) as kept:
        places = dict.fromkeys(str(place) for e, _ in results for place in kept.environments(e))
    typer.echo(f"Page: {write_report(results, out or store, 'Environment: ' + '; '.join(places) + '.')}")


def _stored_claims(experiment: "Experiment", store: Path) -> None:
    """Print the claims from the stored trials of the quick configuration, if there are any."""
    from unlazy.lab.runner.store import FILE

    if (store / FILE).exists() and len(records := unlazy.lab.load(experiment, "quick", store=store)):
        _print_claims([(experiment, records)])


def _descriptions() -> "list[Description]":
    """Descriptions of all experiments of the package, from the index if it is complete."""
    from unlazy.lab.experiments import describe, read_index

    return read_index() or [describe(e) for e in unlazy.lab.all_experiments()]


def _stored_identities(store: Path) -> list[str]:
    """Identities of the experiments with stored trials."""
    from unlazy.lab.runner.store import FILE

    if not (store / FILE).exists():
        return []
    with unlazy.lab.Store(store, create=False) as kept:
        return kept.identities()


def _print_description(description: "Description") -> None:
    """Print the description and the configurations of an experiment."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    for field in ("question", "prediction", "protocol", "verdict", "caveats"):
        if getattr(description, field):
            table.add_row(Text(field, "bold"), Text(getattr(description, field)))
    table.add_row(Text("source", "bold"), Text(f"{description.source} [{', '.join(description.tags)}]"))
    for name, config in (("quick", description.quick), ("full", description.full)):
        count = f"{config.points} points × {config.seeds} seeds"
        table.add_row(Text(name, "bold"), Text("\n".join([count, *config.parameters])))
    console = Console()
    console.print(Text(description.name, "bold"))
    console.print(table)
