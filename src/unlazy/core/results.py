"""Interfaces of fitted results: `Predictor` evaluates a function at points, `Trajectory` does so at times.

Both carry `Evidence`: numbers and a description. The numbers are pytree leaves, which jit traces. The description is
auxiliary data that always compares equal, so fits of the same shapes share one compiled program. To ensure that a
result never carries the description of another fit, descriptions are dropped on the way into jit, grad or vmap; those
created inside are returned.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from unlazy.core.arrays import Points, is_concrete, unit_roundoff


@runtime_checkable
class Predictor(Protocol):
    """A function fitted to data."""

    @property
    def evidence(self) -> "Evidence":
        """What was solved and how accurately."""

    def predict(self, Z: Points, /) -> Float[Array | np.ndarray, "m ..."]:
        """Evaluate f at every point.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points, as an array, nested lists or a data frame.

        Returns
        -------
        array of shape (m,) or (m, c)
            Predictions, for one output or c outputs.
        """


@runtime_checkable
class Trajectory(Protocol):
    """A path of functions: over time in gradient flow, over descent steps, over iterations, or over ridges."""

    @property
    def evidence(self) -> "Evidence":
        """What was solved and how accurately."""

    @property
    def times(self) -> Float[Array | np.ndarray, "*t"] | Int[Array | np.ndarray, "*t"]:
        """Times at which the functions were computed."""

    def predict(self, Z: Points, /, t: ArrayLike) -> Float[Array | np.ndarray, "..."]:
        """Evaluate f_t at every point.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : scalar or array
            One or several of `times`.

        Returns
        -------
        array of shape (*t, m, *outputs)
            Predictions.
        """

    def kernel_at(self, t: ArrayLike, /) -> object:
        """The kernel that governs f at time t: constant in lazy training, changing when features are learned."""


@dataclass(frozen=True, eq=False)
class FitDescription:
    """Text that describes a fit.

    All descriptions compare equal, so that they do not affect the pytree structure that programs are compiled for.
    """

    solved: str = ""
    """The problem, as a formula."""
    method: str = ""
    """The method."""
    why: str = ""
    """Why this method was chosen."""
    stopped: str = ""
    """Why the iteration stopped."""
    notes: tuple[str, ...] = ()
    """Automatic corrections, and remarks on the result."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FitDescription)

    def __hash__(self) -> int:
        return hash(FitDescription)


LOST_DESCRIPTION = FitDescription(notes=("the description of this fit was dropped by jit, grad or vmap",))


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Evidence:
    """What was solved and how accurately.

    Attributes
    ----------
    residual : float or array
        Relative error of the predictions at the training points. For a closed form, the rounding error of its matrix;
        for a convex problem with a certificate, the duality gap divided by the objective; NaN if it was not computed or
        the fit failed.
    tolerance : float or array
        The requested residual.
    ridge : float or array
        Value added to the diagonal of K, including jitter.
    steps : int or array
        Number of iterations.
    seconds : float or array
        Wall-clock time.
    bytes : float or array
        Planned memory, besides the data.
    description : FitDescription
        Problem, method and notes, as text.
    """

    residual: Any = math.nan
    tolerance: Any = math.inf
    ridge: Any = math.nan
    steps: Any = 1
    seconds: Any = math.nan
    bytes: Any = math.nan
    description: FitDescription = FitDescription()

    @property
    def converged(self) -> Any:
        """Whether the residual is within the tolerance."""
        reached = self.residual <= self.tolerance
        return bool(reached) if is_concrete(reached) and np.ndim(reached) == 0 else reached

    @property
    def solved(self) -> str:
        """The problem, as a formula."""
        return self.description.solved

    @property
    def notes(self) -> tuple[str, ...]:
        """Automatic corrections, and remarks on the result."""
        return self.description.notes

    def with_description(self, solved: str | None = None, notes: tuple[str, ...] | None = None) -> "Evidence":
        """The same numbers, with another problem or other notes in the description.

        Parameters
        ----------
        solved : str, optional
            The problem, as a formula. Unchanged by default.
        notes : tuple of str, optional
            Corrections and remarks. Unchanged by default.

        Returns
        -------
        Evidence
            The new evidence.
        """
        old = self.description
        new = replace(old, solved=old.solved if solved is None else solved, notes=old.notes if notes is None else notes)
        return replace(self, description=new)

    def tree_flatten(self) -> tuple[tuple[ArrayLike, ...], FitDescription]:
        """Numbers as leaves, the description as auxiliary data."""
        numbers = (self.residual, self.tolerance, self.ridge, self.steps, self.seconds, self.bytes)
        # as NumPy floats: Python numbers are static for Equinox's filters, and integers cannot be differentiated
        leaves = tuple(np.float64(v) if isinstance(v, int | float | np.number) else v for v in numbers)
        return leaves, self.description

    @classmethod
    def tree_unflatten(cls, description: FitDescription, numbers: Sequence[PyTree]) -> "Evidence":
        """Inverse of `tree_flatten`; the description is dropped if the numbers are traced."""
        traced = any(isinstance(v, jax.core.Tracer) for v in numbers)
        return replace(cls(*numbers), description=LOST_DESCRIPTION if traced else description)


def closed_form_evidence(
    values: Array, rows: int, *, solved: str, method: str, notes: tuple[str, ...] = ()
) -> Evidence:
    """Evidence for `values` computed by one decomposition of a matrix with this number of rows.

    The residual is the rounding error, rows · 2^-p relative to the norm of the matrix, or NaN if the values are not
    finite. `solved`, `method` and `notes` are those of `FitDescription`.
    """
    error = rows * unit_roundoff(values.dtype)
    finite = jnp.all(jnp.isfinite(values))
    residual = (error if bool(finite) else math.nan) if is_concrete(finite) else jnp.where(finite, error, jnp.nan)
    return Evidence(residual, description=FitDescription(solved, method, notes=notes))


def time_index(
    times: Array | np.ndarray, t: ArrayLike | Sequence[float], what: str = "time"
) -> Array | np.ndarray | np.intp:
    """Index of t (one or several) among the times of a path, equal up to rounding; raise ValueError if there is none.

    Under jit values cannot be checked, and the index of the nearest time is returned.
    """
    if times.ndim != 1:
        raise ValueError(f"a {what} can only be looked up along a one-dimensional path, got shape {times.shape}")
    xp = np if is_concrete(times, t) else jnp
    known, wanted = xp.asarray(times), xp.asarray(t)
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        off = xp.where(known == wanted[..., None], 0, xp.abs(known - wanted[..., None]))
    index = xp.argmin(off, -1)
    if xp is np:
        unit = unit_roundoff(known.dtype) if known.dtype.kind == "f" else 0.0
        missed = np.min(off, -1) > 4 * unit * np.where(np.isinf(wanted), 0, np.abs(wanted))
        if missed.any():
            raise ValueError(
                f"{what} {float(np.atleast_1d(wanted)[np.atleast_1d(missed)][0]):.6g} is not on this path, which has "
                f"{', '.join(f'{v:.6g}' for v in known[:8])}{' …' if len(known) > 8 else ''}: compute it there too"
            )
    return index
