"""Sums of ridge functions f*(x) = Σ_j a_j g_j(w_j·x) of Gaussian inputs: base class of polynomials and teachers."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer
from unlazy.tasks.gaussian import GaussianTask, directions


class RidgeSum(GaussianTask):
    """Base class of sums f*(x) = Σ_j a_j g_j(w_j·x), x ~ N(0, I_d), with unit rows w_j that need not be orthogonal.

    Subclasses define `ridges`, the Hermite coefficients of each g_j and E g_i(a)g_j(b) of correlated Gaussians.
    """

    W: eqx.AbstractVar[Float[Array, "r d"]]
    heads: eqx.AbstractVar[Float[Array, " r"]]

    def ridges(self, Z: Float[Array, "n r"]) -> Float[Array, "n r"]:
        """Return g_j(z_j)."""
        raise NotImplementedError

    def ridge_coefficients(self) -> Float[np.ndarray, "r k"]:
        """Return the Hermite coefficients of every g_j."""
        raise NotImplementedError

    def pair_moments(self, correlation: Float[Array, "r r"]) -> Float[Array, "r r"]:
        """Return E g_i(w_i·x) g_j(w_j·x) for the correlations ⟨w_i, w_j⟩."""
        raise NotImplementedError

    def target(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        """Evaluate f* at the inputs."""
        Z = dot(X, self.W.T.astype(X.dtype))
        return dot(self.ridges(Z), self.heads.astype(X.dtype))

    @property
    def subspace(self) -> Float[Array, "r d"]:
        """Orthonormal rows with the span of the w_j; all of R^d if there are at least d neurons."""
        r, d = self.W.shape
        return jnp.eye(d) if r >= d else jnp.linalg.qr(self.W.T)[0].T

    @property
    def second_moment(self) -> Float[Array, ""]:
        """E f*²."""
        correlation = jnp.clip(dot(self.W, self.W.T), -1, 1)
        return dot(self.heads, self.pair_moments(correlation), self.heads)

    @property
    def hessian(self) -> Float[Array, "d d"]:
        """H = Σ_j a_j E[g_j''] w_j w_jᵀ with E g'' = √2 c_2 by Stein's identity, also for g with kinks."""
        curvature = self.heads * (math.sqrt(2) * jnp.asarray(self.ridge_coefficients()[:, 2], self.W.dtype))
        return dot(self.W.T * curvature, self.W)

    @property
    def information_exponent(self) -> int | None:
        """Smallest k ≥ 1 with Σ_j a_j c_k(g_j) w_j^{⊗k} ≠ 0; None while JAX traces the weights."""
        try:
            W, heads = np.asarray(self.W, float), np.asarray(self.heads, float)
        except jax.errors.TracerArrayConversionError:
            return None
        C = heads[:, None] * self.ridge_coefficients()
        rounding = float(jnp.finfo(self.W.dtype).eps)
        for k in range(1, C.shape[1]):
            energy = dot(C[:, k], dot(W, W.T) ** k, C[:, k])
            if energy > 100 * rounding * np.sum(np.abs(C[:, k])) ** 2 and energy > 1e-18:
                return k
        return None


def unit_rows(
    d: int, r: int, given: Float[Array, "r d"] | None, key: PRNGKeyArray | None, orthogonal: bool
) -> Float[Array, "r d"]:
    """Validate the given unit rows, or draw orthonormal ones, or independent ones uniform on the sphere."""
    if given is not None:
        if given.shape != (r, d):
            raise ValueError(f"`weights` must have shape ({r}, {d}), got {given.shape}")
        _check_unit(given)
        return given
    if orthogonal:
        return directions(d, r, key)
    if key is None:
        raise ValueError("non-orthogonal weights are random: pass a key, or the weights")
    d, r = check_positive_integer("d (the input dimension)", d), check_positive_integer("r (the neurons)", r)
    W = jax.random.normal(key, (r, d))
    return W / jnp.linalg.norm(W, axis=1, keepdims=True)


def _check_unit(W: Float[Array, "r d"]) -> None:
    """Raise ValueError if a row does not have norm 1; skipped while JAX traces W."""
    try:
        norms = np.linalg.norm(np.asarray(W, float), axis=1)
    except jax.errors.TracerArrayConversionError:
        return
    if not np.max(np.abs(norms - 1)) < 1e-4:
        raise ValueError(
            f"rows of `weights` must have norm 1, got norms {norms.min():.3g} to {norms.max():.3g}; "
            "move the scale into the heads or the activation"
        )
