"""Measures to record during `descend`: each factory returns a function of the parameters."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.measures.alignment import target_alignment
from unlazy.measures.tangent_drift import parameter_movement, relative_change
from unlazy.networks.tangent import tangent_kernel

Apply = Callable[[Any, Array], Array]
Measure = Callable[[Any], Array]


def parameters(params: Any) -> Any:
    """Return the parameters: recorded as "params", they make a descent a trajectory (`Descent.trained`)."""
    return params


def risk(apply: Apply, X: Float[Array, "n d"], y: Float[Array, " n *c"]) -> Measure:
    """Mean of |f(x) - y|² over points, without a factor 1/2.

    Parameters
    ----------
    apply : callable
        Function f(params, X).
    X : array of shape (n, d)
        Points.
    y : array of shape (n,) or (n, c)
        Labels.

    Returns
    -------
    callable
        Function of the parameters.
    """
    return lambda params: jnp.mean(jnp.sum(jnp.square(apply(params, X) - y).reshape(X.shape[0], -1), axis=1))


def accuracy(apply: Apply, X: Float[Array, "n d"], y: Float[Array, " n"]) -> Measure:
    """Share of points with sign f(x) = y, labels ±1; f = 0 counts one half."""
    return lambda params: jnp.mean(0.5 * (1 + jnp.sign(apply(params, X)) * y))


def kernel_drift(apply: Apply, start: Any, X: Float[Array, "n d"], rates: Any = 1.0) -> Measure:
    """‖Θ_t - Θ_0‖_F/‖Θ_0‖_F of the tangent kernel on X (traced over outputs)."""
    before = tangent_kernel(apply, start, X, outputs="trace", rates=rates)
    return lambda params: relative_change(before, tangent_kernel(apply, params, X, outputs="trace", rates=rates))


def kernel_alignment(apply: Apply, X: Float[Array, "n d"], y: Float[Array, " n *c"], rates: Any = 1.0) -> Measure:
    """Alignment of the tangent kernel with the labels."""
    return lambda params: target_alignment(tangent_kernel(apply, params, X, outputs="trace", rates=rates), y)


def feature_movement(features: Apply, start: Any, X: Float[Array, "n d"]) -> Measure:
    """‖H_t - H_0‖_F/‖H_0‖_F of hidden features, such as `network.hidden`."""
    before = features(start, X)
    return lambda params: relative_change(before, features(params, X))


def weights_movement(start: Any) -> Measure:
    """‖θ_l,t - θ_l,0‖/‖θ_l,0‖ of every layer."""
    return lambda params: parameter_movement(start, params)
