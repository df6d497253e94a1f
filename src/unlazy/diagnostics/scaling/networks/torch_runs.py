"""Short training runs of PyTorch networks at several sizes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from unlazy.diagnostics.scaling.networks.construction import build, check_precision, is_torch_module
from unlazy.diagnostics.scaling.networks.runs import LESS, LINEAR, Run, check_losses, check_targets
from unlazy.diagnostics.scaling.networks.torch_trace import trace_torch
from unlazy.diagnostics.scaling.networks.uses import Trace
from unlazy.diagnostics.scaling.options import ScalingOptions
from unlazy.diagnostics.scaling.rules import Measured
from unlazy.models.outputs import select_output
from unlazy.models.torch_model import TorchModel, unwrap

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TorchRuns:
    """Runs of the networks that `make` returns, all on one batch.

    Parameters
    ----------
    make : callable
        Returns a network for keyword arguments such as ``width``.
    optimizer : callable
        Returns an optimizer for a network.
    inputs, targets : array or tensor, or tuple of them
        One batch.
    options : ScalingOptions
        Steps, loss, outputs and centering.
    """

    def __init__(
        self, make: Callable[..., nn.Module], optimizer: Callable[[nn.Module], torch.optim.Optimizer], inputs: Any,
        targets: Any, options: ScalingOptions,
    ) -> None:  # fmt: skip
        if not callable(optimizer) or isinstance(optimizer, type):
            raise ValueError(
                "optimizer must be a function of the network that returns an optimizer, for example "
                "lambda network: torch.optim.Adam(network.parameters(), lr=1e-3)"
            )
        self._make, self._optimizer, self._options = make, optimizer, options
        self._inputs, self._targets = _as_tensors(inputs), _as_tensors(targets)
        self._loss = options.loss or _usual_loss(self._targets)

    def build(self, seed: int, **sizes: int) -> nn.Module:
        """The network of one size; the same for the same seed."""
        network = build(self._make, sizes, seed)
        if not is_torch_module(network):
            raise ValueError(f"make must return a torch.nn.Module at every size, got {type(network).__name__}")
        return network

    def shapes(self, **sizes: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the trainable parameters."""
        network = unwrap(self.build(0, **sizes))
        check_precision(p.dtype for p in network.parameters() if p.requires_grad)
        return {name: tuple(p.shape) for name, p in network.named_parameters() if p.requires_grad}

    def run(self, seed: int, **sizes: int) -> Run:
        """Train, and find all uses."""
        network = self.build(seed, **sizes)
        steps = self._train(seed, 1.0, **sizes)
        check_losses(steps.losses, sizes)
        model = TorchModel(network, output=self._options.output)
        start = model.params
        after = {name: p + steps.updates[name] if name in steps.updates else p for name, p in start.items()}
        inputs = _moved(self._inputs, _device(network))
        measured = Measured(sizes, trace_torch(network, after, inputs), steps.rates)
        return Run(measured, steps.losses, model, start, steps.trained, inputs)

    def train(self, seed: int, **sizes: int) -> list[float]:
        """Train alone; losses before each step."""
        return self._train(seed, 1.0, **sizes).losses

    def linear(self, seed: int, **sizes: int) -> dict[str, bool]:
        """Whether the change of each parameter is proportional to the loss, as with SGD."""
        whole, quarter = (self._train(seed, scale, **sizes).updates for scale in (1.0, LESS))
        return {name: bool(quarter[name].norm() < LINEAR * whole[name].norm()) for name in whole if name in quarter}

    def _train(self, seed: int, scale: float, **sizes: int) -> "_Steps":
        """Train a network, with the loss multiplied by a scale."""
        network = self.build(seed, **sizes)
        optimizer = self._optimizer(network)
        inner, device = unwrap(network), _device(network)
        inputs, targets = _moved(self._inputs, device), _moved(self._targets, device)
        network.train()
        found = _Steps({}, [], {}, {})
        with _seeded(seed):
            with torch.no_grad():
                start = self._call(network, inputs)
            for _ in range(self._options.steps):
                optimizer.zero_grad()
                outputs = self._call(network, inputs)
                value = self._loss(outputs - start if self._options.centered else outputs, targets)
                (scale * value).backward()
                before = {name: p.detach().clone() for name, p in inner.named_parameters() if p.requires_grad}
                sizes_of = {name: float(p.grad.norm()) for name, p in inner.named_parameters() if p.grad is not None}
                optimizer.step()
                found.losses.append(float(value.detach()))
                for name, p in inner.named_parameters():
                    if name in before and name not in found.updates and sizes_of.get(name, 0.0) > 0:
                        found.updates[name] = p.detach() - before[name]
                        found.rates[name] = float(found.updates[name].norm()) / sizes_of[name]
        found.trained.update({name: p.detach().clone() for name, p in inner.named_parameters() if p.requires_grad})
        return found

    def _call(self, network: nn.Module, inputs: Any) -> torch.Tensor:
        if isinstance(inputs, Mapping):
            found = network(**inputs)
        else:
            found = network(*inputs) if isinstance(inputs, tuple) else network(inputs)
        return select_output(found, self._options.output, torch.is_tensor, type(unwrap(network)).__name__)  # type: ignore[return-value]


class TorchTrainer:
    """Training at a given rate; `optimizer` takes the network and the rate, see `TorchRuns` for the others."""

    def __init__(
        self, make: Callable[..., nn.Module], optimizer: Callable[[nn.Module, float], torch.optim.Optimizer],
        inputs: Any, targets: Any, options: ScalingOptions,
    ) -> None:  # fmt: skip
        self._given, self._optimizer, self._options = (make, inputs, targets), optimizer, options

    def final_loss(self, seed: int, rate: float, steps: int, **sizes: int) -> float:
        """Loss after some steps; not finite if training diverged."""
        make, inputs, targets = self._given
        options = replace(self._options, steps=steps + 1)  # the last loss is that after all others
        runs = TorchRuns(make, lambda network: self._optimizer(network, rate), inputs, targets, options)
        return runs.train(seed, **sizes)[-1]


class _Steps(NamedTuple):
    """What some steps of training did: parameters, losses, and of each parameter its first update and the ratio of that
    to its gradient. (A gradient is 0 at first below a readout that starts at 0.)"""

    trained: dict[str, torch.Tensor]
    losses: list[float]
    updates: dict[str, torch.Tensor]
    rates: dict[str, float]


def _usual_loss(targets: Any) -> Loss:
    if isinstance(targets, torch.Tensor) and not targets.is_floating_point():
        return lambda outputs, y: nn.functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), y.reshape(-1))
    return _squared_error


def _squared_error(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    check_targets(outputs.shape, y.shape)
    return nn.functional.mse_loss(outputs, y.reshape(outputs.shape))


def _as_tensors(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _as_tensors(value) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_as_tensors(value) for value in values)
    found = torch.as_tensor(np.asarray(values) if not isinstance(values, torch.Tensor) else values)
    return found.float() if found.dtype == torch.float64 else found


def _moved(values: Any, device: torch.device) -> Any:
    if isinstance(values, Mapping):
        return {name: _moved(value, device) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_moved(value, device) for value in values)
    return values.to(device)


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw from a fixed seed, and leave the global generators as they were."""
    devices = list(range(len(torch.cuda.default_generators)))  # none before CUDA is initialized
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def probe_torch(network: nn.Module, inputs: Any) -> tuple[Trace, dict[str, tuple[int, ...]]]:
    """Uses and shapes of a network; every parameter is changed by a small share, to see what multiplies it."""
    inner = unwrap(network)
    parameters = {name: p.detach() for name, p in inner.named_parameters() if p.requires_grad}
    generator = torch.Generator().manual_seed(0)
    moved = {name: p + torch.randn(p.shape, generator=generator).to(p) for name, p in parameters.items()}
    trace = trace_torch(network, moved, _moved(_as_tensors(inputs), _device(network)))
    return trace, {name: tuple(p.shape) for name, p in parameters.items()}


@torch.no_grad()
def multiply_parameters(network: nn.Module, factor: Callable[[str], float]) -> nn.Module:
    """Multiply trainable parameters in place."""
    for name, p in unwrap(network).named_parameters():
        if p.requires_grad:
            p.mul_(factor(name))
    return network
