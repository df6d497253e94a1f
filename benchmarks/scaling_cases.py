"""Held-out models for the check of width scaling: correct under maximal update, or wrong in one known module.

Theory ([T1], [T2]; Yang, Simon, Bernstein 2023): every weight matrix and every update of it has a spectral norm of
order sqrt(n_out / n_in), so that all entries of all features and of their changes are of order one. With the readout's
weights of order 1/n the upstream gradients of hidden units have entries of order 1/n. This gives, as powers of the
width n:

    part                          standard deviation   SGD rate   Adam rate   Muon rate × scale
    input, embedding (n_out = n)   0                    1          0           sqrt(n_out / n_in)
    hidden (both grow)            -1/2                  0         -1           sqrt(n_out / n_in)
    readout (n_in = n)            -1, or zero          -1         -1           sqrt(n_out / n_in), or Adam
    hidden bias, gain              0                    1          0           Adam
    output bias                    0                    0          0           Adam

Derivation for SGD: an update is rate × Σ gradient ⊗ input over a batch of fixed size, so its norm is rate × ‖gradient‖
‖input‖: hidden, rate × sqrt(n)/n × sqrt(n) = rate; input, rate × sqrt(n)/n, which has to be sqrt(n); readout, rate ×
sqrt(n), which has to be 1/sqrt(n). Adam: entries of the update are of order rate and aligned with the inputs, so its
norm is rate × sqrt(n_out n_in). Channelwise convolutions have a fixed fan-in and count as input. A multiplier m in m W
x makes m W the effective weight, which moves by m × rate (Adam, Muon) or m² × rate (SGD). Attention logits are const ×
q·k / head dimension where that dimension grows, because q and k align in training. A tied embedding has entries of
order one and needs 1/n before its use as a readout; its gradients by both uses have entries of order 1/n. Weight decay
× rate is fixed.

A correct case meets all of this; a mutant is a correct case in which one module or parameter has one factor
(n/64)^exponent too much, so that at width 64 both are the same. `wrong` names the module if its weight, its logit
scale or its forward multiplier is wrong, and the parameter if it is a bias, a gain, a packed projection or a bare
parameter. Two sizes are not errors and never planted: a readout below 1/n, and matrices at the end of a residual
branch (or queries) that start at zero.

Widths are multiples of 16, at least 32. `make` draws from PyTorch's global generator. Float targets mean the mean
squared error over all entries, integer targets the cross-entropy of outputs (rows, classes).

    python benchmarks/scaling_cases.py    # counts
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from scaling_models import (
    LENGTH,
    OUTPUTS,
    VOCABULARY,
    Error,
    build_optimizer,
    cnn,
    initialize,
    mlp,
    residual,
    transformer,
)
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model family over widths with its optimizer, and what is wrong with it."""

    name: str
    make: Callable[[int], nn.Module]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    data: Callable[[], Data]
    family: str  # "mlp", "cnn", "residual" or "transformer"
    optimizer_name: str  # "sgd", "momentum", "adam", "adamw" or "muon"
    wrong: str | None
    kind: str
    exponent: float


def regression() -> Data:
    """Smooth functions of Gaussian inputs."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(32, 2 * OUTPUTS, generator=generator)
    return x, torch.tanh(x[:, :OUTPUTS] * x[:, OUTPUTS:]) + 0.5 * x[:, :OUTPUTS]


def classification() -> Data:
    """The largest of the first inputs."""
    generator = torch.Generator().manual_seed(12)
    x = torch.randn(32, 2 * OUTPUTS, generator=generator)
    return x, (x[:, :OUTPUTS] + 0.5 * x[:, OUTPUTS:]).argmax(1)


def images() -> Data:
    """Noise, with the brightest corner as label."""
    x = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(13))
    label = torch.arange(16) % OUTPUTS
    for row, corner in enumerate(label.tolist()):
        top, left = 4 * (corner // 2), 4 * (corner % 2)
        x[row, corner % 3, top : top + 4, left : left + 4] += 1.5
    return x, label


def image_regression() -> Data:
    """Brightness and contrast of the colors."""
    brightness = torch.linspace(-1, 1, 16)[:, None, None, None]
    x = brightness + torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(14))
    return x, torch.cat([x.mean((2, 3)), x.std((1, 2, 3))[:, None]], 1)


def tokens(labels: int = VOCABULARY) -> Data:
    """Sum of the first and the last token."""
    x = torch.randint(VOCABULARY, (24, LENGTH), generator=torch.Generator().manual_seed(15))
    return x, (x[:, 0] + x[:, -1]) % labels


def token_regression() -> Data:
    """Smooth functions of the tokens' mean."""
    x = torch.randint(VOCABULARY, (24, LENGTH), generator=torch.Generator().manual_seed(16))
    mean = x.float().mean(1) - (VOCABULARY - 1) / 2
    return x, torch.stack([torch.sin(mean * frequency) for frequency in (0.3, 0.6, 0.9, 1.2)], 1)


@dataclass(frozen=True)
class Architecture:
    """A builder of models with the data it is trained on."""

    family: str
    build: Callable[[int], nn.Module]
    data: Callable[[], Data]
    rate: float  # factor on the base rate


def architecture(
    build: Callable[..., nn.Module], data: Callable[[], Data], *, rate: float = 1.0, **options: object
) -> Architecture:
    """An architecture of the family that its builder is named after."""
    return Architecture(build.__name__, partial(build, **options), data, rate)


ARCHITECTURES = {
    "mlp": architecture(mlp, regression),
    "mlp without bias": architecture(mlp, regression, depth=4, activation="tanh", bias=False, readout_gain=0.25),
    "mlp with norm": architecture(mlp, classification, depth=3, activation="gelu", norm=True),
    "mlp from zero": architecture(mlp, regression, depth=3, readout_gain=0.0),
    "mlp output multiplier": architecture(mlp, classification, depth=2, multipliers={"readout": -1.0}),
    "mlp vanishing readout": architecture(
        mlp, regression, depth=3, activation="gelu", multipliers={"readout": -1.0}, readout_power=-0.5
    ),
    "mlp symmetric": architecture(mlp, regression, depth=3, multipliers={"input": 0.5, "readout": -0.5}),
    "mlp unit variance": architecture(
        mlp, regression, depth=3, activation="tanh", multipliers={"hidden": -0.5, "readout": -1.0}
    ),
    "mlp half multiplier": architecture(
        mlp, classification, depth=2, activation="gelu", bias=False, multipliers={"readout": -0.5}
    ),
    "mlp bottleneck": architecture(mlp, regression, depth=4, activation="gelu", expansion=4),
    "cnn": architecture(cnn, images),
    "cnn with batch norm": architecture(cnn, images, convolutions=3, norm="batch"),
    "cnn with group norm": architecture(cnn, image_regression, rate=0.2, norm="group", pooling="flatten"),
    "cnn channelwise": architecture(cnn, images, convolutions=3, norm="batch", depthwise=True),
    "cnn output multiplier": architecture(cnn, image_regression, rate=0.2, convolutions=3, multiplier=-1.0),
    "cnn from zero": architecture(cnn, images, norm="group", readout_gain=0.0),
    "residual": architecture(residual, regression),
    "residual output multiplier": architecture(
        residual, classification, blocks=3, activation="gelu", bias=False, multiplier=-1.0
    ),
    "residual from zero": architecture(
        residual, regression, activation="tanh", readout_gain=0.0, zeros=("blocks.0.down", "blocks.1.down")
    ),
    "transformer": architecture(transformer, tokens),
    "transformer of two blocks": architecture(
        transformer, partial(tokens, OUTPUTS), blocks=2, attention="fused", multiplier=-1.0, classes=OUTPUTS
    ),
    "transformer tied": architecture(transformer, tokens, tied=True, bias=False),
    "transformer growing heads": architecture(
        transformer, token_regression, attention="fused", growing_heads=True, readout_gain=0.25, classes=OUTPUTS
    ),
    "transformer multihead": architecture(transformer, tokens, attention="multihead", readout_gain=0.0),
    "transformer frozen embedding": architecture(
        transformer, token_regression, frozen=True, attention="fused", classes=OUTPUTS
    ),
    "transformer zero queries": architecture(transformer, tokens, zeros=("blocks.0.attention.query",), multiplier=-0.5),
    "transformer tied growing heads": architecture(
        transformer, tokens, tied=True, attention="multihead", growing_heads=True
    ),
    "encoder growing heads": architecture(transformer, tokens, attention="encoder", growing_heads=True),
    "encoder norm after": architecture(
        transformer, partial(tokens, OUTPUTS), attention="encoder after", growing_heads=True, classes=OUTPUTS
    ),
    # Wrong as it stands: four heads of growing dimension, logits divided by its root.
    "encoder": architecture(transformer, tokens, attention="encoder", bias=False),
}

CORRECT = {
    "mlp": "sgd, momentum, adam, muon",
    "mlp without bias": "sgd, adamw, muon everywhere",
    "mlp with norm": "momentum, adam, muon",
    "mlp from zero": "sgd, adam, muon",
    "mlp output multiplier": "sgd, adam, adamw",
    "mlp vanishing readout": "adam, adamw",
    "mlp symmetric": "sgd, momentum, adam",
    "mlp unit variance": "sgd, adam, muon",
    "mlp half multiplier": "momentum, adam, muon everywhere",
    "mlp bottleneck": "sgd, adamw, muon everywhere",
    "cnn": "sgd, adam, muon",
    "cnn with batch norm": "sgd, adamw, muon",
    "cnn with group norm": "momentum, adam, muon everywhere",
    "cnn channelwise": "sgd, adam",
    "cnn output multiplier": "sgd, adam, adamw",
    "cnn from zero": "momentum, adam, muon",
    "residual": "sgd, momentum, adam, muon",
    "residual output multiplier": "sgd, adamw, muon",
    "residual from zero": "momentum, adam, muon everywhere",
    "transformer": "sgd, adam, muon",
    "transformer of two blocks": "adamw, muon",
    "transformer tied": "sgd, adam",
    "transformer growing heads": "momentum, adam, muon",
    "transformer multihead": "adam, adamw",
    "transformer frozen embedding": "adam, muon",
    "transformer zero queries": "adam, adamw",
    "transformer tied growing heads": "adam, muon",
    "encoder growing heads": "sgd, adam",
    "encoder norm after": "adamw, muon",
}

# (architecture, optimizer, target, exponents) of each kind.
Row = tuple[str, str, str, tuple[float, ...]]
MUTANTS: dict[str, list[Row]] = {
    "initialization": [
        ("mlp", "sgd", "4", (0.5,)),
        ("mlp", "adam", "4", (0.5,)),
        ("mlp output multiplier", "adam", "4", (0.5,)),
        ("cnn", "adam", "7", (0.5,)),
        ("residual", "muon", "readout", (0.5,)),
        ("transformer", "adam", "readout", (0.5,)),
        ("mlp", "adam", "0", (0.5,)),
        ("mlp", "adam", "2", (0.5, 0.25)),
        ("mlp", "sgd", "2", (0.25,)),
        ("mlp", "muon", "2", (-0.5,)),
        ("mlp", "muon", "4", (0.25,)),
        ("mlp without bias", "sgd", "2", (-0.5,)),
        ("mlp without bias", "adamw", "4", (0.25,)),
        ("mlp with norm", "adam", "3", (0.25,)),
        ("mlp symmetric", "momentum", "4", (0.25,)),
        ("mlp unit variance", "adam", "2", (0.5, 0.25)),
        ("mlp bottleneck", "adamw", "4", (1.0,)),
        ("cnn", "adam", "3", (0.5, 0.25)),
        ("cnn with batch norm", "adamw", "4", (0.25,)),
        ("cnn output multiplier", "sgd", "3", (0.25,)),
        ("cnn output multiplier", "adamw", "5", (-0.5,)),
        ("residual", "adam", "blocks.0.up", (0.5,)),
        ("residual", "adam", "blocks.1.up", (0.25,)),
        ("residual output multiplier", "sgd", "blocks.0.down", (0.25,)),
        ("residual", "sgd", "input", (-0.5,)),
        ("transformer", "adam", "embedding", (0.5,)),
        ("transformer tied", "adam", "embedding", (0.5,)),
        ("transformer", "adam", "blocks.0.mlp.up", (0.25,)),
        ("transformer", "muon", "readout", (0.25,)),
        ("transformer of two blocks", "adamw", "blocks.1.attention.value", (0.5, 0.25)),
        ("encoder growing heads", "adam", "blocks.0.linear1", (0.25,)),
    ],
    "rate": [
        ("mlp", "adam", "2", (1.0, 0.5, -0.5)),
        ("mlp", "sgd", "2", (0.5, -0.5)),
        ("mlp", "sgd", "0", (-1.0,)),
        ("mlp", "adam", "0", (-1.0, -0.5)),
        ("mlp without bias", "adamw", "4", (0.5,)),
        ("mlp without bias", "sgd", "6", (-1.0,)),
        ("mlp with norm", "momentum", "3", (0.5,)),
        ("mlp from zero", "adam", "2", (-0.5,)),
        ("mlp symmetric", "sgd", "0", (-1.0,)),
        ("mlp unit variance", "adam", "4", (0.5, -0.5)),
        ("mlp unit variance", "sgd", "2", (-1.0,)),
        ("cnn", "adam", "3", (1.0, 0.5)),
        ("cnn", "sgd", "0", (-0.5,)),
        ("cnn with batch norm", "adamw", "7", (0.5,)),
        ("cnn with group norm", "momentum", "4", (-0.5,)),
        ("cnn channelwise", "adam", "4", (-1.0,)),
        ("cnn channelwise", "sgd", "5", (0.5,)),
        ("residual", "adam", "blocks.0.down", (1.0, 0.5)),
        ("residual", "sgd", "blocks.1.up", (0.5,)),
        ("residual output multiplier", "adamw", "blocks.2.up", (-0.5,)),
        ("transformer", "adam", "blocks.0.mlp.down", (1.0,)),
        ("transformer", "adam", "blocks.0.attention.value", (0.5,)),
        ("transformer growing heads", "adam", "blocks.0.attention.out", (-0.5,)),
        ("transformer multihead", "adam", "blocks.0.attention.inner.in_proj_weight", (0.5,)),
        ("encoder growing heads", "adam", "blocks.0.linear2", (0.5,)),
    ],
    "readout rate": [
        ("mlp", "adam", "4", (1.0, -0.5)),
        ("mlp", "sgd", "4", (1.0, -0.5)),
        ("mlp vanishing readout", "adam", "6", (0.5,)),
        ("mlp symmetric", "momentum", "6", (0.5,)),
        ("cnn", "sgd", "7", (0.5,)),
        ("cnn from zero", "adam", "9", (0.5,)),
        ("residual", "muon", "readout", (1.0,)),
        ("residual from zero", "momentum", "readout", (-0.5,)),
        ("transformer", "adam", "readout", (1.0,)),
        ("transformer zero queries", "adamw", "readout", (-0.5,)),
        ("encoder growing heads", "sgd", "readout", (0.5,)),
    ],
    "embedding rate": [
        ("transformer", "adam", "embedding", (-1.0,)),
        ("transformer growing heads", "adam", "embedding", (-0.5, 0.5)),
        ("transformer", "sgd", "embedding", (-1.0,)),
        ("transformer", "adam", "position", (-1.0,)),
        ("transformer tied", "adam", "embedding", (-1.0,)),
        ("encoder norm after", "adamw", "embedding", (-0.5,)),
    ],
    "bias rate": [
        ("mlp", "sgd", "2.bias", (-1.0, -0.5)),
        ("mlp", "adam", "0.bias", (-1.0, 0.5)),
        ("mlp symmetric", "sgd", "0.bias", (-1.0,)),
        ("cnn", "adam", "3.bias", (-1.0,)),
        ("residual", "adam", "blocks.0.up.bias", (-1.0,)),
        ("residual", "momentum", "blocks.1.down.bias", (-1.0,)),
        ("transformer", "adam", "blocks.0.mlp.up.bias", (-1.0,)),
        ("mlp", "sgd", "4.bias", (1.0,)),
    ],
    "gain rate": [
        ("mlp with norm", "adam", "4.weight", (-1.0,)),
        ("mlp with norm", "momentum", "1.weight", (-1.0,)),
        ("cnn with batch norm", "sgd", "5.weight", (-1.0,)),
        ("cnn with batch norm", "adamw", "8.weight", (-1.0,)),
        ("residual", "adam", "norm.weight", (-1.0, 0.5)),
        ("transformer", "adam", "blocks.0.mlp.norm.weight", (-1.0,)),
    ],
    "muon scale": [
        ("mlp", "muon", "2", (0.5, -0.5)),  # 0.2 sqrt(max(n_out, n_in)) has an excess of 1/2
        ("mlp without bias", "muon everywhere", "0", (-0.5,)),  # no scale
        ("mlp without bias", "muon everywhere", "8", (0.5,)),  # sqrt(max(1, n_out / n_in))
        ("mlp bottleneck", "muon everywhere", "4", (0.5,)),
        ("cnn with group norm", "muon everywhere", "9", (0.5, -0.5)),
        ("residual", "muon", "blocks.0.up", (0.5,)),
        ("transformer", "muon", "blocks.0.attention.out", (0.5,)),
    ],
    "attention scale": [
        ("encoder", "adam", "blocks.0.self_attn", (0.5,)),
        ("transformer", "adam", "blocks.0.attention", (0.5, 1.0)),
        ("transformer of two blocks", "adamw", "blocks.1.attention", (0.5, -0.5)),
        ("transformer multihead", "adam", "blocks.0.attention", (0.5,)),
        ("transformer growing heads", "adam", "blocks.0.attention", (-0.5,)),  # 1 / sqrt(width)
        ("transformer zero queries", "adam", "blocks.0.attention", (0.5,)),
    ],
    "multiplier": [
        ("mlp output multiplier", "adamw", "4", (0.5, 1.0)),
        ("mlp unit variance", "sgd", "2", (0.5,)),
    ],
}

# Base rates: the loss falls in three steps at width 64, and stays finite at width 512 in all mutants.
RATES = {
    "mlp": {"sgd": 0.05, "momentum": 0.02, "adam": 3e-3, "adamw": 3e-3, "muon": 0.05},
    "cnn": {"sgd": 0.05, "momentum": 0.02, "adam": 1e-3, "adamw": 1e-3, "muon": 0.03},
    "residual": {"sgd": 0.03, "momentum": 0.02, "adam": 2e-3, "adamw": 2e-3, "muon": 0.03},
    "transformer": {"sgd": 0.05, "momentum": 0.03, "adam": 3e-3, "adamw": 3e-3, "muon": 0.03},
}


def build_case(
    architecture: str, optimizer: str, kind: str = "correct", target: str = "", exponent: float = 0.0
) -> Case:
    """One case; without a target a correct one."""
    chosen, (name, _, everywhere) = ARCHITECTURES[architecture], optimizer.partition(" ")
    rate = chosen.rate * RATES[chosen.family][name]
    what = kind if kind in ("initialization", "attention scale", "multiplier") else "rate"
    error = Error(target, what, exponent) if target else None
    return Case(
        name=f"{architecture}, {optimizer}" + (f": {kind} of {target} {exponent:+g}" if target else ""),
        make=lambda width: initialize(chosen.build(width), error),
        optimizer=partial(build_optimizer, name=name, rate=rate, error=error, muon_everywhere=bool(everywhere)),
        data=chosen.data,
        family=chosen.family,
        optimizer_name=name,
        wrong=target or None,
        kind=kind,
        exponent=exponent,
    )


def cases() -> list[Case]:
    """All cases, correct ones first."""
    correct = [build_case(name, optimizer) for name, row in CORRECT.items() for optimizer in row.split(", ")]
    mutants = [
        build_case(architecture, optimizer, kind, target, exponent)
        for kind, rows in MUTANTS.items()
        for architecture, optimizer, target, exponents in rows
        for exponent in exponents
    ]
    return correct + mutants


def main() -> None:
    """Print the counts."""
    everything = cases()
    print(f"{len(everything)} cases")
    for attribute in ("family", "optimizer_name", "kind", "exponent"):
        print(f"\n{attribute}: correct, mutants")
        total = Counter((getattr(case, attribute), case.wrong is None) for case in everything)
        for value in dict.fromkeys(getattr(case, attribute) for case in everything):
            print(f"  {value!s:<16} {total[value, True]:4d} {total[value, False]:4d}")


if __name__ == "__main__":
    main()
