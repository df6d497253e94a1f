"""The `unlazy scaling` command: do initialization and rates hold at every width?"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from unlazy.cli.errors import report_errors

app = typer.Typer()


@app.command()
def scaling(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function without arguments that returns (make, data, optimizer), as check_scaling takes them; MODULE "
            "is a module or a Python file.",
        ),
    ],
    widths: Annotated[str, typer.Option(help="Widths, separated by commas.")] = "64,128,256,512",
    depths: Annotated[str | None, typer.Option(help="Depths, separated by commas.")] = None,
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 3,
    seeds: Annotated[int, typer.Option(help="Networks of each size.")] = 2,
    out: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    json: Annotated[Path | None, typer.Option(help="File to write everything to, as JSON; '-' prints it.")] = None,
) -> None:
    """Does a network learn features at every width, and which module prevents it? Exits with 1 if it does not."""
    with report_errors():
        import json as format_json

        from unlazy.diagnostics.scaling.check import check_scaling
        from unlazy.diagnostics.scaling.options import ScalingOptions

        make, data, optimizer = _load(target)
        found = check_scaling(
            make, data, optimizer=optimizer, widths=_integers("--widths", widths),
            depths=None if depths is None else _integers("--depths", depths),
            options=ScalingOptions(steps=steps, seeds=seeds),
        )  # fmt: skip
        if json is not None and str(json) == "-":
            typer.echo(format_json.dumps(found.to_dict(), indent=1))
        else:
            typer.echo(str(found))
            if json is not None:
                found.save(json)
        if out is not None:
            typer.echo(f"Page: {found.page(out)}", err=str(json) == "-")
        raise typer.Exit(0 if found.ok else 1)


def _integers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be integers separated by commas, got {text!r}") from None


def _load(target: str) -> tuple[Callable[..., Any], tuple[Any, Any], Any]:
    """What the named function returns."""
    where, _, name = target.rpartition(":")
    if not where:
        raise ValueError(f"name a function as MODULE:FUNCTION or FILE.py:FUNCTION, got {target!r}")
    module = _import(where)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{where} has no function {name!r}")
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
           for p in inspect.signature(function).parameters.values()):  # fmt: skip
        raise ValueError(f"{target} must be a function without arguments that returns (make, data, optimizer)")
    found = function()
    if not isinstance(found, tuple | list) or len(found) != 3:
        raise ValueError(f"{target} must return (make, data, optimizer), got {type(found).__name__}")
    return found[0], found[1], found[2]


def _import(where: str) -> Any:
    """A module by name, or a Python file."""
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            raise ValueError(f"there is no file {where}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, "")
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and where.startswith(error.name):
            raise ValueError(f"there is no module {where}: name a module or a Python file") from error
        raise
