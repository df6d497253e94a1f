"""Training runs of known laziness in PyTorch: see watch_settings.py."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn import functional
from watch_settings import (
    DIMENSION,
    EPS,
    LENGTH,
    VOCABULARY,
    Run,
    Setting,
    batches,
    check_steps,
    choices,
    table,
    watched,
)

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}
Tensors = dict[str, Tensor]


class Residual(nn.Module):
    """x + F(x), F with BatchNorm."""

    def __init__(self, width: int, activation: type[nn.Module]):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), activation(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x + self.inner(x))


class Attention(nn.Module):
    """Self-attention written out, for which forward-mode derivatives exist."""

    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """Transformer block with normalization first."""

    def __init__(self, width: int, activation: type[nn.Module]):
        super().__init__()
        self.first, self.attention, self.second = nn.LayerNorm(width), Attention(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), activation(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Mean over positions after a few blocks."""

    def __init__(self, width: int, depth: int, activation: type[nn.Module], outputs: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(0.3 * torch.randn(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, activation) for _ in range(depth)))
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.norm(self.blocks(self.embedding(x) + self.position)).mean(1))


def network(architecture: str, width: int, depth: int, activation: str, outputs: int) -> nn.Module:
    """Build a small network."""
    act = ACTIVATIONS[activation]
    if architecture == "transformer":
        return Transformer(width, depth, act, outputs)
    layers: list[nn.Module] = []
    if architecture == "mlp":
        for i in range(depth):
            layers += [nn.Linear(width if i else DIMENSION, width), act()]
    elif architecture == "cnn":
        for i in range(depth + 1):
            layers += [nn.Conv2d(width if i else 3, width, 3, padding=1, stride=2 if i == 1 else 1), act()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    else:
        layers += [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), act(), nn.MaxPool2d(2)]
        layers += [*(Residual(width, act) for _ in range(depth)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def with_batch_statistics(model: nn.Module) -> nn.Module:
    """A copy whose normalization layers always use the statistics of the batch."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return model


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean loss: half the squared error summed over outputs, or cross entropy."""
    if name == "squared":
        return lambda F, y: 0.5 * (F - y).square().sum(1).mean()
    return functional.cross_entropy


class TorchProgram:
    """Training runs of one setting."""

    def __init__(self, setting: Setting):
        self.chosen = c = choices(setting)
        self.adam = setting.optimizer == "adam"
        data = table(setting, c)
        self.X, self.y, self.test, self.probe, self.probe_y = (torch.as_tensor(v) for v in data)
        self.batches = torch.as_tensor(batches(setting, c))
        self.loss = loss_of(c.loss)
        torch.manual_seed(setting.seed)
        self.model = network(setting.architecture, c.width, c.depth, c.activation, c.outputs).train()
        self.frozen = with_batch_statistics(self.model)
        self.start = {k: v.detach().clone() for k, v in self.model.named_parameters()}
        self.rate = c.rate if self.adam else c.rate * self._largest_rate() * (1 - c.momentum)

    def apply(self, params: Tensors, X: Tensor) -> Tensor:
        """f(params, X) with the statistics of the batch."""
        return functional_call(self.frozen, params, (X,))

    def tangent(self, direction: Tensors, X: Tensor) -> tuple[Tensor, Tensor]:
        """f(θ_0, X) and J(θ_0) direction."""
        return jvp(lambda p: self.apply(p, X), (self.start,), (direction,))

    def _largest_rate(self) -> float:
        """2/λ_max of the kernel on a batch, by 20 power iterations."""
        X = self.X[: self.chosen.batch]
        v = torch.randn(len(X), self.chosen.outputs, generator=torch.Generator().manual_seed(0))
        pull = vjp(lambda p: self.apply(p, X), self.start)[1]
        for _ in range(20):
            v = self.tangent(pull(v / v.norm())[0], X)[1]
        return 2 * len(X) / float(v.norm())

    def optimizer(self, parameters: list[Tensor], alpha: float, reduction: float) -> torch.optim.Optimizer:
        """The optimizer with its rate at dial α [W6]."""
        rate = self.rate * reduction
        if self.adam:
            return torch.optim.Adam(parameters, lr=rate / alpha, eps=EPS * alpha)
        return torch.optim.SGD(parameters, lr=rate / alpha**2, momentum=self.chosen.momentum)

    def linearized(self, reduction: float = 1.0) -> np.ndarray:
        """F on the test rows after training the linearization at θ_0, with the rate times `reduction`."""
        moved = {k: torch.zeros_like(v) for k, v in self.start.items()}
        optimizer = self.optimizer(list(moved.values()), 1.0, reduction)
        for rows in self.batches:
            X, y = self.X[rows], self.y[rows]
            F = self.tangent(moved, X)[1].detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(F, y), F)
            for k, gradient in vjp(lambda p, X=X: self.apply(p, X), self.start)[1](slope)[0].items():
                moved[k].grad = gradient
            optimizer.step()
        return self.tangent(moved, self.test)[1].numpy()

    def train(self, alpha: float, reduction: float = 1.0) -> Run:
        """Train with dial α, with the rate times `reduction`."""
        model = copy.deepcopy(self.model)
        optimizer = self.optimizer(list(model.parameters()), alpha, reduction)
        monitor = watched(model, self.probe, self.chosen.steps)
        due, checks = check_steps(self.chosen.steps), []
        for step, rows in enumerate(self.batches, start=1):
            X, y = self.X[rows], self.y[rows]
            with torch.no_grad():
                initial = self.apply(self.start, X)
            loss = self.loss(alpha * (model(X) - initial), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step()
            if step in due:
                found = monitor.check()
                if found is None or not np.isfinite(loss.item()):
                    break
                checks.append({**found.numbers(), **self._measured(model, alpha)})
        params = {k: v.detach() for k, v in model.named_parameters()}
        return Run(checks, self.change(params, self.test, alpha).numpy(), *self.losses(self.start, alpha))

    def change(self, params: Tensors, X: Tensor, alpha: float) -> Tensor:
        """F = α (f - f_0)."""
        with torch.no_grad():
            return alpha * (self.apply(params, X) - self.apply(self.start, X))

    def losses(self, params: Tensors, alpha: float) -> tuple[float, float]:
        """Loss on the probe rows and on the training rows."""
        rows = ((self.probe, self.probe_y), (self.X, self.y))
        probe, train = (float(self.loss(self.change(params, X, alpha), y)) for X, y in rows)
        return probe, train

    def _measured(self, model: nn.Module, alpha: float) -> dict[str, float]:
        now = {k: v.detach() for k, v in model.named_parameters()}
        moved = {k: v - self.start[k] for k, v in now.items()}
        linear = self.tangent(moved, self.probe)[1].double()
        change = self.change(now, self.probe, 1.0).double()
        probe, train = self.losses(now, alpha)
        return {"plain_gap": float((change - linear).norm() / change.norm()), "loss": probe, "train_loss": train}
