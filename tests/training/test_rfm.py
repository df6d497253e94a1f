"""`recursive_features` against the same written out in NumPy, gradients against automatic ones; the solvers' way
against the exact one; weights, outputs, kinds of metric; misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy import MLP, NNGP, NTK, Gaussian, Laplace, Matern, NystromCG, ProductLaplace, recursive_features
from unlazy.core.results import Predictor, Trajectory
from unlazy.training.options import RFMOptions
from unlazy.training.rfm import large_n_fit


def fixed(**options):
    """A bandwidth and a ridge that are not searched for."""
    return {"relative_ridge": 1e-2, "options": RFMOptions(relative_bandwidth=1.0, **options)}


def data(n=60, d=4, c=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    Y = np.stack([np.sin(2 * X[:, 0]), X[:, 0] * X[:, 1], X[:, 2]], 1)[:, :c]
    return X, Y


def written_out(X, Y, w, h_factor, rho, updates):
    """The Gaussian machine in NumPy: distances, the bordered system, ∇f one point at a time."""
    n, d = X.shape
    M, found = np.eye(d) / d, []
    for _ in range(updates + 1):
        difference = X[:, None] - X[None]
        D = np.einsum("ijk,kl,ijl->ij", difference, M, difference)
        h = h_factor * np.sqrt(np.median(D[np.triu_indices(n, 1)]))
        K = np.exp(-D / (2 * h * h))
        bordered = np.block([[K + np.diag(rho / w), np.ones((n, 1))], [np.ones((1, n)), np.zeros((1, 1))]])
        alpha = np.linalg.solve(bordered, np.vstack([Y, np.zeros((1, Y.shape[1]))]))[:n]
        found.append((M, alpha))
        G = np.stack([-(K[i, :, None] * alpha).T @ (X[i] - X) @ M / h**2 for i in range(n)])
        M = np.einsum("i,icj,ick->jk", w, G, G)
        M = M / np.trace(M)
    return found


@pytest.mark.parametrize("weighted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_equals_the_formula_written_out(weighted):
    """K + ρW⁻¹ has a condition of at most 2n/ρ: its rounding, n·2^-53, comes back so many times larger from every fit,
    and from there into the next metric."""
    X, Y = data()
    w = np.random.default_rng(1).uniform(0.5, 2, 60) if weighted else None
    machine = recursive_features(Gaussian(1.0), X, Y, updates=2, weights=w, **fixed())
    expected = written_out(X, Y, np.ones(60) if w is None else w, 1.0, 1e-2, 2)
    tolerance = 3 * 60 * 2.0**-53 * 2 * 60 / 1e-2
    for one, (M, alpha) in zip(machine.iterates, expected, strict=True):
        np.testing.assert_allclose(one.matrix, M, rtol=0, atol=tolerance)
        np.testing.assert_allclose(one.alpha, alpha, rtol=0, atol=tolerance * np.abs(alpha).max())
    assert machine.metric is machine.iterates[-1].matrix and machine.metric.dtype == np.float64
    assert isinstance(machine, Predictor) and isinstance(machine, Trajectory) and machine.evidence.converged
    assert machine.evidence.notes == (
        "bandwidth 1 times the default, ridge 0.01 times the mean of k(x, x), given by the user",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel, method",
    [
        (NTK(MLP(3, sigma_b=1.0)), None),
        (NTK(MLP(3, sigma_b=1.0)), "preconditioned_cg"),
        (NNGP(MLP(2, sigma_b=0.5)), None),
        (Laplace(1.0), None),
        (Matern(smoothness=2.5), None),
    ],
)
def test_gradients_equal_autodiff(x64, kernel, method):
    """∇f(x_i) = Σ_{j≠i} α_j ∇k(x_i, x_j) + ½ α_i ∇k(x_i, x_i), the last by symmetry: a kink has no slope to either
    side. Gradients of 40 terms: 40 roundings of float64 times a condition of the near-diagonal formulas of 1e3."""
    X, Y = data(40)
    machine = recursive_features(kernel, X, Y, updates=1, **fixed(method=method, tolerance=1e-8))
    first, seen = machine.iterates[0], machine.kernel_at(0)
    slope = jax.jit(jax.vmap(jax.grad(lambda x, z: seen.gram(x[None], z[None])[0, 0]), (None, 0)))
    own = jax.jit(jax.grad(lambda x: seen.diag(x[None])[0] / 2))
    total = np.zeros((4, 4))
    for i in range(40):
        others = np.arange(40) != i
        G = np.asarray(slope(X[i], jnp.asarray(X[others]))).T @ first.alpha[others]
        G += np.outer(own(X[i]), first.alpha[i])
        total += G @ G.T
    size = 1e3 * 40 * 2.0**-53 * np.abs(first.alpha).sum() ** 2 / np.trace(total)
    np.testing.assert_allclose(machine.iterates[1].matrix, total / np.trace(total), rtol=0, atol=size)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_solvers_reach_the_exact_metric(monkeypatch, weighted):
    """A residual r = tolerance·‖y‖ of (K + ρ)α = y moves α by at most r/ρ and ∇f by √n·r/ρ times the largest slope of
    the kernel, e^-½/h under L; M moves twice as much relative to the gradients."""
    X, Y = data(100)
    w = np.random.default_rng(1).uniform(0.5, 2, 100) if weighted else None
    tolerance, rho = 1e-10, 1e-2
    exact = recursive_features(Gaussian(1.0), X, Y, updates=1, weights=w, **fixed())
    monkeypatch.setattr(large_n_fit, "EXACT", 50)
    monkeypatch.setattr(large_n_fit, "EXACT_DEVICE", 50)
    monkeypatch.setattr("unlazy.solvers.method_selection.FLOAT64_DIRECT_MAX_N", 50)
    monkeypatch.setattr("unlazy.solvers.method_selection.CPU_DIRECT_MAX_N", 50)
    monkeypatch.setattr("unlazy.solvers.method_selection.GPU_DIRECT_MAX_N", 50)
    iterated = recursive_features(Gaussian(1.0), X, Y, updates=1, weights=w, **fixed(tolerance=tolerance))
    assert (exact.evidence.description.method, iterated.evidence.description.method) == (
        "factorization",
        "preconditioned_cg",
    )
    assert iterated.evidence.converged
    first = exact.iterates[0]
    steepest = np.linalg.norm(first.map, 2) / first.bandwidth
    largest = 1.0 if w is None else w.max()
    moved = np.sqrt(100) * tolerance * largest * np.linalg.norm(Y) / rho * steepest
    G = unlazy.products.gradient(exact.kernel_at(0), X, X, first.alpha)
    assert moved < 1e-4 * np.linalg.norm(G)  # a useful bound
    atol = 4 * moved / np.linalg.norm(G) * 10
    np.testing.assert_allclose(iterated.metric, exact.metric, rtol=0, atol=atol)
    np.testing.assert_allclose(iterated.iterates[0].intercept, first.intercept, rtol=0, atol=moved)


@pytest.mark.slow
def test_weight_two_equals_repeating_the_row():
    """Rounding as above, with K of a repeated row."""
    X, Y = data(30)
    w = np.ones(30)
    w[:10] = 2
    w[10] = 0

    def fit(X, y, relative_bandwidth=1.0, weights=None):
        options = RFMOptions("diagonal", relative_bandwidth=relative_bandwidth)
        return recursive_features(
            ProductLaplace(1.0), X, y, updates=1, relative_ridge=1e-2, weights=weights, options=options
        )

    rows = np.concatenate([np.delete(np.arange(30), 10), np.arange(10)])
    once, twice = fit(X, Y[:, 0], weights=w), fit(X[rows], Y[rows, 0])
    # the usual bandwidth counts pairs, and pairs of copies are none: ask for the same one
    twice = fit(X[rows], Y[rows, 0], once.iterates[0].bandwidth / twice.iterates[0].bandwidth)
    np.testing.assert_allclose(twice.metric, once.metric, rtol=0, atol=40 * 2.0**-53 * 4 * 40 / 1e-2)
    assert once.predict(X).shape == (30,) and once.kernel_at().gram(X).shape == (30, 30)


def test_kinds_of_metric_and_powers():
    X, Y = data(60)
    cut = recursive_features(Gaussian(1.0), X, Y, updates=1, **fixed(rank=2))
    full = recursive_features(Gaussian(1.0), X, Y, updates=1, **fixed()).metric
    assert np.linalg.matrix_rank(cut.metric) == 2 and cut.iterates[1].map.shape == (2, 4)
    slow = recursive_features(Gaussian(1.0), X, Y, updates=1, **fixed(power=[0.5])).metric
    values = np.sqrt(np.linalg.eigvalsh(full))
    np.testing.assert_allclose(np.linalg.eigvalsh(slow), values / values.sum(), rtol=1e-6)
    begun = recursive_features(Gaussian(1.0), X, Y, updates=0, **fixed(start=full))
    np.testing.assert_allclose(begun.metric, full, atol=1e-15)


@pytest.mark.slow
def test_bandwidth_and_ridge_are_chosen_and_reported():
    X, Y = data(200, c=1)
    machine = recursive_features(Gaussian(1.0), X, Y[:, 0] + 5, updates=3)
    assert "by leave-one-out of 200 rows before the first update" in machine.evidence.notes[-1]
    Z, truth = data(100, c=1, seed=1)
    errors = np.mean((machine.predict(Z, [0, 3]) - truth[:, 0] - 5) ** 2, 1)
    assert errors[1] < 0.5 * errors[0] and machine.metric[0, 0] > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_some_rows_as_centers(weighted):
    X, Y = data(600)
    w = np.random.default_rng(1).uniform(0.5, 2, 600) if weighted else None
    machine = recursive_features(Laplace(1.0), X, Y, updates=2, weights=w, **fixed(method=NystromCG(centers=200)))
    assert all(one.centers.shape == (200, 4) for one in machine.iterates)
    assert machine.evidence.description.method == "nystrom_cg" and np.trace(machine.metric[:2, :2]) > 0.95
    Z, truth = data(100, seed=1)
    before, after = np.mean((machine.predict(Z, [0, 2]) - truth) ** 2, (1, 2))
    assert after < before < truth.var()


@pytest.mark.slow
@pytest.mark.nightly
def test_twenty_thousand_rows_find_the_direction():
    """|cosine| with the index direction after two updates; at random it would be about 1/√20 = 0.22."""
    rng = np.random.default_rng(0)
    X, u = rng.normal(size=(20_000, 20)), rng.normal(size=20)
    u /= np.linalg.norm(u)
    t = X @ u
    y = (t**2 - 1) / 2 + (t**4 - 6 * t**2 + 3) / np.sqrt(48) + 0.3 * rng.normal(size=20_000)
    options = RFMOptions(tolerance=1e-2, gradients=2000, relative_bandwidth=1.0)
    machine = recursive_features(Gaussian(1.0), X, y, updates=2, relative_ridge=1e-1, options=options)
    assert machine.evidence.description.method != "factorization" and machine.evidence.converged
    assert abs(np.linalg.eigh(machine.metric)[1][:, -1] @ u) > 0.99


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"updates": -1}, "updates must be a positive integer, got -1"),
        ({"options": RFMOptions(power=[1.0])}, "5 updates need 5 powers, got 1"),
        ({"relative_ridge": 0.0}, "relative_ridge must be positive or None"),
        ({"weights": [1.0, -1.0]}, "weights must be 60 numbers of at least zero"),
        ({"kernel": Gaussian(1.0) + ProductLaplace(1.0)}, "no entry formula"),
        ({"X": [[np.nan] * 4] * 60}, "NaN or infinity in 60 rows"),
    ],
)
def test_misuse(wrong, says):
    X, Y = data()
    given = {"kernel": Gaussian(1.0), "X": X, "y": Y, **wrong}
    with pytest.raises(ValueError, match=says):
        recursive_features(given.pop("kernel"), given.pop("X"), given.pop("y"), **given)
