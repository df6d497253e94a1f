"""Points × seeds → chunks: one point with one block of seeds, run as one vectorized call.

A seed sits in lane `seed % lanes` of the block `seed // lanes`, and a block is always run whole. So the numbers of a
seed depend neither on the number of workers, nor on what was stored before, nor on how many seeds were asked for.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from unlazy.lab.experiment import Experiment, Params
from unlazy.lab.runner.serialization import canonical


@dataclass(frozen=True)
class Chunk:
    """One call of a worker: these lanes of one point, of which only the wanted seeds are kept."""

    experiment: Experiment
    params: Params
    lanes: tuple[int, ...]
    wanted: tuple[int, ...]
    group: str
    """Chunks of one group share one compiled function; the text is unique to one sweep."""


@dataclass(frozen=True)
class Trial:
    """How one seed ended: measures, or a traceback."""

    seed: int
    measures: dict[str, Any] | None
    seconds: float
    traceback: str | None = None


@dataclass(frozen=True)
class Environment:
    """Where a trial ran."""

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
    """What a worker sends back for one chunk."""

    params: Params
    trials: tuple[Trial, ...]
    environment: Environment
    worker: int
    group: str


def plan(
    experiment: Experiment, points: Sequence[Params], seeds: int, finished: Collection[tuple[str, int]]
) -> list[Chunk]:
    """The chunks that still have something to run, those of one compiled function side by side."""
    sweep = uuid4().hex  # compiled functions are kept by group: an edited experiment must not meet its old self
    groups: dict[str, list[Chunk]] = {}
    for params in points:
        key = canonical(params)
        group = f"{sweep} {canonical(dict(experiment.static_part(params)))}"
        for lanes in _blocks(seeds, experiment.lanes if experiment.vectorized else 1):
            wanted = tuple(s for s in lanes if s < seeds and (key, s) not in finished)
            if wanted:
                groups.setdefault(group, []).append(Chunk(experiment, params, lanes, wanted, group))
    return [chunk for group in groups.values() for chunk in group]


def _blocks(seeds: int, lanes: int) -> list[tuple[int, ...]]:
    return [tuple(range(start, start + lanes)) for start in range(0, seeds, lanes)]
