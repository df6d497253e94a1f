"""What diagnostics need of a network: parameters, evaluation, derivatives and layer outputs, in any framework.

Parameters and directions are opaque values of the framework (a dictionary of tensors, a pytree), which only the model
combines; outputs on probe points are small and come back as NumPy arrays. Algorithms (sketches, Lanczos, conjugate
gradients) are therefore written once, for JAX and PyTorch alike.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Float

Params: TypeAlias = Any
"""Trainable parameters, or a direction in their space, in the framework's own type."""
Inputs: TypeAlias = Any
"""One batch of inputs, as the network takes them: an array, a tuple of arguments, a dictionary."""
Outputs: TypeAlias = Float[np.ndarray, "m c"]
"""Outputs on m points, flattened to c numbers per point."""
Targets: TypeAlias = Any
"""Targets of a loss, in the framework's own type."""
Loss: TypeAlias = Callable[[Any, Any], Any]
"""Mean loss of native outputs and native targets, a scalar of the framework."""
OutputFunction: TypeAlias = Callable[[Any], Any]
"""From what the network returns to the array of outputs, with one row per point."""


@runtime_checkable
class Model(Protocol):
    """A differentiable network f(params, inputs).

    Every method is deterministic (dropout off, normalization layers in evaluation mode with one set of statistics) and
    leaves the user's network, its buffers, flags, gradients and random state as they were.

    A direction may be the entry of one layer (see `layers`): what it does not store is zero. Parameters and directions
    may live on the host (see `snapshot`); they are moved to the network's device where they are used.
    """

    @property
    def params(self) -> Params:
        """The trainable parameters as they are now, without a copy."""
        ...

    @property
    def derivative_error(self) -> float:
        """Estimated relative error of `jvp` and `hvp` beyond rounding, the largest so far.

        It is 0 as long as derivatives are exact; a network whose operations have no forward derivative is
        differentiated by central differences, and this is their error.
        """
        ...

    def snapshot(self, on_host: bool = False) -> Params:
        """A copy of the trainable parameters that later training does not change, on the CPU if `on_host`."""
        ...

    def stored(self, network: Params, on_host: bool = False) -> Params:
        """The parameters of another network like this one, as this model stores them.

        `network` is a network, its parameters or, in PyTorch, its state dictionary.
        """
        ...

    def update(self, network: Params) -> None:
        """Take the parameters of a later step: of a JAX network alone, whose parameters are values.

        Everything that is not trained (batch statistics, frozen parameters) stays as it was at construction. A PyTorch
        module or nnx module is read as it is at every call, and refuses anything but itself.
        """
        ...

    @property
    def startup(self) -> float:
        """Rough seconds that the next evaluation of `change` takes beyond those after it: compilation, loading."""
        ...

    def wait(self) -> None:
        """Wait until the device has computed the parameters."""
        ...

    def check_inputs(self, inputs: Inputs) -> None:
        """Raise what an evaluation on these inputs would raise, where that is known without compiling or a device."""
        ...

    def fix_statistics(self, inputs: Inputs, params: Params | None = None) -> None:
        """Choose the statistics of normalization layers that are used from now on, for all parameters alike.

        The network's running statistics as they are now; where no batch has been counted yet (a fresh network), the
        statistics of these inputs at the present parameters. Given `params`, those of construction: the running
        statistics as they were then, or the statistics of these inputs at `params`. Statistics of construction are
        used until it is called. Only PyTorch and nnx modules have some; it does nothing for other networks.
        """
        ...

    def apply(self, params: Params, inputs: Inputs) -> Outputs:
        """f(params, inputs)."""
        ...

    def jvp(self, params: Params, direction: Params, inputs: Inputs) -> Outputs:
        """J(params) @ direction."""
        ...

    def change(
        self, reference: Params, params: Params, inputs: Inputs, initial: Outputs | None = None
    ) -> tuple[Outputs, Outputs, Outputs]:
        """f(reference), f(params) and J(reference) @ (params - reference).

        Needs little memory besides that of an evaluation: the difference of the parameters is never stored as a whole
        if it does not fit in memory. `initial` is f(reference), if known.
        """
        ...

    def vjp(self, params: Params, cotangents: Outputs, inputs: Inputs) -> Params:
        """J(params)ᵀ @ cotangents."""
        ...

    def hvp(self, params: Params, direction: Params, inputs: Inputs, targets: Targets, loss: Loss) -> Params:
        """Hessian of loss(f(params, inputs), targets) times a direction."""
        ...

    def layer_outputs(self, params: Params, inputs: Inputs) -> Mapping[str, Outputs]:
        """Outputs of every named layer that has parameters, in the order of evaluation, flattened per point."""
        ...

    def layers(self, params: Params) -> Mapping[str, Params]:
        """The same direction restricted to each named layer (zero elsewhere is not stored)."""
        ...

    def subtract(self, left: Params, right: Params) -> Params:
        """left - right."""
        ...

    def add_scaled(self, left: Params, scale: float, right: Params) -> Params:
        """left + scale · right."""
        ...

    def inner(self, left: Params, right: Params) -> float:
        """Euclidean inner product, accumulated in float64."""
        ...

    def random_direction(self, params: Params, seed: int) -> Params:
        """Independent standard normal numbers in the shape of the parameters, from a generator of their own."""
        ...
