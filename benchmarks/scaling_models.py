"""PyTorch models and optimizers whose scaling with the width is right by construction: see scaling_cases.py.

Every builder returns a module with the attributes `width` and `recipe`. The recipe says which part each matrix plays
(input, embedding, hidden or readout) and which powers of the width stand in the forward pass; `initialize` and
`build_optimizer` derive the standard deviations and the rates from it, and put in one planted `Error` where asked.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

BASE_WIDTH = 64
VOCABULARY, LENGTH, OUTPUTS = 16, 8, 4
ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}

# Powers of the width in the rate of each part, for effective weights (docstring of scaling_cases.py).
RATE_EXPONENTS = {
    "sgd": {"input": 1.0, "embedding": 1.0, "hidden": 0.0, "readout": -1.0, "vector": 1.0, "output bias": 0.0},
    "adam": {"input": 0.0, "embedding": 0.0, "hidden": -1.0, "readout": -1.0, "vector": 0.0, "output bias": 0.0},
}


@dataclass(frozen=True)
class Error:
    """One planted error: what belongs to `target` is (width / base width)**exponent too large."""

    target: str  # module or parameter
    what: str  # "initialization", "rate", "attention scale" or "multiplier"
    exponent: float

    def factor(self, name: str, what: str, width: int) -> float:
        """Factor on the parameter or module called `name`; a module's name stands for its weight."""
        hit = what == self.what and name in (self.target, f"{self.target}.weight")
        return (width / BASE_WIDTH) ** self.exponent if hit else 1.0


@dataclass(frozen=True)
class Recipe:
    """What the scaling of a model follows from; matrices not named in `parts` are hidden."""

    width: int
    parts: dict[str, str]  # module or parameter name -> "input", "embedding" or "readout"
    multipliers: dict[str, float] = field(default_factory=dict)  # part -> power of the width in the forward pass
    gain: float = 1.0  # hidden weights have standard deviation gain / sqrt(fan in)
    readout_gain: float = 1.0  # the same for the readout at the base width; 0: starts at zero
    readout_power: float = 0.0  # further power of the width in the readout's initial size, at most 0
    zeros: tuple[str, ...] = ()  # other modules that start at zero

    def part(self, name: str, parameter: Tensor) -> str:
        """The part that a parameter plays."""
        part = self.parts.get(name) or self.parts.get(name.rpartition(".")[0])
        if parameter.ndim > 1:
            return part or "hidden"
        return "output bias" if part == "readout" else "vector"


def initialize(model: nn.Module, error: Error | None = None) -> nn.Module:
    """Draw all matrices with the standard deviations of maximal update, set biases to zero, put in the error."""
    recipe: Recipe = model.recipe
    ratio = recipe.width / BASE_WIDTH
    for name, parameter in model.named_parameters():
        part = recipe.part(name, parameter)
        if part in ("vector", "output bias"):
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            continue  # gains start at one
        fan_in = 1 if part == "embedding" else parameter[0].numel()
        gain, exponent = recipe.gain, 0.0
        if part in ("input", "embedding"):
            gain = 1.0
        if part == "readout":
            gain, exponent = recipe.readout_gain, recipe.readout_power - 0.5
        if name.rpartition(".")[0] in recipe.zeros:
            gain = 0.0
        deviation = gain / math.sqrt(fan_in) * ratio ** (exponent - recipe.multipliers.get(part, 0.0))
        if error is not None:
            deviation *= error.factor(name, "initialization", recipe.width)
        nn.init.normal_(parameter, std=deviation)
    if error is not None:
        for name, module in model.named_modules():
            for what, attribute in (("attention scale", "scale"), ("multiplier", "multiplier")):
                if hasattr(module, attribute):
                    factor = error.factor(name, what, recipe.width)
                    setattr(module, attribute, factor * getattr(module, attribute))
    return model


def build_optimizer(
    model: nn.Module, *, name: str, rate: float, error: Error | None = None, muon_everywhere: bool = False
) -> torch.optim.Optimizer:
    """The optimizer with the rates of maximal update; parameters of equal rate share a group."""
    recipe: Recipe = model.recipe
    ratio = recipe.width / BASE_WIDTH
    rule = "sgd" if name in ("sgd", "momentum") else "adam"
    groups: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
    for key, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        part = recipe.part(key, parameter)
        matrices = ("hidden", "input", "readout") if muon_everywhere else ("hidden",)
        orthogonal = name == "muon" and part in matrices
        # An effective weight m W moves by m × rate under Adam and Muon, and by m² × rate under SGD.
        multiplier = recipe.multipliers.get(part, 0.0) * (2 if rule == "sgd" else 1)
        correction = ratio ** ((0.0 if orthogonal else RATE_EXPONENTS[rule][part]) - multiplier)
        decay = 1.0 / correction  # rate × decay does not depend on the width
        if error is not None:
            correction *= error.factor(key, "rate", recipe.width)
        groups.setdefault((orthogonal, correction, decay), []).append(parameter)

    def grouped(weight_decay: float = 0.0) -> list[dict]:
        return [
            {"params": parameters, "lr": rate * correction, "weight_decay": weight_decay * decay}
            for (_, correction, decay), parameters in groups.items()
        ]

    match name:
        case "sgd":
            return torch.optim.SGD(grouped(), lr=rate)
        case "momentum":
            return torch.optim.SGD(grouped(1e-3), lr=rate, momentum=0.9)
        case "adam":
            return torch.optim.Adam(grouped(), lr=rate, eps=1e-12)
        case "adamw":
            return torch.optim.AdamW(grouped(0.1), lr=rate, betas=(0.9, 0.95), eps=1e-12)
        case "muon":
            return Muon([group | {"orthogonal": key[0]} for group, key in zip(grouped(), groups)], lr=rate)
    raise ValueError(f"no optimizer called {name!r}")


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Singular values to about one by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (x.norm() + 1e-20)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum times sqrt(n_out / n_in) for groups with `orthogonal`, Adam at rate/10 for the rest."""

    def __init__(self, params: Iterable[dict], lr: float, momentum: float = 0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._orthogonal if group["orthogonal"] else self._adam
                    parameter.add_(update(parameter, group["momentum"]), alpha=-group["lr"])

    def _orthogonal(self, parameter: Tensor, momentum: float) -> Tensor:
        buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
        buffer.mul_(momentum).add_(parameter.grad)
        direction = orthogonalize((parameter.grad + momentum * buffer).flatten(1))
        return (direction * math.sqrt(direction.shape[0] / direction.shape[1])).view_as(parameter)

    def _adam(self, parameter: Tensor, momentum: float, second: float = 0.95) -> Tensor:
        state = self.state[parameter]
        mean = state.setdefault("mean", torch.zeros_like(parameter))
        square = state.setdefault("square", torch.zeros_like(parameter))
        step = state["step"] = state.get("step", 0) + 1
        mean.lerp_(parameter.grad, 1 - momentum)
        square.lerp_(parameter.grad**2, 1 - second)
        return 0.1 * mean / (1 - momentum**step) / ((square / (1 - second**step)).sqrt() + 1e-12)


class ScaledLinear(nn.Linear):
    """multiplier × W x + b."""

    def __init__(self, n_in: int, n_out: int, bias: bool = True, multiplier: float = 1.0):
        super().__init__(n_in, n_out, bias)
        self.multiplier = multiplier

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.multiplier * x, self.weight, self.bias)


def finish(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The model with the two attributes that `initialize` and `build_optimizer` read."""
    model.width, model.recipe = recipe.width, recipe
    return model


def mlp(
    width: int,
    depth: int = 2,
    activation: str = "relu",
    bias: bool = True,
    norm: bool = False,
    expansion: int = 1,
    multipliers: dict[str, float] | None = None,
    **recipe: float,
) -> nn.Module:
    """Sequential network with `depth` hidden layers; `expansion` widens every second of them."""
    ratio, exponents = width / BASE_WIDTH, multipliers or {}
    sizes = [OUTPUTS * 2, *(width * (expansion if i % 2 else 1) for i in range(depth)), OUTPUTS]
    layers: list[nn.Module] = []
    parts: dict[str, str] = {}
    for i, (n_in, n_out) in enumerate(pairwise(sizes)):
        part = "input" if i == 0 else "readout" if i == depth else "hidden"
        if part != "hidden":
            parts[str(len(layers))] = part
        scaled = part in exponents
        layers.append(
            ScaledLinear(n_in, n_out, bias, ratio ** exponents[part]) if scaled else nn.Linear(n_in, n_out, bias)
        )
        if i < depth:
            layers += [nn.LayerNorm(n_out)] * norm + [ACTIVATIONS[activation]()]
    gain = math.sqrt(2) if activation == "relu" else 1.0
    return finish(nn.Sequential(*layers), Recipe(width, parts, exponents, gain=gain, **recipe))


def cnn(
    width: int,
    convolutions: int = 2,
    norm: str = "none",
    pooling: str = "average",
    depthwise: bool = False,
    multiplier: float = 0.0,
    **recipe: float,
) -> nn.Module:
    """Stem, hidden convolutions, pooling and a linear head; `depthwise` puts a channelwise one before each."""

    def normalization() -> list[nn.Module]:
        return {"batch": [nn.BatchNorm2d(width)], "group": [nn.GroupNorm(4, width)], "none": []}[norm]

    bias = norm == "none"
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 3, padding=1, bias=bias), *normalization(), nn.ReLU(), nn.MaxPool2d(2)
    ]  # fmt: skip
    parts = {"0": "input"}
    for _ in range(convolutions - 1):
        if depthwise:
            parts[str(len(layers))] = "input"  # the fan-in is 9 at every width
            layers.append(nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False))
        size = 1 if depthwise else 3
        layers += [nn.Conv2d(width, width, size, padding=size // 2, bias=bias), *normalization(), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1) if pooling == "average" else nn.MaxPool2d(2), nn.Flatten()]
    fan_in = width if pooling == "average" else 4 * width
    parts[str(len(layers))] = "readout"
    scale = (width / BASE_WIDTH) ** multiplier
    layers.append(ScaledLinear(fan_in, OUTPUTS, multiplier=scale) if multiplier else nn.Linear(fan_in, OUTPUTS))
    return finish(nn.Sequential(*layers), Recipe(width, parts, {"readout": multiplier}, gain=math.sqrt(2), **recipe))


class FeedForward(nn.Module):
    """x + down(activation(up(norm(x))))."""

    def __init__(self, width: int, activation: str, bias: bool, expansion: int = 2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, expansion * width, bias)
        self.activation = ACTIVATIONS[activation]()
        self.down = nn.Linear(expansion * width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


class ResidualMLP(nn.Module):
    """Input layer, residual blocks, normalization, readout of the features times `readout_multiplier`."""

    def __init__(self, width: int, blocks: int, activation: str, bias: bool, multiplier: float):
        super().__init__()
        self.input = nn.Linear(2 * OUTPUTS, width, bias)
        self.blocks = nn.ModuleList(FeedForward(width, activation, bias) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.readout_multiplier = (width / BASE_WIDTH) ** multiplier
        self.readout = nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(self.readout_multiplier * self.norm(x))


def residual(
    width: int,
    blocks: int = 2,
    activation: str = "relu",
    bias: bool = True,
    multiplier: float = 0.0,
    zeros: tuple[str, ...] = (),
    **recipe: float,
) -> nn.Module:
    """Residual network with normalization first."""
    model = ResidualMLP(width, blocks, activation, bias, multiplier)
    parts = {"input": "input", "readout": "readout"}
    return finish(model, Recipe(width, parts, {"readout": multiplier}, zeros=zeros, **recipe))


class Attention(nn.Module):
    """Self-attention written out; the logits are scale × q·k, scale ∝ 1 / head dimension."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.heads, self.fused = heads, fused
        base_dimension = 16  # at the base width, where the scale is the usual 1 / sqrt(dimension)
        self.scale = math.sqrt(base_dimension) / (width // heads)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            mixed = (q @ k.transpose(-1, -2) * self.scale).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Multihead(nn.Module):
    """nn.MultiheadAttention, whose 1 / sqrt(head dimension) the factor `scale` on the queries corrects."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.scale = math.sqrt(16 / (width // heads))
        self.inner = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.scale * x, x, x, need_weights=False)[0]


class TransformerBlock(nn.Module):
    """Attention and a feed-forward network, both residual with normalization first."""

    def __init__(self, width: int, attention: nn.Module, bias: bool):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = attention
        self.mlp = FeedForward(width, "gelu", bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x + self.attention(self.norm(x)))


class Transformer(nn.Module):
    """Tokens to the logits of one label, read at the last position."""

    def __init__(self, width: int, blocks: Iterable[nn.Module], tied: bool, multiplier: float, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        # A tied readout has weights of order one, so that it needs 1/n in front: 1/8² at the base width.
        self.readout_multiplier = (width / BASE_WIDTH) ** multiplier * (1 / 8 if tied else 1)
        self.readout = None if tied else nn.Linear(width, classes, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        x = self.readout_multiplier * self.norm(x[:, -1])
        return functional.linear(x, self.embedding.weight) if self.readout is None else self.readout(x)


def transformer(
    width: int,
    blocks: int = 1,
    attention: str = "softmax",
    growing_heads: bool = False,
    tied: bool = False,
    bias: bool = True,
    multiplier: float = 0.0,
    classes: int = VOCABULARY,
    frozen: bool = False,
    zeros: tuple[str, ...] = (),
    **recipe: float,
) -> nn.Module:
    """Transformer: 4 heads of growing dimension, or with `growing_heads` more heads of dimension 16."""
    heads = max(1, width // 16) if growing_heads else 4

    def block() -> nn.Module:
        if attention.startswith("encoder"):  # its 1 / sqrt(head dimension) is right for growing heads only
            first = attention == "encoder"
            return nn.TransformerEncoderLayer(
                width, heads, 2 * width, 0.0, "gelu", batch_first=True, norm_first=first, bias=bias
            )
        inner = Multihead(width, heads) if attention == "multihead" else Attention(width, heads, attention == "fused")
        return TransformerBlock(width, inner, bias)

    if tied:
        multiplier = -1.0
    model = Transformer(width, (block() for _ in range(blocks)), tied, multiplier, classes)
    model.embedding.weight.requires_grad_(not frozen)
    parts = {"embedding": "embedding", "position": "embedding", "readout": "readout"}
    exponents = {} if tied else {"readout": multiplier}
    return finish(model, Recipe(width, parts, exponents, zeros=zeros, **recipe))
