"""Sweeps: points × seeds are divided into chunks, each one point with one block of seeds, run as one vectorized call.

A seed runs in lane `seed % lanes` of block `seed // lanes`, and a block is always run as a whole. The results of a seed
therefore depend neither on the number of workers, nor on what is stored already, nor on the number of seeds.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from unlazy.lab.experiment import Experiment, Params
from unlazy.lab.runner.serialization import canonical_json


@dataclass(frozen=True)
class Chunk:
    """One call of a worker: one point and a block of seeds (`lanes`), of which only the `wanted` ones are stored."""

    experiment: Experiment
    params: Params
    lanes: tuple[int, ...]
    wanted: tuple[int, ...]
    group: str
    """Chunks of one group share one compiled function; unique to one sweep."""


@dataclass(frozen=True)
class Trial:
    """The result of one seed: measures, or a traceback."""

    seed: int
    measures: Mapping[str, Any] | None
    seconds: float
    traceback: str | None = None


@dataclass(frozen=True)
class Environment:
    """Versions, device and commit with which a trial ran."""

    unlazy: str
    jax: str
    python: str
    device: str
    git_commit: str

    def __str__(self) -> str:
        commit = f", commit {self.git_commit[:12]}{'+' * self.git_commit.endswith('+')}" if self.git_commit else ""
        return f"unlazy {self.unlazy}, JAX {self.jax}, Python {self.python} on {self.device}{commit}"


@dataclass(frozen=True)
class Outcome:
    """The results of one chunk, as returned by a worker."""

    params: Params
    trials: tuple[Trial, ...]
    environment: Environment
    worker: int
    group: str


def plan(
    experiment: Experiment, points: Sequence[Params], seeds: int, finished: Collection[tuple[str, int]]
) -> list[Chunk]:
    """Chunks with trials that are not finished, ordered by compiled function."""
    sweep = uuid4().hex  # functions are cached by group: an edited experiment must not reuse the old ones
    groups: dict[str, list[Chunk]] = {}
    for params in points:
        key = canonical_json(params)
        group = f"{sweep} {canonical_json(dict(experiment.static_part(params)))}"
        for lanes in _blocks(seeds, experiment.lanes if experiment.vectorized else 1):
            wanted = tuple(s for s in lanes if s < seeds and (key, s) not in finished)
            if wanted:
                groups.setdefault(group, []).append(Chunk(experiment, params, lanes, wanted, group))
    return [chunk for group in groups.values() for chunk in group]


def _blocks(seeds: int, lanes: int) -> list[tuple[int, ...]]:
    """Blocks of consecutive seeds that cover all seeds."""
    return [tuple(range(start, start + lanes)) for start in range(0, seeds, lanes)]
