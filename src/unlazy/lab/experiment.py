"""Experiments (question, prediction, protocol, verdict rule, trial, claims, figure), records and configurations."""

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

from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.lab.claims import Claim

if TYPE_CHECKING:
    import pandas as pd
    from jax.typing import ArrayLike
    from jaxtyping import PRNGKeyArray
    from matplotlib.figure import Figure
else:  # Matplotlib and JAX take a second to import; descriptions and stored trials need neither
    ArrayLike = Figure = PRNGKeyArray = Any

Params = dict[str, Any]
"""Parameters of a trial by name."""
Measures = Mapping[str, ArrayLike | Sequence[float] | str]
"""What a trial measures, by name: numbers, arrays or strings."""
RESERVED_COLUMNS = ("seed", "seconds")
"""Columns of a table of records that no parameter or measure may use as a name."""
_SPELLING = {"gp": "GP", "ntk": "NTK", "agop": "AGOP", "laplace": "Laplace", "gram": "Gram", "hessian": "Hessian"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Record:
    """One finished trial: parameters, seed, measures (numbers and arrays) and run time in seconds."""

    params: Params
    seed: int
    measures: dict[str, Any]
    seconds: float = float("nan")


@dataclass(frozen=True)
class Failure:
    """One trial that raised an exception: parameters, seed and traceback. The next run retries it."""

    params: Params
    seed: int
    traceback: str


class Records(Sequence[Record]):
    """Finished trials of one experiment, with selections for claims and figures.

    Parameters
    ----------
    rows : iterable of Record
        Finished trials.
    failed : iterable of Failure
        Trials that raised an exception; selections do not keep them.
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

    def where(self, **params: object) -> "Records":
        """The records whose parameters have these values."""
        return Records(r for r in self._rows if all(r.params.get(k) == v for k, v in params.items()))

    def values(self, param: str) -> list:
        """The distinct values of one parameter, sorted if possible."""
        found = list(dict.fromkeys(r.params[param] for r in self._rows if param in r.params))
        try:
            return sorted(found)
        except TypeError:
            return found

    def measure(self, name: str) -> np.ndarray:
        """One measure of all records, stacked: shape (n_records, …)."""
        return np.array([np.asarray(r.measures[name]) for r in self._rows])

    def over(self, param: str, name: str, statistic: Callable = np.median) -> tuple[np.ndarray, np.ndarray]:
        """The values of a parameter, and the statistic of a measure over the records at each value.

        Parameters
        ----------
        param : str
            Name of the parameter.
        name : str
            Name of the measure.
        statistic : callable, default np.median
            Reduces an array over `axis=0`.

        Returns
        -------
        values, statistics : arrays
            The distinct values of the parameter and the statistic at each.
        """
        values = self.values(param)
        return np.array(values), np.array([statistic(self.where(**{param: v}).measure(name), axis=0) for v in values])

    def frame(self) -> "pd.DataFrame":
        """A pandas data frame with one row per trial and one column per parameter and scalar measure."""
        import pandas as pd

        scalars = [{k: v for k, v in r.measures.items() if np.ndim(v) == 0} for r in self._rows]
        return pd.DataFrame(
            [{**r.params, "seed": r.seed, **s, "seconds": r.seconds} for r, s in zip(self._rows, scalars)]
        )


@dataclass(frozen=True)
class Config:
    """Points and seeds of a run.

    The points are the union of the Cartesian products of the grids, each joined with the fixed values.

    Parameters
    ----------
    grids : tuple of mappings
        Lists of values by parameter.
    seeds : int
        Number of seeds per point.
    fixed : mapping
        Parameters that have one value.
    label : str, default ""
        Label of the progress bar; by default the name of the experiment.
    """

    grids: tuple[Mapping[str, Sequence], ...]
    seeds: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    def points(self) -> list[Params]:
        """All parameter combinations, in order, without duplicates."""
        rows = [dict(self.fixed) | dict(zip(grid, values)) for grid in self.grids for values in product(*grid.values())]
        return [p for i, p in enumerate(rows) if p not in rows[:i]]

    @property
    def size(self) -> int:
        """Number of trials: points times seeds."""
        return len(self.points()) * self.seeds

    def names(self) -> set[str]:
        """Names of all parameters."""
        return set(self.fixed) | {name for grid in self.grids for name in grid}

    def with_values(self, changes: Mapping[str, Sequence]) -> "Config":
        """A copy with other values of some parameters.

        A grid without a given parameter does not get it, so that its points are unchanged.

        Parameters
        ----------
        changes : mapping of str to sequence
            New values by parameter.

        Returns
        -------
        Config
            The new configuration.

        Raises
        ------
        ValueError
            If a parameter does not exist.
        """
        for name in changes:
            if name not in self.names():
                raise ValueError(f"unknown parameter {name!r}{did_you_mean(name, self.names())}")
        single = {k: v[0] for k, v in changes.items() if k in self.fixed and len(v) == 1}
        many = {k: v for k, v in changes.items() if k in self.fixed and len(v) > 1}
        grids = tuple({k: changes.get(k, v) for k, v in (dict(grid) | many).items()} for grid in self.grids)
        fixed = {k: v for k, v in self.fixed.items() if k not in many} | single
        return replace(self, grids=grids, fixed=fixed)


def config(*grids: Mapping[str, Sequence], seeds: int, **fixed: object) -> Config:
    """Create a configuration.

    Parameters
    ----------
    *grids : mapping of str to sequence
        Grids of parameters; the points are the union of their Cartesian products.
    seeds : int
        Number of seeds per point.
    **fixed
        Parameters with one value.

    Returns
    -------
    Config
        The configuration.

    Examples
    --------
    >>> from unlazy.lab.experiment import config
    >>> config({"n": [100, 300], "method": ["ntk", "one_step"]}, seeds=5, d=10).size
    20
    """
    return Config(tuple(grids) or ({},), check_positive_integer("seeds", seeds), fixed)


@dataclass(frozen=True)
class Experiment:
    """An experiment that tests predictions of theory.

    Parameters
    ----------
    name : str
        Name; also used for file names.
    source : {"S1", "S2", "S3", "S4", "general"}
        The talk that the experiment comes from.
    tags : tuple of str
        Tags of the theory that is tested, such as "K8".
    question, prediction, protocol, verdict : str
        The question, the predicted answer, what is measured, and the rule for the verdicts.
    trial : callable
        `trial(params, key)` runs one grid point with one seed and returns a dict of numbers and arrays. It is jitted
        and vectorized over seeds.
    claims : callable
        Claims from the records.
    figure : callable
        Matplotlib figure from the records.
    quick, full : Config
        Configurations.
    traced : tuple of str
        Parameters passed to the trial as JAX scalars: points that differ only in these share one compilation. All other
        parameters are static Python values.
    padded : tuple of str
        Counts that are traced, too. The static parameter `<name>_padded`, the next power of two, gives the array size:
        draw that many rows and give weight zero to those beyond the count.
    lanes : int, default 4
        Number of seeds per vectorized call. A seed always has the same lane in a batch of the same size, so its results
        depend neither on the number of workers nor on the other seeds.
    vectorized : bool, default True
        False for trials that JAX cannot trace; they are called without jit.
    precision : {"float32", "float64"}, default "float64"
        Precision of the trials.
    version : int, default 1
        Increased when the meaning of a trial changes; stored records of other versions are ignored.
    choices : mapping of str to sequence
        Further values of parameters, besides those in `quick` and `full`.
    caveats : str
        What the theory bounds, what is only asymptotic, and possible misinterpretations.
    demo : bool, default False
        Whether the experiment is part of `unlazy demo`.

    Raises
    ------
    ValueError
        If the name cannot be a file name, or a parameter is named "seed".
    """

    name: str
    source: Literal["S1", "S2", "S3", "S4", "general"]
    tags: tuple[str, ...]
    question: str
    prediction: str
    protocol: str
    verdict: str
    trial: Callable[[Params, PRNGKeyArray], Measures]
    claims: Callable[[Records], list[Claim]]
    figure: Callable[[Records], Figure]
    quick: Config
    full: Config
    traced: tuple[str, ...] = ()
    padded: tuple[str, ...] = ()
    lanes: int = 4
    vectorized: bool = True
    precision: Literal["float32", "float64"] = "float64"
    version: int = 1
    choices: Mapping[str, Sequence] = field(default_factory=dict)
    caveats: str = ""
    demo: bool = False

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ValueError(
                "the name of an experiment is used for file names and must consist of at most 100 letters, digits, _, "
                f"- and .; got {self.name!r}"
            )
        if "seed" in self.quick.names() | self.full.names():
            raise ValueError("a parameter cannot be named 'seed', since every trial has a seed; rename it")

    @property
    def title(self) -> str:
        """The name for display: spaces instead of underscores, acronyms in upper case."""
        return " ".join(_SPELLING.get(word, word) for word in self.name.split("_"))

    @property
    def identity(self) -> str:
        """Key of the stored trials: the name, prefixed by the module of the trial for user-defined experiments.

        It distinguishes experiments of the same name in different modules, and allows importing them again.
        """
        module = _trial_module(self.trial)
        return self.name if module.partition(".")[0] == "unlazy" else f"{module}:{self.name}"

    def static_part(self, params: Params) -> tuple:
        """The static arguments of the compiled function: parameters that are not traced, and padded sizes."""
        moving = {*self.traced, *self.padded}
        fixed = {k: v for k, v in params.items() if k not in moving}
        fixed |= {f"{k}_padded": padded_size(params[k]) for k in self.padded if k in params}
        return tuple(sorted(fixed.items()))


def padded_size(n: int) -> int:
    """The next power of two, which is the array size for all counts up to it."""
    return 1 << (check_positive_integer("a padded count", n) - 1).bit_length()


def file_names(experiments: Sequence[Experiment]) -> list[str]:
    """File names for experiments: the name, prefixed by the module if several have the same name."""
    names = [e.name for e in experiments]
    return [e.name if names.count(e.name) == 1 else e.identity.replace(":", ".") for e in experiments]


def _trial_module(trial: Callable) -> str:
    """The module that a function is imported from, also if it is the running script."""
    while isinstance(trial, partial):
        trial = trial.func
    module = getattr(inspect.unwrap(trial), "__module__", None) or type(trial).__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name.removesuffix(".__main__") if spec else Path(file).stem if file else module
