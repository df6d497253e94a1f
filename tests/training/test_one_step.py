"""Algorithm 1 stage by stage: against autodiff, plain solves, refits, the loop it replaces, and the theory."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.tasks.index_models import quadratic_plus
from unlazy.theory.feature_learning import gradients
from unlazy.training.one_step import algorithm, readout
from unlazy.training.options import OneStepOptions

WIDTH, D = 24, 6


def data(n, d=D, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return jnp.asarray(X), jnp.asarray(X[:, 0] ** 2 + 0.5 * X[:, 1] + 0.1 * rng.standard_normal(n))


def network(W, a, b, X):
    return jax.nn.relu(X @ W.T + b) @ a


@pytest.mark.slow
def test_symmetric_start_is_the_zero_function_and_its_gradient_is_autodiffs(x64):
    X, y = data(50)
    W, a = algorithm.symmetric_start(jax.random.key(0), WIDTH, D)
    assert float(jnp.abs(network(W, a, 0.0, X)).max()) < WIDTH * 1e-15 * 10
    autodiff = jax.grad(lambda W: jnp.mean((network(W, a, 0.0, X) - y) ** 2))(W)
    # Sums of 50 terms of size 10: rounding 1e-14.
    np.testing.assert_allclose(algorithm.first_gradient(W, a, X, y), autodiff, atol=1e-13)
    b = jnp.tile(jnp.linspace(-1, 1, WIDTH // 2), 2)
    autodiff = jax.grad(lambda W: jnp.mean((network(W, a, b, X) - y) ** 2))(W)
    np.testing.assert_allclose(algorithm.first_gradient(W, a, X, y, biases=b), autodiff, atol=1e-13)
    with pytest.raises(ValueError, match="7; use 8"):
        algorithm.symmetric_start(jax.random.key(0), 7, D)


@pytest.mark.slow_cases("rms")
@pytest.mark.parametrize("scale", ["rms", "sqrt_d"])
def test_features_are_the_decayed_step_of_algorithm_one(x64, scale):
    """W⁰ - η1(∇L + W⁰/η1), on labels less their linear part, whatever the scale."""
    X, y = data(60)
    key = jax.random.key(3)
    found = algorithm.learn_features(X, y, width=WIDTH, step_size=0.7, scale=scale, key=key)
    W0, a0 = algorithm.symmetric_start(jax.random.split(key)[0], WIDTH, D)
    alpha, beta = y.mean(), (y[:, None] * X).mean(0)
    G = algorithm.first_gradient(W0, a0, X, y - alpha - X @ beta)
    eta = 0.7 / float(jnp.sqrt((G**2).sum(1).mean())) if scale == "rms" else 0.7 * math.sqrt(D)
    np.testing.assert_allclose(found.W, W0 - eta * (G + W0 / eta), atol=1e-12)
    np.testing.assert_allclose(found.linear(X), alpha + X @ beta, atol=1e-13)
    assert bool(jnp.all(algorithm.first_step(jnp.zeros((4, D))) == 0))  # no gradient, no NaN
    with pytest.raises(ValueError, match="'rows'"):
        algorithm.first_step(G, scale="rows")


@pytest.mark.slow
def test_population_gradient_is_the_mean_of_sample_gradients(x64):
    task = quadratic_plus(D, 4)
    W, a = algorithm.symmetric_start(jax.random.key(1), 4, D)
    links = np.array([[0, 0, math.sqrt(0.5), 0, math.sqrt(0.5)]])
    exact = gradients.population_gradient_terms(gradients.additive_tensors(links), task.subspace, W, a).sum(0)
    draw = jax.jit(lambda key: algorithm.first_gradient(W, a, *(lambda s: (s.X, s.y))(task.sample(key, 4096))))
    sample = np.stack([draw(k) for k in jax.random.split(jax.random.key(2), 40)])
    error = sample.std(0, ddof=1) / math.sqrt(40)
    # 12 distinct entries (pairs are copies), t with 39 degrees of freedom: 5 standard errors, chance 2e-4.
    assert np.all(np.abs(sample.mean(0) - np.asarray(exact)) < 5 * error)


@pytest.mark.parametrize("n", [60, 15])
@pytest.mark.parametrize("traced", [False, True])
def test_ridge_path_equals_a_solve_per_ridge(x64, n, traced):
    X, y = data(n)
    Phi = np.asarray(algorithm.random_features(jax.random.key(5), WIDTH, D)(X))
    relative = np.geomspace(1e-6, 10, 4)
    path = (jax.jit(lambda *a: readout.ridge_path(*a)) if traced else readout.ridge_path)(jnp.asarray(Phi), y, relative)
    for rho, found in zip(path.ridges, path.readouts):
        expected = np.linalg.solve(Phi.T @ Phi / n + float(rho) * np.eye(WIDTH), Phi.T @ np.asarray(y) / n)
        # Condition number 1e6 (smallest ridge) times rounding times the size of the head.
        np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())
    scale = np.asarray(path.ridges) / relative
    np.testing.assert_allclose(scale, np.mean(np.sum(Phi**2, 1)), rtol=1e-12)


@pytest.mark.parametrize("n", [60, 15])
def test_leave_one_out_is_refitting_and_gcv_its_definition(x64, n):
    X, y = data(n)
    Phi, y = np.asarray(algorithm.random_features(jax.random.key(5), WIDTH, D)(X)), np.asarray(y)
    path = readout.ridge_path(Phi, y, np.array([1e-4, 1e-1]), errors=True)
    for i, rho in enumerate(np.asarray(path.ridges)):
        left = []
        for k in range(n):
            P, t = np.delete(Phi, k, 0), np.delete(y, k)
            left.append(y[k] - Phi[k] @ np.linalg.solve(P.T @ P + n * rho * np.eye(WIDTH), P.T @ t))
        assert float(path.leave_one_out[i]) == pytest.approx(np.mean(np.square(left)), rel=1e-8)
        hat = Phi @ np.linalg.solve(Phi.T @ Phi + n * rho * np.eye(WIDTH), Phi.T)
        gcv = np.mean((y - hat @ y) ** 2) / np.mean(1 - np.diag(hat)) ** 2
        assert float(path.gcv[i]) == pytest.approx(gcv, rel=1e-8)


@pytest.mark.slow
def test_padding_changes_nothing(x64):
    n, rows = 40, 64
    X, y = data(rows)
    weights = (jnp.arange(rows) < n).astype(y.dtype)
    options = OneStepOptions(relative_ridges=jnp.geomspace(1e-5, 1, 5))
    fit = partial(algorithm.one_step, width=WIDTH, choose="leave-one-out", options=options, key=jax.random.key(0))
    plain, padded = fit(X[:n], y[:n]), fit(X, y, weights=weights)
    traced = jax.jit(lambda X, y, w: fit(X, y, weights=w))(X, y, weights)
    for other in (padded, traced):
        np.testing.assert_allclose(other.features.W, plain.features.W, atol=1e-12)
        # Condition 1e5: heads good to 1e-11; leave-one-out divides by leverages that may be 1e-3.
        np.testing.assert_allclose(other.errors, plain.errors, rtol=1e-6)
        np.testing.assert_allclose(other.predict(X[:5]), plain.predict(X[:5]), atol=1e-8)


def test_float32_decomposes_the_features_accurately():
    """Two columns 1e-3 apart: their difference is 1e-6 of the Gram, near its float32 rounding, and safe in the SVD."""
    rng = np.random.default_rng(0)
    Phi = rng.standard_normal((200, WIDTH))
    y = Phi @ rng.standard_normal(WIDTH)
    Phi[:, 1] = Phi[:, 0] + 1e-3 * Phi[:, 1]
    ridge = 1e-10
    with jax.enable_x64(True):
        expected = np.asarray(readout.ridge_path(Phi, y, np.array([ridge])).readouts) @ Phi.T
    single, target = Phi.astype(np.float32), y.astype(np.float32)
    fitted = np.asarray(readout.ridge_path(single, target, np.array([ridge], np.float32)).readouts, np.float64) @ Phi.T
    # Condition number of Φ is 2e3: fitted values good to about 2e3 × 6e-8 of their size.
    assert np.abs(fitted - expected).max() < 5e-4 * np.abs(expected).max()


@pytest.mark.slow
def test_float32_leave_one_out_sees_every_direction_that_it_fits():
    """Features of small singular values are fitted at small ridges, so leave-one-out must count them."""
    n, width = 150, 200
    X, y = (np.asarray(part, np.float32) for part in data(n))
    features = algorithm.learn_features(jnp.asarray(X), jnp.asarray(y), width=width, key=jax.random.key(0))
    Phi, relative = np.asarray(features(jnp.asarray(X))), np.geomspace(1e-7, 1, 15)
    found = np.asarray(readout.ridge_path(Phi, y, relative.astype(np.float32), errors=True).leave_one_out)
    wide, label = Phi.astype(float), y.astype(float)
    gram, scale, expected, smallest = wide @ wide.T / n, np.sum(wide**2) / n, [], []
    for ridge in relative * scale:
        left = ridge * np.linalg.inv(gram + ridge * np.eye(n))  # 1 - H
        expected.append(np.mean((left @ label / np.diag(left)) ** 2))
        smallest.append(np.diag(left).min())
    # sums of 150 terms of float32 rounding 2^-24, relative to the smallest 1 - h, in numerator, denominator and square
    allowed = 4 * np.sqrt(n) * 2.0**-24 / np.array(smallest) * np.sqrt(np.mean(label**2) / np.array(expected))
    assert allowed[4:].max() < 0.05  # a useful bound, from a ridge of 1e-5 on
    assert np.all(np.abs(found / expected - 1) < allowed)


@pytest.mark.slow
def test_float32_leave_one_out_chooses_a_ridge_that_fits():
    """Without noise: the error at the chosen ridge is within a factor 1.5 of the best of the path (float64: 1.1)."""
    X, y = (np.asarray(part, np.float32) for part in data(2600))
    y = X[:, 0] ** 2 + np.float32(0.5) * X[:, 1]
    fit = algorithm.one_step(X[:600], y[:600], choose="leave-one-out", key=jax.random.key(0))
    with jax.enable_x64(True):
        F = fit.features(jnp.asarray(X[600:])), fit.features.linear(jnp.asarray(X[600:]))
        risks = np.mean((np.asarray(fit.path.readouts) @ np.asarray(F[0]).T + np.asarray(F[1]) - y[600:]) ** 2, 1)
    chosen = np.mean((np.asarray(fit.predict(X[600:])) - y[600:]) ** 2)
    assert chosen < 1.5 * risks.min() and float(fit.ridge) > 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_head_by_descent_equals_the_loop(x64, decay):
    X, y = data(30)
    Phi, n = algorithm.random_features(jax.random.key(5), WIDTH, D)(X), 30
    start = jax.random.rademacher(jax.random.key(1), (WIDTH,), Phi.dtype)
    eta = 0.9 / float(jnp.linalg.eigvalsh(2 * Phi.T @ Phi / n)[-1] + decay)
    a = start
    for _ in range(300):
        a = a - eta * (2 / n * Phi.T @ (Phi @ a - y) + decay * a)
    found = readout.descent_readout(Phi, y, steps=300, step_size=eta, decay=decay, start=start)
    np.testing.assert_allclose(found, a, atol=1e-11)  # 300 steps of rounding 1e-16 at size 10
    limit = readout.descent_readout(Phi, y, steps=1e12, step_size=eta, decay=0.05)
    rho = 0.05 / 2 / float(jnp.sum(Phi**2) / n)  # λ on the gradient is 2ρ on the objective
    np.testing.assert_allclose(limit, readout.ridge_path(Phi, y, jnp.array([rho])).readouts[0], atol=1e-9)


def test_step_puts_the_predicted_energy_into_the_subspace(x64):
    d, n = 32, 4 * 32**2
    task = quadratic_plus(d, 4)

    @jax.jit
    def learn(key, key_sample):
        sample = task.sample(key_sample, n)
        return algorithm.learn_features(sample.X, sample.y, width=256, key=key).W

    energy = [
        float(jnp.sum(W[:, 0] ** 2) / jnp.sum(W**2))
        for W in (learn(jax.random.key(i), jax.random.key(100 + i)) for i in range(6))
    ]
    predicted = gradients.subspace_energy(float(n), d, 1)
    error = np.std(energy, ddof=1) / math.sqrt(6)
    assert abs(np.mean(energy) - predicted) < 4 * error + 0.05  # the formula is leading order: 0.02 off in the tables


def test_criterion_must_be_known(x64):
    X, y = data(20)
    with pytest.raises(ValueError, match="independent points"):
        algorithm.one_step(X, y, width=WIDTH, key=jax.random.key(0))
    with pytest.raises(ValueError, match="'aic'"):
        algorithm.one_step(X, y, width=WIDTH, choose="aic", key=jax.random.key(0))
    with pytest.raises(ValueError, match="0 < low"):
        readout.relative_ridges(0.0)
