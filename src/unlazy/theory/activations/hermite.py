"""Hermite polynomials under the Gaussian measure: series, quadrature, coefficients, information exponent, leap.

h_k = He_k/√k! is the *normalized* probabilists' polynomial throughout: E h_j(z) h_k(z) = δ_jk for z ~ N(0, 1).
A series is its list of coefficients (c_0, c_1, …). Szegő, Orthogonal Polynomials (1939), chapter V.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.core.errors import UnlazyWarning, check_positive_integer

Vector = Float[np.ndarray, " _"]


def basis(x: Float[Array | np.ndarray, "*s"], degree: int) -> Float[Array | np.ndarray, "*s k"]:
    """h_0 … h_degree at every x, by √(k+1) h_{k+1} = x h_k - √k h_{k-1}.

    Parameters
    ----------
    x : array
        NumPy arrays give NumPy, others JAX.
    degree : int

    Returns
    -------
    array of shape (*x.shape, degree + 1)
    """
    xp = np if isinstance(x, np.ndarray) else jnp
    rows = [xp.zeros_like(x), xp.ones_like(x)]
    for k in range(degree):
        rows.append((x * rows[-1] - math.sqrt(k) * rows[-2]) / math.sqrt(k + 1))
    return xp.stack(rows[1:], -1)


def series(x: Float[Array, "*s"], coefficients: Sequence[float] | Vector | Float[Array, " _"]) -> Float[Array, "*s"]:
    """Σ_k c_k h_k(x), by Clenshaw's backward recurrence."""
    ahead, further = jnp.zeros_like(x), jnp.zeros_like(x)
    for k in range(len(coefficients) - 1, -1, -1):
        step = coefficients[k] + x * ahead / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * further
        ahead, further = step, ahead
    return ahead


def derivative(coefficients: Sequence[float] | Vector) -> Vector:
    """Coefficients of the derivative of a series: h_k' = √k h_{k-1}."""
    c = np.asarray(coefficients, float)
    return c[1:] * np.sqrt(np.arange(1, len(c))) if len(c) > 1 else np.zeros(1)


def product(first: Sequence[float] | Vector, second: Sequence[float] | Vector) -> Vector:
    """Coefficients of the product of two series: h_m h_n = Σ_s s! C(m,s) C(n,s) √((m+n-2s)!/(m! n!)) h_{m+n-2s}."""
    out = np.zeros(len(first) + len(second) - 1)
    for m, a in enumerate(first):
        for n, b in enumerate(second):
            for s in range(min(m, n) + 1):
                ratio = math.factorial(m + n - 2 * s) / (math.factorial(m) * math.factorial(n))
                out[m + n - 2 * s] += a * b * math.factorial(s) * math.comb(m, s) * math.comb(n, s) * math.sqrt(ratio)
    return out


def from_monomials(powers: Sequence[float] | Vector) -> Vector:
    """Hermite coefficients of Σ_n a_n x^n: x^n = Σ_m n!/(2^m m! √(n-2m)!) h_{n-2m}."""
    out = np.zeros(len(powers))
    for n, a in enumerate(powers):
        for m in range(n // 2 + 1):
            whole = math.factorial(n) // (2**m * math.factorial(m))
            out[n - 2 * m] += a * whole / math.sqrt(math.factorial(n - 2 * m))
    return out


def to_monomials(coefficients: Sequence[float] | Vector) -> Vector:
    """Monomial coefficients of Σ_k c_k h_k: h_k = Σ_m (-1)^m √k!/(2^m m! (k-2m)!) x^{k-2m}."""
    out = np.zeros(len(coefficients))
    for k, c in enumerate(coefficients):
        for m in range(k // 2 + 1):
            parts = 2**m * math.factorial(m) * math.factorial(k - 2 * m)
            out[k - 2 * m] += (-1) ** m * c * math.sqrt(math.factorial(k)) / parts
    return out


def gauss_hermite(nodes: int) -> tuple[Vector, Vector]:
    """Nodes and weights that integrate E f(z) exactly for polynomials of degree up to 2·nodes - 1.

    Nodes by Golub and Welsch (1969); the weights are 1/Σ_k h_k(z)², accurate far into the tails.

    Parameters
    ----------
    nodes : int

    Returns
    -------
    z, weights : array of shape (nodes,)
    """
    off = np.sqrt(np.arange(1, check_positive_integer("nodes", nodes)))
    z = np.linalg.eigvalsh(np.diag(off, 1) + np.diag(off, -1)) if nodes > 1 else np.zeros(1)
    z = (z - z[::-1]) / 2
    return z, 1 / np.sum(basis(z, nodes - 1) ** 2, -1)


def panel_rule(nodes: int, half_width: float, kinks: Iterable[float] = ()) -> tuple[Vector, Vector]:
    """Nodes and weights for E f(z) on [-half_width, half_width], by Gauss-Legendre panels that end at the kinks.

    Parameters
    ----------
    nodes : int
        Approximate number of nodes, evenly distributed, at least 4 per panel.
    half_width : float
        The mass beyond ±half_width is ignored.
    kinks : iterable of float

    Returns
    -------
    z, weights : array
    """
    cuts = [-half_width, *sorted({k for k in kinks if abs(k) < half_width}), half_width]
    density = nodes / (2 * half_width)
    panels = []
    for a, b in pairwise(cuts):
        here = max(4, round(density * (b - a)))
        parts = max(1, round(here / 24))  # 24 nodes integrate a smooth panel to rounding; more hurts conditioning
        edges = np.linspace(a, b, parts + 1)
        t, w = np.polynomial.legendre.leggauss(max(4, round(here / parts)))
        panels += [((p + q) / 2 + (q - p) / 2 * t, (q - p) / 2 * w) for p, q in pairwise(edges)]
    z = np.concatenate([p[0] for p in panels])
    return z, np.concatenate([p[1] for p in panels]) * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def coefficients(
    function: Callable[[Array], Array], degree: int, kinks: Iterable[float] = (), *, tolerance: float = 1e-9
) -> Vector:
    """Hermite coefficients c_k = E f(z) h_k(z), k = 0 … degree, in float64, also inside jit.

    Two quadrature rules are compared. For polynomials use `from_monomials`, which needs no quadrature.

    Parameters
    ----------
    function : callable
        f, a JAX function.
    degree : int
    kinks : iterable of float
        Points at which f or a derivative jumps; panels are split there.
    tolerance : float, default 1e-9
        Warn if the two rules differ by more than this, relative to the norm of f, as for an undeclared kink.

    Returns
    -------
    array of shape (degree + 1,)
    """
    reach = 10 + 2 * math.sqrt(degree)
    size = 640 + 16 * degree
    coarse, _ = _project(function, degree, *panel_rule(size, reach, kinks))
    fine, norm = _project(function, degree, *panel_rule(2 * size + 3, reach, kinks))
    gap = float(np.max(np.abs(fine - coarse)))
    if not gap <= tolerance * max(norm, 1e-300):
        message = f"Hermite coefficients are uncertain by {gap:.1e}; declare the kinks of the function"
        warnings.warn(message, UnlazyWarning, stacklevel=2)
    return fine


def without_rounding(found: Vector, norm: float, tolerance: float = 1e-12) -> tuple[float, ...]:
    """Coefficients from quadrature with those below tolerance·norm set to zero."""
    return tuple(float(c) if abs(c) > tolerance * norm else 0.0 for c in found)


def second_moment(function: Callable[[Array], Array], kinks: Iterable[float] = ()) -> float:
    """E f(z)² in float64, by the same panels."""
    z, w = panel_rule(1600, 14.0, kinks)
    return float(np.sum(w * evaluate(function, z) ** 2))


def evaluate(function: Callable[[Array], Array], z: Vector) -> Vector:
    """Evaluate a JAX function at float64 points eagerly, as NumPy float64, also while JAX traces a caller."""
    with jax.ensure_compile_time_eval(), jax.enable_x64(True):
        return np.asarray(function(jnp.asarray(z, jnp.float64)), dtype=np.float64)


def _project(function: Callable[[Array], Array], degree: int, z: Vector, w: Vector) -> tuple[Vector, float]:
    """Coefficients by one quadrature rule, and the norm of f."""
    values = evaluate(function, z)
    return dot(w * values, basis(z, degree)), math.sqrt(float(np.sum(w * values**2)))


def pair_moment(
    function: Callable[[Array], Array], correlation: Float[Array, "*s"], kinks: Sequence[float] = ()
) -> Float[Array, "*s"]:
    """E f(a) f(b) for standard Gaussians a, b with given correlation, by quadrature split at the kinks of f.

    b = ρa + √(1-ρ²) t. Panels in t end where b crosses a kink; the inner integral is smooth in a on the scale √(1-ρ²)/ρ
    around kink/ρ and gets panels of that width. Differentiable and jittable.

    Parameters
    ----------
    function : callable
        f, a JAX function.
    correlation : array
        ρ.
    kinks : sequence of float

    Returns
    -------
    array of the shape of correlation
    """
    reach, (nodes, weights) = 9.0, np.polynomial.legendre.leggauss(48)
    corners = jnp.asarray(kinks, correlation.dtype)

    def panels(cuts: Float[Array, "... e"]) -> tuple[Float[Array, "... q"], Float[Array, "... q"]]:
        """Nodes and Gaussian weights of the panels between sorted cuts."""
        middle, half = (cuts[..., 1:] + cuts[..., :-1]) / 2, (cuts[..., 1:] - cuts[..., :-1]) / 2
        t = (middle[..., None] + half[..., None] * nodes).reshape(*cuts.shape[:-1], -1)
        w = (half[..., None] * weights).reshape(t.shape)
        return t, w * jnp.exp(-t * t / 2) / math.sqrt(2 * math.pi)

    def one(rho: Float[Array, ""]) -> Float[Array, ""]:
        spread = jnp.sqrt(jnp.maximum(1 - rho**2, 1e-24))
        slope = jnp.where(jnp.abs(rho) < 0.1, 0.1, rho)  # below 0.1, √(1-ρ²)/ρ exceeds the reach: no panels needed
        near = [corners / slope + k * spread / slope for k in (-6.0, 0.0, 6.0)]
        outer = jnp.concatenate([jnp.linspace(-reach, reach, 5, dtype=rho.dtype), corners, *near])
        z, w = panels(jnp.sort(jnp.clip(outer, -reach, reach)))
        meets = jnp.clip((corners - rho * z[:, None]) / spread, -reach, reach)
        ends = jnp.broadcast_to(jnp.asarray([-reach, 0.0, reach], rho.dtype), (len(z), 3))
        t, v = panels(jnp.sort(jnp.concatenate([ends, meets], 1)))
        return jnp.sum(w * function(z) * jnp.sum(v * function(rho * z[:, None] + spread * t), 1))

    return jax.lax.map(one, correlation.ravel()).reshape(correlation.shape)


def information_exponent(coefficients: Sequence[float] | Vector, tolerance: float = 1e-9) -> int | None:
    """Smallest k ≥ 1 with c_k ≠ 0 (beyond rounding); None for a constant.

    Ben Arous, Gheissari and Jagannath, Online stochastic gradient descent on non-convex losses (JMLR 2021).
    """
    c = np.abs(np.asarray(coefficients, float))
    return next((k for k in range(1, len(c)) if c[k] > tolerance * c.max()), None)


def leap(exponents: Iterable[Sequence[int]]) -> int | None:
    """Leap complexity of a function from the multi-indices α of its nonzero terms, in the given basis.

    Minimum over orders of the maximum over terms of Σ α_i over the coordinates that no earlier term used. Adding the
    cheapest term first is optimal, since known coordinates only make later terms cheaper. None for a constant. Abbe,
    Boix-Adserà and Misiakiewicz, SGD learning on neural networks: leap complexity (COLT 2023).
    """
    left = [tuple(alpha) for alpha in exponents if any(alpha)]
    if not left:
        return None
    known: set[int] = set()
    worst = 0
    while left:
        costs = [sum(a for i, a in enumerate(alpha) if i not in known) for alpha in left]
        cheapest = costs.index(min(costs))
        worst = max(worst, costs[cheapest])
        known |= {i for i, a in enumerate(left.pop(cheapest)) if a}
    return worst
