"""One gradient step on the first layer with a fixed readout, then ridge regression of the readout on new data [E3].

f(x) = Σ_j a_j φ(w_j·x) with f ≈ 0 at initialization (small readout weights, whose size is part of the step):

    ∇_{w_j} mean ½(f - y)² at f = 0  =  -a_j mean_i y_i φ'(w_j·x_i) x_i,        W¹ = W⁰ - η ∇.

Unlike in Algorithm 1 (training.one_step.algorithm), nothing is subtracted from the labels and W⁰ stays in W¹. Ba et al.
(2022).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot


def first_layer_gradient(
    function: Callable[[Array], Array],
    W: Float[Array, "w d"],
    heads: Float[Array, " w"],
    X: Float[Array, "n d"],
    y: Float[Array, " n"],
) -> Float[Array, "w d"]:
    """Return ∇_W of mean ½(f - y)² at f = 0, for any elementwise function [E3]."""
    slopes = jax.jvp(function, (dot(X, W.T),), (jnp.ones((len(X), len(W)), X.dtype),))[1]
    return -heads[:, None] * dot((slopes * y[:, None]).T, X) / len(X)


def ridge_readout(features: Float[Array, "n w"], y: Float[Array, " n"], ridge: float) -> Float[Array, " w"]:
    """Return argmin Σ (θ·φ_i - y_i)² + ridge ‖θ‖² by Cholesky, for one positive ridge; suited for compiled loops."""
    G = dot(features.T, features) + ridge * jnp.eye(features.shape[1], dtype=features.dtype)
    return jax.scipy.linalg.solve(G, dot(features.T, y), assume_a="pos")
