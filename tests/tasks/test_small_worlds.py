"""The cube, the line, the circle, the manifold: facts in closed form, risk on grids, misuse."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import tasks
from unlazy.tasks.base import Task

KEY = jax.random.key(17)


def test_parity_and_staircase_on_the_whole_cube():
    """All 2^5 points: exact second moments and orthogonality, no sampling."""
    X = jnp.asarray(np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1).T)
    parity, stairs = tasks.parity(5, 4), tasks.staircase(5, 4)
    assert (parity.leap, parity.information_exponent) == (4, 4)
    assert (stairs.leap, stairs.information_exponent) == (1, 1)
    for task in (parity, stairs):
        assert float(jnp.mean(task.target(X) ** 2)) == pytest.approx(task.second_moment, rel=1e-6)
    assert float(jnp.mean(parity.target(X) * stairs.target(X))) == pytest.approx(1 / 2, rel=1e-6)
    merged = tasks.CubePolynomial(5, {(0,): 1.0, (0, 1, 2): 1.0})
    assert (merged.leap, merged.relevant) == (2, [0, 1, 2])


def test_one_dimensional_second_moments_in_closed_form():
    assert tasks.heaviside().second_moment == pytest.approx(0.5, abs=1e-14)
    assert tasks.smooth(1.0).second_moment == pytest.approx(0.5, abs=1e-14)
    steps = tasks.piecewise((-0.5, 0.0), (1.0, -2.0, 3.0))
    assert steps.second_moment == pytest.approx((0.5 * 1 + 0.5 * 4 + 1.0 * 9) / 2, abs=1e-13)
    np.testing.assert_array_equal(steps.target(jnp.array([[-0.9], [-0.2], [0.7]])), [1, -2, 3])
    assert tasks.Function1D(jnp.exp, 0.0, 1.0).second_moment == pytest.approx((math.e**2 - 1) / 2, rel=1e-14)


@pytest.mark.parametrize("task", [tasks.heaviside(), tasks.Circle()], ids=["line", "circle"])
def test_grids_measure_risk_better_than_samples(task):
    """24 keys, 512 points: root mean square error at least 5 times smaller, the risk of a linear predictor exact."""
    predict = lambda X: 0.3 * X[:, 0]  # noqa: E731
    # line: E(step - 0.3x)² = 1/2 - 0.6·E[x; x>0] + 0.09/3 with E[x; x>0] = 1/4; circle: 5/8 + 0.09/2
    exact = 0.5 - 0.15 + 0.03 if task.d == 1 else 0.625 + 0.045
    keys = jax.random.split(KEY, 24)
    smart = jax.jit(jax.vmap(lambda k: task.population_risk(predict, k, 512)))(keys)
    plain = jax.jit(jax.vmap(lambda k: Task.population_risk(task, predict, k, 512)))(keys)
    rms = lambda e: float(jnp.sqrt(jnp.mean((e.mean - exact) ** 2)))  # noqa: E731
    assert rms(smart) * 5 < rms(plain)
    assert np.all(np.abs(np.asarray(smart.mean) - exact) <= 6 * np.asarray(smart.error) + 1e-6)


def test_circle_points_and_bias():
    task = tasks.Circle(bias=0.5)
    X = np.asarray(task.grid(8))
    np.testing.assert_allclose(np.sum(X[:, :2] ** 2, 1), 1, rtol=1e-6)
    assert np.all(X[:, 2] == 0.5)
    angle = 2 * math.pi * (np.arange(8) + 0.5) / 8
    np.testing.assert_allclose(task.target(jnp.asarray(X)), np.sin(angle) + 0.5 * np.cos(3 * angle), atol=1e-5)
    assert task.second_moment == 0.5 + 0.125


def test_a_curved_manifold_spans_the_space_and_keeps_its_dimension():
    """Covariance of full rank, yet distances of near neighbors scale like those of a k-dimensional set."""
    k, d, n = 2, 12, 4_000
    task = tasks.manifold(d, k, key=KEY)
    X = np.asarray(task.inputs(KEY, n), float)
    assert np.linalg.matrix_rank(np.cov(X.T), tol=1e-6) == d
    flat = np.asarray(tasks.manifold(d, k, bend=0.0, key=KEY).inputs(KEY, n), float)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), 1, rtol=1e-5)
    assert np.linalg.matrix_rank(np.cov(flat.T), tol=1e-6) == k + 1
    distance = np.sort(np.linalg.norm(X[:200, None] - X[None], axis=2), 1)
    # Neighbor 40 against neighbor 10: ratio 4^{1/k} in dimension k; a count of 10 has a relative error of
    # 1/√10 a point, 200 points, correlated: the estimate of k is good to about 10%.
    estimate = math.log(4) / np.mean(np.log(distance[:, 40] / distance[:, 10]))
    assert estimate == pytest.approx(k, rel=0.2)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: tasks.parity(3, 4), "k = 4 relevant bits do not fit in d = 3"),
        (lambda: tasks.staircase(3, 0), "got 0"),
        (lambda: tasks.CubePolynomial(3, {(0, 5): 1.0}), "coordinates run from 0"),
        (lambda: tasks.CubePolynomial(3, {(0, 1): 1.0, (1, 0): 1.0}), "may occur once"),
        (lambda: tasks.piecewise((0.0,), (1.0,)), "one more height"),
        (lambda: tasks.piecewise((0.5, 0.1), (1.0, 2.0, 3.0)), "increasing"),
        (lambda: tasks.Function1D(jnp.sin, 1.0, 1.0), "low < high"),
        (lambda: tasks.Circle({-1: (1.0, 0.0)}), "frequencies"),
        (lambda: tasks.manifold(3, 3, key=KEY), "got d = 3"),
        (lambda: tasks.manifold(3, 0, key=KEY), "got 0"),
        (lambda: tasks.Circle().grid(0), "got 0"),
    ],
)
def test_misuse_raises(bad, says):
    with pytest.raises(ValueError, match=says):
        bad()
