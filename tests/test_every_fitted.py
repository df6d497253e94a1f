"""What is fitted has one shape: all of it predicts at arrays, lists and frames alike, tells its evidence, is a tree
that can be taken apart, and is compiled once for all numbers of the same shapes."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from unlazy.core.dataset import Data
from unlazy.core.results import LOST_DESCRIPTION, Evidence, FitDescription, Predictor, Trajectory, time_index
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers.convex.nuclear_norm import minimum_nuclear_norm
from unlazy.solvers.convex.relu_network import convex_relu_network
from unlazy.solvers.gaussian_process.posterior import condition, trained_ensemble
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import solve
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.training.descent import recording
from unlazy.training.descent.descend import descend
from unlazy.training.one_step.algorithm import one_step
from unlazy.training.options import Recording, RFMOptions, RichOptions
from unlazy.training.rfm.iteration import learn
from unlazy.training.rfm.rfm import RecursiveFeatureMachine
from unlazy.training.rich.limit import rich_limit

RNG = np.random.default_rng(0)
X = RNG.integers(-8, 9, (12, 2)) / 8  # eighths: the same numbers in float32 and float64
Z = RNG.integers(-8, 9, (5, 2)) / 8
Y = RNG.normal(size=(12, 3))
FORMS = {"numpy": np.asarray, "jax": jnp.asarray, "lists": np.ndarray.tolist, "frame": pd.DataFrame}


def linear(theta, inputs):
    return inputs @ theta


def descended(y):
    data = Data(jnp.asarray(X, jnp.float32), jnp.asarray(y, jnp.float32))
    start = jnp.zeros((2, *y.shape[1:]))
    record = Recording({"params": recording.parameters}, every=2)
    return descend(linear, start, data, steps=4, step_size=0.1, recording=record).trained(linear)


def machine(y):
    options = RFMOptions(relative_bandwidth=1.0)
    rounds = learn(Gaussian(1.0), X, y.reshape(12, -1), updates=2, relative_ridge=1e-2, options=options)
    return RecursiveFeatureMachine(Gaussian(1.0), X, rounds, y.ndim == 1)


def rich(y):
    options = RichOptions(draws=64, runs=2)
    return rich_limit(MLP(1, outputs=y.shape[1]), X, y, richness=1.0, times=[0.5, 1.0], options=options)


def first_step(y):
    return one_step(jnp.asarray(X), jnp.asarray(y), width=8, choose="leave-one-out", key=jax.random.key(0))


def convex_network(y):
    return convex_relu_network(X, y, penalty=0.1)


def quadratic_form(y):
    return minimum_nuclear_norm(jnp.asarray(X), jnp.asarray(y), misfit_weight=1.0, tolerance=1e-4)


PREDICTORS = {
    "solution": lambda y: solve(Gaussian(1.0), X, y, 0.1),
    "path": lambda y: decompose(Gaussian(1.0), X).ridge_path(y, 0.1),
    "posterior": lambda y: condition(Gaussian(1.0), X, y, 0.1),
    "algorithm 1": first_step,
    "descent": descended,
    "machine": machine,
    "convex network": convex_network,
    "quadratic form": quadratic_form,
}
TRAJECTORIES = {
    "ridges": (lambda y: decompose(Gaussian(1.0), X).ridge_path(y, [0.1, 1.0, 10.0]), [0.1, 10.0]),
    "flow": (lambda y: decompose(Gaussian(1.0), X).flow(y, [1.0, 2.0, 4.0]), [4.0, 1.0]),
    "ensemble": (lambda y: trained_ensemble(Laplace(1.0), Gaussian(1.0), X, y, [0.5, 1.0]), [1.0, 0.5]),
    "descent": (descended, [0, 4]),
    "machine": (machine, [2, 0]),
    "rich limit": (rich, [1.0, 0.5]),
}


@functools.cache
def fitted_by(name, several=False):
    return PREDICTORS[name](Y if several else Y[:, 0])


ON_THE_HOST = ("machine", "convex network")
ONE_OUTPUT = ("algorithm 1", "convex network", "quadratic form")
HEAVY = ("algorithm 1", "descent", "ridges", "ensemble", "rich limit", "quadratic form")
"""These compile for seconds: the others stand for them in the fast suite."""


def light_first(names):
    return [pytest.param(name, marks=pytest.mark.slow if name in HEAVY else []) for name in names]


@pytest.mark.slow_cases("algorithm 1", "descent", "posterior", "path")
@pytest.mark.parametrize("name", light_first(PREDICTORS))
def test_every_predictor_accepts_all_inputs_and_keeps_the_shape_of_labels(name):
    for several in (False,) if name in ONE_OUTPUT else (False, True):
        fitted = fitted_by(name, several)
        assert isinstance(fitted, Predictor)
        found = [np.asarray(fitted.predict(form(Z))) for form in FORMS.values()]
        assert all(f.shape == ((5, 3) if several else (5,)) and np.array_equal(f, found[0]) for f in found)


@pytest.mark.parametrize("name", light_first(PREDICTORS))
def test_every_predictor_has_evidence_and_is_a_pytree(name):
    fitted = fitted_by(name)
    evidence = fitted.evidence
    assert isinstance(evidence, Evidence) and evidence.converged is True and 0 <= float(evidence.residual) < 1
    assert evidence.solved and all(isinstance(note, str) for note in evidence.notes)
    again = jax.tree.unflatten(*reversed(jax.tree.flatten(fitted)))
    assert np.array_equal(again.predict(Z), fitted.predict(Z))
    assert again.evidence.description.notes == evidence.notes and float(again.evidence.residual) == float(
        evidence.residual
    )


@pytest.mark.parametrize("name", light_first(name for name in PREDICTORS if name not in ON_THE_HOST))
def test_other_numbers_of_the_same_shapes_are_compiled_once(name):
    traces = []

    @jax.jit
    def doubled(fitted, points):
        traces.append(name)
        return 2 * fitted.predict(points), fitted.evidence

    points = jnp.asarray(Z, jnp.float32)
    for fitted in (fitted_by(name), PREDICTORS[name](3 * Y[:, 1] + 1)):
        found, evidence = doubled(fitted, points)
        # float32 sums of 12 terms: 12 roundings of the sum of sizes, which here is below 100
        np.testing.assert_allclose(found, 2 * np.asarray(fitted.predict(Z)), rtol=0, atol=2 * 12 * 2.0**-24 * 100)
        assert float(evidence.residual) == pytest.approx(float(fitted.evidence.residual), rel=1e-6)
    assert traces == [name]


def test_descriptions_do_not_recompile_and_never_belong_to_another_fit():
    rows = np.concatenate([X, X])  # singular to rounding, and said so
    with pytest.warns(UserWarning, match="singular"):
        noted = decompose(Gaussian(1.0), rows)
    plain = decompose(Gaussian(0.5), np.concatenate([X, X + 100]))
    assert noted.notes and noted.notes != plain.notes
    assert jax.tree.structure(noted) == jax.tree.structure(plain)
    through = jax.jit(lambda fitted: fitted.ridge_path(jnp.ones(24), 1.0))
    first, second = through(noted), through(plain)
    assert (
        first.notes == second.notes == LOST_DESCRIPTION.notes and first.evidence.solved == second.evidence.solved != ""
    )
    # Equinox's filters and jax.grad see numbers as well
    traces = []
    filtered = eqx.filter_jit(lambda fitted: (traces.append(1), fitted.residual)[1])
    solutions = [solve(Gaussian(1.0), X, Y[:, 0], ridge) for ridge in (0.1, 1.0)]
    assert [float(filtered(s)) for s in solutions] == [pytest.approx(s.residual) for s in solutions] and traces == [1]
    slope = jax.grad(lambda s: s.predict(jnp.asarray(Z, jnp.float32)).sum())(solutions[0])
    assert np.all(np.isfinite(slope.coefficients)) and slope.evidence.description == FitDescription()


@pytest.mark.slow_cases("descent", "ensemble", "ridges")
@pytest.mark.parametrize("name", light_first(TRAJECTORIES))
def test_every_trajectory_predicts_at_its_times_and_has_a_kernel_there(name):
    make, times = TRAJECTORIES[name]
    path = make(Y)
    assert isinstance(path, Trajectory) and path.evidence.converged is True
    several = np.asarray(path.predict(Z, times))
    assert several.shape == (2, 5, 3)
    for t, f in zip(times, several):
        assert np.any(np.isclose(path.times, t))
        # one row of a product may be summed in another order: 12 roundings of float32 times a sum below 100
        np.testing.assert_allclose(path.predict(Z, t), f, rtol=0, atol=12 * 2.0**-24 * 100)
        assert path.kernel_at(t).gram(X, Z).shape == (12, 5)
    with pytest.raises(ValueError, match=r"0.3 is not on this path, which has"):
        path.predict(Z, 0.3)


def test_kernels_move_where_features_are_learned_and_stay_where_they_are_not():
    moving = machine(Y[:, 0])
    assert not np.allclose(moving.kernel_at(0).gram(X), moving.kernel_at(2).gram(X), atol=1e-3)
    # f is a regression in that kernel: K(Z, X)α + b, in float32 here and by NumPy in float64 there
    last = moving.iterates[2]
    f = np.asarray(moving.kernel_at(2).gram(Z, X), float) @ last.alpha[:, 0] + last.intercept[0]
    size = float(np.abs(last.alpha).sum())
    np.testing.assert_allclose(moving.predict(Z, 2), f, rtol=0, atol=2.0**-18 * size)
    lazy = decompose(Gaussian(1.0), X).flow(Y[:, 0], [1.0, 2.0])
    assert lazy.kernel_at(1.0) is lazy.kernel_at(2.0)


@pytest.mark.slow
def test_the_tangent_kernel_of_a_linear_model_is_the_linear_kernel_whatever_its_parameters():
    np.testing.assert_allclose(descended(Y[:, 0]).kernel_at(4).gram(X, Z), X @ Z.T, rtol=0, atol=2.0**-22)


def test_time_index_finds_times():
    times = np.array([0.0, 0.1, 2.0, np.inf], np.float32)
    assert (
        time_index(times, 0.1) == 1
        and time_index(times, np.inf) == 3
        and time_index(times, [2.0, 0.0]).tolist() == [2, 0]
    )
    with pytest.raises(ValueError, match=r"time inf is not on this path, which has 0, 0.1, 2: compute it there too"):
        time_index(times[:3], np.inf)
    with pytest.raises(ValueError, match=r"one-dimensional path, got shape \(2, 2\)"):
        time_index(times.reshape(2, 2), 0.1)
    assert int(jax.jit(lambda t: time_index(jnp.asarray(times), t))(1.9)) == 2
