"""Uniform bits x ∈ {-1, 1}^d: sparse parities and staircases, polynomials by their Fourier coefficients."""

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
    """f*(x) = Σ_S c_S Π_{i∈S} x_i, x uniform on {-1, 1}^d.

    Abbe, Boix-Adserà and Misiakiewicz, The merged-staircase property (COLT 2022).
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
        return jax.random.rademacher(key, (self.d,), dtype=jnp.zeros(()).dtype)

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return sum((c * jnp.prod(X[:, list(S)], 1) for S, c in self.terms), jnp.zeros_like(X[:, 0]))

    @property
    def relevant(self) -> list[int]:
        """Coordinates that f* looks at."""
        return sorted({i for S, _ in self.terms for i in S})

    @property
    def fourier_coefficients(self) -> dict[tuple[int, ...], float]:
        """{S: c_S}."""
        return dict(self.terms)

    @property
    def subspace(self) -> Float[Array, "r d"]:
        return jnp.eye(self.d)[np.asarray(self.relevant, int)]

    @property
    def second_moment(self) -> float:
        return math.fsum(c * c for _, c in self.terms)

    @property
    def information_exponent(self) -> int | None:
        return min((len(S) for S, _ in self.terms if S), default=None)

    @property
    def leap(self) -> int | None:
        return hermite.leap([int(i in S) for i in self.relevant] for S, _ in self.terms)


def parity(d: int, k: int, noise: float = 0.0) -> CubePolynomial:
    """Π_{i<k} x_i: degree k at once, leap k."""
    return CubePolynomial(d, {tuple(range(_fits(d, k))): 1.0}, noise)


def staircase(d: int, k: int, noise: float = 0.0) -> CubePolynomial:
    """k^{-1/2} (x_0 + x_0x_1 + … + x_0⋯x_{k-1}): the same degree one step at a time, leap 1."""
    return CubePolynomial(d, {tuple(range(j)): 1 / math.sqrt(k) for j in range(1, _fits(d, k) + 1)}, noise)


def _fits(d: int, k: int) -> int:
    check_positive_integer("d (the number of bits)", d)
    if check_positive_integer("k (the relevant bits)", k) > d:
        raise ValueError(f"k = {k} relevant bits do not fit in d = {d}; take k ≤ d")
    return k
