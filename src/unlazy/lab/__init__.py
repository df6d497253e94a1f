"""Experiments: run them over their grids, store every finished trial, resume interrupted runs."""

from typing import TYPE_CHECKING

from unlazy._lazy_exports import lazy_exports

_WHERE = {
    "Interrupted": "unlazy.lab.runner.run",
    "Store": "unlazy.lab.runner.store",
    "all_experiments": "unlazy.lab.runner.catalog",
    "find": "unlazy.lab.runner.catalog",
    "load": "unlazy.lab.runner.run",
    "open_engine": "unlazy.lab.runner.engines",
    "own_experiments": "unlazy.lab.runner.catalog",
    "run": "unlazy.lab.runner.run",
}
__all__ = [*_WHERE]

if TYPE_CHECKING:  # the same for readers of types, who run nothing
    from unlazy.lab.runner.catalog import all_experiments as all_experiments
    from unlazy.lab.runner.catalog import find as find
    from unlazy.lab.runner.catalog import own_experiments as own_experiments
    from unlazy.lab.runner.engines import open_engine as open_engine
    from unlazy.lab.runner.run import Interrupted as Interrupted
    from unlazy.lab.runner.run import load as load
    from unlazy.lab.runner.run import run as run
    from unlazy.lab.runner.store import Store as Store
else:
    __getattr__, __dir__ = lazy_exports(__name__, _WHERE)
