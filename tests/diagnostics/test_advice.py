"""Advice on a run: the law of the output scale, its equivalents, rescaled networks, the kernel machine."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_model import SmallModel, initial, mlp

import unlazy
from unlazy.diagnostics.advice import ScaledRun, advise, advise_scale
from unlazy.diagnostics.measures.movement import homogeneous_degree
from unlazy.diagnostics.rescaling.network import rescale_network, scale_of
from unlazy.diagnostics.verdict import GapPoint, decide, log_odds
from unlazy.models import as_model

pytestmark = pytest.mark.filterwarnings("error::unlazy.core.errors.UnlazyWarning")


def gap_at(scale, exponent, level=0.0):
    """odds(g) = e^level α^-p."""
    odds = math.exp(level) * scale**-exponent
    return odds / (1 + odds)


def test_one_run_moves_by_the_prior_exponent():
    found = advise_scale([ScaledRun(1.0, 0.5)], 0.2)
    assert found.exponent == pytest.approx(1)
    assert found.scale == pytest.approx(4)  # odds 1 to 1/4
    assert found.low < 2 < 8 < found.high
    near = advise_scale([ScaledRun(1.0, 0.5)], 0.45)
    assert near.high / near.low < found.high / found.low  # the exponent matters less


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.5])
def test_two_runs_tell_the_exponent(exponent):
    """Two noiseless runs a decade apart weigh (ln 10)²/2/SCALE_NOISE² = 42 against 1/EXPONENT_SPREAD² = 8 of the prior,
    so that a sixth of the difference to 1 remains, times the logarithm of the distance between runs and target."""
    runs = [ScaledRun(a, gap_at(a, exponent, 2.0)) for a in (0.5, 5.0)]
    found = advise_scale(runs, 0.1)
    right = math.exp((2.0 - log_odds(0.1)) / exponent)
    error = 0.17 * abs(exponent - 1) + 1e-9
    assert found.exponent == pytest.approx(exponent, abs=error)
    assert abs(math.log(found.scale / right)) < error / exponent * math.log(right / 0.5) + 1e-9
    assert found.low < right < found.high


def test_advice_needs_a_run_and_a_possible_gap():
    with pytest.raises(ValueError, match=r"target_gap must be between 0 and 1, got 1\.5"):
        advise_scale([ScaledRun(1.0, 0.5)], 1.5)
    with pytest.raises(ValueError, match="a run with a finite gap"):
        advise_scale([ScaledRun(1.0, math.nan)], 0.3)


def test_levers_are_equivalent():
    """By width n, α = √n; by the initialization of a network of degree k, α = σ^k; the run's own slope for the rate."""
    verdict = decide([GapPoint(100 * i, gap_at(100 / i, 0.5), 0.01) for i in (1, 2, 4, 8)], 800)
    advice = advise(verdict, 0.05, degree=3.0)
    levers = {lever.name: lever for lever in advice.levers}
    scale = levers["output scale"].factor
    assert levers["width"].factor == pytest.approx(scale**2)
    assert levers["initialization scale"].factor == pytest.approx(scale ** (1 / 3))
    assert levers["learning rate"].factor < 1
    text = str(advice)
    assert "lazier" in text and "SGD" in text and "eps" in text and "second run" in text and "[W6]" in text
    assert "initialization scale" not in {lever.name for lever in advise(verdict, 0.05).levers}


def test_no_advice_for_broken_and_young_runs():
    young = decide([GapPoint(1, 0.1, 0.01)], 800)
    assert advise(young, 0.5).scale is None and "too young" in str(advise(young, 0.5))
    broken = decide([GapPoint(800, 1.5, 0.01)], 800, losses=(1.0, 1.0))
    assert "learning rate" in str(advise(broken, 0.5))


def relu_net(params, x):
    return mlp(params, x, jax.nn.relu)[0]


def test_initialization_scale_is_the_dial_for_relu():
    """Gradient descent from σ θ_0 at rate η σ^(2 - 2k) is the run of α f with α = σ^k at rate η/α² [W6]: in float64
    they agree to rounding, which 30 steps amplify by less than a thousand."""
    with jax.enable_x64(True):
        start = {k: jnp.asarray(v) for k, v in initial(0, 4, 16, 16, 1).items()}
        rng = np.random.default_rng(0)
        X, y = jnp.asarray(rng.normal(size=(20, 4))), jnp.asarray(rng.normal(size=(20, 1)))
        sigma, k, rate = 1.3, 3, 0.02
        alpha = sigma**k

        def train(f, p, step_size):
            slope = jax.jit(jax.grad(lambda q: jnp.mean((f(q) - y) ** 2)))
            for _ in range(30):
                p = jax.tree.map(lambda a, g: a - step_size * g, p, slope(p))
            return f(p)

        dialed = train(lambda p: alpha * relu_net(p, X), start, rate / alpha**2)
        scaled = {name: sigma * v for name, v in start.items()}
        grown = train(lambda p: relu_net(p, X), scaled, rate * sigma ** (2 - 2 * k))
        assert np.allclose(dialed, grown, rtol=0, atol=1e-12)
        model = SmallModel(start, np.float64, activation=jax.nn.relu)
        assert homogeneous_degree(model, model.value, X) == pytest.approx(3, abs=1e-9)
        smooth = SmallModel(start, np.float64)
        assert np.isnan(homogeneous_degree(smooth, smooth.value, X))


def moved(tree):
    return jax.tree.map(lambda v: v * 1.1 + 0.01, tree)


def check_rescaled(network, reference, trained, X):
    """f_0 + α (f - f_0) at trained parameters, and f_0 at initialization."""
    original = as_model(network)
    rescaled = rescale_network(network, 3.0, reference)
    assert scale_of(rescaled) == 3 and scale_of(network) == 1
    model = as_model(rescaled)
    f_0, f = original.apply(reference, X), original.apply(trained(reference), X)
    assert np.allclose(model.apply(model.params, X), f_0, atol=1e-6)
    assert np.allclose(model.apply(trained(model.params), X), f_0 + 3 * (f - f_0), atol=1e-5)
    again = as_model(rescale_network(rescaled, 0.5, model.snapshot()))
    assert np.allclose(again.apply(trained(again.params), X), f_0 + 0.5 * (f - f_0), atol=1e-5)
    sizes = [sum(np.size(v) for v in jax.tree.leaves(m.params)) for m in (original, model, again)]
    assert len(set(sizes)) == 1  # θ_0 is not trained
    return rescaled


def test_functions_of_parameters_are_rescaled():
    start = {k: jnp.asarray(v, jnp.float32) for k, v in initial(0, 3, 8, 2).items()}
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    network = (lambda p, x: mlp(p, x)[0], moved(start))  # training has begun
    apply, params = check_rescaled(network, start, moved, X)
    assert np.allclose(apply(params, X), network[0](start, X), atol=1e-6)


def test_equinox_modules_are_rescaled():
    module = eqx.nn.MLP(3, 2, 8, 1, key=jax.random.key(0))
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    check_rescaled(module, as_model(module).snapshot(), moved, X)


def test_nnx_modules_are_rescaled():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.tanh(self.first(x)))

    module = Net(nnx.Rngs(0))
    X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    check_rescaled(module, as_model(module).snapshot(), moved, X)


def test_torch_modules_are_rescaled():
    torch = pytest.importorskip("torch")

    def changed(params):
        return {name: value * 1.1 + 0.01 for name, value in params.items()}

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    start = as_model(network).snapshot()
    X = torch.randn(5, 3)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(1.1).add_(0.01)
    rescaled = rescale_network(network, 3.0, start)
    original = as_model(network)
    f_0, f = original.apply(start, X), original.apply(changed(start), X)
    model = as_model(rescaled)
    assert np.allclose(model.apply(model.params, X), f_0, atol=1e-6)
    assert np.allclose(model.apply(changed(model.params), X), f_0 + 3 * (f - f_0), atol=1e-5)
    assert len([p for p in rescaled.parameters() if p.requires_grad]) == 4
    assert list(model.layer_outputs(model.params, X)) == ["network.0", "network.2"]  # none of the copy at θ_0
    again = as_model(rescale_network(rescaled, 0.5, model.snapshot()))
    assert np.allclose(again.apply(changed(again.params), X), f_0 + 0.5 * (f - f_0), atol=1e-5)


def test_torch_dropout_and_batch_statistics_cancel_at_the_start():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    rescaled = rescale_network(network, 1e4, as_model(network).snapshot())
    X = torch.randn(16, 3)
    torch.manual_seed(3)
    ours = rescaled(X)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(ours, network.train()(X))  # f_0 + 1e4 · 0, with the masks and statistics of this batch
    assert torch.equal(after, torch.rand(1))  # random numbers are drawn once


def test_other_objects_are_refused():
    with pytest.raises(ValueError, match=r"rescale needs a torch\.nn\.Module.*got str"):
        rescale_network("network", 2.0, {})


def test_rescaled_run_is_lazier():
    """A run, its advice, the rescaled run, and a third one by both: odds within a factor of 2 of those asked for."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(48, 5)).astype(np.float32)
    y = np.sin(X @ rng.normal(size=(5, 1))).astype(np.float32)
    params = {k: jnp.asarray(v, jnp.float32) for k, v in initial(0, 5, 64, 1).items()}
    network = (lambda p, x: mlp(p, x)[0], params)

    def run(network, step_size):
        apply, params = network
        slope = jax.jit(jax.grad(lambda p: jnp.mean((apply(p, X) - y) ** 2)))
        options = unlazy.WatchOptions(measures=("gap",))
        monitor = unlazy.watch(network, X, y, every=50, planned_steps=200, step_size=step_size, options=options)
        for _ in range(200):
            params = jax.tree.map(lambda p, g: p - step_size * g, params, slope(params))
            monitor.update(params)
        return monitor

    first = run(network, 0.1)
    found = first.rescale(network, 0.1)
    assert found.step_size == pytest.approx(0.1 / found.scale**2)
    assert found.adam_step_size == pytest.approx(0.1 / found.scale) and found.adam_eps_factor == found.scale
    second = run(found.model, found.step_size)
    assert second.record.scale == found.scale
    refined = second.rescale(found.model, 0.1, earlier=[first])
    assert refined.high / refined.low < found.high / found.low
    third = run(refined.model, refined.step_size)
    gaps = [m.verdict.gap for m in (first, second, third)]
    assert gaps[0] > 0.3 > gaps[1]
    assert abs(log_odds(gaps[2]) - log_odds(0.1)) < math.log(2)
    assert found.low < refined.scale < found.high
    with pytest.raises(ValueError, match="no network"):
        unlazy.Monitor(first.record).rescale(network, 0.1)
