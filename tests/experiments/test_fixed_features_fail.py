"""fixed_features_fail: kernels as tables, ridge in either Gram matrix, claims that can fail, the quick sweep."""

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.kernels.radial import Laplace
from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import fixed_features_fail as ff
from unlazy.tasks import pattern_task


def made_up(fixed=0.84, first=0.68, network=1.0, chance=0.5):
    rows = []
    for seed in range(2):
        for structured in (True, False):
            value = np.array([fixed, first]) if structured else np.full(2, chance)
            rows.append(Record({"method": "fixed features", "structured": structured}, seed, {
                "accuracy": np.tile(value, (len(ff.METHODS), 1)), "norms": np.array([0.1, 1.0]),
                "losses": np.array([0.9, 0.6])}))  # fmt: skip
            rows.append(Record({"method": ff.NETWORK, "structured": structured}, seed,
                               {"accuracy": np.full((1, 2), network if structured else chance)}))  # fmt: skip
    return Records(rows)


def test_a_kernel_is_a_table_of_differing_patterns():
    X = np.asarray(pattern_task(100, 100, 5, key=jax.random.key(0)).sample(jax.random.key(1), 30).X)
    table = ff.tables()["Laplace"]
    K = np.asarray(Laplace(2**0.5).gram(jnp.asarray(X), accurate=True))
    # float32 dictionary: ‖x-z‖ is right to a few 1e-7
    np.testing.assert_allclose(table[ff._differences(X, X)], K, atol=1e-5)


def test_ridge_is_the_same_in_either_gram_matrix():
    rng = np.random.default_rng(0)
    X, V, Z = (rng.standard_normal((m, 20)) for m in (30, 15, 10))
    w = rng.standard_normal(20)
    y, truth = X @ w + rng.standard_normal(30), V @ w
    primal = ff._feature_ridge(lambda x: x, X, y, V, truth, Z)
    F = X - X.mean(0)
    candidates = [
        (Z - X.mean(0)) @ np.linalg.solve(F.T @ F + r * np.sum(F**2) / 20 * np.eye(20), F.T @ (y - y.mean())) + y.mean()
        for r in ff.RIDGES
    ]
    assert min(np.abs(primal - c).max() for c in candidates) < 1e-10
    wide = ff._feature_ridge(lambda x: np.concatenate([x, x], 1), X, y, V, truth, Z)  # 40 features: the dual
    again = [
        (Z - X.mean(0)) @ F.T @ np.linalg.solve(F @ F.T + r * np.sum(F**2) / 30 * np.eye(30), y - y.mean()) + y.mean()
        for r in ff.RIDGES
    ]
    assert min(np.abs(wide - c).max() for c in again) < 1e-10


def test_claims_hold_and_fail():
    assert {c.verdict for c in ff.claims(made_up())} == {"holds"}
    failed = [c.statement for c in ff.claims(made_up(0.9, 0.8, 0.9, 0.6)) if c.verdict == "does not hold"]
    assert len(failed) == 2 * len(ff.METHODS) + 2 + 1 + len(ff.METHODS) + 1
    assert len(ff.figure(made_up()).axes) == 3


def test_quick_holds():
    records = run(ff.experiment, seeds=3, engine="inline", store=None, progress=False)  # every claim is of every seed
    assert {c.verdict for c in ff.claims(records)} == {"holds"}
