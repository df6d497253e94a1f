"""Two layers of balanced neurons on Gaussian inputs, in closed form [L11].

f(x) = Σ_j ‖v_j‖ σ(v_j·x) with σ(cs) = cσ(s) for c > 0 and x ~ N(0, I). With K(m) = E σ(a)σ(b) at correlation m and
K'(m) = E σ'(a)σ'(b), unit directions v̂ and target f* = Σ_i a_i σ(u_i·x), ‖u_i‖ = 1:

    E f f* = Σ_ji ‖v_j‖² a_i K(v̂_j·u_i),    ∇_v ‖v‖ E σ(v·x) f* = ‖v‖ Σ_i a_i ((2K - mK') v̂ + K' u_i),    m = v̂·u_i

The norms stay outside K, so that neurons may be as small as floating point allows. Orthonormal teachers have E f*² =
aᵀGa, G_ii = K(1), G_ij = K(0). When the first k of them have been learned and the others not at all, the risk is at the
plateau of the best function of these k. Li, Ma and Zhang (COLT 2020), for σ = |·|.
"""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.theory.activations import duals
from unlazy.theory.activations.functions import ActivationFunction


def unit_directions(V: Float[Array, "n d"]) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """v̂ and ‖v‖ of every row."""
    norms = jnp.sqrt(jnp.sum(V**2, axis=1))
    return V / norms[:, None], norms


def moments(
    U: Float[Array, "n d"], W: Float[Array, "m d"], activation: ActivationFunction
) -> tuple[Float[Array, "n m"], Float[Array, "n m"], Float[Array, "n m"]]:
    """m, K(m) and K'(m) for unit rows."""
    m = jnp.clip(dot(U, W.T), -1, 1)
    one = jnp.ones_like(m)
    return m, duals.dual(m, one, one, activation), duals.dual_derivative(m, one, one, activation)


def risk_and_gradient(
    V: Float[Array, "n d"], U: Float[Array, "k d"], heads: Float[Array, " k"], activation: ActivationFunction
) -> tuple[Float[Array, ""], Float[Array, "n d"]]:
    """E (f - f*)², and the gradient of half of it in V."""
    W, norms = unit_directions(V)
    sizes = norms**2
    m, K, slope = moments(W, jnp.concatenate([W, U]), activation)
    weights = jnp.concatenate([sizes, -heads])
    own = dot(2 * K - m * slope, weights)
    gradient = norms[:, None] * (own[:, None] * W + dot(slope * weights, jnp.concatenate([W, U])))
    second = dot(heads, moments(U, U, activation)[1], heads)
    n = V.shape[0]
    return dot(sizes, K[:, :n], sizes) - 2 * dot(sizes, K[:, n:], heads) + second, gradient


def plateau_risks(heads: Float[ArrayLike, " k"], activation: ActivationFunction) -> Float[Array, " k"]:
    """Risk of the best function of the first i = 0, 1, …, k - 1 of k orthonormal teachers [L11].

    (K(1) - K(0)) (Σ_{j>i} a_j² + K(0) (Σ_{j>i} a_j)²/(K(1) - K(0) + i K(0))), the Schur complement of G.
    """
    a = jnp.asarray(heads)
    i, one = jnp.arange(len(a)), jnp.ones((), a.dtype)
    far, near = (duals.dual(m * one, one, one, activation) for m in (0.0, 1.0))
    squares, sums = (jnp.cumsum(v[::-1])[::-1] for v in (a**2, a))
    return (near - far) * (squares + far * sums**2 / (near - far + i * far))
