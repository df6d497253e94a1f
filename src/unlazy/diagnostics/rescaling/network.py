"""A network with another output scale [W6]: f_0 + α (f - f_0), at θ_0 again."""

import sys
from dataclasses import dataclass

from unlazy.models.protocol import Params

Network = object
"""A network of any framework, as `unlazy.watch` takes it."""


@dataclass(frozen=True)
class Rescaled:
    """A network with another output scale, and the rates it trains with.

    Attributes
    ----------
    model : torch.nn.Module, Equinox or Flax nnx module, or pair (apply, params)
        Computes f_0 + α (f - f_0) and starts at θ_0: at first it is the original network, whatever α.
    scale : float
        α. Above 1 is lazier, below 1 richer.
    step_size : float or None
        Learning rate for gradient descent, with or without momentum: η/α²; None if the rate of the run is not known.
    adam_step_size : float or None
        Learning rate for Adam: η/α.
    adam_eps_factor : float
        Factor of Adam's eps, α.
    low, high : float
        95% interval of the α that gives the requested gap.
    """

    model: Network
    scale: float
    step_size: float | None
    adam_step_size: float | None
    adam_eps_factor: float
    low: float
    high: float


def rescale_network(network: Network, scale: float, reference: Params) -> Network:
    """f_0 + α (f - f_0) with a copy of θ_0 for its parameters, in the framework of the network.

    Parameters
    ----------
    network : torch.nn.Module, Equinox or Flax nnx module, or pair (apply, params)
        The network, at any parameters; one that is rescaled already is taken out of its wrapper.
    scale : float
        α.
    reference : pytree
        θ_0, as the adapter of the network stores it.

    Returns
    -------
    object
        Of the same kind.

    Raises
    ------
    ValueError
        If the network is of another kind.
    """
    nn = getattr(sys.modules.get("torch"), "nn", None)
    if nn is not None and isinstance(network, nn.Module):
        from unlazy.diagnostics.rescaling.torch_module import rescale_module

        return rescale_module(network, scale, reference)
    nnx_module = getattr(sys.modules.get("flax.nnx"), "Module", None)
    if nnx_module is not None and isinstance(network, nnx_module):
        from unlazy.diagnostics.rescaling.nnx_module import rescale_module as rescale_nnx

        return rescale_nnx(network, scale, reference)
    if isinstance(network, tuple | list) or "equinox" in sys.modules:
        from unlazy.diagnostics.rescaling.jax_network import rescale_function

        rescaled = rescale_function(network, scale, reference)
        if rescaled is not None:
            return rescaled
    raise ValueError(
        f"rescale needs a torch.nn.Module, an Equinox or Flax nnx module, or a pair (apply, params), got "
        f"{type(network).__name__}"
    )


def scale_of(network: Network) -> float:
    """α of a network that `rescale_network` made; 1 for any other."""
    if isinstance(network, tuple | list) and len(network) == 2:
        network = network[0]
    scale = getattr(network, "unlazy_scale", 1.0)
    return float(scale) if isinstance(scale, int | float) else 1.0
