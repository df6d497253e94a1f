"""Many tangents of a network at once: rows of its Jacobian, and products with several vectors, in any framework.

Kernel systems of trained networks (uncertainty, attribution) are solved with these. A set of tangents is a matrix of
the framework, one flat vector of parameters per row, that stays on the network's device; numbers per point are NumPy
arrays.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

from unlazy.core.errors import did_you_mean
from unlazy.models.protocol import Inputs, Model, Outputs, Params

Tangents: TypeAlias = Any
"""A matrix (k, p) of the framework: k directions in the space of p parameters."""


@runtime_checkable
class TangentMap(Protocol):
    """The Jacobian J of a network at fixed parameters, restricted to some layers.

    Attributes
    ----------
    size : int
        Number p of parameters.
    rounding : float
        Relative rounding error of one number.
    """

    size: int
    rounding: float

    def outputs(self, inputs: Inputs) -> Outputs:
        """f on the points."""
        ...

    def rows(self, inputs: Inputs, cotangents: Float[np.ndarray, "m k c"]) -> Tangents:
        """uᵀJ(x) of every point for its own k vectors u: m·k tangents, those of one point beside each other."""
        ...

    def pull(self, inputs: Inputs, cotangents: Float[np.ndarray, "k m c"]) -> Tangents:
        """Jᵀu, summed over points, for k vectors u."""
        ...

    def push(self, inputs: Inputs, tangents: Tangents) -> Float[np.ndarray, "k m c"]:
        """J t for every tangent t."""
        ...

    def contract(self, left: Tangents, right: Tangents) -> Float[np.ndarray, "a b"]:
        """Inner products of all pairs of tangents, in float64."""
        ...

    def combine(self, weights: Float[np.ndarray, "k a"], tangents: Tangents) -> Tangents:
        """Linear combinations of tangents."""
        ...

    def add(self, left: Tangents, right: Tangents) -> Tangents:
        """The sum, one by one."""
        ...

    def stack(self, parts: Sequence[Tangents]) -> Tangents:
        """All tangents of several sets."""
        ...

    def to_host(self, tangents: Tangents) -> Float[np.ndarray, "k p"]:
        """As a NumPy array of float64."""
        ...

    def to_device(self, values: Float[np.ndarray, "k p"]) -> Tangents:
        """From a NumPy array."""
        ...

    def random(self, count: int, seed: int) -> Tangents:
        """Independent standard normal numbers."""
        ...

    def from_params(self, direction: Params) -> Tangents:
        """A direction of the model as one tangent."""
        ...

    def moved(self, tangents: Tangents, index: int, scale: float = 1.0) -> Params:
        """The parameters of the model plus a multiple of one tangent."""
        ...


def tangent_map(model: Model, layers: Sequence[str] | None = None) -> TangentMap:
    """The Jacobian of a model of JAX or PyTorch at its present parameters.

    Parameters
    ----------
    model : Model
        The network.
    layers : sequence of str, optional
        Names of the layers whose parameters count, or beginnings of names; all by default.

    Returns
    -------
    TangentMap

    Raises
    ------
    ValueError
        If no layer has such a name, or the model is none of `as_model`.
    """
    from unlazy.models.jax_model import JaxModel

    names = None if layers is None else _chosen(model, layers)
    if isinstance(model, JaxModel):
        from unlazy.models.jax_tangents import JaxTangents

        return JaxTangents(model, names)
    if type(model).__module__ == "unlazy.models.torch_model":
        from unlazy.models.torch_tangents import TorchTangents

        return TorchTangents(model, names)  # type: ignore[arg-type]
    raise ValueError(f"the model must be made by as_model, got {type(model).__name__}")


def _chosen(model: Model, layers: Sequence[str]) -> list[str]:
    """Full names of the layers."""
    known = list(model.layers(model.params))
    wanted = (layers,) if isinstance(layers, str) else tuple(layers)
    for name in wanted:
        if not any(layer == name or layer.startswith(f"{name}.") for layer in known):
            raise ValueError(f"no layer has the name {name!r}{did_you_mean(name, known)}: choose from {known}")
    return [layer for layer in known if any(layer == name or layer.startswith(f"{name}.") for name in wanted)]
