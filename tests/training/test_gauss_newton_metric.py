"""Gauss-Newton turns of a metric's directions against least squares written out, and on a direction that is off."""

import numpy as np
import pytest

from unlazy.core.arrays import precision
from unlazy.estimators.named_kernels import unit_kernel
from unlazy.products.metric_gram import cross, metric_gram
from unlazy.solvers.ridge import ridge_coefficients
from unlazy.training.rfm.iteration import DAMPING, free_directions, leading_directions, rotate_directions
from unlazy.training.rfm.split_fits import DeviceSplitFits, HostSplitFits

RNG = np.random.default_rng(5)
N, D, C, MANY = 60, 4, 2, 6
X = RNG.normal(size=(N, D))
FULL, LENGTHS = RNG.normal(size=(3, D)), RNG.uniform(0.5, 1.5, D)


def written_out(L, slopes, residuals, weights):
    """δL by the design matrix as a whole and a general solver."""
    Z, root = X - X.mean(0), np.sqrt(weights)
    F = np.stack([[(g * z if L.ndim == 1 else np.outer(g, z)).ravel() for g in slopes[i]] for i, z in enumerate(Z)])
    F, r = F * root[:, None, None], residuals * root[:, None]
    F, r = F.reshape(residuals.size, -1), r.reshape(-1)
    A = F.T @ F
    return np.linalg.solve(A + DAMPING * np.trace(A) / len(A) * np.eye(len(A)), F.T @ r)


@pytest.mark.parametrize("c", [C, MANY])
@pytest.mark.parametrize("L", [FULL, LENGTHS], ids=["full", "diagonal"])
def test_a_rotation_is_a_least_squares_step(L, c):
    slopes, residuals, w = RNG.normal(size=(N, c, len(L))), RNG.normal(size=(N, c)), RNG.uniform(0.5, 2, N)
    expected = L + written_out(L, slopes, residuals, w).reshape(L.shape)
    # condition of the normal equations below 1e4 (Gaussian design, more rows than unknowns): 1e-16 · 1e4, and room
    expected = np.maximum(expected, 0) if L.ndim == 1 else expected
    np.testing.assert_allclose(rotate_directions(L, X, residuals, slopes, w), expected, rtol=1e-10, atol=1e-11)


def test_zero_slopes_give_no_rotation():
    assert rotate_directions(FULL, X, np.ones((N, C)), np.zeros((N, C, 3))) is FULL


@pytest.mark.slow_cases("ntk")
@pytest.mark.parametrize("name", ["gaussian", "laplace", "ntk", "product_laplace"])
def test_slopes_are_differences_of_the_fit(name):
    kernel, L, h, step = unit_kernel(name), LENGTHS if name == "product_laplace" else FULL, 2.0, 1e-5
    rows = np.arange(0, N, 7)
    Y = RNG.normal(size=(N, C))
    with precision("float64"):
        seen = metric_gram(kernel, X, L)
        alpha, _ = ridge_coefficients(seen.gram(h), Y, 1e-2)
        found = HostSplitFits(kernel, X, N, L).slopes(h, alpha, rows)
        other = DeviceSplitFits(kernel, X, N, L).slopes(h, alpha, rows)
    np.testing.assert_allclose(other, found, rtol=1e-9, atol=1e-9 * np.abs(found).max())
    pinv = 1 / L if L.ndim == 1 else np.linalg.pinv(L)
    for k in range(len(L)):
        move = np.zeros(D)
        if L.ndim == 1:
            move[k] = pinv[k] * step
        else:
            move = pinv[:, k] * step  # a change of x that moves (Lx)_k alone

        def f(Z):
            return cross(kernel, Z, X, L, h) @ alpha

        with precision("float64"):
            differences = (f(X[rows] + move) - f(X[rows] - move)) / (2 * step)
        # central differences: step² times third derivatives, and rounding of f over the step; at a training point a
        # rough kernel has a kink, whose own part is even and so cancels
        np.testing.assert_allclose(found[:, :, k], differences, atol=1e-4 * np.abs(found).max())


def test_a_wrong_direction_is_rotated_to_the_true_one():
    """One step takes the angle to what least squares can know: σ²d/(n E g'²) for its squared sine, in the mean."""
    rng, n, d = np.random.default_rng(0), 600, 8
    X, u = rng.normal(size=(n, d)), np.eye(d)[0]
    y = np.sin(X @ u) + 0.1 * rng.normal(size=n)
    off = (u + 0.15 * np.eye(d)[1])[None]
    off /= np.linalg.norm(off)
    with precision("float64"):
        seen = HostSplitFits(unit_kernel("gaussian"), np.concatenate([X, X[:5]]), n, off)
        found = seen.fit(seen.default_bandwidth, 1e-2, y[:, None], None)
        along = seen.slopes(seen.default_bandwidth, found.alpha, np.arange(n))
    moved = rotate_directions(off, X, found.ridge * found.alpha, along)[0]
    sine2 = 1 - (moved @ u) ** 2 / (moved @ moved)
    slope2 = (1 + np.exp(-2)) / 2  # E cos²(s)
    # mean d·σ²/(n·slope²) = 2.3e-4; five times that is beyond any chance of a χ² with 7 degrees (p < 1e-5)
    assert sine2 < 5 * d * 0.01 / (n * slope2)
    assert sine2 < 0.1 * (1 - (off[0] @ u) ** 2)


def test_only_as_many_directions_as_rows_allow():
    assert free_directions(FULL, D, 79) == 1
    assert free_directions(FULL, D, 10_000) == 3
    assert free_directions(LENGTHS, D, 39) == 0
    assert free_directions(np.ones((50, 300)), 300, 10**6) == 4


def test_leading_directions_have_their_share():
    L = np.diag([0.1, 1.0, 2.0])
    np.testing.assert_array_equal(leading_directions(L, 0.95), L[1:])
    np.testing.assert_array_equal(leading_directions(L, 1.0), L)
    np.testing.assert_array_equal(leading_directions(np.array([2.0, 0.1, 1.0]), 0.95), [2.0, 0.0, 1.0])


@pytest.mark.slow
@pytest.mark.parametrize("c", [C, MANY])
@pytest.mark.parametrize("L", [FULL, LENGTHS], ids=["full", "diagonal"])
def test_an_accelerator_makes_the_same_rotation(L, c):
    """Slopes of the fit and normal equations in one program, for more rows and directions than there are."""
    kernel, h = unit_kernel("product_laplace" if L.ndim == 1 else "laplace"), 2.0
    alpha, residuals, w = RNG.normal(size=(50, c)), RNG.normal(size=(20, c)), RNG.uniform(0.5, 2, 20)
    rows = np.arange(0, 40, 2)
    with precision("float64"):
        along = HostSplitFits(kernel, X, 50, L).slopes(h, alpha, rows)
    gradients = DeviceSplitFits(kernel, X, 50, L, capacity=70).gradients(h, alpha, rows)
    assert gradients.X.shape == (70, D) and gradients.Z.shape == (70, D)
    for free in (1, 2, 3) if L.ndim == 2 else (1,):
        expected = rotate_directions(L, X[rows], residuals, along, w, free)
        found = rotate_directions(L, X[rows], residuals, gradients, w, free)
        # sums of 20·6 terms in float64 and a condition of the normal equations below 1e5
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * np.abs(expected).max())
        assert np.abs(found - L).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ntk", "laplace"])
def test_rows_beyond_those_of_a_fit_do_not_count(name):
    """The programs of an accelerator are for more rows; float32 rows are fitted in float64."""
    kernel, alpha, h = unit_kernel(name), RNG.normal(size=(50, C)), 2.0
    for points in (X, X.astype(np.float32)):
        exact = points.astype(np.float64)
        with precision("float64"):
            expected = HostSplitFits(kernel, exact, 50, FULL).agop(h, alpha, False)
        found = DeviceSplitFits(kernel, points, 50, FULL, capacity=70).agop(h, alpha, False)
        # sums of 50 terms in float64, and cancellation of gradients by at most a hundred
        np.testing.assert_allclose(found, expected, rtol=0, atol=50 * 100 * 2.0**-53 * np.abs(expected).max())
