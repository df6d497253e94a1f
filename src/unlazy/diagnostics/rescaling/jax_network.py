"""Functions of (params, inputs) and Equinox modules with another output scale [W6]."""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
from jaxtyping import PyTree

from unlazy.diagnostics.rescaling.output_scale import Constant, scale_output
from unlazy.models.protocol import Params


def rescale_function(network: object, scale: float, reference: Params) -> object | None:
    """f_0 + α (f - f_0) of an Equinox module or a pair (apply, params); None if it is neither."""
    if isinstance(network, eqx.Module) and callable(network):
        module = network.network if isinstance(network, RescaledModule) else network
        start: PyTree = eqx.combine(getattr(reference, "network", reference), module)
        return RescaledModule(start, Constant(start), scale)
    if isinstance(network, tuple | list) and len(network) == 2 and callable(network[0]):
        apply, params = network
        inner = apply.apply if isinstance(apply, RescaledApply) else apply
        start = eqx.combine(reference, params)
        return RescaledApply(inner, Constant(start), scale), start
    return None


@dataclass(frozen=True, eq=False)
class RescaledApply:
    """f_0 + α (f - f_0) of a function of (params, inputs, …)."""

    apply: Callable[..., PyTree]
    start: Constant
    unlazy_scale: float

    def __call__(self, params: PyTree, *inputs: PyTree, **options: PyTree) -> PyTree:
        f_0 = self.apply(self.start.value, *inputs, **options)
        return scale_output(self.apply(params, *inputs, **options), f_0, self.unlazy_scale)


class RescaledModule(eqx.Module):
    """f_0 + α (f - f_0) of an Equinox module."""

    network: eqx.Module
    start: Constant = eqx.field(static=True)
    unlazy_scale: float = eqx.field(static=True)

    def __call__(self, *inputs: PyTree, **options: PyTree) -> PyTree:
        f_0 = self.start.value(*inputs, **options)
        return scale_output(self.network(*inputs, **options), f_0, self.unlazy_scale)  # type: ignore[operator]
