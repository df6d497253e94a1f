"""Finite network of any description: f(parameters, inputs) and its initialization [K6, C1]."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from unlazy.core.arrays import Points, as_points
from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.layers.attention import SelfAttention
from unlazy.layers.dense import Weights
from unlazy.layers.graph import Aggregate
from unlazy.layers.protocol.base import Layer, Shape, single_layers
from unlazy.layers.protocol.base import sized as in_words
from unlazy.layers.protocol.finite_evaluation import Context, apply, init_params, rates
from unlazy.layers.traversal import changed

PARAMETRIZATIONS = ("ntk", "standard")


class LayeredNetwork(eqx.Module):
    """Finite network of a description.

    ``network.init(key)`` draws parameters, ``network(params, X)`` evaluates. Layers without a width of their own are
    `width` wide; the last one has `outputs`. One output gives shape (n,), more give (n, c).

    Parameters
    ----------
    description : Layer
        The description, for example from `layers.serial`.
    inputs : int or tuple of int
        Shape of a point, positions and then channels: 3, or (32, 32, 3).
    parametrization : {"ntk", "standard"}, default "ntk"
        Where the scale of the weights is put.
    width : int, optional
        Width of layers that have none of their own.
    outputs : int, default 1
        Number of outputs.
    output_scale : float, default 1
        α multiplies the output and divides the learning rates by α²; α → ∞ is lazy (Chizat et al. 2019).

    Raises
    ------
    ValueError
        If a width is missing, the parametrization is unknown, or the description does not end in the outputs.

    Examples
    --------
    >>> import jax
    >>> from unlazy import layers
    >>> from unlazy.networks import LayeredNetwork
    >>> description = layers.serial(layers.Conv(3), "relu", layers.Flatten(), layers.Dense())
    >>> network = LayeredNetwork(description, (4, 4, 1), width=8)
    >>> params = network.init(jax.random.key(0))
    >>> network(params, jax.numpy.ones((2, 4, 4, 1))).shape
    (2,)
    """

    layers: Layer
    inputs: tuple[int, ...] = eqx.field(static=True)
    parametrization: str = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    output_scale: Any

    def __init__(
        self, description: Layer, inputs: int | tuple[int, ...], parametrization: str = "ntk", *,
        width: int | None = None, outputs: int = 1, output_scale: Any = 1.0,
    ):  # fmt: skip
        if parametrization not in PARAMETRIZATIONS:
            raise ValueError(
                f"unknown parametrization {parametrization!r}{did_you_mean(parametrization, PARAMETRIZATIONS)}"
            )
        several = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        self.inputs = tuple(check_positive_integer("inputs (shape of a point)", n) for n in several)
        self.parametrization, self.output_scale = parametrization, output_scale
        self.outputs = check_positive_integer("outputs", outputs)
        self.layers = with_widths(description, width, self.outputs)
        end = self.layers.after(self._shape)
        if end.positions or end.channels != self.outputs:
            raise ValueError(
                f"the description ends with {in_words(end.positions)} positions and {end.channels} channels, not with "
                f"{self.outputs} outputs: end it with Flatten or a global pool, then Dense"
            )

    @property
    def _shape(self) -> Shape:
        return Shape(self.inputs[:-1], self.inputs[-1])

    @property
    def rates(self) -> PyTree:
        """Layer-wise learning rates, factors of the step size."""
        return jax.tree.map(lambda rate: rate / self.output_scale**2, rates(self.layers))

    def init(self, key: PRNGKeyArray) -> PyTree:
        """Initial parameters: a tuple with one entry per layer."""
        return init_params(self.layers, key, self._shape, self._context())

    def __call__(self, params: PyTree, X: Points, key: PRNGKeyArray | None = None) -> Float[Array, " n *c"]:
        graphs = any(isinstance(layer, Aggregate) for layer in single_layers(self.layers))
        X = as_points(X, input_kind="tree" if graphs else "array")
        x, *pattern = jax.tree.leaves(X)
        if x.shape[1:] != self.inputs:
            raise ValueError(f"the network takes points of shape {self.inputs}, got {x.shape[1:]}")
        context = self._context()._replace(pattern=pattern[0].astype(x.dtype) if pattern else None, key=key)
        out = self.output_scale * apply(self.layers, params, x, context)
        return out[:, 0] if self.outputs == 1 else out

    def _context(self) -> Context:
        return Context(standard=self.parametrization == "standard")


def with_widths(description: Layer, width: int | None, outputs: int) -> Layer:
    """The description with every width filled in."""
    wide = [layer for layer in single_layers(description) if isinstance(layer, Weights | SelfAttention)]
    if not wide:
        raise ValueError("a finite network needs a layer with weights, say Dense at its end")
    if width is None and any(layer.width is None for layer in wide[:-1]):
        raise ValueError("a finite network needs a width: Network(…, width=512), or Dense(width=512) layer by layer")
    left = iter([layer.width or width for layer in wide[:-1]] + [outputs])

    def change(layer: Layer) -> Layer:
        if not isinstance(layer, Weights | SelfAttention):
            return layer
        return dataclasses.replace(layer, width=next(left))

    return changed(description, change)
