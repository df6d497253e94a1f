"""Single- and multi-index models: Gaussian inputs, f*(x) = g(⟨u_1,x⟩, …, ⟨u_r,x⟩) [D1]."""

import math
from collections.abc import Callable, Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import HermiteCoefficients
from unlazy.tasks.gaussian import GaussianTask, gaussian_directions
from unlazy.theory.activations import hermite
from unlazy.theory.activations.functions import ActivationFunction

KNOWN_DEGREE = 12
"""Largest Hermite degree stored for a link that is not a polynomial."""
QUARTILE = 0.6744897501960817
"""Φ^{-1}(3/4): |z| exceeds it with probability one half."""
Link = Mapping[int, float] | Sequence[float] | ActivationFunction | Callable


class HermiteLink(eqx.Module):
    """Polynomial link g(z) = Σ_α c_α Π_i h_{α_i}(z_i), given by its normalized Hermite coefficients.

    Parameters
    ----------
    coefficients : mapping of tuples of int to float
        {α: c_α} with multi-indices α of one length r.

    Raises
    ------
    ValueError
        If the multi-indices have different lengths or negative entries, or a direction is unused.
    """

    terms: tuple[tuple[tuple[int, ...], float], ...] = eqx.field(static=True)

    def __init__(self, coefficients: Mapping[tuple[int, ...], float]):
        self.terms = tuple(sorted((tuple(a), float(c)) for a, c in coefficients.items() if c != 0))
        lengths = {len(a) for a, _ in self.terms}
        if len(lengths) != 1 or min(lengths) == 0:
            raise ValueError(f"a link needs multi-indices of one length and a coefficient ≠ 0, got {coefficients!r}")
        if any(k < 0 for a, _ in self.terms for k in a):
            raise ValueError(f"degrees must be integers ≥ 0, got {coefficients!r}")
        unused = [i for i in range(self.r) if not any(a[i] for a, _ in self.terms)]
        if unused:
            raise ValueError(f"no term uses direction {unused[0]}; remove it, so that the subspace is correct")

    @property
    def r(self) -> int:
        """Number of directions."""
        return len(self.terms[0][0])

    @property
    def degree(self) -> int:
        """Degree of the polynomial."""
        return max(sum(a) for a, _ in self.terms)

    def __call__(self, Z: Float[Array, "n r"]) -> Float[Array, " n"]:
        """Evaluate g at the rows of Z."""
        H = jnp.asarray(hermite.basis(Z, max(max(a) for a, _ in self.terms)))
        return sum(
            (c * math.prod(H[:, i, k] for i, k in enumerate(a) if k) * jnp.ones_like(Z[:, 0]) for a, c in self.terms),
            jnp.zeros_like(Z[:, 0]),
        )

    @property
    def coefficients(self) -> HermiteCoefficients:
        """Hermite coefficients {α: c_α}."""
        return dict(self.terms)

    @property
    def second_moment(self) -> float:
        """E g²."""
        return sum(c * c for _, c in self.terms)


class FunctionLink(eqx.Module):
    """Link g(z) = r^{-1/2} Σ_i φ(z_i) of any function φ, with Hermite coefficients computed by quadrature in float64.

    Parameters
    ----------
    function : callable
        Elementwise function φ.
    kinks : sequence of float, default ()
        Points at which φ or a derivative jumps.
    r : int, default 1
        Number of directions.
    degree : int, default 4
        Polynomial growth of φ that the quadrature must cover.
    """

    function: Callable = eqx.field(static=True)
    r: int = eqx.field(static=True)
    known: tuple[float, ...] = eqx.field(static=True)
    square: float = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(self, function: Callable, kinks: Sequence[float] = (), r: int = 1, degree: int = 4):
        self.function, self.r, self.degree = function, r, degree
        found = hermite.coefficients(function, KNOWN_DEGREE, kinks)
        self.square = hermite.second_moment(function, kinks)
        self.known = hermite.without_rounding(found, math.sqrt(self.square))

    def __call__(self, Z: Float[Array, "n r"]) -> Float[Array, " n"]:
        """Evaluate g at the rows of Z."""
        return self.function(Z).sum(1) / math.sqrt(self.r)

    @property
    def coefficients(self) -> HermiteCoefficients:
        """Hermite coefficients {α: c_α} up to KNOWN_DEGREE."""
        return _additive(self.known, self.r)

    @property
    def second_moment(self) -> float:
        """E g²."""
        mean = self.known[0]
        return self.square - mean**2 + self.r * mean**2


class IndexModel(GaussianTask):
    """Index model f*(x) = g(Ux) with Gaussian x and U of orthonormal rows [D1].

    Parameters
    ----------
    U : array of shape (r, d)
        Orthonormal rows.
    link : HermiteLink or FunctionLink
        The link g.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import IndexModel, index_model
    >>> link = index_model(3, {(2,): 1.0}).link  # He_2(z)/√2
    >>> task = IndexModel(jnp.eye(3)[:1], link)
    >>> task.target(jnp.array([[1.0, 5.0, 5.0]])).tolist()
    [0.0]
    >>> task.r, task.information_exponent
    (1, 2)
    """

    U: Float[Array, "r d"]
    link: HermiteLink | FunctionLink
    noise: float | Float[Array, ""]
    d: int = eqx.field(static=True)
    degree: int = eqx.field(static=True)

    def __init__(self, U: Float[Array, "r d"], link: HermiteLink | FunctionLink, noise: float | Float[Array, ""] = 0.0):
        self.U, self.link, self.noise = U, link, noise
        self.d, self.degree = U.shape[1], link.degree

    @property
    def r(self) -> int:
        """Number of directions."""
        return self.link.r

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f* at the inputs."""
        return self.link(dot(X, self.U.T.astype(X.dtype)))

    @property
    def subspace(self) -> Float[Array, "r d"]:
        """The directions U."""
        return self.U

    @property
    def second_moment(self) -> float:
        """E f*²."""
        return self.link.second_moment

    @property
    def hessian(self) -> Float[Array, "d d"]:
        """H = Uᵀ E[∇²g] U, where E ∂_i∂_j g is √2 c_{2e_i} on the diagonal and c_{e_i+e_j} off it."""
        return dot(self.U.T, jnp.asarray(link_hessian(self.link.coefficients, self.r), self.U.dtype), self.U)

    @property
    def kappa(self) -> float:
        """κ = ‖H^†‖/√r [D2]; infinite if H does not span S*."""
        sizes = np.abs(np.linalg.eigvalsh(link_hessian(self.link.coefficients, self.r)))
        smallest = float(sizes.min())
        return math.inf if smallest < 1e-9 * math.sqrt(self.second_moment) else 1 / (smallest * math.sqrt(self.r))

    @property
    def hermite_coefficients(self) -> HermiteCoefficients:
        """Hermite coefficients of the link."""
        return self.link.coefficients

    @property
    def information_exponent(self) -> int | None:
        """Smallest nonzero degree with a nonzero Hermite coefficient."""
        return min((sum(a) for a, c in self.link.coefficients.items() if c and any(a)), default=None)

    @property
    def leap(self) -> int | None:
        """Leap of the link."""
        return hermite.leap(a for a, c in self.link.coefficients.items() if c)


def link_hessian(coefficients: HermiteCoefficients, r: int) -> Float[np.ndarray, "r r"]:
    """Return E ∇²g of a link from its Hermite coefficients of degree 2."""
    H = np.zeros((r, r))
    for alpha, c in coefficients.items():
        if sum(alpha) == 2:
            touched = [i for i, a in enumerate(alpha) for _ in range(a)]
            i, j = touched
            H[i, j] = H[j, i] = c * (math.sqrt(2) if i == j else 1.0)
    return H


def index_model(
    d: int, coefficients: Mapping[tuple[int, ...], float], *, key: PRNGKeyArray | None = None,
    directions: Float[Array, "r d"] | None = None, noise: float = 0.0,
) -> IndexModel:  # fmt: skip
    """Polynomial of r directions, f*(x) = Σ_α c_α Π_i h_{α_i}(u_i·x) with h_k = He_k/√k!.

    Parameters
    ----------
    d : int
        Input dimension.
    coefficients : mapping of tuples of int to float
        Hermite coefficients {α: c_α}.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    directions : array of shape (r, d), optional
        Orthonormal directions u_i.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    IndexModel
        The task.

    Raises
    ------
    ValueError
        If the coefficients or the directions are invalid.

    Examples
    --------
    >>> import jax
    >>> from unlazy.tasks import index_model
    >>> task = index_model(10, {(1, 0): 1.0, (1, 2): 0.5}, key=jax.random.key(0))
    >>> task.subspace.shape, task.information_exponent, task.leap
    ((2, 10), 1, 2)
    >>> task.second_moment
    1.25
    """
    link = HermiteLink(coefficients)
    return IndexModel(gaussian_directions(d, link.r, directions, key), link, noise)


def multi_index(
    d: int, r: int, link: Link, *, kinks: Sequence[float] = (), key: PRNGKeyArray | None = None,
    directions: Float[Array, "r d"] | None = None, noise: float = 0.0,
) -> IndexModel:  # fmt: skip
    """Additive multi-index model f*(x) = r^{-1/2} Σ_i g(u_i·x).

    Parameters
    ----------
    d : int
        Input dimension.
    r : int
        Number of directions.
    link : mapping, sequence, activation or callable
        {degree: coefficient} or a list of coefficients of the normalized h_k, an activation, or any elementwise
        function.
    kinks : sequence of float, default ()
        Points at which a function `link` or a derivative jumps.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    directions : array of shape (r, d), optional
        Orthonormal directions u_i.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    IndexModel
        The task.

    Raises
    ------
    ValueError
        If the link or the directions are invalid.

    Examples
    --------
    >>> from unlazy.tasks import multi_index
    >>> task = multi_index(10, 3, {2: 1.0})
    >>> task.subspace.shape, round(task.second_moment, 6), round(task.kappa, 6)
    ((3, 10), 1.0, 0.707107)
    """
    r = check_positive_integer("r (the number of directions)", r)
    if isinstance(link, Mapping):
        series = {int(k): float(c) for k, c in link.items()}
        chosen: HermiteLink | FunctionLink = HermiteLink(_additive_mapping(series, r))
    elif callable(link):
        chosen = FunctionLink(link, link.kinks if isinstance(link, ActivationFunction) else kinks, r)
    else:
        chosen = HermiteLink(_additive_mapping(dict(enumerate(link)), r))
    return IndexModel(gaussian_directions(d, r, directions, key), chosen, noise)


def single_index(
    d: int, link: Link, *, kinks: Sequence[float] = (), key: PRNGKeyArray | None = None,
    directions: Float[Array, "1 d"] | None = None, noise: float = 0.0,
) -> IndexModel:  # fmt: skip
    """Single-index model f*(x) = g(u·x).

    Parameters
    ----------
    d : int
        Input dimension.
    link : mapping, sequence, activation or callable
        The link g, as in `multi_index`.
    kinks : sequence of float, default ()
        Points at which a function `link` or a derivative jumps.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    directions : array of shape (1, d), optional
        Unit direction u.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    IndexModel
        The task.

    Examples
    --------
    >>> from unlazy.tasks import single_index
    >>> single_index(10, {3: 1.0}).information_exponent
    3
    """
    return multi_index(d, 1, link, kinks=kinks, key=key, directions=directions, noise=noise)


def quadratic_plus(
    d: int, degree: int = 4, r: int = 1, *, key: PRNGKeyArray | None = None,
    directions: Float[Array, "r d"] | None = None, noise: float = 0.0,
) -> IndexModel:  # fmt: skip
    """Link g = He_2/2 + He_p/√(2 p!) along each of r directions [D9]: E f*² = 1, half of it in degree p, κ = 1.

    Parameters
    ----------
    d : int
        Input dimension.
    degree : int, default 4
        The degree p, at least 3.
    r : int, default 1
        Number of directions.
    key : PRNG key, optional
        Draws random directions; the first coordinate axes by default.
    directions : array of shape (r, d), optional
        Orthonormal directions.
    noise : float, default 0.0
        Labels are f*(x) ± noise with equal probability.

    Returns
    -------
    IndexModel
        The task.

    Raises
    ------
    ValueError
        If degree < 3.

    References
    ----------
    Damian, Lee and Soltanolkotabi (COLT 2022), Neural networks can learn representations with gradient descent.

    Examples
    --------
    >>> from unlazy.tasks import quadratic_plus
    >>> task = quadratic_plus(10, degree=4)
    >>> task.information_exponent, round(task.second_moment, 6), round(task.kappa, 6)
    (2, 1.0, 1.0)
    """
    if degree < 3:
        raise ValueError(f"degree must be 3 or more, got {degree}; degree 2 is already included")
    half = math.sqrt(0.5)
    return multi_index(d, r, {2: half, degree: half}, key=key, directions=directions, noise=noise)


def cubic_sign(d: int, *, key: PRNGKeyArray | None = None, noise: float = 0.0) -> IndexModel:
    """Labels f* = sign(z³ - 2 ln 2 z), z = u·x: bounded, of information exponent 3, so H = 0 and y² ≡ 1.

    Parameters
    ----------
    d : int
        Input dimension.
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
    >>> import jax
    >>> from unlazy.tasks import cubic_sign
    >>> task = cubic_sign(10)
    >>> task.information_exponent
    3
    >>> sorted(set(task.sample(jax.random.key(0), 50).y.tolist()))
    [-1.0, 1.0]
    """
    root = math.sqrt(2 * math.log(2))
    return single_index(d, _cubic_sign, kinks=(-root, 0.0, root), key=key, noise=noise)


def band_sign(d: int, *, key: PRNGKeyArray | None = None, noise: float = 0.0) -> IndexModel:
    """Labels f* = sign(|z| - Φ^{-1}(3/4)), z = u·x: bounded, balanced, of information exponent 2.

    Parameters
    ----------
    d : int
        Input dimension.
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
    >>> import jax.numpy as jnp
    >>> from unlazy.tasks import band_sign
    >>> task = band_sign(2)
    >>> task.information_exponent
    2
    >>> task.target(jnp.array([[0.0, 3.0], [1.0, 3.0]])).tolist()
    [-1.0, 1.0]
    """
    return single_index(d, _band_sign, kinks=(-QUARTILE, QUARTILE), key=key, noise=noise)


def _cubic_sign(z: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.sign(z * (z * z - 2 * math.log(2)))


def _band_sign(z: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.sign(jnp.abs(z) - QUARTILE)


def _additive_mapping(series: Mapping[int, float], r: int) -> HermiteCoefficients:
    """Return the multi-indices of r^{-1/2} Σ_i Σ_k c_k h_k(z_i)."""
    out = {(0,) * r: series.get(0, 0.0) * math.sqrt(r)}
    for i in range(r):
        out |= {tuple(k if j == i else 0 for j in range(r)): c / math.sqrt(r) for k, c in series.items() if k > 0}
    return {a: c for a, c in out.items() if c}


def _additive(series: Sequence[float], r: int) -> HermiteCoefficients:
    return _additive_mapping(dict(enumerate(series)), r)
