"""`check_scaling` and `scaled` for PyTorch: uses of common modules, planted errors, growing axes."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from unlazy import ScalingOptions, check_scaling, scaled  # noqa: E402
from unlazy.diagnostics.scaling.axes import axes_of  # noqa: E402
from unlazy.diagnostics.scaling.networks.frameworks import probe  # noqa: E402
from unlazy.diagnostics.scaling.networks.torch_trace import trace_torch  # noqa: E402
from unlazy.diagnostics.scaling.networks.uses import merge  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
PLAIN = ScalingOptions(coordinates=False)


def traced(network, inputs):
    """Uses with every parameter moved by a known amount."""
    generator = torch.Generator().manual_seed(1)
    moved = {n: p.detach() + 0.01 * torch.randn(p.shape, generator=generator) for n, p in network.named_parameters()}
    (trace,) = merge([trace_torch(network, moved, inputs)])
    return trace, moved


def test_sizes_are_those_of_numpy():
    torch.manual_seed(0)
    network = nn.Linear(6, 9)
    X = torch.randn(20, 6)
    trace, moved = traced(network, X)
    W, change = (np.asarray(t.detach(), np.float64) for t in (network.weight, moved["weight"] - network.weight))
    (use,) = (u for u in trace.uses if u.name == "weight")
    x = np.asarray(X, np.float64)
    rms = lambda a: math.sqrt(np.mean(a**2))  # noqa: E731
    assert (use.kind, use.fan_in, use.fan_out) == ("matrix", 6, 9)
    expected = rms(x @ W.T) / rms(x), np.linalg.norm(W) / 3, rms(x @ change.T) / rms(x)
    np.testing.assert_allclose((use.gain, use.frobenius_gain, use.contribution), expected, rtol=1e-5)
    assert use.spectral == pytest.approx(np.linalg.norm(change, 2) / math.sqrt(9 / 6), rel=1e-5)
    (bias,) = (u for u in trace.uses if u.name == "bias")
    assert bias.kind == "vector" and bias.gain == pytest.approx(rms(network.bias.detach().numpy()), rel=1e-6)


def test_the_network_is_left_as_it_is():
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)).train()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    traced(network, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random) and all(m.training for m in network.modules())
    assert not network[0]._forward_hooks and not network[0]._forward_pre_hooks


def case_names():
    from scaling_cases import cases

    chosen = {}
    for case in cases():  # one of each family, optimizer and kind
        chosen.setdefault((case.family, case.optimizer_name, case.kind), case.name)
    names = list(chosen.values())
    return names[:: max(1, len(names) // 24)]


@pytest.mark.parametrize("name", case_names())
def test_held_out_networks(name):
    from scaling_cases import cases
    from scaling_check import is_module

    case = next(case for case in cases() if case.name == name)
    found = check_scaling(lambda width: case.make(width), case.data(), optimizer=case.optimizer, widths=(64, 512),
                          options=PLAIN)  # fmt: skip
    wrong = [finding.name for finding in found.wrong]
    assert (wrong == []) if case.wrong is None else is_module(wrong[0], case.wrong)


def test_growing_axes_are_right_or_refused():
    """No parameter of common modules has a wrong role; a refusal is right where the table says so."""
    from scaling_axes_table import cases

    right = refused = 0
    for case in cases():
        if not case.name.startswith("torch"):
            continue
        torch.manual_seed(0)
        seen = probe([case.make(n) for n in (8, 24)], case.inputs())
        traces = merge([trace for trace, _ in seen])
        for name, truth in case.truth.items():
            uses = [[u for u in trace.uses if name in u.parameters] for trace in traces]
            names = {name, *(other for u in uses[0] for other in u.parameters)}
            for trace, some in zip(traces, uses):
                trace.uses = some
            shapes = [{other: of[other] for other in names} for _, of in seen]
            try:
                found = axes_of((8, 24), traces, shapes, {other: "vector" for other in names - {name}})[name]
            except ValueError as error:
                assert name in str(error) and "roles=" in str(error)
                refused += 1
                continue
            finally:
                traces = merge([trace for trace, _ in seen])
            if truth.kind in ("matrix", "vector", "lookup"):
                assert (found.features > 0) == truth.fan_out_grows, (case.name, name)
                grows_in = found.fan_in > 0 and found.role in ("hidden", "readout")
                assert grows_in == (truth.fan_in_grows and truth.kind == "matrix"), (case.name, name)
                right += 1
    assert right > 300 and refused < 40


class Read(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.into, self.hidden, self.out = nn.Linear(5, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, x):
        return self.out(torch.relu(self.hidden(torch.relu(self.into(x)))))


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_scaled_networks_pass_the_check(kind):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(32, 5, generator=generator)
    factory = scaled(Read, X[:4], base=32)

    def optimizer(network):
        groups = factory.groups(network, 0.01, optimizer=kind, width=network.into.out_features, weight_decay=1e-4)
        return torch.optim.AdamW(groups) if kind == "adam" else torch.optim.SGD(groups)

    def make(width):
        return factory(width=width)

    data = (X, torch.sin(2 * X[:, :1]))
    assert check_scaling(make, data, optimizer=optimizer, widths=(32, 256), options=PLAIN).ok
    network = make(256)
    rates = {p: group["lr"] for group in optimizer(network).param_groups for p in group["params"]}
    assert rates[network.hidden.weight] == 0.01 * (1 / 8 if kind == "adam" else 1.0)
    assert rates[network.out.weight] == 0.01 / 8
    plain = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    assert not check_scaling(Read, data, optimizer=lambda n: plain(n.parameters(), 0.01), widths=(32, 256),
                             options=PLAIN).ok  # fmt: skip


def test_operations_in_place_are_measured_like_others():
    class Gate(nn.Module):
        def __init__(self, in_place):
            super().__init__()
            self.gain, self.bias, self.in_place = (
                nn.Parameter(torch.full((6,), 2.0)),
                nn.Parameter(torch.ones(6)),
                in_place,
            )

        def forward(self, x):
            h = x + 0.0
            return h.mul_(self.gain).add_(self.bias) if self.in_place else h * self.gain + self.bias

    X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
    one, two = (
        [(u.name, u.kind, u.gain, u.contribution) for u in traced(Gate(way), X)[0].uses] for way in (True, False)
    )
    assert one == two and [name for name, *_ in one] == ["gain", "bias"]


class Deep(nn.Module):
    """Residual blocks whose last map has a bias."""

    def __init__(self, width, depth):
        super().__init__()
        self.width, self.depth = width, depth
        self.into, self.out = nn.Linear(5, width), nn.Linear(width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width)) for _ in range(depth)
        )

    def forward(self, x):
        h = self.into(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(h)


def test_completep_with_biases():
    X = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
    factory = scaled(Deep, X[:4], base=32, base_depth=2, rule="completep")

    def optimizer(network):
        return torch.optim.Adam(factory.groups(network, 0.01, width=network.width, depth=network.depth))

    data, sizes = (X, torch.sin(2 * X[:, :1])), {"widths": (32, 256), "depths": (2, 16), "options": PLAIN}
    assert check_scaling(factory, data, optimizer=optimizer, **sizes).ok
    found = check_scaling(Deep, data, optimizer=lambda n: torch.optim.Adam(n.parameters(), 0.01), **sizes)
    assert {f.axis for f in found.wrong} == {"width", "depth"}


def test_an_optimizer_class_gets_one_sentence():
    X = torch.randn(8, 5)
    with pytest.raises(ValueError, match="optimizer must be a function of the network"):
        check_scaling(Read, (X, X[:, :1]), optimizer=torch.optim.Adam)
