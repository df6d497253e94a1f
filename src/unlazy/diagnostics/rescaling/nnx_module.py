"""Flax nnx modules with another output scale [W6]."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PyTree

from unlazy.diagnostics.rescaling.output_scale import Constant, scale_output
from unlazy.models.protocol import Params


class RescaledNnx(nnx.Module):
    """f_0 + α (f - f_0) of an nnx module; θ_0 is no variable of the module, so that no optimizer sees it."""

    def __init__(self, network: nnx.Module, scale: float) -> None:
        self.network = network
        self.unlazy_scale = scale
        self._start = Constant(nnx.split(network))

    def __call__(self, *inputs: PyTree, **options: PyTree) -> PyTree:
        graph, state = self._start.value
        start = nnx.merge(graph, state, copy=True)
        f_0 = start(*inputs, **options)
        return scale_output(self.network(*inputs, **options), f_0, self.unlazy_scale)  # type: ignore[operator]


def rescale_module(module: nnx.Module, scale: float, reference: Params) -> RescaledNnx:
    """A rescaled copy of the module that starts at the reference."""
    inner = module.network if isinstance(module, RescaledNnx) else module
    reference = reference["network"] if isinstance(module, RescaledNnx) else reference
    network = nnx.clone(inner)
    nnx.update(network, jax.tree.map(jnp.array, reference))
    return RescaledNnx(network, scale)
