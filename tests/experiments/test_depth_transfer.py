"""depth_transfer: a trial against NumPy, the linearization of a block, claims that can fail, and the quick sweep."""

import math

import jax
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import depth_transfer as dt

THEORY = {
    (1.0, 0): (0.0, 0.0),
    (0.5, 0): (-0.5, -0.5),
    (0.0, 0): (-1.0, -0.5),
    (0.5, 1): (0.0, -0.5),
    (0.0, 1): (0.0, -1),
}
"""Exponents of midpoint and share in L, by power and correction."""


def made_up(exponents):
    """Runs with a basin around L^(first exponent) and a share that falls as L^(second exponent); 8 seeds."""
    rows = []
    for (power, corrected), (rate, share) in exponents.items():
        for depth in dt.DEPTHS:
            for seed in range(8):
                x = np.log(dt.RATES / 0.5) - rate * np.log(depth / 4) + 0.05 * math.sin(seed)
                loss = np.exp(0.5 * x**2 - 3)
                measures = {"run": loss, "end": loss, "share": np.full(len(x), 0.7 * (depth / 4) ** share)}
                rows.append(Record({"power": power, "corrected": corrected, "blocks": depth}, seed, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    good = dt.claims(made_up(THEORY))
    assert len(good) == 12 and {c.verdict for c in good} == {"holds"}
    assert len(dt.figure(made_up(THEORY)).axes) == 3
    # what is fixed moves, and what falls stays
    turned = {case: (-0.5 if case == (1.0, 0) else 0.0, -0.9 if case == (1.0, 0) else 0.0) for case in THEORY}
    assert {c.verdict for c in dt.claims(made_up(turned))} == {"does not hold"}


def test_without_corrected_rates_there_are_fewer_claims():
    raw = {case: v for case, v in THEORY.items() if case[1] == 0}
    assert len(dt.claims(made_up(raw))) == 10
    assert len(dt.figure(made_up(raw)).axes) == 3


def numpy_loss(theta, X, y, branch):
    """Half the mean of squares, its gradients by hand, and the inputs of every block."""
    h, kept = X @ theta["input"].T, []
    for A, B in zip(theta["A"], theta["B"]):
        kept.append((h, np.tanh(h @ A.T)))
        h = h + branch * kept[-1][1] @ B.T
    error = (h @ theta["output"] - y) / len(y)
    gradient = {name: np.zeros_like(v) for name, v in theta.items()}
    gradient["output"] = error @ h
    back = np.outer(error, theta["output"])
    for i in reversed(range(len(theta["A"]))):
        h, phi = kept[i]
        gradient["B"][i] = branch * back.T @ phi
        inner = branch * (back @ theta["B"][i]) * (1 - phi**2)
        gradient["A"][i] = inner.T @ h
        back = back + inner @ theta["A"][i]
    gradient["input"] = back.T @ X
    return 0.5 * len(y) * error @ error, gradient, [h for h, _ in kept]


@pytest.mark.parametrize("power, corrected", [(1.0, 0), (0.5, 1)])
def test_a_trial_agrees_with_numpy(x64, power, corrected):
    """Adam written out: losses and nonlinear share. At rates up to 1/2 four steps do not amplify rounding."""
    blocks, width, steps = 6, 4, 4
    params = {"blocks": blocks, "width": width, "steps": steps, "power": power, "corrected": corrected}
    found = jax.device_get(jax.jit(lambda key: dt.trial(params, key))(jax.random.key(2)))
    X, y, start = jax.device_get(dt.draw(jax.random.key(2), blocks, width))
    start = {"input": start["input"], "output": start["output"], "A": start["blocks"][0], "B": start["blocks"][1]}
    hidden = (blocks / 4) ** (power - 1 if corrected else 0) / width
    multiplier = {"input": 1 / 8, "output": 1 / width, "A": hidden, "B": hidden}
    branch = blocks**-power
    for column in (4, 16):
        theta, path = dict(start), []
        first, second = ({name: np.zeros_like(v) for name, v in start.items()} for _ in range(2))
        for t in range(1, steps + 1):
            gradient = numpy_loss(theta, X, y, branch)[1]
            for name, g in gradient.items():
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g**2
                change = first[name] / (1 - 0.9**t) / (np.sqrt(second[name] / (1 - 0.999**t)) + dt.EPS)
                theta[name] = theta[name] - dt.RATES[column] * multiplier[name] * change
            path.append(numpy_loss(theta, X, y, branch)[0])
        assert found["run"][column] == pytest.approx(np.mean(path), rel=1e-7)
        assert found["end"][column] == pytest.approx(path[-1], rel=1e-7)
        shares = []
        for i, h in enumerate(numpy_loss(theta, X, y, branch)[2]):
            A, B, P, Q = start["A"][i], start["B"][i], theta["A"][i], theta["B"][i]
            phi = np.tanh(h @ A.T)
            change = np.tanh(h @ P.T) @ Q.T - phi @ B.T
            linear = phi @ (Q - B).T + ((1 - phi**2) * (h @ (P - A).T)) @ B.T
            shares.append(np.linalg.norm(change - linear) / np.linalg.norm(change))
        assert found["share"][column] == pytest.approx(np.mean(shares), rel=1e-6)


def test_share_is_linear_in_a_small_change(x64):
    """Second-order terms over first-order ones: halved by half the change."""
    _, _, theta = dt.draw(jax.random.key(0), 1, 8)
    start = tuple(W[0] for W in theta["blocks"])
    moves = tuple(jax.random.normal(jax.random.key(i), W.shape) for i, W in enumerate(start))
    h = jax.random.normal(jax.random.key(5), (16, 8))
    small, large = (
        float(dt.nonlinear_share(start, tuple(W + e * D for W, D in zip(start, moves)), h)) for e in (5e-4, 1e-3)
    )
    assert large / small == pytest.approx(2.0, rel=1e-2)  # the next order is 1e-3 times numbers of order 1
    assert small < 1e-2


def test_depths_share_the_data(x64):
    few, many = (dt.draw(jax.random.key(1), blocks, 4) for blocks in (2, 5))
    np.testing.assert_array_equal(few[0], many[0])
    np.testing.assert_array_equal(few[1], many[1])


@pytest.mark.nightly
def test_quick_holds():
    records = run(dt.experiment, engine="inline", store=None, progress=False)
    assert "does not hold" not in {c.verdict for c in dt.experiment.claims(records)}
