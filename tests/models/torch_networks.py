"""Small PyTorch networks of every kind that users train, with one batch of inputs for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

M = 5


@dataclass
class Case:
    """A network, inputs for it and what picks its outputs."""

    module: nn.Module
    inputs: Any
    output: Callable | None = None


def points(*shape: int) -> torch.Tensor:
    return torch.randn(M, *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def tokens(length: int = 6, vocabulary: int = 11) -> torch.Tensor:
    return torch.randint(vocabulary, (M, length), generator=torch.Generator().manual_seed(7))


class Calls(nn.Module):
    """A module that calls a function of (itself, inputs); other attributes are submodules or tensors."""

    def __init__(self, function: Callable, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **keywords: Any) -> Any:
        return self.function(self, *args, **keywords)


class Cube(torch.autograd.Function):
    """x³ with a backward pass that has derivatives, and no forward derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class CubeForward(torch.autograd.Function):
    """The same with a forward derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t


class NumpyCube(torch.autograd.Function):
    """x³ in NumPy: its backward pass cannot be differentiated, and does not say so."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach().numpy()
        return torch.from_numpy(ctx.x**3)

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(3 * ctx.x**2 * g.detach().numpy())


class OnceCube(torch.autograd.Function):
    """x³ with a backward pass that says that it cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 3, 3), nn.Flatten(), nn.Linear(12, 2)
    )


def mlp(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 6), activation or nn.Tanh(), nn.Linear(6, 2))


def trained_statistics(module: nn.Module) -> nn.Module:
    """With running statistics as after some training."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.running_mean is not None:
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2)
            part.num_batches_tracked.fill_(3)
    return module


def tied() -> nn.Module:
    embedding, readout = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
    readout.weight = embedding.weight
    return Calls(
        lambda self, t: self.readout(torch.tanh(self.embedding(t)).mean(1)), embedding=embedding, readout=readout
    )


def attention(self: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = self.qkv(x).chunk(3, -1)
    return self.readout(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, -1])


def frozen() -> nn.Module:
    module = mlp()
    module[0].weight.requires_grad_(False)
    return module


def rotary(self: Any, x: torch.Tensor) -> torch.Tensor:
    turned = torch.view_as_real(torch.view_as_complex(self.linear(x).reshape(len(x), -1, 2)) * self.angles)
    return self.readout(turned.flatten(1))


class Rotary(Calls):
    def __init__(self) -> None:
        super().__init__(rotary, linear=nn.Linear(3, 8), readout=nn.Linear(8, 2))
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))


def spectrum(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.readout(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=3))


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    self.last = self.linear(x)
    self.count += 1
    return torch.tanh(self.last)


class Counting(Calls):
    def __init__(self) -> None:
        super().__init__(counting, linear=nn.Linear(3, 2))
        self.calls = 0
        self.register_buffer("count", torch.zeros(()))


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


def two_outputs(self: Any, x: torch.Tensor) -> dict:
    h = self.linear(x)
    return {"hidden": h, "logits": torch.tanh(h)}


def momentum(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Part of the computation has no gradient."""
    with torch.no_grad():
        target = self.linear(x)
    return torch.tanh(self.linear(x)) * target


CASES: dict[str, Callable[[], Case]] = {
    "mlp": lambda: Case(mlp(), points(3)),
    "BatchNorm": lambda: Case(trained_statistics(conv()), points(2, 4, 4)),
    "BatchNorm, batch statistics": lambda: Case(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)), points(3)
    ),
    "LayerNorm": lambda: Case(nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)), points(3)),
    "GroupNorm": lambda: Case(nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.SiLU()), points(2, 6)),
    "InstanceNorm": lambda: Case(
        trained_statistics(nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True))),
        points(2, 6),
    ),
    "Embedding": lambda: Case(nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(24, 2)), tokens()),
    "EmbeddingBag": lambda: Case(nn.Sequential(nn.EmbeddingBag(11, 4), nn.Tanh(), nn.Linear(4, 2)), tokens()),
    "EmbeddingBag, max": lambda: Case(nn.Sequential(nn.EmbeddingBag(11, 4, mode="max"), nn.Linear(4, 2)), tokens()),
    "tied weights": lambda: Case(tied(), tokens()),
    "LSTM": lambda: Case(
        Calls(lambda self, x: self.readout(self.lstm(x)[0][:, -1]),
              lstm=nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), readout=nn.Linear(8, 2)),
        points(6, 3),
    ),
    "packed sequence": lambda: Case(
        Calls(lambda self, x: self.lstm(x)[1][0][-1], lstm=nn.LSTM(3, 2, batch_first=True)),
        (nn.utils.rnn.pack_padded_sequence(points(6, 3), [6, 2, 5, 1, 4], batch_first=True, enforce_sorted=False),),
    ),
    "GRU": lambda: Case(
        Calls(lambda self, x: self.readout(self.gru(x)[0][:, -1]),
              gru=nn.GRU(3, 4, batch_first=True, dropout=0.0), readout=nn.Linear(4, 2)),
        points(6, 3),
    ),
    "MultiheadAttention": lambda: Case(
        Calls(lambda self, x: self.mha(x, x, x)[0].mean(1), mha=nn.MultiheadAttention(4, 2, batch_first=True)),
        points(6, 4),
    ),
    "scaled_dot_product_attention": lambda: Case(
        Calls(attention, qkv=nn.Linear(4, 12), readout=nn.Linear(4, 2)), points(6, 4)
    ),
    "TransformerEncoderLayer": lambda: Case(
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True), points(6, 4)
    ),
    "TransformerEncoder": lambda: Case(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False),
        points(6, 4),
    ),
    "weight_norm, hook": lambda: Case(nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh()), points(3)),
    "weight_norm": lambda: Case(nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh()), points(3)),
    "spectral_norm, hook": lambda: Case(nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh()), points(3)),
    "spectral_norm": lambda: Case(nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Tanh()), points(3)),
    "orthogonal": lambda: Case(
        nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 4), orthogonal_map="matrix_exp"), nn.Tanh()), points(3)
    ),
    "pruning": lambda: Case(nn.Sequential(prune.l1_unstructured(nn.Linear(3, 4), "weight", 0.3), nn.Tanh()), points(3)),
    "custom Function": lambda: Case(
        Calls(lambda self, x: Cube.apply(self.linear(x)), linear=nn.Linear(3, 2)), points(3)
    ),
    "custom Function, forward": lambda: Case(
        Calls(lambda self, x: CubeForward.apply(self.linear(x)), linear=nn.Linear(3, 2)), points(3)
    ),
    "custom Function, NumPy": lambda: Case(
        Calls(lambda self, x: NumpyCube.apply(self.linear(x)), linear=nn.Linear(3, 2)), points(3)
    ),
    "custom Function, once": lambda: Case(
        Calls(lambda self, x: OnceCube.apply(self.linear(x)), linear=nn.Linear(3, 2)), points(3)
    ),
    "checkpointing": lambda: Case(
        Calls(lambda self, x: self.readout(checkpoint(self.block, x, use_reentrant=False)),
              block=nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh()), readout=nn.Linear(4, 2)),
        points(3),
    ),
    "checkpointing, re-entrant": lambda: Case(
        Calls(lambda self, x: self.readout(checkpoint(self.block, self.first(x), use_reentrant=True)),
              first=nn.Linear(3, 3), block=nn.Sequential(nn.Linear(3, 4), nn.Tanh()), readout=nn.Linear(4, 2)),
        points(3),
    ),
    "complex buffers": lambda: Case(Rotary(), points(3)),
    "complex parameters": lambda: Case(
        Calls(spectrum, filter=nn.Parameter(torch.randn(2, dtype=torch.complex128)), readout=nn.Linear(3, 2)), points(3)
    ),
    "non-float parameters": lambda: Case(
        Calls(lambda self, x: torch.tanh(self.linear(x[:, self.order])), linear=nn.Linear(3, 2),
              order=nn.Parameter(torch.tensor([2, 0, 1]), requires_grad=False)),
        points(3),
    ),
    "frozen": lambda: Case(frozen(), points(3)),
    "several inputs": lambda: Case(
        Calls(lambda self, x, z: torch.tanh(self.left(x)) * self.right(z), left=nn.Linear(3, 2), right=nn.Linear(4, 2)),
        (points(3), points(4)),
    ),
    "inputs by name": lambda: Case(
        Calls(lambda self, x, mask: torch.tanh(self.linear(x)) * mask, linear=nn.Linear(3, 2)),
        {"x": points(3), "mask": torch.arange(M)[:, None] < 3},
    ),
    "dictionary": lambda: Case(Calls(two_outputs, linear=nn.Linear(3, 2)), points(3)),
    "data class": lambda: Case(
        Calls(lambda self, x: Answer(torch.tanh(self.linear(x)), x), linear=nn.Linear(3, 2)), points(3)
    ),
    "output": lambda: Case(nn.GRU(3, 4, batch_first=True), points(6, 3), lambda out: out[0][:, -1]),
    "DataParallel": lambda: Case(nn.DataParallel(mlp()), points(3)),
    "compiled": lambda: Case(torch.compile(mlp(), backend="eager"), points(3)),
    "part compiled": lambda: Case(
        nn.Sequential(torch.compile(nn.Linear(3, 4), backend="eager"), nn.Tanh(), nn.Linear(4, 2)), points(3)
    ),
    "dropout": lambda: Case(nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5), nn.Tanh(), nn.Linear(6, 2)), points(3)),
    "changed in place": lambda: Case(
        Calls(lambda self, x: torch.tanh(self.linear(x.mul_(2)).add_(1)), linear=nn.Linear(3, 2)), points(3)
    ),
    "attributes": lambda: Case(Counting(), points(3)),
    "one number per point": lambda: Case(
        Calls(lambda self, x: torch.tanh(self.linear(x)).squeeze(-1), linear=nn.Linear(3, 1)), points(3)
    ),
}  # fmt: skip
"""Networks whose derivatives equal those of their values."""


class Sign(torch.autograd.Function):
    """A straight-through estimator: its backward pass is that of the identity."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class SignOnce(Sign):
    """The same, in a way that cannot be differentiated: nothing tells its J v."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.clone()


SURROGATES: dict[str, Callable[[], Case]] = {
    "Embedding, max_norm": lambda: Case(
        nn.Sequential(nn.Embedding(11, 4, max_norm=0.5), nn.Flatten(), nn.Linear(24, 2)), tokens()
    ),
    "no_grad inside": lambda: Case(Calls(momentum, linear=nn.Linear(3, 2)), points(3)),
    "straight-through": lambda: Case(
        Calls(
            lambda self, x: self.readout(Sign.apply(self.linear(x))), linear=nn.Linear(3, 4), readout=nn.Linear(4, 2)
        ),
        points(3),
    ),
    "detach inside": lambda: Case(
        Calls(lambda self, x: torch.tanh(self.linear(x)) * self.linear(x).detach(), linear=nn.Linear(3, 2)), points(3)
    ),
}
"""Networks that are trained with another derivative than that of their values: the one that training uses counts."""


def build(name: str, cases: dict[str, Callable[[], Case]] = CASES, double: bool = True) -> Case:
    """A case from a fixed seed, in float64 or float32."""
    torch.manual_seed(3)
    case = cases[name]()
    case.module.cpu()  # DataParallel moves its network to a GPU
    for part in case.module.parameters():
        if part.requires_grad and part.ndim == 1:
            part.data.add_(0.1 * torch.randn(part.shape, dtype=part.dtype))
    if double:
        case.module.double()
    return case
