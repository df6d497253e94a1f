"""influence_is_right: parts of a trial against NumPy, claims that notice wrong scores, and the quick sweep."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import spearmanr

from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import influence_is_right as ir

RNG = np.random.default_rng(0)


def made_up(lds=lambda gap, decay: 0.93 - 0.3 * gap, gain=0.03, ridge=0.93):
    """Two seeds of every setting of the full grid; LDS falls with the gap, and is lower without decay."""
    rows = []
    for params in ir.experiment.full.points():
        alpha, decay, first = params["alpha"], params["decay"], params["steps"] == 100
        gap = 1 / (1 + 4 * alpha) * (0.5 if first else 1.0)
        value = lds(gap, decay) if decay else 0.3 + (0.3 if first else 0.0)
        value -= gain * (alpha / 30) if first and decay else 0.0
        for seed in range(2):
            measures = {
                "lds": value + 0.001 * seed, "gap": gap, "local_gap": 0.1, "ridge": ridge if decay else np.nan,
                "error": abs(decay - 0.1),
            }  # fmt: skip
            rows.append(Record(params, seed, {k: np.float64(v) for k, v in measures.items()}))
    return Records(rows)


def verdicts(**changes):
    return [claim.verdict for claim in ir.claims(made_up(**changes))]


def failing(**changes):
    return {i for i, verdict in enumerate(verdicts(**changes)) if verdict != "holds"}


def test_claims_hold_where_influence_is_that_of_ridge_regression():
    assert verdicts(gain=0.3) == ["holds"] * 7
    assert len(ir.figure(made_up()).axes) == 2


@pytest.mark.parametrize(
    "changes, wrong",
    [
        ({"lds": lambda gap, decay: 0.8 - 0.3 * gap}, {0, 1}),  # useless where it should be exact
        ({"ridge": 0.5}, {1}),
        ({"lds": lambda gap, decay: 0.9 + 0.05 * gap}, {2, 3}),  # better the less linear
        ({"lds": lambda gap, decay: 0.2 - 0.3 * gap, "ridge": 0.2}, {0, 4}),  # better without decay
        ({"gain": -0.3}, {5}),  # worse when converged
    ],
)
def test_claims_notice_what_is_wrong(changes, wrong):
    assert failing(**{"gain": 0.3} | changes) == wrong


def test_training_for_longer_without_decay_must_hurt():
    rows = []
    for r in made_up(gain=0.3):
        steps = r.params["steps"] if r.params["decay"] else 2100 - r.params["steps"]  # 100 and 2000 swapped
        rows.append(replace(r, params=r.params | {"steps": steps}))
    records = Records(rows)
    assert ir.claims(records)[6].verdict == "does not hold"


def test_ridge_score_is_that_of_finite_differences():
    """Scores: derivatives of the solution by the weight of each row; the truth: refits. Ranks leave no tolerance."""
    n, p, q, decay = 12, 20, 3, 0.2
    J, J_queries, y = RNG.normal(size=(n, p)), RNG.normal(size=(q, p)), RNG.normal(size=n)
    halves = np.stack([np.sort(RNG.permutation(n)[: n // 2]) for _ in range(9)])

    def refit(weights, ridge):
        u = np.linalg.solve(J.T @ (weights[:, None] * J) + ridge * np.eye(p), J.T @ (weights * y))
        return J_queries @ u

    ones, step = np.ones(n), 1e-5
    scores = np.stack([
        (refit(ones + step * e, n * decay / 2) - refit(ones - step * e, n * decay / 2)) / (2 * step) for e in np.eye(n)
    ], 1)  # fmt: skip
    truth = np.stack([refit(np.isin(np.arange(n), half).astype(float), n // 2 * decay / 2) for half in halves])
    expected = np.mean([spearmanr(scores[i, halves].sum(1), truth[:, i]).statistic for i in range(q)])
    assert ir.ridge_score(J, J_queries, y, halves, decay) == pytest.approx(expected, abs=1e-12)


def test_lazy_training_ends_at_ridge_regression():
    """The relative change of J is of the order ‖u‖/α, 3e-3; 3,000 steps of Adam leave 1e-3 of the error."""
    X, y, _ = ir.sample(jax.random.key(1), "network", 40)
    start, alpha, decay = ir.initial(jax.random.key(2), ir.INPUTS), 1000.0, 0.3
    subsets = jnp.stack([jnp.arange(20), jnp.arange(20, 40)])
    u = ir.train(start, X, y, subsets, alpha, decay, 3000)
    J = ir.jacobian(start, X)
    shift = jax.tree.map(lambda v: 1e-3 * jnp.ones_like(v), start)
    both = (ir.mlp(jax.tree.map(lambda v, s, sign=sign: v + sign * s, start, shift), X) for sign in (1, -1))
    # a central difference: third derivatives and rounding are below 1e-2 of it
    np.testing.assert_allclose(J.sum(1), np.subtract(*both) / 2e-3, atol=0.01 * np.abs(J.sum(1)).max())
    for i, rows in enumerate(np.asarray(subsets)):
        K = J[rows] @ J[rows].T
        expected = J @ J[rows].T @ np.linalg.solve(K + 20 * decay / 2 * np.eye(20), np.asarray(y, float)[rows])
        one = {name: v[i] for name, v in u.items()}
        found = ir.scaled(start, alpha, one, X)
        # float32: f(θ) - f(θ_0) of order 1/α is rounded at 1e-7, 1e-4 of it
        np.testing.assert_allclose(found, expected, atol=0.01 * np.abs(expected).max())


def test_a_trial_measures_every_quantity():
    """At α = 30 with decay the network is its linearization: 20 halves leave a standard error of about 0.05."""
    params = {"target": "network", "alpha": 30.0, "decay": 0.1, "steps": 1000}
    found = ir.trial(params, jax.random.key(3))
    assert found["lds"] == pytest.approx(found["ridge"], abs=0.1)
    assert 0 < found["gap"] < 0.05 and found["local_gap"] <= 0.2
    assert 0 < found["error"] < 1 + ir.NOISE**2  # better than a constant


@pytest.mark.nightly
def test_quick_orders_the_settings():
    records = run(ir.experiment, engine="inline", store=None, progress=False)
    found = ir.experiment.claims(records)
    assert "does not hold" not in {claim.verdict for claim in found}
    turned = Records(replace(r, measures={**r.measures, "lds": -r.measures["lds"]}) for r in records)
    assert [c.verdict for c in ir.experiment.claims(turned)].count("does not hold") >= 5
