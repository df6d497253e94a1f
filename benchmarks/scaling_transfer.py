"""Claim: rates tuned at width 64 hold at width 512 for networks of `unlazy.scaled`, and not without it.

Four PyTorch networks in the standard parametrization (MLP, convolutional, residual MLP, transformer) and three
optimizers (SGD, Adam, Muon with Adam for vectors and embeddings).

slopes: of the own contribution and of ‖ΔW‖_2/√(n_out/n_in), for all parameters of scaled networks of widths 64 to 512
(target: within 0.15 of 0).
rates: best rate (middle of the basin) at widths 64 and 512 on one batch, with and without `scaled` (targets: within a
factor of 1.5 with, at least 4 without; the best rate of width 64 costs at most 1.5 times the least loss at width 512).

    python benchmarks/scaling_transfer.py slopes [--only mlp adam] [--record]
    python benchmarks/scaling_transfer.py rates [--only mlp adam] [--steps 100] [--record]
"""

import argparse
import math
import os
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch  # noqa: E402  (threads must be set first)
from record import add_option, recorder  # noqa: E402
from torch import nn  # noqa: E402

from unlazy import ScalingOptions, scaled, sweep_rates  # noqa: E402
from unlazy.diagnostics.scaling.networks.torch_runs import TorchRuns  # noqa: E402
from unlazy.diagnostics.scaling.networks.uses import merge  # noqa: E402
from unlazy.diagnostics.scaling.slopes import fit_slope  # noqa: E402

WIDTHS = (64, 128, 256, 512)
RATES = {
    "sgd": [2.0**-k for k in range(14, -6, -1)],
    "adam": [2.0**-k for k in range(16, 0, -1)],
    "muon": [2.0**-k for k in range(14, -2, -1)],
}


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.into, self.hidden, self.out = nn.Linear(10, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(torch.relu(self.into(x)))))


class Convolutional(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.into = nn.Conv2d(2, width, 3, padding=1)
        self.hidden = nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(torch.relu(self.into(x)))).mean((2, 3)))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.into, self.out = nn.Linear(10, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.into(x)
        for block in self.blocks:
            h = h + block(h) / 2
        return self.out(h)


class Transformer(nn.Module):
    """One block; heads of a fixed dimension, so that attention needs no other scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embedding, self.position = nn.Embedding(8, width), nn.Parameter(torch.randn(6, width))
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, width // 16, batch_first=True)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.out = nn.Linear(width, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        h = self.embedding(words) + self.position
        x = self.norm(h)
        h = h + self.attention(x, x, x, need_weights=False)[0]
        return self.out((h + self.feed(h)).mean(1))


class Muon(torch.optim.Optimizer):
    """Orthogonalized momentum for matrices, Adam for groups with ``adam`` set; Jordan et al. (2024)."""

    def __init__(self, groups: list[dict]) -> None:
        super().__init__(groups, {"lr": 0.01, "adam": False})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                first = state.setdefault("first", torch.zeros_like(p))
                if group["adam"]:
                    second = state.setdefault("second", torch.zeros_like(p))
                    first.mul_(0.9).add_(0.1 * p.grad)
                    second.mul_(0.99).add_(0.01 * p.grad**2)
                    steps = state["step"]
                    p.sub_(group["lr"] * (first / (1 - 0.9**steps)) / ((second / (1 - 0.99**steps)).sqrt() + 1e-12))
                else:
                    first.mul_(0.9).add_(p.grad)
                    U, _, Vh = torch.linalg.svd(first.flatten(1), full_matrices=False)
                    p.sub_(group["lr"] * (U @ Vh).reshape(p.shape))


def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randn(64, 10, generator=torch.Generator().manual_seed(1))
    return X, torch.sin(2 * X[:, :1]) + X[:, 1:2]


def images() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randn(32, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    return X, torch.tanh((X[:, :1, 1:] * X[:, 1:, :-1]).mean((1, 2, 3))[:, None] * 5)


def words() -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.randint(8, (32, 6), generator=torch.Generator().manual_seed(1))
    return X, (X[:, 0] + X[:, 1]) % 8


NETWORKS = {"mlp": (MLP, vectors), "cnn": (Convolutional, images), "residual": (Residual, vectors),
            "transformer": (Transformer, words)}  # fmt: skip


def optimizer_of(kind: str, factory: object):
    """Optimizer with the rates of a factory, or with one rate for all parameters."""

    def make(network: nn.Module, rate: float) -> torch.optim.Optimizer:
        groups = []
        for name, p in network.named_parameters():
            vector = p.ndim < 2 or "embedding" in name or name == "position"
            of = "adam" if kind == "muon" and vector else kind
            factor = factory.multiplier(name, of, width=network.width) if factory else 1.0  # type: ignore[attr-defined]
            groups.append({"params": [p], "lr": rate * factor, **({"adam": vector} if kind == "muon" else {})})
        if kind == "muon":
            return Muon(groups)
        return torch.optim.SGD(groups) if kind == "sgd" else torch.optim.Adam(groups, eps=1e-12)

    return make


def slopes(network: str, kind: str, note) -> None:
    make, data = NETWORKS[network]
    X, y = data()
    factory = scaled(make, X[:4], base=64)
    of = optimizer_of(kind, factory)
    runs = TorchRuns(factory, lambda network: of(network, 0.01), X, y, ScalingOptions(coordinates=False))
    sizes = [n for n in WIDTHS for _ in range(2)]
    traces = merge([runs.run(seed, width=n).measured.trace for n in WIDTHS for seed in range(2)])
    worst: dict[str, tuple[float, str]] = {}
    for i, use in enumerate(traces[0].uses):
        if factory.axes.get(use.name) is None or factory.axes[use.name].role == "fixed":
            continue
        for what in ("contribution", "spectral"):
            slope = fit_slope(sizes, [getattr(trace.uses[i], what) for trace in traces])
            if slope.known:
                worst[what] = max(worst.get(what, (0.0, "")), (abs(slope.value), use.name))
    shown = ", ".join(f"{what} {value:.2f} ({name})" for what, (value, name) in worst.items())
    print(f"{network}, {kind}: largest slopes {shown}", flush=True)
    for what, (value, _) in worst.items():
        note(f"{network}, {kind}: largest slope, {what}", value, "exponent")


def rates(network: str, kind: str, note, steps: int) -> None:
    make, data = NETWORKS[network]
    X, y = data()
    options = ScalingOptions()
    for label in ("scaled", "standard"):
        factory = scaled(make, X[:4], base=64) if label == "scaled" else None
        try:
            found = sweep_rates(factory or make, (X, y), optimizer=optimizer_of(kind, factory), widths=(64, 512),
                                rates=RATES[kind], steps=steps, options=options)  # fmt: skip
        except ValueError as error:
            print(f"{network}, {kind}, {label}: {error}", flush=True)
            continue
        drift = math.exp(abs(math.log(found.drift)))
        print(f"{network}, {kind}, {label}: best rate drifts {drift:.2f} times; at width 512 the best rate of width 64 "
              f"costs {found.cost:.2f} times the least loss", flush=True)  # fmt: skip
        note(f"{network}, {kind}, {label}: drift of the best rate", drift, "ratio")
        if math.isfinite(found.cost):
            note(f"{network}, {kind}, {label}: cost of the rate of width 64", found.cost, "ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["slopes", "rates"])
    parser.add_argument("--only", nargs="*", default=[], help="networks and optimizers")
    parser.add_argument("--steps", type=int, default=100)
    add_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    note = recorder(__file__, options.record)
    only = set(options.only)
    for network in NETWORKS:
        for kind in RATES:
            if (not only & set(NETWORKS) or network in only) and (not only & set(RATES) or kind in only):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    if options.what == "slopes":
                        slopes(network, kind, note)
                    else:
                        rates(network, kind, note, options.steps)


if __name__ == "__main__":
    main()
