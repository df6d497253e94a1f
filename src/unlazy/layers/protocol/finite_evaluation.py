"""Finite evaluation of layers: initial parameters and outputs [K6, C1].

Functions dispatch on the type of a layer: `init_params` draws its parameters, `apply` evaluates it. A custom layer
registers with `apply`, and with `init_params` if it has parameters. Arrays are points × positions × channels.
"""

from functools import singledispatch
from typing import NamedTuple

import jax
from jaxtyping import Array, PRNGKeyArray, PyTree

from unlazy.core.arrays import default_float
from unlazy.layers.protocol.base import Layer, Shape


class Context(NamedTuple):
    """What layers may need besides their input.

    Parameters
    ----------
    pattern : array, optional
        Graphs of the points.
    key : PRNG key, optional
        For dropout; without it nothing is dropped.
    standard : bool, default False
        Whether weights are in the standard parametrization instead of the NTK parametrization.

    Examples
    --------
    >>> from unlazy.layers import Context
    >>> Context().standard
    False
    """

    pattern: Array | None = None
    key: PRNGKeyArray | None = None
    standard: bool = False


@singledispatch
def init_params(layer: Layer, key: PRNGKeyArray, shape: Shape, context: Context) -> PyTree:
    """Initial parameters of a layer: none by default.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    key : PRNG key
        Source of randomness.
    shape : Shape
        Shape before the layer.
    context : Context
        Parametrization and graphs.

    Returns
    -------
    pytree of arrays
        The parameters.

    Examples
    --------
    >>> import jax
    >>> from unlazy.layers import Context, Dense, Shape, init_params
    >>> init_params(Dense(width=4), jax.random.key(0), Shape((), 3), Context()).weight.shape
    (3, 4)
    """
    return ()


@singledispatch
def apply(layer: Layer, params: PyTree, x: Array, context: Context) -> Array:
    """Outputs of a layer at n points.

    Parameters
    ----------
    layer : Layer
        The layer, on whose type the function dispatches.
    params : pytree of arrays
        Its parameters.
    x : array of shape (n, ..., channels)
        Inputs.
    context : Context
        Parametrization, graphs and key.

    Returns
    -------
    array of shape (n, ..., channels)
        Outputs.

    Raises
    ------
    ValueError
        If no function is registered for the type of the layer.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.layers import Context, Relu, apply
    >>> apply(Relu(), (), jnp.array([[-1.0, 2.0]]), Context()).tolist()
    [[0.0, 2.0]]
    """
    raise ValueError(
        f"{type(layer).__name__} does not say what it does to arrays: register a function with unlazy.layers.apply"
    )


@singledispatch
def rates(layer: Layer) -> PyTree:
    """Layer-wise learning rates, with the structure of the parameters or coarser."""
    return ()


def shape_of(x: Array) -> Shape:
    """Shape of the points in an array."""
    return Shape(x.shape[1:-1], x.shape[-1])


def normal(key: PRNGKeyArray, shape: tuple[int, ...]) -> Array:
    """Standard normal draws in the default precision."""
    return jax.random.normal(key, shape, default_float())
