"""Methods carry their options: names and values mean the same."""

import jax
import numpy as np
import pytest

from unlazy.kernels.radial import Gaussian
from unlazy.solvers import problem
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.method_selection import (
    METHODS,
    Askotch,
    Direct,
    EigenPro,
    NystromCG,
    PreconditionedCG,
    Richardson,
    validate_method,
)
from unlazy.solvers.methods import nystrom_cg
from unlazy.solvers.solve import solve

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 5))  # the shapes of test_every_solver: no program is compiled twice
Y = np.sin(X[:, :2])
KERNEL = Gaussian(2.0)


def coefficients(**keywords):
    return np.asarray(solve(KERNEL, X, Y, 0.5, tolerance=1e-5, **keywords).coefficients)


def test_methods_by_name_and_by_value_agree():
    assert np.array_equal(coefficients(method=Direct()), coefficients(method="direct"))
    assert coefficients(method=NystromCG(centers=10)).shape == (10, 2)
    given = coefficients(method=NystromCG(centers=X[:10].tolist()))
    assert np.array_equal(given, coefficients(method=NystromCG(centers=X[:10])))
    assert "rank 5" in solve(KERNEL, X, Y, 0.5, method=PreconditionedCG(rank=5)).notes[-1]


@pytest.mark.slow
def test_options_that_only_method_objects_have():
    found = solve(KERNEL, X, Y, 0.5, method=EigenPro(sample=60, batch=60))
    assert "5 directions of " in solve(KERNEL, X, Y, 0.5, method=EigenPro(rank=5)).notes[-1]
    assert found.converged and "of 60 flattened, batches of 60" in found.notes[-1]
    assert "step size 0.01" in solve(KERNEL, X, Y, 0.5, method=Richardson(step_size=0.01)).notes[-1]


def test_methods_are_frozen_values():
    assert NystromCG(100) == NystromCG(centers=np.int64(100)) != NystromCG(50)
    assert hash(EigenPro(rank=3)) == hash(EigenPro(3)) and repr(PreconditionedCG(7)) == "PreconditionedCG(rank=7)"
    assert EigenPro().options() == {} and EigenPro(rank=3, batch=50).options() == {"rank": 3, "batch": 50}
    with pytest.raises(AttributeError):
        Direct().default_max_steps = 3  # type: ignore[misc]
    assert all(METHODS[name].name == name for name in METHODS)
    inside = jax.jit(lambda ridge: solve(KERNEL, X, Y, ridge, method=Direct()).coefficients)
    # float32: ‖δα‖ ≤ condition·n·2^-24·‖α‖, the condition at most 1 + n/ridge, ‖α‖ ≤ ‖y‖/ridge
    bound = 241 * 120 * 2.0**-24 * np.linalg.norm(Y) / 0.5
    np.testing.assert_allclose(inside(0.5), coefficients(method="direct"), rtol=0, atol=bound)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: NystromCG(centers=0), "centers must be a positive integer, got 0"),
        (lambda: NystromCG(centers=np.ones(3)), r"a number or rows of inputs, got shape \(3,\)"),
        (lambda: NystromCG(centers=[[np.nan]]), "NaN"),
        (lambda: PreconditionedCG(rank=2.5), "rank must be a positive integer, got 2.5"),
        (lambda: Askotch(block=0), "block must be a positive integer, got 0"),
        (lambda: Askotch(momentum=1.5), "momentum must be between 0 and 1, got 1.5"),
        (lambda: EigenPro(batch=-1), "batch must be a positive integer"),
        (lambda: Richardson(step_size=0.0), "step_size must be positive"),
        (lambda: validate_method(NystromCG), r"an instance, not a class: NystromCG\(\)"),
        (lambda: solve(KERNEL, X, Y, 0.5, method="nystrom"), "did you mean 'nystrom_cg'"),
        (lambda: validate_method(3), "unknown method 3"),
    ],
)
def test_misuse_raises(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_checking_the_centers_costs_no_more_than_the_fit_it_checks(monkeypatch):
    """With few steps allowed and a tolerance out of reach, half of the centers took 500 steps."""
    taken = []
    run = nystrom_cg.conjugate_gradients

    def counted(*arguments):
        found = run(*arguments)
        taken.append(found[2])
        return found

    monkeypatch.setattr(nystrom_cg, "conjugate_gradients", counted)
    method, made = NystromCG(60), problem.make_problem(KERNEL, X, Y, 1e-4)
    fit = method.solve(made, SolverCallback(1e-12, 3))
    method.compare_with_full(made, fit, 1e-12)
    assert taken[0] == 3
    assert 3 <= taken[1] <= 10
