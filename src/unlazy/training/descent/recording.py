"""Measures to record during `descend`: each factory returns a function of the parameters."""

from jaxtyping import Array, Float, PyTree

from unlazy.measures import risk as measures
from unlazy.measures.alignment import target_alignment
from unlazy.measures.tangent_drift import relative_change
from unlazy.networks.tangent import tangent_kernel
from unlazy.training.descent.trained import Apply
from unlazy.training.options import Measure


def parameters(params: PyTree) -> PyTree:
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
    return lambda params: measures.risk(apply(params, X), y)


def accuracy(apply: Apply, X: Float[Array, "n d"], y: Float[Array, " n"]) -> Measure:
    """Share of points with sign f(x) = y, labels ±1; f = 0 counts one half."""
    return lambda params: measures.accuracy(apply(params, X), y)


def kernel_drift(apply: Apply, start: PyTree, X: Float[Array, "n d"], rates: PyTree = 1.0) -> Measure:
    """‖Θ_t - Θ_0‖_F/‖Θ_0‖_F of the tangent kernel on X (traced over outputs)."""
    before = tangent_kernel(apply, start, X, outputs="trace", rates=rates)
    return lambda params: relative_change(before, tangent_kernel(apply, params, X, outputs="trace", rates=rates))


def kernel_alignment(apply: Apply, X: Float[Array, "n d"], y: Float[Array, " n *c"], rates: PyTree = 1.0) -> Measure:
    """Alignment of the tangent kernel with the labels."""
    return lambda params: target_alignment(tangent_kernel(apply, params, X, outputs="trace", rates=rates), y)
