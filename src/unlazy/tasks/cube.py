"""Polynomials on uniform bits x ∈ {-1, 1}^d: sparse parities and staircases."""

import math
from collections.abc import Iterable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Task
from unlazy.theory.activations import hermite


class CubePolynomial(Task):
    """Polynomial on the hypercube, f*(x) = Σ_S c_S Π_{i∈S} x_i with x uniform on {-1, 1}^d.

    Parameters
    ----------
    d : int
        Number of bits.
    coefficients : mapping of tuples of int to float
        Fourier coefficients {S: c_S}, S a set of coordinates.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Raises
    ------
    ValueError
        If a coordinate is out of range or a set of coordinates occurs twice.

    References
    ----------
    Abbe, Boix-Adserà and Misiakiewicz (COLT 2022), The merged-staircase property.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import CubePolynomial
    >>> task = CubePolynomial(5, {(0,): 1.0, (0, 1, 2): 0.5})
    >>> task.target(jnp.array([[1.0, -1.0, 1.0, 1.0, 1.0]])).tolist()
    [0.5]
    >>> task.relevant, task.leap
    ([0, 1, 2], 2)
    """

    terms: tuple[tuple[tuple[int, ...], float], ...] = eqx.field(static=True)
    d: int = eqx.field(static=True)
    noise: float | Float[Array, ""]

    def __init__(self, d: int, coefficients: Mapping[Iterable[int], float], noise: float | Float[Array, ""] = 0.0):
        self.d, self.noise = check_positive_integer("d (the number of bits)", d), noise
        self.terms = tuple((tuple(sorted(set(S))), float(c)) for S, c in coefficients.items() if c != 0)
        used = {i for S, _ in self.terms for i in S}
        if used and not 0 <= min(used) <= max(used) < d:
            raise ValueError(f"coordinates run from 0 to d - 1 = {d - 1}, got {sorted(used)}")
        if len({S for S, _ in self.terms}) < len(self.terms):
            raise ValueError(f"each set of coordinates may occur once, got {list(coefficients)}")

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        """Draw one vector of random signs."""
        return jax.random.rademacher(key, (self.d,), dtype=jnp.zeros(()).dtype)

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f* at the inputs."""
        return sum((c * jnp.prod(X[:, list(S)], 1) for S, c in self.terms), jnp.zeros_like(X[:, 0]))

    @property
    def relevant(self) -> list[int]:
        """Coordinates that f* depends on."""
        return sorted({i for S, _ in self.terms for i in S})

    @property
    def fourier_coefficients(self) -> dict[tuple[int, ...], float]:
        """Fourier coefficients {S: c_S}."""
        return dict(self.terms)

    @property
    def subspace(self) -> Float[Array, "r d"]:
        """Axes of the relevant coordinates."""
        return jnp.eye(self.d)[np.asarray(self.relevant, int)]

    @property
    def second_moment(self) -> float:
        """E f*²."""
        return math.fsum(c * c for _, c in self.terms)

    @property
    def information_exponent(self) -> int | None:
        """Smallest nonzero degree with a nonzero coefficient."""
        return min((len(S) for S, _ in self.terms if S), default=None)

    @property
    def leap(self) -> int | None:
        """Leap of f*."""
        return hermite.leap([int(i in S) for i in self.relevant] for S, _ in self.terms)


def parity(d: int, k: int, noise: float = 0.0) -> CubePolynomial:
    """Sparse parity Π_{i<k} x_i, of leap k.

    Parameters
    ----------
    d : int
        Number of bits.
    k : int
        Number of relevant bits, at most d.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    CubePolynomial
        The task.

    Raises
    ------
    ValueError
        If k > d.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import parity
    >>> task = parity(4, 2)
    >>> task.target(jnp.array([[1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, 1.0, 1.0]])).tolist()
    [-1.0, 1.0]
    >>> task.leap
    2
    """
    return CubePolynomial(d, {tuple(range(_check_relevant(d, k))): 1.0}, noise)


def staircase(d: int, k: int, noise: float = 0.0) -> CubePolynomial:
    """Staircase k^{-1/2} (x_0 + x_0x_1 + … + x_0⋯x_{k-1}): degree k reached one step at a time, leap 1.

    Parameters
    ----------
    d : int
        Number of bits.
    k : int
        Number of relevant bits, at most d.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    CubePolynomial
        The task.

    Raises
    ------
    ValueError
        If k > d.

    Examples
    --------
    >>> from unlazy.tasks import staircase
    >>> task = staircase(10, 3)
    >>> list(task.fourier_coefficients), task.leap
    ([(0,), (0, 1), (0, 1, 2)], 1)
    """
    return CubePolynomial(d, {tuple(range(j)): 1 / math.sqrt(k) for j in range(1, _check_relevant(d, k) + 1)}, noise)


def _check_relevant(d: int, k: int) -> int:
    """Return k; raise ValueError if k > d."""
    check_positive_integer("d (the number of bits)", d)
    if check_positive_integer("k (the relevant bits)", k) > d:
        raise ValueError(f"k = {k} relevant bits do not fit in d = {d}; use k ≤ d")
    return k
