"""Eigenvalues of a kernel under a distribution of inputs, and the learning curves they predict [L3].

On the sphere S^{d-1} a dot-product kernel k(⟨x,z⟩) has one eigenvalue per degree ℓ, with the spherical harmonics of
that degree as eigenfunctions. Under N(0, I_d) a kernel of ⟨x,z⟩, |x| and |z| has, per degree ℓ, the eigenvalues of one
operator on the radius. Both need only integrals over the angle, taken by Gauss-Legendre in θ and not in t = cos θ:
NTK and Laplace kernels have a kink in t at 1 (√(1-t)) but are analytic in θ, so convergence is geometric.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import comb, gammaln, roots_genlaguerre, roots_legendre

from unlazy.core.linalg import dot, einsum, namespace


def multiplicity(d: int, degree: int) -> int:
    """Number of spherical harmonics of one degree on S^{d-1}: C(ℓ+d-1, d-1) - C(ℓ+d-3, d-1)."""
    lower = comb(degree + d - 3, d - 1, exact=True) if degree >= 2 else 0
    return int(comb(degree + d - 1, d - 1, exact=True) - lower)


def multiplicities(d: int, degrees: int) -> np.ndarray:
    """Multiplicities of degrees 0 … degrees, as floats (they grow like ℓ^{d-2})."""
    return np.array([multiplicity(d, degree) for degree in range(degrees + 1)], float)


def gegenbauer(t: Any, d: int, degrees: int) -> Any:
    """P_ℓ(t), ℓ = 0 … degrees, normalized to P_ℓ(1) = 1: E over the sphere of P_ℓ(x·u)² is 1/multiplicity.

    (ℓ + d - 2) P_{ℓ+1} = (2ℓ + d - 2) t P_ℓ - ℓ P_{ℓ-1}; Legendre for d = 3, cos ℓθ for d = 2. NumPy's arrays or JAX's.
    """
    xp = namespace(t)
    rows = [xp.ones_like(t), t]
    for ell in range(1, degrees):
        rows.append(((2 * ell + d - 2) * t * rows[-1] - ell * rows[-2]) / (ell + d - 2))
    return xp.stack(rows[: degrees + 1])


@lru_cache(maxsize=32)
def angle_rule(d: int, degrees: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes t_j = cos θ_j and the matrix that turns k(t_j) into eigenvalues: M[ℓ, j] = w_j P_ℓ(t_j).

    w_j is the law of t = ⟨x,z⟩ for independent uniform x, z: density ∝ sin^{d-2}θ dθ, normalized in closed form.
    """
    if d < 2:
        raise ValueError(f"the sphere needs d ≥ 2 inputs, got {d}")
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

    λ_ℓ = E[k(t) P_ℓ(t)], t = ⟨x,z⟩ of independent uniform points; Σ_ℓ multiplicity(d, ℓ) λ_ℓ = k(1). Quadrature
    leaves an absolute error of about 1e-13·k(1): smaller eigenvalues (Gaussian kernel, high ℓ) are noise.
    """
    t, projection = angle_rule(d, degrees, nodes or 2 * degrees + d + 200)
    return dot(jnp.asarray(projection), profile(jnp.asarray(t)))


def gaussian_eigenvalues(
    entry: Callable[..., Float[Array, "..."]], d: int, degrees: int, radial_nodes: int = 40, nodes: int | None = None
) -> Float[Array, "l r"]:
    """Eigenvalues of a kernel entry(⟨x,z⟩, ⟨x,x⟩, ⟨z,z⟩) under N(0, I_d), largest first for each angular degree.

    For degree ℓ the eigenfunctions are R(|x|)·(spherical harmonic), R those of κ_ℓ(r, s) = E[k(rst, r², s²) P_ℓ(t)]
    under the law of |x|: a small symmetric matrix on the nodes of generalized Gauss-Laguerre in r²/2. Each value has
    multiplicity(d, ℓ). For the Gaussian kernel these are Mehler's Hermite eigenvalues (`mehler_eigenvalues`).
    """
    t, projection = angle_rule(d, degrees, nodes or 2 * degrees + d + 100)
    half_square, weights = roots_genlaguerre(radial_nodes, d / 2 - 1)
    root = np.sqrt(weights / weights.sum())
    square = jnp.asarray(2 * half_square)
    r = jnp.sqrt(square)
    xz = r[:, None, None] * r[None, :, None] * jnp.asarray(t)
    values = entry(xz, square[:, None, None], square[None, :, None])
    operators = einsum("lj,abj->lab", jnp.asarray(projection), values) * root[:, None] * root[None, :]
    return jnp.linalg.eigvalsh((operators + jnp.swapaxes(operators, 1, 2)) / 2)[:, ::-1]


def mehler_eigenvalues(bandwidth: float, degrees: int) -> np.ndarray:
    """Eigenvalues of exp(-(x-z)²/(2h²)) under N(0,1), degrees 0 … degrees; Hermite eigenfunctions.

    With a = 1/4, b = 1/(2h²), c = √(a² + 2ab): λ_k = √(2a/(a+b+c)) (b/(a+b+c))^k (Rasmussen & Williams 2006,
    section 4.3.1). Under N(0, I_d) the kernel is a product: degree k has λ_0^d (λ_1/λ_0)^k, with
    multiplicity C(k+d-1, d-1).
    """
    a, b = 0.25, 1 / (2 * bandwidth**2)
    c = np.sqrt(a * a + 2 * a * b)
    return np.sqrt(2 * a / (a + b + c)) * (b / (a + b + c)) ** np.arange(degrees + 1)


def decay_exponent(eigenvalues: Float[Array, " l"], d: int, first: int, last: int) -> Float[Array, ""]:
    """Slope of log λ_ℓ against log(ℓ + d/2 - 1), degrees first … last: -d for NTK and Laplace kernels on S^{d-1} [L3].

    (Geifman et al. 2020; Chen & Xu 2021; Bietti & Bach 2021.) ℓ + d/2 - 1 is the root of the Laplace-Beltrami
    eigenvalue ℓ(ℓ + d - 2) completed to a square: with it the slope's error is O(ℓ^-2), with ℓ alone O(1/ℓ).
    """
    x = jnp.log(jnp.arange(first, last + 1) + (d / 2 - 1))
    return slope(x, jnp.log(eigenvalues[first : last + 1]))


def slope(x: Any, y: Any) -> Any:
    """The slope of the least-squares line through (x, y): of arrays of JAX or NumPy."""
    centered = x - x.mean()
    return (centered * (y - y.mean())).sum() / (centered * centered).sum()


def effective_regularization(
    eigenvalues: Float[Array, " l"],
    counts: Float[Array, " l"],
    n: Float[Array, "*s"],
    ridge: Float[Array, ""] | float = 0.0,
    tail: Float[Array, ""] | float = 0.0,
) -> Float[Array, "*s"]:
    """κ with Σ counts·λ/(λ + κ) + (ridge + tail)/κ = n: eigenvalues above κ are learned from n points, those below not.

    (Bordelon, Canatar & Pehlevan 2020; Canatar, Bordelon & Pehlevan 2021; Simon et al. 2023, whose κ this is.)
    `tail` is the trace Σ λ of the degrees left out: far below κ they act as that much ridge. Solved by bisection on
    log κ, to rounding; zero where a kernel of finite rank and no ridge is interpolated.
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

    With L = λ/(λ + κ): risk = (Σ (1-L)² power + noise)/(1 - Σ counts·L²/n) - noise, power_ℓ the share of E f*² in
    degree ℓ (Σ over its eigenfunctions of the squared coefficient). Sources as `effective_regularization`; exact as
    n and the number of eigenfunctions grow together, an approximation at finite n.
    """
    lam = jnp.maximum(eigenvalues, 0)
    kappa = effective_regularization(lam, counts, n, ridge, tail)[..., None]
    safe = jnp.where(lam + kappa == 0, 1, lam + kappa)
    learned = jnp.where(lam + kappa == 0, 0, lam / safe)
    overfitting = 1 - jnp.sum(counts * jnp.square(learned), -1) / n
    return (jnp.sum(jnp.square(1 - learned) * power, -1) + noise_variance) / overfitting - noise_variance
