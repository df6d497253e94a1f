"""Low-rank polynomials of Gaussian inputs [L7]."""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.tasks.index_models import IndexModel, multi_index
from unlazy.tasks.ridge_sums import RidgeSum, unit_rows
from unlazy.theory.activations import hermite


class RankPolynomial(RidgeSum):
    """Rank-r polynomial f*(x) = Σ_s a_s (w_s·x)^{p_s} [L7], x ~ N(0, I_d), ‖w_s‖ = 1. All properties are exact.

    Parameters
    ----------
    W : array of shape (r, d)
        Unit rows w_s.
    heads : array of shape (r,)
        Readout weights a_s.
    powers : tuple of int
        Powers p_s.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    References
    ----------
    Bai and Lee (2020), Beyond linearization: on quadratic and higher-order approximation of wide neural networks.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import RankPolynomial
    >>> task = RankPolynomial(jnp.eye(2, 5), jnp.array([1.0, 0.5]), (2, 3))  # x_0² + x_1³/2
    >>> task.target(jnp.array([[3.0, 2.0, 0.0, 0.0, 0.0]])).tolist()
    [13.0]
    """

    W: Float[Array, "r d"]
    heads: Float[Array, " r"]
    powers: tuple[int, ...] = eqx.field(static=True)
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(
        self, W: Float[Array, "r d"], heads: Float[Array, " r"], powers: tuple[int, ...],
        noise: float | Float[Array, ""] = 0.0,
    ):  # fmt: skip
        self.W, self.heads, self.powers, self.noise = W, heads, powers, noise
        self.d, self.degree = W.shape[1], max(powers)

    def ridges(self, Z: Float[Array, "n r"]) -> Float[Array, "n r"]:
        """Return z_s^{p_s}."""
        return jnp.stack([Z[:, j] ** p for j, p in enumerate(self.powers)], 1)

    def ridge_coefficients(self) -> Float[np.ndarray, "r k"]:
        """Return the Hermite coefficients of every power."""
        size = max(self.degree, 2) + 1
        return np.stack([hermite.from_monomials(np.eye(size)[p]) for p in self.powers])

    def pair_moments(self, correlation: Float[Array, "r r"]) -> Float[Array, "r r"]:
        """Return Σ_k c_k(g_i) c_k(g_j) ρ_ij^k."""
        C = jnp.asarray(self.ridge_coefficients(), correlation.dtype)
        return sum((C[:, k : k + 1] * C[:, k] * correlation**k for k in range(C.shape[1])), jnp.zeros_like(correlation))


def rank_polynomial(
    d: int, powers: Sequence[int], *, heads: Float[Array, " r"] | None = None, key: PRNGKeyArray | None = None,
    weights: Float[Array, "r d"] | None = None, orthogonal: bool = True, noise: float = 0.0,
) -> RankPolynomial:  # fmt: skip
    """Create a polynomial Σ_s a_s (w_s·x)^{p_s} with one power per direction.

    Parameters
    ----------
    d : int
        Input dimension.
    powers : sequence of int
        Powers p_s.
    heads : array of shape (r,), optional
        Readout weights a_s; by default equal, scaled to E f*² = 1.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    weights : array of shape (r, d), optional
        Unit rows w_s.
    orthogonal : bool, default True
        Whether drawn directions are orthonormal; otherwise independent and uniform on the sphere.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    RankPolynomial
        The task.

    Raises
    ------
    ValueError
        If `powers` is empty or a shape does not match.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import rank_polynomial
    >>> task = rank_polynomial(10, (2, 4), key=jax.random.key(0))
    >>> task.W.shape, round(float(task.second_moment), 4)
    ((2, 10), 1.0)
    """
    chosen = tuple(check_positive_integer("a power", p) for p in powers)
    if not chosen:
        raise ValueError("`powers` is empty; pass one power per direction, such as (2, 4)")
    W = unit_rows(d, len(chosen), weights, key, orthogonal)
    if heads is not None:
        if heads.shape != (len(chosen),):
            raise ValueError(f"`heads` must have shape ({len(chosen)},), got {heads.shape}")
        return RankPolynomial(W, heads, chosen, noise)
    equal = RankPolynomial(W, jnp.ones(len(chosen), W.dtype), chosen, noise)
    return RankPolynomial(W, equal.heads / jnp.sqrt(equal.second_moment), chosen, noise)


def quadratic(d: int, r: int = 1, *, key: PRNGKeyArray | None = None, noise: float = 0.0) -> RankPolynomial:
    """Quadratic Σ_s (w_s·x)² over r orthonormal directions, scaled to E f*² = 1: the example of F1 versus F2 [L6].

    Parameters
    ----------
    d : int
        Input dimension.
    r : int, default 1
        Rank.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    RankPolynomial
        The task.

    Examples
    --------
    >>> from unlazy.tasks import quadratic
    >>> task = quadratic(10, r=2)
    >>> task.powers, round(float(task.second_moment), 4)
    ((2, 2), 1.0)
    """
    return rank_polynomial(d, (2,) * check_positive_integer("r (the rank)", r), key=key, noise=noise)


def hermite_polynomial(
    d: int, degree: int = 4, r: int = 1, *, key: PRNGKeyArray | None = None, noise: float = 0.0
) -> IndexModel:
    """Pure Hermite polynomial r^{-1/2} Σ_s He_p(w_s·x)/√p!, with E f*² = 1.

    It is uncorrelated with all polynomials of lower degree. (A raw fourth power has three quarters of its variance in
    degree 2.)

    Parameters
    ----------
    d : int
        Input dimension.
    degree : int, default 4
        The degree p.
    r : int, default 1
        Number of directions.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    IndexModel
        The task.

    Examples
    --------
    >>> from unlazy.tasks import hermite_polynomial
    >>> task = hermite_polynomial(10, degree=4)
    >>> task.information_exponent, task.second_moment
    (4, 1.0)
    """
    return multi_index(d, r, {check_positive_integer("degree", degree): 1.0}, key=key, noise=noise)


def monomial_share(power: int, degree: int) -> float:
    """Share of the variance of (w·x)^power that lies in one Hermite degree.

    Parameters
    ----------
    power : int
        The power.
    degree : int
        The Hermite degree.

    Returns
    -------
    float
        Share between 0 and 1.

    Examples
    --------
    >>> from unlazy.tasks.polynomials import monomial_share
    >>> round(monomial_share(4, 2), 12)
    0.75
    """
    c = hermite.from_monomials(np.eye(power + 1)[power])
    return float(c[degree] ** 2 / math.fsum(c[1:] ** 2)) if 1 <= degree <= power else 0.0
