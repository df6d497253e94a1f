"""Method of moments: initial neurons of a teacher network from Hermite moments of the labels [L5].

For x ~ N(0, I) and y = Σ_j a_j σ(w_j·x), ‖w_j‖ = 1, with Hermite coefficients c_k of σ (Stein's identity):

    E[y (xxᵀ - I)] = √2 c_2 Σ_j a_j w_j w_jᵀ,        E[y He_k(x)] = √k! c_k Σ_j a_j w_j^{⊗k}.

The first spans the neurons (r ≤ d, c_2 ≠ 0); inside that r-dimensional subspace, the fourth moment (c_3 = 0 for ReLU)
is a small tensor whose components are the neurons. Whitened with the second moment it is orthogonal, and its
contractions with vectors share their eigenvectors. Janzamin, Sedghi and Anandkumar, Beating the perils of non-convexity
(2015); Zhong, Song, Jain, Bartlett and Dhillon, Recovery guarantees for one-hidden-layer neural networks (ICML 2017).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import dot
from unlazy.core.errors import check_positive_integer

_DRAWS = 32
"""Number of random contractions, of which the one with the best separated eigenvalues is used."""


class SpectralStart(eqx.Module):
    """Estimated neurons of a teacher network.

    Attributes
    ----------
    W : array of shape (r, d)
        Unit rows near the teacher's neurons, in any order; even moments do not determine signs.
    subspace : array of shape (r, d)
        Estimated span of the neurons.
    eigenvalues : array of shape (d,)
        Eigenvalues of the second moment; r large ones stand out if n suffices.
    """

    W: Float[Array, "r d"]
    subspace: Float[Array, "r d"]
    eigenvalues: Float[Array, " d"]


def hessian_moment(X: Float[Array, "n d"], y: Float[Array, " n"]) -> Float[Array, "d d"]:
    """Return mean of (y - ȳ)(xxᵀ - I): E ∇²f* by Stein's identity. Centering y reduces noise without bias."""
    centered = y - jnp.mean(y)
    return dot(X.T * centered, X) / X.shape[0] - jnp.mean(centered) * jnp.eye(X.shape[1], dtype=X.dtype)


def contracted_fourth_moment(
    Z: Float[Array, "n r"], y: Float[Array, " n"], v: Float[Array, " r"]
) -> Float[Array, "r r"]:
    """Return mean of y He_4(z)[v, v, ·, ·]: √4! c_4 Σ_j a_j (u_j·v)² u_j u_jᵀ without forming the r⁴ tensor."""
    t, y = dot(Z, v), y - jnp.mean(y)
    zz = dot(Z.T * (y * (t**2 - dot(v, v))), Z)
    zv = jnp.outer(dot(Z.T, y * t), v)
    size = jnp.sum(y * t**2) - jnp.sum(y) * dot(v, v)
    rest = -2 * (zv + zv.T) - size * jnp.eye(Z.shape[1], dtype=Z.dtype) + 2 * jnp.sum(y) * jnp.outer(v, v)
    return (zz + rest) / Z.shape[0]


def spectral_start(X: Float[Array, "n d"], y: Float[Array, " n"], neurons: int, *, key: PRNGKeyArray) -> SpectralStart:
    """Estimate r ≤ d neurons from the second and fourth moments.

    Readout weights must have one sign, and c_2 and c_4 of σ must be nonzero, as for ReLU. Whitening allows teachers
    whose neurons are not orthonormal or have unequal readout weights.

    Parameters
    ----------
    X : array of shape (n, d)
        Gaussian inputs.
    y : array of shape (n,)
        Labels.
    neurons : int
        Number of neurons r.
    key : PRNG key
        Draws the random contractions.

    Returns
    -------
    SpectralStart
        Neurons, subspace and eigenvalues.

    Raises
    ------
    ValueError
        If neurons > d.
    """
    check_positive_integer("neurons", neurons)
    if neurons > X.shape[1]:
        raise ValueError(f"the second moment identifies at most d = {X.shape[1]} neurons, got {neurons}")
    values, vectors = jnp.linalg.eigh(hessian_moment(X, y))
    top = jnp.argsort(-jnp.abs(values))[:neurons]
    scale = jnp.sqrt(jnp.maximum(jnp.abs(values[top]), jnp.finfo(values.dtype).tiny))
    V = vectors[:, top]
    Z = dot(X, V)

    def contraction(v: Array) -> tuple[Array, Array]:
        # T(v, v, ·, ·) in whitened coordinates: contract with scaled vectors, scale the free indices
        M = contracted_fourth_moment(Z, y, v / scale)
        e, U = jnp.linalg.eigh(M / scale[:, None] / scale)
        gaps = jnp.min(jnp.abs(e[:, None] - e + jnp.where(jnp.eye(neurons) > 0, jnp.inf, 0))) if neurons > 1 else 1.0
        return gaps / jnp.maximum(jnp.max(jnp.abs(e)), jnp.finfo(e.dtype).tiny), U

    draws = jax.random.normal(key, (_DRAWS, neurons), X.dtype)
    gaps, bases = jax.vmap(contraction)(draws / jnp.linalg.norm(draws, axis=1, keepdims=True))
    U = bases[jnp.argmax(gaps)]
    W = dot(V, scale[:, None] * U).T
    return SpectralStart(W / jnp.linalg.norm(W, axis=1, keepdims=True), V.T, values)
