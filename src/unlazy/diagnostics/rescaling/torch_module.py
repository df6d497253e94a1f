"""PyTorch modules with another output scale [W6]."""

import copy

import torch
from torch import nn

from unlazy.models.protocol import Params
from unlazy.models.torch_model import unwrap


class RescaledModule(nn.Module):
    """f_0 + α (f - f_0) of a module whose output is a tensor.

    While training, normalization layers of f_0 use the statistics of the batch as those of f do, and dropout the same
    masks, so that f - f_0 is 0 at θ_0.

    Parameters
    ----------
    network : torch.nn.Module
        The network at θ_0.
    scale : float
        α.
    """

    unlazy_constants = ("start",)
    """Parts that are no layers of the network: a copy at θ_0."""

    def __init__(self, network: nn.Module, scale: float) -> None:
        super().__init__()
        self.network = network
        self.start = copy.deepcopy(network).requires_grad_(False)
        self.unlazy_scale = scale

    def forward(self, *inputs: torch.Tensor, **options: torch.Tensor) -> torch.Tensor:
        state = torch.get_rng_state(), _cuda_states(self)
        f = self.network(*inputs, **options)
        with torch.no_grad(), torch.random.fork_rng(devices=list(state[1])):
            torch.set_rng_state(state[0])
            for device, value in state[1].items():
                torch.cuda.set_rng_state(value, device)
            f_0 = self.start(*inputs, **options)
        if not isinstance(f, torch.Tensor):
            raise ValueError(
                f"only networks that return a tensor can be rescaled, {type(self.network).__name__} returns a "
                f"{type(f).__name__}: wrap it so that it returns its outputs"
            )
        return f_0 + self.unlazy_scale * (f - f_0)


def _cuda_states(module: nn.Module) -> dict[int, torch.Tensor]:
    """Random states of the GPUs, where dropout draws from them."""
    drawing = module.training and any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules())
    devices = {p.device.index for p in module.parameters() if p.is_cuda} if drawing else set()
    return {index: torch.cuda.get_rng_state(index) for index in devices if index is not None}


def rescale_module(module: nn.Module, scale: float, reference: Params) -> RescaledModule:
    """A rescaled copy of the module that starts at the reference."""
    inner = unwrap(module)
    if isinstance(inner, RescaledModule):
        prefix = "network."
        inner, reference = inner.network, {name.removeprefix(prefix): value for name, value in reference.items()}
    network = copy.deepcopy(inner)
    network.zero_grad(set_to_none=True)
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, value in reference.items():
            target = parameters[name]
            target.copy_(torch.view_as_complex(value) if target.is_complex() else value)
    return RescaledModule(network, scale)
