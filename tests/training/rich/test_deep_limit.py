"""Deep networks of infinite width [M3]: exact where they are linear, beside wide networks where they are not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.core.arrays import precision
from unlazy.theory.feature_learning.single_site import mean_product, whiten
from unlazy.training.options import RichOptions
from unlazy.training.rich.finite_width import rich_network
from unlazy.training.rich.limit import rich_limit

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 5))
Y = RNG.normal(size=4)
ASK = {"richness": 1.5, "times": [0, 5, 15], "step_size": 0.12}


def test_the_whitened_set_grows_only_by_new_directions(x64):
    a, b = (jnp.asarray(RNG.normal(size=(50, 2))) for _ in range(2))
    again = a + 1e-6 * b
    white = jnp.zeros((50, 6))
    made = []
    for i, new in enumerate((a, b, again)):
        factor, white = whiten(new, white, jnp.asarray(2 * i), 1e-8)
        made.append((new, factor))
    kept = np.asarray(mean_product(white, white))
    # four directions, orthonormal to the rounding of sums of 50; the third pair adds 1e-12 of its variance: none
    np.testing.assert_allclose(kept, np.diag([1, 1, 1, 1, 0, 0]), rtol=0, atol=1e-12)
    for new, factor in made:
        np.testing.assert_allclose(white @ factor.T, new, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["identity", "tanh", "relu"])
def test_wide_networks_of_two_hidden_layers_agree(activation):
    net = unlazy.MLP(2, activation, sigma_w=1.2, sigma_b=(0.3, 0.2, 0.4), width=768)
    limit = rich_limit(net, X, Y, **ASK)
    wide = rich_network(net, X, Y, options=RichOptions(runs=8, keep_states=False), **ASK)
    pairs = zip(limit.features + limit.gradients, wide.features + wide.gradients)
    for a, b in ((limit.fitted, wide.fitted), (limit.tangent, wide.tangent), (limit.losses, wide.losses), *pairs):
        error = np.sqrt(np.mean(np.square(a.error)) + np.mean(np.square(b.error)))
        off = np.sqrt(np.mean(np.square(np.asarray(a.value) - np.asarray(b.value))))
        # root mean squares: their errors, and a deviation of order 1/width of the mean of networks
        assert off <= 3 * error + 10 / 768 * np.sqrt(np.mean(np.square(b.value)))
    assert limit.evidence.converged and float(np.abs(limit.fitted.value[0]).max()) < 1e-12  # f starts at zero
    if activation == "identity":
        assert limit.evidence.residual == 0.0 and not np.any(limit.fitted.error)


@pytest.mark.slow
def test_two_layers_by_the_deep_equations_are_two_layers():
    """One hidden layer has no responses: the same process, and with the same draws the same numbers."""
    from unlazy.theory.dynamics.losses import resolve_loss
    from unlazy.training.rich.deep import DeepLimit

    net = unlazy.MLP(1, "erf", sigma_b=(0.3, 0.2))
    two = rich_limit(net, X, Y, **ASK)
    with precision("float64"):
        plan = jnp.asarray(0.12 / 4 * np.tri(16, k=-1)), jnp.ones((16, 4))
        parts = (jnp.asarray(X), jnp.asarray(Y), 1.5, *plan, resolve_loss("squared"), 4096, 4, True, jax.random.key(0))
        deep = DeepLimit(net, *parts).follow(jnp.asarray(X[:1] + 1.0))
        f, theta = np.asarray(deep.f)[..., 0][:, ASK["times"]], np.asarray(deep.tangent[:, ASK["times"]])
    spread = f.std(0, ddof=1) / 2
    assert np.all(np.abs(f.mean(0)[:, :4] - two.fitted.value) <= 8 * np.hypot(spread[:, :4], two.fitted.error) + 1e-12)
    assert abs(f.mean(0)[2, 4] - float(two.predict(X[:1] + 1.0, 15)[0])) <= 8 * spread[2, 4] + 1e-3
    np.testing.assert_allclose(theta.mean(0)[:, :4, :4], two.tangent.value, rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_new_points_are_followed_along():
    net = unlazy.MLP(2, "identity", sigma_w=1.0)
    found = rich_limit(net, X, Y, **ASK)
    Z = RNG.normal(size=(2, 5))
    both = found.predict(np.r_[X, Z], [5, 15])
    assert both.shape == (2, 6)
    # points followed along change which directions are left out: at most 96, each 1e-12 of a variance of order one
    np.testing.assert_allclose(both[:, :4], found.fitted.value[1:], rtol=0, atol=96e-12)
    with precision("float64"):
        gram = found.kernel_at(15).gram(X)
    np.testing.assert_allclose(gram, found.tangent.value[2], rtol=0, atol=1e-9)  # as above, of entries up to 9


LINEAR = unlazy.MLP(2, "identity", sigma_w=1.0, sigma_b=(0.3, 0.2, 0.4))


@pytest.mark.slow
def test_outputs_can_be_rotated():
    """Heads are Gaussian: labels along a direction of output space are learned as one output's are, along it alone."""
    one = rich_limit(LINEAR, X, Y, **ASK)
    two = rich_limit(unlazy.MLP(2, "identity", 1.0, LINEAR.sigma_b, outputs=2), X, np.outer(Y, [0.6, 0.8]), **ASK)
    assert two.fitted.value.shape == (3, 4, 2) and two.predict(X[:2], [5, 15]).shape == (2, 2, 2)
    # directions left out, as below; the responses of outputs to each other cancel exactly only where they are right
    np.testing.assert_allclose(two.fitted.value @ [0.6, 0.8], one.fitted.value, rtol=0, atol=1e-9)
    np.testing.assert_allclose(two.fitted.value @ [0.8, -0.6], np.zeros((3, 4)), rtol=0, atol=1e-9)
    np.testing.assert_allclose(two.losses.value, one.losses.value, rtol=0, atol=1e-9)
    np.testing.assert_allclose(two.features[1].value, one.features[1].value, rtol=0, atol=1e-9)
    # at the start every output has the same gradients
    np.testing.assert_allclose(two.tangent.value[0], 2 * one.tangent.value[0], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_classes_and_batches_beside_wide_networks():
    net = unlazy.MLP(2, "tanh", sigma_w=1.2, outputs=3, width=768)
    ask = {"richness": 1.0, "times": [4, 12], "step_size": 0.4, "loss": "cross_entropy", "key": jax.random.key(1)}
    classes = np.arange(4) % 3
    limit = rich_limit(net, X, classes, options=RichOptions(batch_size=2), **ask)
    wide = rich_network(net, X, classes, options=RichOptions(batch_size=2, runs=8, keep_states=False), **ask)
    for a, b in ((limit.fitted, wide.fitted), (limit.tangent, wide.tangent), (limit.losses, wide.losses)):
        error = np.sqrt(np.mean(np.square(a.error)) + np.mean(np.square(b.error)))
        off = np.sqrt(np.mean(np.square(np.asarray(a.value) - np.asarray(b.value))))
        assert off <= 3 * error + 10 / 768 * np.sqrt(np.mean(np.square(b.value)))
    whole = rich_limit(LINEAR, X, Y, **ASK)
    of_all = rich_limit(LINEAR, X, Y, options=RichOptions(batch_size=4), **ASK)
    np.testing.assert_allclose(of_all.fitted.value, whole.fitted.value, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_flow_is_the_limit_of_small_steps():
    times = np.array([0.0, 0.2, 0.8])
    flow = rich_limit(LINEAR, X, Y, richness=1.5, times=times, options=RichOptions(tolerance=1e-4))
    errors = []
    for count in (80, 160):  # to t = 0.8
        steps = (times / 0.8 * count).astype(int)
        small = rich_limit(LINEAR, X, Y, richness=1.5, times=steps, step_size=4 * 0.8 / count)  # n = 4
        errors.append(np.abs(small.fitted.value - flow.fitted.value).max())
    # Euler's error halves with the step; the flow's is its tolerance times labels of order one and some 20 steps
    assert errors[1] < 0.6 * errors[0] and errors[0] < 0.1
    assert flow.evidence.steps > 3 and "adaptive" in flow.evidence.description.method
    at_x = flow.predict(X, times)
    np.testing.assert_allclose(at_x, flow.fitted.value, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_a_killed_deep_run_resumes(tmp_path):
    net = unlazy.MLP(2, "tanh")
    ask, seen = {"richness": 1.0, "times": [0, 3], "step_size": 0.4}, []
    whole = rich_limit(net, X, Y, options=RichOptions(draws=64, runs=3), **ask)

    class Killed(Exception):
        pass

    def kill(progress):
        seen.append(progress.step)
        if progress.step == 3:
            raise Killed

    options = RichOptions(draws=64, runs=3, checkpoint=tmp_path / "deep.safetensors", progress=kill)
    with pytest.raises(Killed):
        rich_limit(net, X, Y, options=options, **ask)
    options = replace(options, progress=lambda progress: seen.append(progress.step))
    resumed = rich_limit(net, X, Y, options=options, **ask)
    assert seen == [1, 2, 3, 3, 4, 5, 6]  # the first run is not made again
    assert np.array_equal(whole.fitted.value, resumed.fitted.value)
    with pytest.raises(ValueError, match="another problem"):
        rich_limit(net, X, Y, options=options, **(ask | {"richness": 2.0}))


def test_unsupported_options_of_deep_limits_raise():
    net = unlazy.MLP(2)
    for change, match in [
        ({"options": RichOptions(stop_below=0.1)}, "got stop_below=0.1: use times"),
        ({"step_size": None, "options": RichOptions(batch_size=2)}, "pass a step_size"),
        ({"step_size": None, "options": RichOptions(draws=10**9)}, "memory budget"),
    ]:
        with pytest.raises(ValueError, match=match):
            rich_limit(net, X, Y, **(ASK | change))
    with pytest.raises(ValueError, match="residual=0"):
        rich_limit(unlazy.MLP(2, residual=1.0), X, Y, **ASK)
