"""rates_transfer: trials against NumPy and against a polynomial, claims that can fail, and the quick sweep."""

import math

import jax
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import rates_transfer as rt


def start(width, kind, optimizer, seed=0):
    """Data, initial weights and multipliers in NumPy."""
    X, y, normal = rt.draw(jax.random.key(seed), width)
    deviations, multipliers = rt.scales(width, kind, optimizer)
    return np.asarray(X), np.asarray(y), [s * np.asarray(W) for s, W in zip(deviations, normal)], multipliers


def gradients(weights, X, y):
    """Gradients of half the mean of squares for three linear layers, written out."""
    W1, W2, W3 = weights
    error = ((X @ W1.T @ W2.T @ W3.T)[:, 0] - y) / len(y)
    moment = error @ X  # derivative with respect to the product of the layers
    return [np.outer(W2.T @ W3[0], moment), np.outer(W3[0], W1 @ moment), (W2 @ W1 @ moment)[None]]


def made_up(power=0.0, standard_power=-1.03, least=0.3):
    """Losses with a basin around least·(n/64)^power; 8 seeds that differ by a twentieth."""
    rows = []
    for optimizer in ("gradient descent", "adam"):
        for n in rt.WIDTHS:
            for seed in range(8):
                x = np.log(rt.RATES / least) + 0.05 * math.sin(seed)
                both = (x - power * np.log(n / 64), x - standard_power * np.log(n / 64))
                measures = {kind: np.exp(0.5 * v**2 - 3) for kind, v in zip(rt.NAMES, both)}
                rows.append(Record({"optimizer": optimizer, "width": n, "steps": 3}, seed, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    # the logarithm of the loss is a parabola, so that the best rate is exact, and the midpoint by symmetry
    assert {c.verdict for c in rt.claims(made_up())} == {"holds"}
    failed = rt.claims(made_up(power=-0.5, standard_power=-0.5))
    assert [c.verdict for c in failed] == ["does not hold"] * 8
    assert len(rt.figure(made_up()).axes) == 3


def test_a_basin_at_the_end_of_the_grid_decides_nothing():
    assert math.isnan(rt.best_rate(rt.RATES)) and math.isnan(rt.basin_midpoint(rt.RATES))
    assert {c.verdict for c in rt.claims(made_up(least=2**3))} == {"undecided"}


def test_midpoint_of_a_parabola_and_of_a_wall():
    rates = 2.0 ** np.arange(-12, 13) / 2
    # exp(x²) around 1/2: symmetric, also after interpolation
    assert rt.basin_midpoint(np.exp(np.log(rates / 0.5) ** 2), rates, 2.0) == pytest.approx(0.5)
    wall = np.where(rates > 1, np.nan, 1 / rates)
    # 1/rate is within 2 of its least, at 1, down to 1/2; diverged above 1
    assert rt.basin_midpoint(wall, rates, 2.0) == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("kind", list(rt.NAMES))
def test_gradient_descent_agrees_with_numpy(x64, kind):
    """Three steps amplify rounding by no more than the loss: 1e-16 times a few hundred at rates that do not diverge."""
    X, y, weights, multipliers = start(8, kind, "gradient descent")
    rates = rt.RATES[::4]
    params = {"optimizer": "gradient descent", "width": 8, "steps": 3}
    found = np.asarray(rt.trial(params, jax.random.key(0))[kind])[::4]
    expected = []
    for rate in rates:
        moved = weights
        for _ in range(3):
            moved = [W - rate * m * G for W, m, G in zip(moved, multipliers, gradients(moved, X, y))]
        error = (X @ moved[0].T @ moved[1].T @ moved[2].T)[:, 0] - y
        expected.append(error @ error / (y @ y))
    calm = np.array(expected) < 10
    assert calm.sum() >= 4
    np.testing.assert_allclose(found[calm], np.array(expected)[calm], rtol=1e-9)


@pytest.mark.parametrize("kind", list(rt.NAMES))
def test_best_rate_of_one_step_is_the_root_of_a_polynomial(x64, kind):
    """After one step outputs are a cubic of the rate: least loss at a root of a polynomial of degree 5, no grid."""
    width = 64
    X, y, weights, multipliers = start(width, kind, "gradient descent")
    changes = [-m * G for m, G in zip(multipliers, gradients(weights, X, y))]
    product = [X]  # coefficients of the hidden values in powers of the rate
    for W, D in zip(weights, changes):
        terms = [np.zeros((len(X), len(W))) for _ in range(len(product) + 1)]
        for i, H in enumerate(product):
            terms[i] += H @ W.T
            terms[i + 1] += H @ D.T
        product = terms
    error = np.stack([H[:, 0] for H in product])
    error[0] -= y
    loss = sum(np.polynomial.Polynomial(error[:, i]) ** 2 for i in range(len(y)))
    roots = loss.deriv().roots()
    candidates = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0)].real
    exact = candidates[np.argmin(loss(candidates))]
    params = {"optimizer": "gradient descent", "width": width, "steps": 1}
    found = np.asarray(rt.trial(params, jax.random.key(0))[kind])
    np.testing.assert_allclose(found[10:20], loss(rt.RATES[10:20]) / (y @ y), rtol=1e-9)
    # the best rate of the grid is at most a step from the exact one
    assert abs(math.log2(rt.best_rate(found) / exact)) <= 0.5


@pytest.mark.parametrize("optimizer", ["gradient descent", "adam"])
def test_multipliers_meet_the_spectral_condition(optimizer):
    """The hidden update keeps its spectral norm as the width grows: rate times norm of the step without it."""
    norms = []
    for width in (64, 512):
        X, y, weights, multipliers = start(width, "maximal_update", optimizer)
        step = gradients(weights, X, y)[1]
        step = np.sign(step) if optimizer == "adam" else step
        norms.append(np.linalg.norm(multipliers[1] * step, 2))
    # the weights are random: relative deviations of a few times √(2/64)
    assert norms[1] / norms[0] == pytest.approx(1.0, abs=0.5)


def test_widths_share_the_data(x64):
    small, large = (rt.draw(jax.random.key(1), n) for n in (8, 16))
    np.testing.assert_array_equal(small[0], large[0])
    np.testing.assert_array_equal(small[1], large[1])


@pytest.mark.nightly
def test_quick_holds():
    records = run(rt.experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in rt.experiment.claims(records)} == {"holds"}
