"""Runs and uses of networks, in the framework that they belong to; only that one is imported."""

from collections.abc import Callable, Sequence
from typing import Any

from unlazy.diagnostics.scaling.networks.construction import is_torch_module
from unlazy.diagnostics.scaling.networks.runs import Runs, Trainer
from unlazy.diagnostics.scaling.networks.uses import Trace
from unlazy.diagnostics.scaling.options import ScalingOptions


def make_runs(
    make: Callable[..., Any], optimizer: Any, inputs: Any, targets: Any, options: ScalingOptions, network: object
) -> Runs:
    """Runs of the networks of `make`, in the framework of one of them."""
    if is_torch_module(network):
        from unlazy.diagnostics.scaling.networks.torch_runs import TorchRuns

        return TorchRuns(make, optimizer, inputs, targets, options)
    from unlazy.diagnostics.scaling.networks.jax_runs import JaxRuns

    return JaxRuns(make, optimizer, inputs, targets, options)


def make_trainer(
    make: Callable[..., Any], optimizer: Any, inputs: Any, targets: Any, options: ScalingOptions, network: object
) -> Trainer:
    """The same for training at several rates: ``optimizer(network, rate)``."""
    if is_torch_module(network):
        from unlazy.diagnostics.scaling.networks.torch_runs import TorchTrainer

        return TorchTrainer(make, optimizer, inputs, targets, options)
    from unlazy.diagnostics.scaling.networks.jax_runs import JaxTrainer

    return JaxTrainer(make, optimizer, inputs, targets, options)


def probe(networks: Sequence[Any], inputs: Any) -> list[tuple[Trace, dict[str, tuple[int, ...]]]]:
    """Uses and shapes of the parameters of each network, without training."""
    if is_torch_module(networks[0]):
        from unlazy.diagnostics.scaling.networks.torch_runs import probe_torch

        return [probe_torch(network, inputs) for network in networks]
    from unlazy.diagnostics.scaling.networks.jax_runs import probe_jax

    return probe_jax(networks, inputs)


def multiply(network: Any, factor: Callable[[str], float]) -> Any:
    """The network with every trainable parameter multiplied by its factor."""
    if is_torch_module(network):
        from unlazy.diagnostics.scaling.networks.torch_runs import multiply_parameters

        return multiply_parameters(network, factor)
    from unlazy.diagnostics.scaling.networks.jax_runs import multiply_leaves

    return multiply_leaves(network, factor)
