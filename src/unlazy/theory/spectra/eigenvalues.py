"""Eigenvalues of a kernel under a distribution of inputs, and the learning curves they predict [L3].

On the sphere S^{d-1} a dot-product kernel k(⟨x,z⟩) has one eigenvalue per degree ℓ, with the spherical harmonics of
that degree as eigenfunctions. Under N(0, I_d) a kernel of ⟨x,z⟩, |x| and |z| has, per degree ℓ, the eigenvalues of an
operator on the radius. Both need integrals over the angle only, by Gauss-Legendre in θ instead of t = cos θ: NTK and
Laplace kernels have a kink in t at 1 (√(1-t)) but are analytic in θ, so convergence is geometric.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import comb, gammaln, roots_genlaguerre, roots_legendre

from unlazy.core.arrays import A, dot, einsum, namespace


def multiplicity(d: int, degree: int) -> int:
    """Number of spherical harmonics of one degree on S^{d-1}: C(ℓ+d-1, d-1) - C(ℓ+d-3, d-1)."""
    lower = comb(degree + d - 3, d - 1, exact=True) if degree >= 2 else 0
    return int(comb(degree + d - 1, d - 1, exact=True) - lower)


def multiplicities(d: int, degrees: int) -> np.ndarray:
    """Multiplicities of degrees 0 … degrees, as floats (they grow like ℓ^{d-2})."""
    return np.array([multiplicity(d, degree) for degree in range(degrees + 1)], float)


def gegenbauer(t: A, d: int, degrees: int) -> A:
    """P_ℓ(t), ℓ = 0 … degrees, normalized to P_ℓ(1) = 1: E over the sphere of P_ℓ(x·u)² is 1/multiplicity.

    (ℓ + d - 2) P_{ℓ+1} = (2ℓ + d - 2) t P_ℓ - ℓ P_{ℓ-1}; Legendre for d = 3, cos ℓθ for d = 2. For NumPy or JAX arrays.
    """
    xp = namespace(t)
    rows = [xp.ones_like(t), t]
    for ell in range(1, degrees):
        rows.append(((2 * ell + d - 2) * t * rows[-1] - ell * rows[-2]) / (ell + d - 2))
    return xp.stack(rows[: degrees + 1])


@lru_cache(maxsize=32)
def angle_rule(d: int, degrees: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes t_j = cos θ_j and the matrix that maps k(t_j) to eigenvalues: M[ℓ, j] = w_j P_ℓ(t_j).

    w_j is the distribution of t = ⟨x,z⟩ for independent uniform x, z: density ∝ sin^{d-2}θ dθ, normalized in closed
    form.

    Raises
    ------
    ValueError
        If d < 2.
    """
    if d < 2:
        raise ValueError(f"the sphere needs at least d = 2 inputs, got {d}")
    x, w = roots_legendre(nodes)
    theta = np.pi * (x + 1) / 2
    log_norm = gammaln(d / 2) - gammaln((d - 1) / 2) - 0.5 * np.log(np.pi)
    weights = w * np.pi / 2 * np.exp(log_norm + (d - 2) * np.log(np.sin(theta)))
    t = np.cos(theta)
    return t, weights * gegenbauer(t, d, degrees)


def sphere_eigenvalues(
    profile: Callable[[Float[Array, " j"]], Float[Array, " j"]], d: int, degrees: int, nodes: int | None = None
) -> Float[Array, " l"]:
    """Eigenvalues of k(x,z) = profile(⟨x,z⟩) on S^{d-1}, degrees 0 … degrees [L3] (Funk-Hecke).

    λ_ℓ = E[k(t) P_ℓ(t)], t = ⟨x,z⟩ of independent uniform points; Σ_ℓ multiplicity(d, ℓ) λ_ℓ = k(1). Quadrature has an
    absolute error of about 1e-13·k(1): smaller eigenvalues (Gaussian kernel, high ℓ) are noise.

    Parameters
    ----------
    profile : callable
        k as a function of t.
    d : int
        Number of inputs.
    degrees : int
        Largest degree.
    nodes : int, optional
        Quadrature nodes, by default 2·degrees + d + 200.

    Returns
    -------
    array of shape (degrees + 1,)
    """
    t, projection = angle_rule(d, degrees, nodes or 2 * degrees + d + 200)
    return dot(jnp.asarray(projection), profile(jnp.asarray(t)))


def gaussian_eigenvalues(
    entry: Callable[..., Float[Array, "..."]], d: int, degrees: int, radial_nodes: int = 40, nodes: int | None = None
) -> Float[Array, "l r"]:
    """Eigenvalues of a kernel entry(⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩) under N(0, I_d), in descending order for each angular degree.

    For degree ℓ the eigenfunctions are R(|x|)·(spherical harmonic), R those of κ_ℓ(r, s) = E[k(rst, r², s²) P_ℓ(t)]
    under the distribution of |x|: a small symmetric matrix on the nodes of generalized Gauss-Laguerre in r²/2. Each
    value has multiplicity(d, ℓ). For the Gaussian kernel these are Mehler's Hermite eigenvalues (`mehler_eigenvalues`).

    Parameters
    ----------
    entry : callable
        The kernel as a function of three inner products.
    d : int
        Number of inputs.
    degrees : int
        Largest angular degree.
    radial_nodes : int, default 40
    nodes : int, optional
        Angular nodes, by default 2·degrees + d + 100.

    Returns
    -------
    array of shape (degrees + 1, radial_nodes)
    """
    t, projection = angle_rule(d, degrees, nodes or 2 * degrees + d + 100)
    half_square, weights = roots_genlaguerre(radial_nodes, d / 2 - 1)
    root = np.sqrt(weights / weights.sum())
    square = jnp.asarray(2 * half_square)
    r = jnp.sqrt(square)
    xz = r[:, None, None] * r[None, :, None] * jnp.asarray(t)
    values = entry(xz, square[:, None, None], square[None, :, None])
    operators = einsum("lj,abj->lab", jnp.asarray(projection), values) * root[:, None] * root[None, :]
    return jnp.linalg.eigvalsh(operators)[:, ::-1]


def mehler_eigenvalues(bandwidth: float, degrees: int) -> np.ndarray:
    """Eigenvalues of exp(-(x-z)²/(2h²)) under N(0,1), degrees 0 … degrees, with Hermite eigenfunctions.

    With a = 1/4, b = 1/(2h²), c = √(a² + 2ab): λ_k = √(2a/(a+b+c)) (b/(a+b+c))^k (Rasmussen and Williams 2006, section
    4.3.1). Under N(0, I_d) the kernel is a product: degree k has λ_0^d (λ_1/λ_0)^k, with multiplicity C(k+d-1, d-1).
    """
    a, b = 0.25, 1 / (2 * bandwidth**2)
    c = np.sqrt(a * a + 2 * a * b)
    return np.sqrt(2 * a / (a + b + c)) * (b / (a + b + c)) ** np.arange(degrees + 1)


def decay_exponent(eigenvalues: Float[Array, " l"], d: int, first: int, last: int) -> Float[Array, ""]:
    """Slope of log λ_ℓ against log(ℓ + d/2 - 1), degrees first … last: -d for NTK and Laplace kernels on S^{d-1} [L3].

    (Geifman et al. 2020; Chen and Xu 2021; Bietti and Bach 2021.) (ℓ + d/2 - 1)² is the Laplace-Beltrami eigenvalue
    ℓ(ℓ + d - 2) completed to a square: with it the error of the slope is O(ℓ^-2), with ℓ alone O(1/ℓ).
    """
    x = jnp.log(jnp.arange(first, last + 1) + (d / 2 - 1))
    return jnp.asarray(slope(x, jnp.log(eigenvalues[first : last + 1])))


def slope(x: A, y: A) -> A | np.floating:
    """Slope of the least-squares line through (x, y), for JAX or NumPy arrays."""
    centered = x - x.mean()
    return (centered * (y - y.mean())).sum() / (centered * centered).sum()


def effective_regularization(
    eigenvalues: Float[Array, " l"],
    counts: Float[Array, " l"],
    n: Float[Array, "*s"],
    ridge: Float[Array, ""] | float = 0.0,
    tail: Float[Array, ""] | float = 0.0,
) -> Float[Array, "*s"]:
    """κ with Σ counts·λ/(λ + κ) + (ridge + tail)/κ = n: n points learn eigenvalues above κ, not those below.

    (Bordelon, Canatar and Pehlevan 2020; Canatar, Bordelon and Pehlevan 2021; Simon et al. 2023, whose κ this is.)
    Solved by bisection on log κ, to rounding.

    Parameters
    ----------
    eigenvalues, counts : array of shape (l,)
        Eigenvalues and their multiplicities.
    n : array
        Numbers of points.
    ridge : float, default 0.0
        Absolute, added to the diagonal of K.
    tail : float, default 0.0
        Trace Σ λ of omitted degrees: far below κ they act as additional ridge.

    Returns
    -------
    array of the shape of n
        Zero if a kernel of finite rank without ridge is interpolated.
    """
    lam = jnp.maximum(eigenvalues, 0)
    extra = ridge + tail

    def excess(log_kappa: jax.Array) -> jax.Array:
        kappa = jnp.exp(log_kappa)[..., None]
        return jnp.sum(counts * lam / (lam + kappa), -1) + extra / kappa[..., 0] - n

    top = jnp.log(jnp.sum(counts * lam) + extra) - jnp.log(n)  # κ ≤ trace/n
    low, high = jnp.full_like(top, np.log(np.finfo(lam.dtype).tiny) / 2), top
    solvable = excess(low) > 0

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (ends[0] + ends[1]) / 2
        too_low = excess(middle) > 0
        return jnp.where(too_low, middle, ends[0]), jnp.where(too_low, ends[1], middle)

    low, high = jax.lax.fori_loop(0, 64, halve, (low, high))
    return jnp.where(solvable, jnp.exp((low + high) / 2), 0)


def learning_curve(
    eigenvalues: Float[Array, " l"],
    counts: Float[Array, " l"],
    power: Float[Array, " l"],
    n: Float[Array, "*s"],
    ridge: Float[Array, ""] | float = 0.0,
    tail: Float[Array, ""] | float = 0.0,
    noise_variance: Float[Array, ""] | float = 0.0,
) -> Float[Array, "*s"]:
    """Predicted excess risk E(f - f*)² of kernel ridge regression, (K + ridge·I)α = y, from n points [L3].

    With L = λ/(λ + κ): risk = (Σ (1-L)² power + noise)/(1 - Σ counts·L²/n) - noise. Sources as in
    `effective_regularization`; exact as n and the number of eigenfunctions grow together, an approximation at finite n.

    Parameters
    ----------
    eigenvalues, counts : array of shape (l,)
        Eigenvalues and their multiplicities.
    power : array of shape (l,)
        Part of E f*² in each degree (sum of the squared coefficients of its eigenfunctions).
    n : array
        Numbers of points.
    ridge, tail : float, default 0.0
        As in `effective_regularization`.
    noise_variance : float, default 0.0

    Returns
    -------
    array of the shape of n
    """
    lam = jnp.maximum(eigenvalues, 0)
    kappa = effective_regularization(lam, counts, n, ridge, tail)[..., None]
    learned = lam / jnp.where(lam + kappa == 0, 1, lam + kappa)
    overfitting = 1 - jnp.sum(counts * jnp.square(learned), -1) / n
    return (jnp.sum(jnp.square(1 - learned) * power, -1) + noise_variance) / overfitting - noise_variance
