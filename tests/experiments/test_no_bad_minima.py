"""Non-convex matrix problems: measurements against plain sums, and claims that can fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import no_bad_minima as nb


def made_up(found, smallest, escape):
    rng, rows = np.random.default_rng(0), []
    for s in range(64):
        for n, share in ((12, smallest), (96, found)):
            off = 1e-8 if s < 64 * share else 0.5
            measures = {"off": off, "flat": 1e-12, "escape": escape + 0.01 * rng.standard_normal()}
            rows.append(Record({"kind": "sensing", "d": 16, "n": n}, s, measures))
    return Records(rows)


def test_claims_hold_and_fail():
    assert [c.verdict for c in nb.claims(made_up(1.0, 0.0, 1.0))] == ["holds"] * 4
    assert [c.verdict for c in nb.claims(made_up(0.5, 0.5, 1.3))] == ["does not hold"] * 4
    assert len(nb.figure(made_up(1.0, 0.0, 1.0)).axes) == 2


@pytest.mark.parametrize("kind", nb.RANK)
def test_measurements_and_their_adjoint(x64, kind):
    """⟨look(M), v⟩/n = ⟨M, back(v)⟩ for symmetric M: the gradient is that of the loss."""
    rng = np.random.default_rng(0)
    d, n, rows = 5, 9, 12
    look, back = nb.measurements(kind, jax.random.key(0), d, n, rows)
    M = rng.normal(size=(d, d))
    M = M + M.T
    seen = np.asarray(look(jnp.asarray(M)))
    v = rng.normal(size=len(seen))
    B = np.asarray(back(jnp.asarray(v)))
    np.testing.assert_allclose(seen @ v / n, np.sum(M * B), rtol=0, atol=1e-12)
    np.testing.assert_allclose(B, B.T, atol=1e-13)
    assert np.count_nonzero(seen) == n


@pytest.mark.slow
@pytest.mark.parametrize("kind", nb.RANK)
def test_enough_measurements_find_the_matrix(x64, kind):
    params = {"kind": kind, "d": 6, "n": 60 if kind != "completion" else 21}
    found = jax.jit(lambda key: nb.trial(params, key))(jax.random.key(1))
    assert float(found["off"]) < 1e-3 and abs(float(found["escape"]) - 1) < 0.1
