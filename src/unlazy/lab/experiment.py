"""An experiment is a claim that can fail: question, prediction, protocol, verdict rule, trial, claims, figure."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unlazy.core.errors import check_positive_integer, nearest
from unlazy.lab.claims import Claim

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Params = dict[str, Any]
COLUMNS = ("seed", "seconds")
"""Columns of a table of records beside parameters and measures: neither may be called so."""
_SPELLED = {"gp": "GP", "ntk": "NTK", "agop": "AGOP", "laplace": "Laplace", "gram": "Gram", "hessian": "Hessian"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Record:
    """One finished trial: its parameters, its seed and what it measured (numbers and arrays)."""

    params: Params
    seed: int
    measures: dict[str, Any]
    seconds: float = float("nan")


@dataclass(frozen=True)
class Failure:
    """One trial that raised: what was asked and the traceback it left. The next run tries it again."""

    params: Params
    seed: int
    traceback: str


class Records(Sequence[Record]):
    """Finished trials of one experiment, with the few selections that claims and figures need.

    `failed` lists the trials that raised instead; selections do not carry it along.
    """

    def __init__(self, rows: Iterable[Record] = (), failed: Iterable[Failure] = ()):
        self._rows = list(rows)
        self.failed = tuple(failed)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index] if isinstance(index, int) else Records(self._rows[index])

    def __iter__(self) -> Iterator[Record]:
        return iter(self._rows)

    def where(self, **params: Any) -> "Records":
        """Those whose parameters have these values."""
        return Records(r for r in self._rows if all(r.params.get(k) == v for k, v in params.items()))

    def values(self, param: str) -> list:
        """The distinct values of one parameter, sorted where they can be."""
        found = list(dict.fromkeys(r.params[param] for r in self._rows if param in r.params))
        try:
            return sorted(found)
        except TypeError:
            return found

    def measure(self, name: str) -> np.ndarray:
        """One measure of every record, stacked: shape (records, …)."""
        return np.array([np.asarray(r.measures[name]) for r in self._rows])

    def over(self, param: str, name: str, statistic: Callable = np.median) -> tuple[np.ndarray, np.ndarray]:
        """The parameter's values and the statistic of a measure over the seeds at each."""
        values = self.values(param)
        return np.array(values), np.array([statistic(self.where(**{param: v}).measure(name), axis=0) for v in values])

    def frame(self) -> "pd.DataFrame":
        """A pandas table: a row per trial, a column per parameter or scalar measure."""
        import pandas as pd

        scalars = [{k: v for k, v in r.measures.items() if np.ndim(v) == 0} for r in self._rows]
        return pd.DataFrame(
            [{**r.params, "seed": r.seed, **s, "seconds": r.seconds} for r, s in zip(self._rows, scalars)]
        )


@dataclass(frozen=True)
class Config:
    """Which points to run: the product of each grid's lists, joined with the fixed values; how many seeds."""

    grids: tuple[Mapping[str, Sequence], ...]
    seeds: int
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def points(self) -> list[Params]:
        """Every combination, in order, without repeats."""
        rows = [dict(self.fixed) | dict(zip(grid, values)) for grid in self.grids for values in product(*grid.values())]
        return [p for i, p in enumerate(rows) if p not in rows[:i]]

    @property
    def size(self) -> int:
        """How many trials that is."""
        return len(self.points()) * self.seeds

    def names(self) -> set[str]:
        return set(self.fixed) | {name for grid in self.grids for name in grid}

    def with_values(self, changes: Mapping[str, Sequence]) -> "Config":
        """The same configuration with some parameters replaced by other lists of values.

        A grid that never had a parameter does not get it, so that its points stay what they were.
        """
        for name in changes:
            if name not in self.names():
                raise ValueError(f"no parameter {name!r} here{nearest(name, self.names())}")
        single = {k: v[0] for k, v in changes.items() if k in self.fixed and len(v) == 1}
        many = {k: v for k, v in changes.items() if k in self.fixed and len(v) > 1}
        grids = tuple({k: changes.get(k, v) for k, v in (dict(grid) | many).items()} for grid in self.grids)
        fixed = {k: v for k, v in self.fixed.items() if k not in many} | single
        return replace(self, grids=grids, fixed=fixed)


def config(*grids: Mapping[str, Sequence], seeds: int, **fixed: Any) -> Config:
    """`config({"n": [100, 300], "method": ["ntk", "one_step"]}, seeds=5, d=10)`."""
    return Config(tuple(grids) or ({},), check_positive_integer("seeds", seeds), fixed)


@dataclass(frozen=True)
class Experiment:
    """A question put to theory and to measurement.

    `trial(params, key)` runs one point of the grid with one seed and returns numbers and arrays. The lab runs
    it jitted and vectorized over seeds: parameters named in `traced` arrive as JAX scalars, so that points which
    differ only there share one compilation; the others are static Python values. A parameter named in `padded` is
    traced too, and the static `<name>_padded` (the next power of two) gives array sizes: draw that many rows and give
    those beyond `n` weight zero. `vectorized=False` is for trials that are not JAX-traceable: called plainly.

    `lanes` seeds run side by side in one call. A seed always has the same lane of a batch of the same size, so its
    numbers depend neither on the number of workers nor on what else was asked for.

    `version` goes up when the meaning of a trial changes: stored records of other versions are left aside.
    """

    name: str
    source: Literal["S1", "S2", "S3", "S4", "general"]
    tags: tuple[str, ...]
    question: str
    prediction: str
    protocol: str
    verdict: str
    trial: Callable[[Params, Any], dict[str, Any]]
    claims: Callable[[Records], list[Claim]]
    figure: Callable[[Records], "Figure"]
    quick: Config
    full: Config
    traced: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    lanes: int = 4
    vectorized: bool = True
    precision: Literal["float32", "float64"] = "float64"
    version: int = 1
    choices: Mapping[str, Sequence] = field(default_factory=dict)
    """Words a parameter may be set to besides those in `quick` and `full`."""
    caveats: str = ""
    """What the theory bounds, what is only asymptotic, what a reader might wrongly conclude."""
    demo: bool = False
    """Part of `unlazy demo`."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError(
                "an experiment's name becomes file names: take letters, digits, _, - and ., at most 100 of them; "
                f"got {self.name!r}"
            )
        if "seed" in self.quick.names() | self.full.names():
            raise ValueError("a parameter cannot be called 'seed', which every trial has already; rename it")

    @property
    def title(self) -> str:
        """Its name as people write it."""
        return " ".join(_SPELLED.get(word, word) for word in self.name.split("_"))

    @property
    def identity(self) -> str:
        """What its stored trials are filed under: its name, with the module of its trial where that is not ours.

        Two experiments of one name from two modules are then two, and the module says where to find one again.
        """
        module = _home(self.trial)
        return self.name if module.partition(".")[0] == "unlazy" else f"{module}:{self.name}"

    def static_part(self, params: Params) -> tuple:
        """What determines the compiled function: values of the parameters that are not traced, padded sizes."""
        moving = {*self.traced, *self.padded}
        fixed = {k: v for k, v in params.items() if k not in moving}
        fixed |= {f"{k}_padded": padded_size(params[k]) for k in self.padded if k in params}
        return tuple(sorted(fixed.items()))


def padded_size(n: int) -> int:
    """The next power of two: the array size that serves every count up to it."""
    return 1 << (check_positive_integer("a padded count", n) - 1).bit_length()


def file_names(experiments: Sequence[Experiment]) -> list[str]:
    """A name for the files of each: its own, or with its module where several share it."""
    names = [e.name for e in experiments]
    return [e.name if names.count(e.name) == 1 else e.identity.replace(":", ".") for e in experiments]


def _home(trial: Callable) -> str:
    """The module a function is imported from, also where it is the script that runs."""
    while isinstance(trial, partial):
        trial = trial.func
    module = getattr(inspect.unwrap(trial), "__module__", None) or type(trial).__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(file).stem if file else module
