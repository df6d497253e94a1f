"""A way to solve (K + ρI)α = y: a frozen value that carries its own options."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx

from unlazy.core.errors import check_positive, check_positive_integer
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.problem import Fit, Problem


class Method(eqx.Module):
    """What a solver gives. Fields are options; None leaves one to be chosen."""

    name: ClassVar[str]
    """The word for it in `solve(method=…)`."""
    most_steps: ClassVar[int]
    """Steps allowed unless `max_steps` says otherwise."""
    any_data: ClassVar[bool] = False
    """Whether points may be images or trees; else they are rows of a matrix."""
    restricts: ClassVar[bool] = False
    """Whether it solves for some centers only: `against_full` then says what that costs."""

    @abc.abstractmethod
    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """The coefficients, with the evidence for them."""

    def against_full(self, problem: Problem, fit: Fit, tolerance: float) -> Fit:
        """The fit with its distance from full regression in the residual, where nobody asked for a restriction."""
        return fit

    def options(self) -> dict[str, Any]:
        """Options that are not left as they are: a checkpoint belongs to them."""
        found = {f.name: (getattr(self, f.name), f.default) for f in dataclasses.fields(self)}
        return {name: value for name, (value, usual) in found.items() if value is not None and value is not usual}


def count(what: str) -> Callable[[Any], int | None]:
    """A converter: a positive whole number, or None."""
    return lambda value: None if value is None else check_positive_integer(what, value)


def positive(what: str) -> Callable[[Any], float | None]:
    """A converter: a positive number, or None."""
    return lambda value: None if value is None else float(check_positive(what)(value))
