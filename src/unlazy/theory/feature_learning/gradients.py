"""First gradient of a two-layer ReLU network on Gaussian data, term by term [D5].

For a polynomial f* of the relevant coordinates z = Ux the population gradient is a finite Hermite series, exact without
sampling. Damian, Lee and Soltanolkotabi, Neural networks can learn representations with gradient descent (COLT 2022),
equation (1) and Lemma 1.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import dot, einsum

Tensors = Sequence[Float[Array, "..."]]
"""C_0 … C_p, tensors of orders 0 … p."""


def relu_coefficients(degree: int, bias: Float[Array, "*w"] | float = 0.0) -> Float[Array, "*w k"]:
    """c_0 … c_degree of the shifted ReLU: c_k = E σ^(k)(z + b), z ~ N(0, 1).

    c_0 = bΦ(b) + φ(b), c_1 = Φ(b), c_k = He_{k-2}(-b) φ(b): the k-2 derivatives of the delta at -b, by parts.
    At b = 0: 1/√(2π), 1/2, 1/√(2π), 0, -1/√(2π), 0, 3/√(2π), …
    """
    b = jnp.asarray(bias, jnp.zeros(()).dtype if isinstance(bias, float | int) else None)
    density, mass = jnp.exp(-b * b / 2) / math.sqrt(2 * math.pi), jax.scipy.stats.norm.cdf(b)
    previous, current, rows = jnp.zeros_like(b), jnp.ones_like(b), [b * mass + density, mass]
    for k in range(degree - 1):  # He_{k+1}(x) = x He_k(x) - k He_{k-1}(x) at x = -b
        rows.append(current * density)
        previous, current = current, -b * current - k * previous
    return jnp.stack(rows[: degree + 1], -1)


def additive_tensors(coefficients: Float[np.ndarray | Array, "r k"]) -> list[Float[Array, "..."]]:
    """C_k = E ∇^k f* in the relevant coordinates, for f* = Σ_i g_i(u_i·x): diagonal tensors.

    Parameters
    ----------
    coefficients : array of shape (r, k)
        Row i holds the normalized Hermite coefficients of g_i (theory.activations.hermite): E g^(k) = √k! ĝ_k.

    Returns
    -------
    list of arrays
        C_0 … C_{k-1}, of orders 0 … k-1.
    """
    r, count = coefficients.shape
    tensors = []
    for k in range(count):
        values = jnp.asarray(coefficients)[:, k] * math.sqrt(math.factorial(k))
        where = tuple(jnp.arange(r) for _ in range(k))
        tensors.append(jnp.zeros((r,) * k, values.dtype).at[where].add(values) if k else values.sum())
    return tensors


def population_gradient_terms(
    tensors: Tensors,
    U: Float[Array, "r d"],
    W: Float[Array, "w d"],
    heads: Float[Array, " w"],
    biases: Float[Array, " w"] | None = None,
) -> Float[Array, "k w d"]:
    """Terms k = 0 … p of ∇_{w_j} L for the square loss at f_0 = 0 [D5]; their sum is the exact gradient.

    -2 a_j/k! · (c_{k+1} Uᵀ C_{k+1}(v^{⊗k}) + c_{k+2} ŵ C_k(v^{⊗k})), ŵ = w/‖w‖, v = Uŵ, C_{p+1} = 0. Only the direction
    of w_j (and b_j/‖w_j‖) matters, since the indicator is scale invariant.

    Parameters
    ----------
    tensors : sequence of arrays
        C_0 … C_p, see `additive_tensors`.
    U : array of shape (r, d)
        Orthonormal rows.
    W : array of shape (w, d)
        Hidden weights.
    heads : array of shape (w,)
        a_j.
    biases : array of shape (w,), optional
        b_j, by default zero.

    Returns
    -------
    array of shape (p + 1, w, d)
    """
    norms = jnp.linalg.norm(W, axis=1)
    directions = W / norms[:, None]
    v = dot(directions, U.T)
    c = relu_coefficients(len(tensors) + 1, jnp.zeros_like(norms) if biases is None else biases / norms)
    terms = []
    for k, tensor in enumerate(tensors):
        along = c[:, k + 2, None] * directions * _contract(tensor, v, k)[:, None]
        if k + 1 < len(tensors):
            along += c[:, k + 1, None] * dot(_contract(tensors[k + 1], v, k), U)
        terms.append(-2 * heads[:, None] * along / math.factorial(k))
    return jnp.stack(terms)


def hessian_term(H: Float[Array, "d d"], W: Float[Array, "w d"], heads: Float[Array, " w"]) -> Float[Array, "w d"]:
    """Leading term of Lemma 1 [D5]: -2 a_j H w_j/√(2π), with w_j as drawn."""
    return -2 * heads[:, None] * dot(W, H) / math.sqrt(2 * math.pi)


def signal_size(d: int) -> float:
    """Root mean square of ‖2Hw/√(2π)‖ for w ~ N(0, I/d) and ‖H‖_F = 1: 2/√(2πd) [D5]."""
    return 2 / math.sqrt(2 * math.pi * d)


def residual_size(d: int, r: int, *, unit_rows: bool = False) -> float:
    """Root mean square of the gradient minus its Hessian term, to leading order in 1/d [D5].

    For f* = r^{-1/2} Σ_i g(u_i·x), E g'' = 1: √(r+4)/(√(2π) d). The k = 2 term -ŵ ŵᵀHŵ/√(2π) gives r + 2, by
    E(Σ_i v_i²)² = r(r+2)/d²; the variation of ‖w‖ around one gives the other 2, which is absent for unit rows.
    """
    return math.sqrt(r + (2 if unit_rows else 4)) / (math.sqrt(2 * math.pi) * d)


def noise_to_signal(
    n: Float[Array, "*s"] | float, d: int, *, label_power: float = 1.0, hessian_norm: float = 1.0
) -> Float[Array, "*s"] | float:
    """κ = (π/2) d² E ỹ²/(n ‖H‖_F²): squared ratio of the sampling noise of the first gradient to its Hessian term.

    After preprocessing Σ ỹ_i x_i ≈ 0, so the indicator acts as ½ sign(w·x): the noise is d E ỹ²/n and the signal
    2‖H‖_F²/(πd). Leading order: the fourth-order dependence of y² on x is neglected.
    """
    return math.pi / 2 * d**2 * label_power / (n * hessian_norm**2)


def subspace_energy(
    n: Float[Array, "*s"] | float, d: int, r: int, *, label_power: float = 1.0, hessian_norm: float = 1.0
) -> Float[Array, "*s"] | float:
    """Share of ‖W¹‖_F² inside S* after the first step on n samples: (1 + κr/d)/(1 + κ) [D5].

    The signal lies in S*; the noise is isotropic, so r/d of it does too.
    """
    kappa = noise_to_signal(n, d, label_power=label_power, hessian_norm=hessian_norm)
    return (1 + kappa * r / d) / (1 + kappa)


def _contract(tensor: jax.Array, v: jax.Array, times: int) -> jax.Array:
    """The tensor with v_j in its last `times` slots, for every row v_j at once."""
    out = jnp.broadcast_to(jnp.asarray(tensor, v.dtype), (v.shape[0], *jnp.shape(tensor)))
    for _ in range(times):
        out = einsum("w...i,wi->w...", out, v)
    return out
