"""Is fine-tuning lazy?
====================

A small transformer learns the largest of six digits. Fine-tuning then teaches it the second largest: once by low-rank
updates of queries and values (LoRA), once by all parameters. `unlazy.watch` says which of the two learns features; it
counts all changes from the pretrained weights [I3]. Dotted lines: a run is lazy if its linearization gap [W1] ends
below 0.2, rich if it ends above 0.6. Requires PyTorch (`pip install 'unlazy[torch]'`).

    python examples/watch_fine_tuning.py
"""

import copy
import importlib.util

import unlazy

STEPS = 100


def main():
    """Pretrain, fine-tune twice, and plot both linearization gaps."""
    import matplotlib.pyplot as plt
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Layer(nn.Module):
        """Attention with four heads, and two dense layers."""

        def __init__(self, width):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            h = self.norm1(x)
            q, k, v = (part(h).unflatten(-1, (4, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        """Two layers on the digits of a row, and the mean over the row."""

        def __init__(self, width=32):
            super().__init__()
            self.digits = nn.Embedding(10, width)
            self.layers = nn.Sequential(Layer(width), Layer(width))
            self.head = nn.Linear(width, 10)

        def forward(self, digits):
            return self.head(self.layers(self.digits(digits)).mean(1))

    class LoRA(nn.Module):
        """A linear layer plus the update B A, which is zero at first."""

        def __init__(self, linear, rank=4):
            super().__init__()
            self.linear = linear
            self.A = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
            self.B = nn.Parameter(torch.zeros(linear.out_features, rank))

        def forward(self, x):
            return self.linear(x) + x @ self.A.T @ self.B.T

    def train(network, place, rate, steps, monitor=None):
        """Learn the digit at this place of the sorted row."""
        optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], rate)
        for _ in range(steps):
            digits = torch.randint(10, (64, 6))
            loss = F.cross_entropy(network(digits), digits.sort(1).values[:, place])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()

    torch.manual_seed(0)
    pretrained = Transformer()
    train(pretrained, place=-1, rate=3e-3, steps=300)

    adapted = copy.deepcopy(pretrained).requires_grad_(False)
    for layer in adapted.layers:
        layer.query, layer.value = LoRA(layer.query), LoRA(layer.value)

    probes = torch.randint(10, (128, 6))
    answers = probes.sort(1).values[:, -2]
    options = unlazy.WatchOptions(measures=("gap", "features"))
    _, (gaps, losses) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for name, network, rate in (("LoRA", adapted, 1e-2), ("all parameters", copy.deepcopy(pretrained), 1e-3)):
        trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
        # a long run needs neither `every` nor `options`
        monitor = unlazy.watch(network, probes, answers, every=5, planned_steps=STEPS, step_size=rate, options=options)
        train(network, place=-2, rate=rate, steps=STEPS, monitor=monitor)
        print(f"{name}, {trained:,} parameters trained\n{monitor}\n")
        frame = monitor.frame()
        gaps.errorbar(frame["step"], frame["gap"], 2 * frame["gap_error"], marker=".", label=name)
        losses.plot(frame["step"], frame["loss"], marker=".", label=name)
    for edge, label in ((0.2, "lazy below"), (0.6, "rich above")):
        gaps.axhline(edge, color="gray", linewidth=0.8, linestyle=":")
        gaps.text(0.01, edge, label, transform=gaps.get_yaxis_transform(), color="gray", fontsize=8, va="bottom")
    gaps.set(xlabel="step of fine-tuning", title="linearization gap", ylim=(0, None))
    losses.set(xlabel="step of fine-tuning", title="loss on the probe points", ylim=(0, None))
    losses.legend()
    plt.show()


if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed: pip install 'unlazy[torch]'")
else:
    main()
