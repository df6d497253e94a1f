"""The experiments, one per module, and an index of their descriptions that is read without importing JAX."""

import json
import pkgutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unlazy.lab.experiment import Config, Experiment

INDEX = Path(__file__).with_name("index.json")
"""Written by `tools/write_experiment_index.py`."""


@dataclass(frozen=True)
class ConfigDescription:
    """Number of points and seeds of a configuration, and one line per parameter, as `n = 100, 300`."""

    points: int
    seeds: int
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """What `unlazy list` and `unlazy show` print about an experiment."""

    name: str
    source: str
    tags: tuple[str, ...]
    question: str
    prediction: str
    protocol: str
    verdict: str
    caveats: str
    quick: ConfigDescription
    full: ConfigDescription


def describe(experiment: "Experiment") -> Description:
    """The description of an experiment."""
    return Description(
        experiment.name, experiment.source, tuple(experiment.tags),
        question=_one_line(experiment.question), prediction=_one_line(experiment.prediction),
        protocol=_one_line(experiment.protocol), verdict=_one_line(experiment.verdict),
        caveats=_one_line(experiment.caveats), quick=_describe_config(experiment.quick),
        full=_describe_config(experiment.full),
    )  # fmt: skip


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _describe_config(config: "Config") -> ConfigDescription:
    values = [item for part in (config.fixed, *config.grids) for item in part.items()]
    lines = (f"{k} = {', '.join(map(str, v)) if isinstance(v, list | tuple) else v}" for k, v in values)
    return ConfigDescription(len(config.points()), config.seeds, tuple(lines))


def index_text(experiments: "Iterable[Experiment]") -> str:
    """The index of these experiments, as JSON."""
    return json.dumps([asdict(describe(e)) for e in experiments], indent=1, ensure_ascii=False) + "\n"


def read_index() -> list[Description]:
    """Descriptions of all experiments, sorted by source and name, without importing them.

    Empty if a file has been added or removed since the index was written: import the experiments instead.
    """
    found = [_from_json(entry) for entry in json.loads(INDEX.read_text(encoding="utf-8"))]
    files = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}
    return found if files == {d.name for d in found} else []


def _from_json(entry: dict) -> Description:
    configs = {k: ConfigDescription(**entry[k] | {"parameters": tuple(entry[k]["parameters"])}) for k in _CONFIGS}
    return Description(**entry | {"tags": tuple(entry["tags"])} | configs)


_CONFIGS = ("quick", "full")
