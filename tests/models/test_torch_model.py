"""Derivatives of PyTorch networks of every kind, against differences and Jacobians that do without the adapter."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_networks import CASES, SURROGATES, Calls, Case, M, SignOnce, build, mlp, points, tokens  # noqa: E402

from unlazy.models import as_model  # noqa: E402
from unlazy.models.torch_model import unwrap  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
DIFFERENCES = 1e-8
"""Error of the differences here, relative to their largest entry. Steps are h = 1e-4 along directions of norm 5 to 15,
so (h ‖v‖)⁴ = 5e-12 times the fifth derivative, which is at most some hundred times the first in these networks;
rounding 2e-16/h = 2e-12."""
H = 1e-4


def value(case: Case, theta: dict, inputs: object = None) -> torch.Tensor:
    """Outputs of a network in evaluation mode whose parameters are set one by one; they require gradients."""
    network = unwrap(case.module).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name in theta:
                own = torch.view_as_real(parameter) if parameter.is_complex() else parameter
                own.copy_(theta[name])
    x = case.inputs if inputs is None else inputs
    if isinstance(x, torch.Tensor):
        x = x.clone()
    out = network(*x) if isinstance(x, tuple) else network(**x) if isinstance(x, dict) else network(x)
    if case.output is not None:
        return case.output(out)
    return out["logits"] if isinstance(out, dict) else getattr(out, "logits", out)


def gradient(case: Case, theta: dict, loss) -> dict:
    """Gradient of a loss by `backward` on the network itself."""
    network = unwrap(case.module)
    network.zero_grad()
    loss(value(case, theta), None).backward()
    found = {name: p.grad for name, p in network.named_parameters() if p.requires_grad}
    return {name: torch.view_as_real(g) if g.is_complex() else g for name, g in found.items()}


def jacobian_product(case: Case, theta: dict, v: dict) -> np.ndarray:
    """J v from one backward pass for each output."""
    out = value(case, theta)
    rows = []
    for one in out.reshape(-1):
        leaves = {n: p for n, p in unwrap(case.module).named_parameters() if p.requires_grad}
        grads = torch.autograd.grad(one, list(leaves.values()), retain_graph=True, allow_unused=True)
        rows.append(sum(float((g * v[n]).sum()) for n, g in zip(leaves, grads) if g is not None))
    return np.reshape(rows, (len(out), -1))


def difference(f, model, theta, v):
    """Fourth-order difference of f along v, entry by entry."""
    at = {step: f(model.add_scaled(theta, step * H, v)) for step in (-2, -1, 1, 2)}
    return (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * H)


def loss(outputs, targets):
    return outputs.square().mean() + 0.1 * outputs.pow(3).sum()


def flat(tensors: dict) -> np.ndarray:
    return np.concatenate([t.detach().numpy().ravel() for _, t in sorted(tensors.items())])


def largest(error: np.ndarray, of: np.ndarray) -> float:
    return np.max(np.abs(error)) / np.max(np.abs(of))


@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_those_of_the_values(name):
    case, apart = build(name), build(name)
    model = as_model(case.module, output=case.output)
    theta = model.snapshot()
    v = model.random_direction(theta, 0)

    def values(parameters: dict) -> np.ndarray:
        with torch.no_grad():
            out = value(apart, parameters)
            return out.reshape(len(out), -1).numpy()

    # other kernels (no fast path, no mkldnn) sum in another order: some units of rounding
    np.testing.assert_allclose(model.apply(theta, case.inputs), values(theta), atol=1e-14)
    product = model.jvp(theta, v, case.inputs)
    tolerance = max(DIFFERENCES, model.derivative_error)
    assert largest(product - difference(values, model, theta, v), product) < tolerance

    u = np.random.default_rng(0).normal(size=product.shape)
    back = model.vjp(theta, u, case.inputs)
    # two sums of at most 1,000 products of float64, unless differences were used
    assert abs(np.sum(u * product) - model.inner(v, back)) < max(1e-12, model.derivative_error) * np.sum(
        np.abs(u * product)
    )

    hessian = model.hvp(theta, v, case.inputs, None, loss)
    expected = difference(lambda at: flat(gradient(apart, at, loss)), model, theta, v)
    assert largest(flat(hessian) - expected, expected) < max(DIFFERENCES, model.derivative_error)

    outputs = model.layer_outputs(theta, case.inputs)
    assert outputs and all(rows.shape[0] == len(product) and np.all(np.isfinite(rows)) for rows in outputs.values())


@pytest.mark.parametrize("name", SURROGATES)
def test_derivatives_are_those_that_training_uses(name):
    case, apart = build(name, SURROGATES), build(name, SURROGATES)
    model = as_model(case.module)
    theta = model.snapshot()
    v = model.random_direction(theta, 0)
    expected = jacobian_product(apart, theta, v)
    # sums of some ten products of float64
    np.testing.assert_allclose(model.jvp(theta, v, case.inputs), expected, rtol=1e-12, atol=1e-13)
    assert model.derivative_error == 0


SINGLE = (
    "mlp",
    "BatchNorm",
    "LayerNorm",
    "EmbeddingBag",
    "LSTM",
    "MultiheadAttention",
    "weight_norm",
    "custom Function",
)


@pytest.mark.parametrize("name", SINGLE)
def test_single_precision_rounds_only(name):
    double, single = build(name), build(name, double=False)
    if torch.is_floating_point(single.inputs):
        single.inputs = single.inputs.float()
    exact, model = as_model(double.module), as_model(single.module)
    theta, v = exact.snapshot(), exact.random_direction(exact.params, 0)
    rounded, moved = ({n: t.float() for n, t in tree.items()} for tree in (theta, v))
    product = model.jvp(rounded, moved, single.inputs)
    assert product.dtype == np.float32
    # 6e-8 for each of fewer than 20 operations between parameters and outputs, whose factors are of order 1 to 10;
    # where differences are used, they are taken in float64
    assert largest(product - exact.jvp(theta, v, double.inputs), product) < 1e-5
    hessian = model.hvp(rounded, moved, single.inputs, None, loss)
    expected = exact.hvp(theta, v, double.inputs, None, loss)
    assert largest(flat(hessian) - flat(expected), flat(expected)) < 5e-5
    # the same network computes in float64 when it is asked to
    wide = as_model(single.module, dtype="float64").jvp(rounded, moved, single.inputs)
    assert wide.dtype == np.float64
    nearby = exact.jvp(
        {n: t.double() for n, t in rounded.items()}, {n: t.double() for n, t in moved.items()}, double.inputs
    )
    # inputs and frozen statistics were rounded to float32
    assert largest(wide - nearby, nearby) < 1e-6


def test_half_precision_networks_are_evaluated_in_single_precision():
    network = mlp().to(torch.bfloat16)
    model = as_model(network)
    x = points(3).to(torch.bfloat16)
    theta = model.snapshot()
    assert theta["0.weight"].dtype == torch.bfloat16
    found = model.apply(theta, x)
    assert found.dtype == np.float32
    with torch.no_grad():
        expected = mlp_in_double(network, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # 6e-8 over four operations, factors of order 10


def mlp_in_double(network: nn.Module, x: torch.Tensor) -> np.ndarray:
    import copy

    return copy.deepcopy(network).double()(x.double()).numpy()


def test_arithmetic_of_parameters():
    case = build("mlp", double=False)
    model = as_model(case.module)
    theta, v = model.snapshot(), model.random_direction(model.params, 0)
    assert model.random_direction(theta, 0).keys() == theta.keys()
    np.testing.assert_array_equal(flat(v), flat(model.random_direction(theta, 0)))
    assert not np.array_equal(flat(v), flat(model.random_direction(theta, 1)))
    moved = model.add_scaled(theta, 0.5, v)
    np.testing.assert_allclose(
        flat(moved), flat(theta) + 0.5 * flat(v), rtol=1e-6, atol=1e-7
    )  # one rounding of float32
    np.testing.assert_allclose(flat(model.subtract(moved, theta)), 0.5 * flat(v), rtol=1e-5, atol=1e-6)
    exact = flat(theta).astype(np.float64) @ flat(v).astype(np.float64)
    assert abs(model.inner(theta, v) - exact) < 1e-13 * np.sum(np.abs(flat(theta) * flat(v)))  # float64
    layers = model.layers(v)
    assert list(layers) == ["0", "2"] and layers["0"].keys() == {"0.weight", "0.bias"}
    x = case.inputs.float()
    parts = [model.jvp(theta, part, x) for part in layers.values()]
    # sums of float32 in another order
    np.testing.assert_allclose(sum(parts), model.jvp(theta, v, x), rtol=1e-5, atol=1e-5)


def test_snapshots_stay_while_training_goes_on():
    case = build("mlp", double=False)
    model, x = as_model(case.module), case.inputs.float()
    kept, on_host, before = model.snapshot(), model.snapshot(on_host=True), model.apply(model.params, x)
    optimizer = torch.optim.SGD(case.module.parameters(), 0.5)
    case.module(x).square().sum().backward()
    optimizer.step()
    assert not np.array_equal(model.apply(model.params, x), before)
    for snapshot in (kept, on_host):
        np.testing.assert_array_equal(model.apply(snapshot, x), before)
    assert all(tensor.device.type == "cpu" for tensor in on_host.values())
    assert all(p.data_ptr() == model.params[n].data_ptr() for n, p in case.module.named_parameters())


def test_tied_weights_count_once_and_frozen_ones_not():
    tied = as_model(build("tied weights").module)
    assert list(tied.params) == ["embedding.weight"]
    frozen = as_model(build("frozen").module)
    assert "0.weight" not in frozen.params and "0.bias" in frozen.params
    adapted = as_model(build("weight_norm").module)
    assert list(adapted.layers(adapted.params)) == ["0"]


def test_layer_outputs_are_those_of_hooks():
    case = build("BatchNorm")
    model = as_model(case.module)
    found = model.layer_outputs(model.params, case.inputs)
    seen = {}
    for name, part in case.module.named_children():
        part.register_forward_hook(lambda _, args, out, name=name: seen.update({name: out.detach().flatten(1).numpy()}))
    case.module.eval()(case.inputs)
    assert list(found) == ["0", "1", "3", "5"]  # layers with parameters, in the order of evaluation
    for name, rows in found.items():
        np.testing.assert_allclose(rows, seen[name], rtol=1e-13, atol=1e-14)  # rounding of float64


def test_layer_outputs_have_one_row_per_point_for_sequences_first():
    network = Calls(lambda self, x: self.gru(x.transpose(0, 1))[0][-1], gru=nn.GRU(3, 4))
    found = as_model(network).layer_outputs(as_model(network).params, points(6, 3).float())
    assert found["gru"].shape == (M, 24)


def test_statistics_are_those_of_construction_until_they_are_fixed():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4)).double()
    model, x = as_model(network), points(3)
    fresh = model.apply(model.params, x)
    # a fresh network has seen no batch: its statistics become those of the probe, as in training mode
    model.fix_statistics(x)
    measured = model.apply(model.params, x)
    with torch.no_grad():
        expected = network.train()(x).numpy()
    np.testing.assert_allclose(measured, expected, rtol=1e-12, atol=1e-12)  # rounding of float64 divided by deviations
    assert not np.allclose(fresh, measured)
    # training moves the running statistics; the probe keeps its own for both ends
    np.testing.assert_array_equal(model.apply(model.params, x), measured)
    model.fix_statistics(x)
    with torch.no_grad():
        expected = network.eval()(x).numpy()
    np.testing.assert_allclose(model.apply(model.params, x), expected, rtol=1e-12, atol=1e-12)


def test_a_network_that_draws_numbers_draws_the_same_ones():
    network = Calls(lambda self, x: self.linear(nn.functional.dropout(x)), linear=nn.Linear(3, 2))
    model, x = as_model(network), points(3).float()
    first = model.apply(model.params, x)
    torch.rand(7)
    np.testing.assert_array_equal(model.apply(model.params, x), first)


def test_diverged_networks_are_measured_as_they_are():
    case = build("mlp")
    model = as_model(case.module)
    broken = {name: torch.full_like(t, torch.nan) for name, t in model.params.items()}
    assert np.all(np.isnan(model.jvp(broken, model.random_direction(broken, 0), case.inputs)))


class Ten(nn.Module):
    def forward(self, x):
        return x + 10


def scripted() -> nn.Module:
    return torch.jit.script(mlp())


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return mlp()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Ten, "Ten has no parameter that requires a gradient"),
        (
            lambda: nn.Sequential(nn.LazyLinear(3)),
            "'0.weight' of Sequential has no shape yet: run the network on one batch",
        ),
        (scripted, "is a TorchScript module, whose parameters cannot be replaced: pass the Python module"),
        (on_meta, "'0.weight' of Sequential is on the meta device"),
    ],
    ids=["nothing trained", "lazy", "TorchScript", "meta"],
)
def test_networks_that_cannot_be_measured_are_named(network, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = network()
    with pytest.raises(ValueError, match=message):
        as_model(built)


@pytest.mark.parametrize(
    ("network", "inputs", "message"),
    [
        (lambda: nn.LSTM(3, 4), points(6, 3).float(), r"LSTM returns a tuple.*output=lambda out: out\[0\]"),
        (
            lambda: Calls(lambda self, x: {"mean": self.linear(x), "scale": x}, linear=nn.Linear(3, 2)),
            points(3).float(), r"Calls returns a dict with mean, scale.*output=lambda out: out\['mean'\]",
        ),
        (lambda: Calls(lambda self, x: self.linear(x).sum(), linear=nn.Linear(3, 2)), points(3).float(),
         "Calls returns one number, not a row per point"),
        (lambda: Calls(lambda self, x: self.linear(x).argmax(1), linear=nn.Linear(3, 2)), points(3).float(),
         "Calls returns torch.int64, which has no derivative"),
        (lambda: Calls(lambda self, x: self.linear(x) + 0j, linear=nn.Linear(3, 2)), points(3).float(),
         "complex numbers: pass output=torch.view_as_real"),
        (lambda: Calls(lambda self, x: self.inner(x),
                       inner=Calls(lambda self, x: SignOnce.apply(self.linear(x)), linear=nn.Linear(3, 2))),
         points(3).float(), r"Calls \(inner\) cannot be differentiated twice or forward"),
    ],
    ids=["tuple", "dictionary", "loss", "integers", "complex", "no derivative"],
)  # fmt: skip
def test_outputs_that_cannot_be_measured_are_refused_in_one_sentence(network, inputs, message):
    model = as_model(network())
    with pytest.raises(ValueError, match=message) as refused:
        model.jvp(model.params, model.random_direction(model.params, 0), inputs)
    assert "\n" not in str(refused.value)


def test_misuse_names_the_value():
    case = build("mlp", double=False)
    model, x = as_model(case.module), case.inputs.float()
    with pytest.raises(ValueError, match=r"cotangents must have the shape \(5, 2\) of the outputs, got \(5, 3\)"):
        model.vjp(model.params, np.zeros((M, 3)), x)
    with pytest.raises(ValueError, match="'wrong' is no trainable parameter of Sequential"):
        model.apply({"wrong": torch.zeros(1)}, x)
    with pytest.raises(ValueError, match="read as it is at every call"):
        model.update(model.params)
    model.update(case.module)
    with pytest.raises(ValueError, match="loss must return one number"):
        model.hvp(model.params, model.params, x, None, lambda out, _: out)


def test_cached_weights_are_refused():
    model, x = as_model(build("weight_norm").module), points(3)
    with nn.utils.parametrize.cached(), pytest.raises(ValueError, match="probe outside of it"):
        model.apply(model.params, x)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_distributed_networks(tmp_path):
    network, x = mlp(), points(3).float()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        model = as_model(nn.parallel.DistributedDataParallel(network))
        plain = as_model(network)
        v = plain.random_direction(plain.params, 0)
        np.testing.assert_array_equal(model.jvp(model.params, v, x), plain.jvp(plain.params, v, x))
    finally:
        torch.distributed.destroy_process_group()


def test_numpy_inputs_and_views_of_users_tensors():
    case = build("mlp", double=False)
    model, x = as_model(case.module), case.inputs
    expected = model.apply(model.params, x.float())
    np.testing.assert_array_equal(model.apply(model.params, x.numpy()), expected)
    with torch.inference_mode():  # tensors made here cannot be differentiated elsewhere
        inside = x.float() * 1
        kept = model.snapshot()
    v = model.random_direction(kept, 0)
    with torch.no_grad():
        model.hvp(kept, v, inside, None, loss)
    np.testing.assert_array_equal(model.apply(kept, inside), expected)
    embedding = as_model(build("Embedding").module)
    assert embedding.apply(embedding.params, tokens().numpy()).shape == (M, 2)
