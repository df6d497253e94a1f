"""Two steps that forget the start: gradients against theory, the schedule on a toy task [P3, P4]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.measures.neurons import feature_cosines
from unlazy.measures.risk import accuracy
from unlazy.tasks import pattern_task
from unlazy.theory.feature_learning import patterns
from unlazy.training.one_step import two_steps
from unlazy.training.options import Recording

KEY = jax.random.key(3)
N, WIDTH = 20_000, 8


@pytest.fixture(scope="module")
def first_gradient():
    task = pattern_task(16, 16, 3)
    network = two_steps.pattern_network(16, WIDTH)
    params = network.init(KEY, "antisymmetric")
    data = task.sample(jax.random.key(5), N)
    gradient, margin = jax.jit(two_steps.weight_gradient)(two_steps.smoothed_network(network, 0.3), params, data)
    return task, params, np.asarray(gradient), float(margin)


def test_the_start_is_gaussian_in_pairs_with_the_asked_scales():
    network = two_steps.pattern_network(50, 400, sigma_w=0.2, sigma_b=0.3, sigma_a=4.0)
    (W, b), (a, c) = network.init(KEY, "antisymmetric")
    # 10,000, 200 and 200 independent numbers: 4 standard errors of a standard deviation are 4/√(2n)
    for values, scale, n in ((W, 0.2, 10_000), (b, 0.3, 200), (a, 4.0, 200)):
        assert abs(np.std(values) / scale - 1) < 4 / np.sqrt(2 * n)
    np.testing.assert_array_equal(a[:200], -a[200:])
    np.testing.assert_array_equal(W[:, :200], W[:, 200:])
    assert float(c[0]) == 0


@pytest.mark.slow
def test_first_gradient_agrees_with_the_lemma(first_gradient):
    """-a_i Σ_j M_j T_j with exact T_j; entries of the mean have standard error at most |a| 0.5/σ̃/√n, and the central
    limit theorem for 13 background patterns errs by less than that."""
    task, params, gradient, margin = first_gradient
    (W, b), (a, _) = params
    table = patterns.relevant_patterns(3, task.positive, task.uniform_part)
    with jax.enable_x64(True):
        q, shift = np.asarray(W, float).T, np.asarray(b, float)
        known = {"background": 0.5, "scale": task.scale, "spread": 0.3}
        T = jax.jit(lambda q, b: patterns.gradient_components(q, b, table, **known))(q, shift)
    error = np.abs(gradient.T + np.asarray(a) * np.asarray(T))
    assert np.all(error <= 5 * np.abs(np.asarray(a)) * 0.5 / task.scale / np.sqrt(N))
    assert margin < 1e-3  # f_0 = 0 up to rounding: the hinge is active everywhere


@pytest.mark.slow
def test_forgetting_leaves_the_gradient_alone(first_gradient):
    _, params, gradient, _ = first_gradient
    moved = two_steps.step_on_weights(params, jnp.asarray(gradient), 0.5)
    np.testing.assert_allclose(moved[0].weight, -0.5 * gradient, rtol=1e-6)
    kept = two_steps.step_on_weights(params, jnp.asarray(gradient), 0.5, forget=False)
    np.testing.assert_allclose(kept[0].weight, params[0].weight - 0.5 * gradient, rtol=1e-6)
    assert moved[0].bias is params[0].bias and moved[1] is params[1]


@pytest.mark.slow
def test_schedule_finds_the_feature_and_the_parity():
    task = pattern_task(20, 20, 3)
    network = two_steps.pattern_network(20, 60)
    test = task.sample(jax.random.key(9), 1000)

    @jax.jit
    def run(key):
        score = {"accuracy": lambda theta: accuracy(network(theta, test.X), test.y)}
        first, sgd = two_steps.FirstSteps(4000, (0.005, 10.0)), two_steps.FreshSGD(200, 200, (0.3, 0.03))
        found = two_steps.emerge(
            network, task.sample, first_steps=first, sgd=sgd, recording=Recording(score, every=100), key=key
        )
        return found, jnp.abs(feature_cosines(found.second[0].weight.T, task.feature))

    found, cosines = run(KEY)
    # noise of a component over the signal: 0.5/√4000/(γ·√3) ≈ 0.02 a pattern, 17 of them: cosine ≥ 1 - 17·0.02²/2·9
    assert float(jnp.min(cosines)) > 0.95
    assert found.recorded["accuracy"].shape == (5,)
    assert float(found.recorded["accuracy"][-1]) > 0.97  # a majority vote over 3 patterns gets 7/8
    assert float(found.margins[1]) < 1


def test_misuse():
    network = two_steps.pattern_network(4, 4)
    with pytest.raises(ValueError, match="steps=10 and every=3"):
        two_steps.emerge(
            network, lambda key, n: None, sgd=two_steps.FreshSGD(10), recording=Recording(every=3), key=KEY
        )
