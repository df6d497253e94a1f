"""Base class of the methods that solve (K + ρI)α = y: immutable objects whose fields are options."""

import abc
import dataclasses
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx

from unlazy.core.errors import check_positive, check_positive_integer
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.problem import FittedCoefficients, Problem


class Method(eqx.Module):
    """Base class of the methods of `solve`. Fields are options; None means chosen automatically.

    Subclasses implement `solve` and set the class attributes below.

    Attributes
    ----------
    name : str
        Name of the method in `solve(method=…)`.
    default_max_steps : int
        Maximum number of steps unless `max_steps` is given.
    supports_any_input : bool
        Whether points may be images or pytrees; otherwise X must be a matrix.
    uses_centers : bool
        Whether the method solves for a subset of centers.
    """

    name: ClassVar[str]
    """Name of the method in `solve(method=…)`."""
    default_max_steps: ClassVar[int]
    """Maximum number of steps unless `max_steps` is given."""
    supports_any_input: ClassVar[bool] = False
    """Whether points may be images or pytrees; otherwise X must be a matrix."""
    uses_centers: ClassVar[bool] = False
    """Whether the method solves for a subset of centers."""

    @abc.abstractmethod
    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute the coefficients of a validated problem.

        Parameters
        ----------
        problem : Problem
            Inputs, labels, ridge, precision and memory budget.
        callback : SolverCallback
            Called after every step; decides when to stop.

        Returns
        -------
        FittedCoefficients
        """

    def options(self) -> dict[str, object]:
        """Options that differ from their defaults; a checkpoint is specific to them."""
        found = {f.name: (getattr(self, f.name), f.default) for f in dataclasses.fields(self)}
        return {name: value for name, (value, usual) in found.items() if value is not None and value is not usual}


def positive_integer_or_none(what: str) -> Callable[[object], int | None]:
    """Return a converter that accepts a positive integer or None."""
    return lambda value: None if value is None else check_positive_integer(what, value)


def positive_or_none(what: str) -> Callable[[object], float | None]:
    """Return a converter that accepts a positive number or None."""
    return lambda value: None if value is None else float(check_positive(what)(value))
