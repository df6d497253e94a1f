"""A training run with probes equals the run without, bit for bit."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_networks import Calls, Counting, M, tied  # noqa: E402

from unlazy.models import as_model  # noqa: E402
from unlazy.models.torch_isolation import isolated  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")),
]


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
    return Calls(lambda self, x: self.readout(self.body(x)[:, 0]), body=layer, readout=nn.Linear(4, 3))


def recurrent() -> nn.Module:
    lstm = nn.LSTM(4, 5, 2, batch_first=True, dropout=0.2)
    return Calls(lambda self, x: self.readout(self.lstm(x)[0][:, -1]), lstm=lstm, readout=nn.Linear(5, 3))


def normalized() -> nn.Module:
    first, second = nn.utils.spectral_norm(nn.Linear(4, 6)), nn.utils.weight_norm(nn.Linear(6, 6))
    third = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 4), first, nn.Tanh(), second, nn.Tanh(), third)


def words() -> nn.Module:
    embedding = nn.Embedding(11, 4, max_norm=0.7)
    return Calls(lambda self, t: self.readout(self.embedding(t).mean(1)), embedding=embedding, readout=nn.Linear(4, 3))


def stateful() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(24, 3), nn.RReLU(), Counting())


def partly_frozen() -> nn.Module:
    """A layer in evaluation mode, one without gradients, and one with a stochastic rule of its own."""
    network = conv()
    network[1].eval()
    network[0].weight.requires_grad_(False)
    return network


SEQUENCES, IMAGES, TOKENS = (6, 4), (2, 6, 6), None
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple | None]] = {
    "convolutions": (conv, IMAGES),
    "transformer": (transformer, SEQUENCES),
    "LSTM": (recurrent, SEQUENCES),
    "norms of weights": (normalized, SEQUENCES),
    "max_norm": (words, TOKENS),
    "tied": (tied, TOKENS),
    "attributes": (stateful, SEQUENCES),
    "partly frozen": (partly_frozen, IMAGES),
}


def probe(model, x) -> None:
    """Everything that a monitor does."""
    theta = model.snapshot(on_host=True)
    model.fix_statistics(x)
    v = model.random_direction(theta, 0)
    out = model.jvp(theta, v, x)
    model.vjp(model.params, np.ones_like(out), x)
    model.hvp(model.params, v, x, torch.zeros(out.shape), nn.functional.mse_loss)
    model.layer_outputs(model.params, x)
    model.apply(model.add_scaled(model.params, 0.1, model.subtract(model.params, theta)), x)


def flags(network: nn.Module) -> list:
    """Everything about a module that a probe touches."""
    backends = torch.backends
    cuda = backends.cuda
    settings = [
        torch.get_float32_matmul_precision(), backends.cudnn.allow_tf32, backends.cudnn.enabled,
        backends.mkldnn.enabled, backends.mha.get_fastpath_enabled(), cuda.flash_sdp_enabled(),
        cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"), torch.utils.checkpoint.CheckpointFunction,
    ]  # fmt: skip
    parts = []
    for part in network.modules():
        entries = {key: id(value) for key, value in vars(part).items()}
        inner = [{k: id(v) for k, v in getattr(part, name).items()} for name in ("_parameters", "_buffers", "_modules")]
        parts.append((part.training, entries, inner))
    return [settings, parts, [(id(p), id(p.grad), p.requires_grad, p._version) for p in network.parameters()]]


def train(
    name: str, device: str, optimizer: Callable, probed: bool, autocast: bool = False, hooks: bool = False
) -> dict:
    """Six steps; everything that is left at the end, and what users' hooks saw."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    network = make().to(device)
    stepper = optimizer([p for p in network.parameters() if p.requires_grad])
    seen: list = []
    if hooks:
        record_hooks(network, seen)
    data = torch.Generator().manual_seed(1)
    model = as_model(network)
    losses = []
    probes = torch.randn(M, *shape, generator=data) if shape else torch.randint(11, (M, 6), generator=data)
    for step in range(6):
        x = torch.randn(8, *shape, generator=data) if shape else torch.randint(11, (8, 6), generator=data)
        x = x.to(device)
        stepper.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            if probed and step == 3 and autocast:
                before = flags(network)
                probe(model, probes)  # within autocast, whose cache of casts is filled
                assert flags(network) == before
            out = network(x)
            loss = out.square().mean() + float(np.random.rand()) * out.mean()  # noqa: NPY002
        loss.backward()
        if probed and step in (0, 1, 4):
            before = flags(network)
            probe(model, probes)  # between the backward pass and the step
            assert flags(network) == before
        stepper.step()
        losses.append(loss.detach().cpu())
    state = {name: t.detach().cpu() for name, t in network.state_dict().items()}
    slots = [t.cpu() for s in stepper.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    gradients = [p.grad.cpu() for p in network.parameters() if p.grad is not None]
    generators = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if device == "cuda" else [])]
    calls = [part.calls for part in network.modules() if isinstance(part, Counting)]
    return {
        "losses": losses, "state": list(state.values()), "optimizer": slots, "gradients": gradients,
        "generators": generators, "numpy": [np.random.rand()],  # noqa: NPY002
        "hooks": seen, "calls": calls,
    }  # fmt: skip


def record_hooks(network: nn.Module, seen: list) -> None:
    """Users' hooks of all kinds: they record, and some change what passes."""
    layer = next(part for part in network.modules() if isinstance(part, nn.Linear))
    layer.register_forward_hook(lambda _, args, out: seen.append(float(out.sum())))
    layer.register_forward_pre_hook(lambda _, args: seen.append(float(args[0].sum())))
    layer.register_full_backward_hook(lambda _, gin, gout: seen.append(float(gout[0].sum())))
    layer.weight.register_hook(lambda g: seen.append(float(g.sum())) or 0.5 * g)
    layer.weight.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.sum())))


def assert_equal(left: dict, right: dict) -> None:
    assert left.keys() == right.keys()
    for key, values in left.items():
        assert len(values) == len(right[key]), key
        for a, b in zip(values, right[key]):
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert same, key


def sgd(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adam(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 0.01)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_is_not_changed(name, device):
    optimizer = adam if name in ("transformer", "LSTM") else sgd
    assert_equal(train(name, device, optimizer, False), train(name, device, optimizer, True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["convolutions", "transformer"])
def test_training_with_autocast_is_not_changed(name, device):
    assert_equal(train(name, device, adam, False, autocast=True), train(name, device, adam, True, autocast=True))


@pytest.mark.parametrize("device", DEVICES)
def test_users_hooks_do_not_run(device):
    plain, probed = (train("convolutions", device, sgd, wanted, hooks=True) for wanted in (False, True))
    assert plain["hooks"]
    assert_equal(plain, probed)


def test_hooks_of_all_modules_do_not_run():
    network, seen = conv(), []
    model, x = as_model(network), torch.randn(M, *IMAGES)
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, out: seen.append(module))
    try:
        probe(model, x)
        assert not seen
        network(x)
        assert len(seen) == 1 + len(network)
    finally:
        handle.remove()


def test_frozen_embeddings_are_not_clipped():
    network = words()
    network.embedding.weight.requires_grad_(False)
    before = network.embedding.weight.clone()
    probe(as_model(network), torch.arange(M * 2).reshape(M, 2))
    assert torch.equal(network.embedding.weight, before)


def test_state_returns_after_an_error_inside():
    def broken(self, x):
        self.calls = 7
        nn.functional.dropout(x)
        raise KeyError("inside")

    network = nn.Sequential(conv(), Calls(broken, linear=nn.Linear(3, 3)))
    before, state = flags(network), torch.get_rng_state()
    model = as_model(network)
    with pytest.raises(KeyError, match="inside"):
        model.apply(model.params, torch.randn(M, *IMAGES, generator=torch.Generator().manual_seed(0)))
    assert flags(network) == before
    assert torch.equal(torch.get_rng_state(), state)


def test_the_generator_of_python_is_restored():
    program = """
import random, numpy as np, torch
from unlazy.models import as_model
class Noisy(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * random.random()
network = Noisy(3, 2)
model, x = as_model(network), torch.randn(5, 3)
random.seed(5)
before = random.getstate()
first, again = (model.apply(model.params, x) for _ in range(2))
assert random.getstate() == before
assert np.array_equal(first, again)
"""  # in a process of its own: run-time type checks of these tests draw numbers from this generator
    subprocess.run([sys.executable, "-c", program], check=True)


def test_precision_of_users_is_restored():
    precision = torch.get_float32_matmul_precision()
    network = conv()
    try:
        torch.set_float32_matmul_precision("medium")
        before = flags(network)
        with isolated(network, {torch.device("cpu")}):
            if hasattr(torch.backends.mkldnn, "matmul"):
                assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
            else:
                assert torch.get_float32_matmul_precision() == "highest"
        assert flags(network) == before
    finally:
        torch.set_float32_matmul_precision(precision)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_probes_on_a_gpu_do_not_round_to_tf32():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 32, 3), nn.Tanh(), nn.Flatten(), nn.Linear(32 * 36, 16))
    x = torch.randn(M, 8, 8, 8)
    exact = as_model(network, dtype="float64")
    expected = exact.apply(exact.params, x)
    network.cuda()
    model = as_model(network)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        found = model.apply(model.params, x)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    # sums of 1,152 products of order 0.03, 6e-8 each in a random walk: 1e-6; tf32 would err by 5e-4
    np.testing.assert_allclose(found, expected, atol=1e-5)
    product = model.jvp(model.snapshot(on_host=True), model.random_direction(model.params, 0), x)
    assert product.shape == (M, 16) and product.dtype == np.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("backend", ["inductor"])
def test_networks_compiled_on_a_gpu(backend):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 2)).cuda()
    x = torch.randn(M, 3)
    plain, compiled = as_model(network), torch.compile(network, backend=backend)
    compiled(x.cuda()).sum().backward()  # it has been compiled
    model = as_model(compiled)
    v = plain.random_direction(plain.params, 0)
    np.testing.assert_array_equal(model.jvp(model.params, v, x), plain.jvp(plain.params, v, x))
