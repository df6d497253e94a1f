"""watch_is_right: a trial against NumPy, the quick configuration, and claims that notice wrong verdicts."""

from dataclasses import replace

import jax
import jax.flatten_util
import numpy as np
import pytest

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import watch_is_right as wr

FIXED = {"width": 32, "steps": 200}


def made_up(gap, difference, failed=()):
    """Runs over three decades of α with a gap and D that depend on it; the gap is reached at once."""
    rows = []
    for architecture in wr.ARCHITECTURES:
        for i, alpha in enumerate(np.geomspace(0.03, 30, 20)):
            measures = {
                "gaps": np.full(8, gap(alpha)), "difference": np.float64(difference(alpha)),
                "loss": np.float64(1.0 if i in failed else 0.01), "initial_loss": np.float64(0.5),
            }  # fmt: skip
            params = {"architecture": architecture, "optimizer": "adam", "alpha": alpha, **FIXED}
            rows.append(Record(params, 0, measures))
    return Records(rows)


def saturating(alpha):
    """From 1 at small α to 0 at large α."""
    return 1 / (1 + 2 * alpha)


def verdicts(records):
    return [claim.verdict for claim in wr.claims(records)]


def test_claims_hold_where_the_gap_is_the_difference():
    good = made_up(saturating, saturating)
    # equal gap and D disagree only between the thresholds 0.5 and 0.6: α = 0.33 … 0.5, one of 20 values of α
    assert verdicts(good) == ["holds"] * 6
    assert len(wr.figure(good).axes) == 2


@pytest.mark.parametrize(
    "gap, difference, wrong",
    [
        (saturating, lambda a: 1 - saturating(a), {1, 2, 3, 4}),  # the opposite regime
        (lambda a: 1e-3 * saturating(a), saturating, {2, 3, 4}),  # always said to be lazy
        (lambda a: 1 - saturating(a), lambda a: 1 - saturating(a), {5}),  # richer as α grows
    ],
)
def test_claims_notice_wrong_verdicts(gap, difference, wrong):
    found = verdicts(made_up(gap, difference))
    assert {i for i, verdict in enumerate(found) if verdict == "does not hold"} == wrong


def test_failed_runs_do_not_count_but_are_claimed():
    some = made_up(saturating, lambda a: 1.0 if a < 0.1 else saturating(a), failed=range(4))
    assert verdicts(some)[0] == "does not hold"
    assert wr.trained(some).sum() == 16 * len(wr.ARCHITECTURES)


def test_a_trial_computes_the_gap_and_the_difference(x64):
    """At most rounding apart from plain loops in float64; 20 steps of descent do not amplify it."""
    params = {"architecture": "fully connected", "optimizer": "gradient descent", "alpha": 0.5, "width": 8, "steps": 20}
    key = jax.random.key(3)
    found = wr.trial(params, key)
    key_data, key_start = jax.random.split(key)
    X, y = wr.sample(key_data, wr.TRAIN + wr.TEST + wr.PROBES)
    X, y = np.asarray(X), np.asarray(y[: wr.TRAIN])
    train, test, probe = np.split(X, (wr.TRAIN, wr.TRAIN + wr.TEST))
    network = wr.Network(wr.DESCRIPTIONS["fully connected"], wr.SHAPE, width=8)
    (start,) = wr.draw_parameters((network,), key_start)
    flat, unravel = jax.flatten_util.ravel_pytree(start)
    f = jax.jit(lambda v, X: network(unravel(v), X.reshape(-1, *wr.SHAPE)))
    jacobian = jax.jit(jax.jacobian(f))
    J, start = {len(Z): np.asarray(jacobian(flat, Z)) for Z in (train, test)}, np.asarray(flat)
    J_probe = np.asarray(jacobian(flat, probe))
    rate = wr.SAFETY / np.linalg.eigvalsh(J[wr.TRAIN] @ J[wr.TRAIN].T / wr.TRAIN)[-1]
    alpha, theta, linear = params["alpha"], start.copy(), np.zeros_like(start)
    for _ in range(params["steps"]):
        F = alpha * (np.asarray(f(theta, train)) - np.asarray(f(start, train)))
        theta = theta - rate / alpha**2 * alpha * np.asarray(jacobian(theta, train)).T @ (F - y) / wr.TRAIN
        linear = linear - rate * J[wr.TRAIN].T @ (J[wr.TRAIN] @ linear - y) / wr.TRAIN
    change = np.asarray(f(theta, probe)) - np.asarray(f(start, probe))
    gap = np.linalg.norm(change - J_probe @ (theta - start)) / np.linalg.norm(change)
    F = alpha * (np.asarray(f(theta, test)) - np.asarray(f(start, test)))
    # the step size comes from Lanczos iterations, which know λ_max to about 1e-3; both values move by as much at most
    assert float(found["gaps"][-1]) == pytest.approx(gap, rel=1e-2)
    difference = np.linalg.norm(F - J[wr.TEST] @ linear) / np.linalg.norm(F)
    assert float(found["difference"]) == pytest.approx(difference, rel=1e-2)


@pytest.mark.nightly
def test_quick_orders_the_runs():
    records = run(wr.experiment, engine="inline", store=None, progress=False)
    found = wr.experiment.claims(records)
    assert "does not hold" not in {claim.verdict for claim in found}
    shifted = Records(
        replace(r, measures={**r.measures, "difference": 1.2 - r.measures["difference"]}) for r in records
    )
    assert "does not hold" in {claim.verdict for claim in wr.experiment.claims(shifted)}
