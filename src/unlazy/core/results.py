"""What is fitted has one shape: a Predictor gives f at points, a Trajectory does so at times, both with evidence.

Evidence is numbers and words. Numbers are leaves, which jit traces. Words are no part of the structure: fits of the
same shapes share one compiled program whatever is said of them. So that a result never says what was true of another,
words are lost on the way into jit, grad or vmap; those said inside come out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from unlazy.core.arrays import Points, concrete
from unlazy.core.precision import rounding


@runtime_checkable
class Predictor(Protocol):
    """A function that was found from data."""

    @property
    def evidence(self) -> "Evidence":
        """What was solved, and how well."""

    def predict(self, Z: Points, /) -> Float[Array | np.ndarray, "m ..."]:
        """f at every point of Z: (m,) for one output, (m, c) for several. Arrays, lists and frames alike."""


@runtime_checkable
class Trajectory(Protocol):
    """Functions along a time: of gradient flow, steps of descent, rounds of a machine, or a path of ridges."""

    @property
    def evidence(self) -> "Evidence":
        """What was solved, and how well."""

    @property
    def times(self) -> Float[Array | np.ndarray, "*t"] | Int[Array | np.ndarray, "*t"]:
        """Where along the path functions were computed."""

    def predict(self, Z: Points, /, t: Any) -> Float[Array | np.ndarray, "..."]:
        """f_t at every point of Z, shape (*t, m, *outputs); t is one or several of `times`."""

    def kernel_at(self, t: Any, /) -> Any:
        """The kernel that rules f at one time t: fixed for lazy training, moving where features are learned."""


@dataclass(frozen=True, eq=False)
class Words:
    """What is said of a fit. All words are equal: they are no part of a structure that programs are compiled for."""

    solved: str = ""
    """The problem, in a formula."""
    method: str = ""
    why: str = ""
    """Why this method."""
    stopped: str = ""
    """What ended the run."""
    notes: tuple[str, ...] = ()
    """What was mended, or what to know of the result."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Words)

    def __hash__(self) -> int:
        return hash(Words)


LOST = Words(notes=("what was said of this fit stayed outside jit, grad or vmap",))


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Evidence:
    """What was solved and how well."""

    residual: Any = math.nan
    """Relative error of the predictions at the training points; of a closed form the rounding of its matrix; of a
    convex problem with a certificate its duality gap over the objective; NaN where nobody looked, or nothing was
    found."""
    tolerance: Any = math.inf
    """The residual that was asked for."""
    ridge: Any = math.nan
    """Added to K, jitter included."""
    steps: Any = 1
    seconds: Any = math.nan
    bytes: Any = math.nan
    """Memory planned for, besides the data."""
    words: Words = Words()

    @property
    def converged(self) -> Any:
        """Whether what was asked for was reached."""
        found = self.residual <= self.tolerance
        return bool(found) if concrete(found) and np.ndim(found) == 0 else found

    @property
    def solved(self) -> str:
        return self.words.solved

    @property
    def notes(self) -> tuple[str, ...]:
        return self.words.notes

    def saying(self, **words: Any) -> "Evidence":
        """The same numbers with some words replaced."""
        return replace(self, words=replace(self.words, **words))

    def tree_flatten(self) -> tuple[tuple[Any, ...], Words]:
        numbers = (self.residual, self.tolerance, self.ridge, self.steps, self.seconds, self.bytes)
        # NumPy's numbers: Python's are constants to Equinox's filters, and whole ones cannot be differentiated
        return tuple(np.float64(v) if isinstance(v, int | float | np.number) else v for v in numbers), self.words

    @classmethod
    def tree_unflatten(cls, words: Words, numbers: Sequence[Any]) -> "Evidence":
        traced = any(isinstance(v, jax.core.Tracer) for v in numbers)
        return replace(cls(*numbers), words=LOST if traced else words)


def closed_form(values: Array, rows: int, **words: Any) -> Evidence:
    """Evidence for `values` from one decomposition of a matrix of so many rows: exact to its rounding, rows·2^-p of its
    norm, or without a result where they are not finite."""
    size = rows * rounding(values.dtype)
    fine = jnp.all(jnp.isfinite(values))
    residual = (size if bool(fine) else math.nan) if concrete(fine) else jnp.where(fine, size, jnp.nan)
    return Evidence(residual, words=Words(**words))


def place(times: Array | np.ndarray, t: Any, what: str = "time") -> Any:
    """The index of t (one or several) among the times of a path, equal to rounding; else a ValueError that names it.

    Inside jit nobody can look: there it is the nearest.
    """
    if times.ndim != 1:
        raise ValueError(f"a {what} is looked up along a path of one axis, and this one has shape {times.shape}")
    xp = np if concrete(times, t) else jnp
    known, wanted = xp.asarray(times), xp.asarray(t)
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        off = xp.where(known == wanted[..., None], 0, xp.abs(known - wanted[..., None]))
    index = xp.argmin(off, -1)
    if xp is np:
        unit = rounding(known.dtype) if known.dtype.kind == "f" else 0.0
        missed = np.min(off, -1) > 4 * unit * np.where(np.isinf(wanted), 0, np.abs(wanted))
        if missed.any():
            raise ValueError(
                f"{what} {float(np.atleast_1d(wanted)[np.atleast_1d(missed)][0]):.6g} is not on this path, which has "
                f"{', '.join(f'{v:.6g}' for v in known[:8])}{' …' if len(known) > 8 else ''}: compute it there too"
            )
    return index
