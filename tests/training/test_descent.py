"""Descent: steps against hand-written ones and the closed form, stopping, recording, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from unlazy.core.dataset import Data
from unlazy.measures.tangent_drift import parameter_movement
from unlazy.networks import Network, linearize, only_layers, tangent_kernel
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.dynamics.losses import LOSSES
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent import recording
from unlazy.training.descent.descend import descend
from unlazy.training.descent.seeds import over_seeds
from unlazy.training.descent.stability import sharpness, stable_step_size
from unlazy.training.options import DescentOptions, Recording

N, D, EPS = 12, 3, np.finfo(float).eps


@pytest.fixture
def problem(x64):
    network = Network(MLP(1, "tanh", 1.3, 0.3, width=8), D)
    X = jax.random.normal(jax.random.key(1), (N, D))
    return network, network.init(jax.random.key(0)), Data(X, jnp.sin(X[:, 0]))


def close(a, b, atol):
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, rtol=0, atol=atol), a, b)


def test_steps_are_gradient_steps_with_decay_and_rates(problem):
    network, start, data = problem
    rates, decay, eta = (0.5, 2.0), 0.1, 0.3
    params = start
    slope_of = jax.jit(jax.grad(lambda p: 0.5 * jnp.mean((network(p, data.X) - data.y) ** 2)))
    for _ in range(3):
        gradient = slope_of(params)
        params = tuple(
            jax.tree.map(
                lambda p, g, r=r: np.asarray(p) - eta * r * (np.asarray(g) + decay * np.asarray(p)), layer, slope
            )
            for layer, slope, r in zip(params, gradient, rates)
        )
    found = descend(network, start, data, steps=3, step_size=eta, options=DescentOptions(rates=rates, decay=decay))
    close(found.params, params, 100 * EPS)
    assert int(found.steps) == 3 and not bool(found.diverged) and np.isnan(found.stable_step)
    np.testing.assert_allclose(found.losses[0], 0.5 * jnp.mean((network(start, data.X) - data.y) ** 2), rtol=10 * EPS)


@pytest.mark.slow
def test_descent_on_the_linearization_is_the_closed_form(problem):
    """f after s steps = f_0 + K(Z,X) c(K)(y - f_0(X)) of theory.dynamics.spectral_filters; the mean loss divides its
    step size by n."""
    network, start, data = problem
    Z = jax.random.normal(jax.random.key(2), (5, D))
    K = tangent_kernel(network, start, data.X)
    eigenvalues, U = jnp.linalg.eigh(K)
    eta, steps = 1 / float(eigenvalues[-1]), 200
    c = spectral_filters.descent_coefficient(eigenvalues, eta, jnp.asarray(steps))
    alpha = spectral_filters.coefficients(U, c, data.y - network(start, data.X))
    expected = network(start, Z) + tangent_kernel(network, start, Z, data.X) @ alpha
    model = linearize(network, start)
    found = descend(model, start, data, steps=steps, step_size=N * eta)
    # each step adds rounding of sums of about 60 products of size 1, and a contraction does not amplify it
    np.testing.assert_allclose(model(found.params, Z), expected, rtol=0, atol=steps * 60 * EPS)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 5])
def test_any_optax_optimizer_on_batches(problem, batch_size):
    """Adam in the loop equals Adam by hand on the same batches; an epoch is two batches of 5 of 12 points."""
    network, start, data = problem
    rule, key = optax.adam(0.05), jax.random.key(7)
    params, memory = start, rule.init(start)
    for s in range(4):
        order = jax.random.permutation(jax.random.fold_in(key, s // 2), N) if batch_size else jnp.arange(N)
        rows = order[(s % 2) * 5 : (s % 2) * 5 + 5] if batch_size else order
        gradient = jax.grad(lambda p, r=rows: 0.5 * jnp.mean((network(p, data.X[r]) - data.y[r]) ** 2))(params)
        updates, memory = rule.update(gradient, memory, params)
        params = optax.apply_updates(params, updates)
    found = descend(network, start, data, steps=4, options=DescentOptions(rule, batch_size), key=key)
    close(found.params, params, 1e4 * EPS)  # Adam divides by |g| + 1e-8: rounding of small gradients is amplified


@pytest.mark.slow_cases("cross_entropy")
@pytest.mark.parametrize("name", LOSSES)
def test_losses_decrease_and_match_numpy(x64, name):
    c = 3 if name == "cross_entropy" else 1
    network = Network(MLP(1, "tanh", 1.3, 0.3, width=8, outputs=c), D)
    X = jax.random.normal(jax.random.key(1), (N, D))
    y = {"squared": X[:, 0], "cross_entropy": jnp.argmax(X, 1).astype(float)}.get(name, jnp.sign(X[:, 0]))
    start, data = network.init(jax.random.key(0)), Data(X, y)
    f, labels = np.asarray(network(start, X)), np.asarray(y)
    expected = {
        "squared": lambda: 0.5 * (f - labels) ** 2,
        "hinge": lambda: np.maximum(0, 1 - labels * f),
        "logistic": lambda: np.log(1 + np.exp(-labels * f)),
        "cross_entropy": lambda: np.log(np.exp(f).sum(1)) - f[np.arange(N), labels.astype(int)],
    }[name]()
    found = descend(network, start, data, steps=50, step_size=0.2, loss=name)
    np.testing.assert_allclose(found.losses[0], expected.mean(), rtol=50 * EPS)
    assert found.final_loss < 0.7 * found.losses[0]


def test_padding_does_not_count(problem):
    network, start, data = problem
    junk = Data(
        jnp.concatenate([data.X, 1e3 * jnp.ones((4, D))]), jnp.concatenate([data.y, 1e9 * jnp.ones(4)]),
        jnp.concatenate([jnp.ones(N), jnp.zeros(4)]),
    )  # fmt: skip
    a = descend(network, start, data, steps=20, step_size=0.3)
    b = descend(network, start, junk, steps=20, step_size=0.3)
    close(a.params, b.params, 20 * 100 * EPS)


def test_frozen_layers_do_not_move(problem):
    network, start, data = problem
    options = DescentOptions(rates=only_layers(start, [-1]), decay=0.1)
    found = descend(network, start, data, steps=5, step_size=0.3, options=options)
    close(found.params[0], start[0], 0)
    assert jnp.abs(found.params[1].weight - start[1].weight).max() > 1e-3


@pytest.mark.slow
def test_divergence_is_recognized_and_the_advice_is_stable(problem):
    network, start, data = problem
    bad = jax.jit(lambda p: descend(network, p, data, steps=200, step_size=1e3))(start)
    assert bool(bad.diverged) and int(bad.steps) < 200 and "diverged" in bad.report
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(bad.params))
    assert bool(jnp.all(jnp.isfinite(bad.losses)) | jnp.isinf(bad.losses[-1]))
    good = descend(network, start, data, steps=200, step_size=bad.stable_step)
    assert not bool(good.diverged)
    assert jnp.all(jnp.diff(good.losses) < 0)  # half the limit: every step goes down
    assert good.final_loss < 0.5 * good.losses[0]


def test_stable_step_against_the_matrix(problem):
    """Power iteration against an eigendecomposition; 30 products resolve λ_max to its gap (λ_2/λ_1)^60."""
    network, start, data = problem
    K = tangent_kernel(network, start, data.X, rates=(0.5, 2.0))
    top = jnp.linalg.eigvalsh(K)
    allowed = float((top[-2] / top[-1]) ** 60) * N + 100 * EPS
    found = sharpness(network, start, data, rates=(0.5, 2.0))
    np.testing.assert_allclose(found, top[-1] / N, rtol=allowed)
    advice = stable_step_size(network, start, data, loss="logistic", decay=0.1)
    full = jnp.linalg.eigvalsh(tangent_kernel(network, start, data.X))[-1]
    np.testing.assert_allclose(advice, 1 / (0.25 * full / N + 0.1), rtol=1e-3)


@pytest.mark.slow
def test_records_and_early_stops(problem):
    network, start, data = problem
    record = {
        "risk": recording.risk(network, data.X, data.y),
        "drift": recording.kernel_drift(network, start, data.X),
        "alignment": recording.kernel_alignment(network, data.X, data.y),
        "weights": lambda params: parameter_movement(start, params),
    }
    found = descend(network, start, data, steps=60, step_size=0.5, recording=Recording(record, every=20))
    np.testing.assert_array_equal(found.recorded_at, [0, 20, 40, 60])
    np.testing.assert_allclose(found.recorded["risk"][-1], 2 * found.final_loss, rtol=20 * EPS)
    np.testing.assert_allclose(found.recorded["risk"][1], 2 * found.losses[20], rtol=20 * EPS)
    assert found.recorded["drift"][0] == 0 and found.recorded["drift"][-1] > 0.01
    assert found.recorded["weights"].shape == (4, 2)
    K = tangent_kernel(network, found.params, data.X)
    cosine = data.y @ K @ data.y / (jnp.linalg.norm(K) * data.y @ data.y)
    np.testing.assert_allclose(found.recorded["alignment"][-1], cosine, rtol=100 * EPS)

    target = float(found.losses[30])
    options, every = DescentOptions(stop_below=target), Recording(every=20)
    early = descend(network, start, data, steps=60, step_size=0.5, options=options, recording=every)
    assert int(early.steps) == 30 and "stopped early" in early.report
    np.testing.assert_allclose(early.final_loss, target, rtol=100 * EPS)


@pytest.mark.slow
def test_patience_returns_the_best_parameters(problem):
    """A measure that is smallest after 10 steps: the distance to the parameters there."""
    network, start, data = problem
    middle = descend(network, start, data, steps=10, step_size=0.5).params

    def measure(p):
        return sum(jnp.sum(jnp.square(a - b)) for a, b in zip(jax.tree.leaves(p), jax.tree.leaves(middle)))

    options, recording = DescentOptions(patience=("gap", 3)), Recording({"gap": measure}, every=5)
    found = descend(network, start, data, steps=100, step_size=0.5, options=options, recording=recording)
    close(found.params, middle, 100 * EPS)
    assert int(found.steps) == 25


@pytest.mark.slow
def test_seeds_in_one_call(problem):
    network, _, data = problem
    keys = jax.random.split(jax.random.key(3), 4)

    def run(key):
        return descend(network, network.init(key), data, steps=20, step_size=0.3)

    apart = [run(key).final_loss for key in keys]
    for side_by_side in (None, 1, 2, 4):
        together = over_seeds(run, keys, side_by_side)
        assert together.losses.shape == (4, 20)
        np.testing.assert_allclose(together.final_loss, jnp.stack(apart), rtol=20 * 100 * EPS)


def test_any_function_descends(x64):
    """Least squares by a function with parameters in a dictionary reaches the solution of the normal equations."""
    X = jax.random.normal(jax.random.key(1), (N, D))
    data = Data(X, X @ jnp.array([1.0, -2.0, 0.5]) + 0.3)
    found = descend(
        lambda p, x: x @ p["slope"] + p["shift"], {"slope": jnp.zeros(D), "shift": jnp.zeros(())}, data,
        steps=2000, step_size=0.5,
    )  # fmt: skip
    np.testing.assert_allclose(found.params["slope"], [1.0, -2.0, 0.5], atol=1e-9)
    np.testing.assert_allclose(found.params["shift"], 0.3, atol=1e-9)


def test_misuse_raises_with_a_remedy(problem):
    network, start, data = problem
    plain = {"steps": 3, "step_size": 0.1}
    for change, message in [
        ({"steps": 0}, "steps must be a positive integer, got 0"),
        ({"step_size": None}, "either a step_size or an optax optimizer"),
        ({"recording": Recording(every=2)}, "multiple of every, got steps=3 and every=2"),
        ({"options": DescentOptions(batch_size=5)}, "pass key"),
        ({"options": DescentOptions(label_noise=0.1)}, "label_noise is random: pass key"),
        ({"options": DescentOptions(batch_size=50), "key": jax.random.key(0)}, "at most the 12 training points"),
        ({"loss": "hing"}, "did you mean 'hinge'"),
        ({"options": DescentOptions(patience=("risk", 2))}, "needs a recorded measure"),
        ({"options": DescentOptions(rates=(1.0, 1.0, 1.0))}, "one per layer"),
        ({"loss": "cross_entropy"}, "one output per class"),
    ]:
        with pytest.raises(ValueError, match=message):
            descend(network, start, data, **(plain | change))
