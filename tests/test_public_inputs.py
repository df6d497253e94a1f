"""NumPy, JAX arrays, lists and frames are alike at every door at the top of the package.

Every name listed there is in one of two tables: what it makes of points, or that it takes none.
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.core.dataset import Data
from unlazy.measures import alignment, neurons, risk, spectra, subspace, tangent_drift
from unlazy.training import RichOptions

RNG = np.random.default_rng(0)
X = np.round(64 * RNG.normal(size=(12, 2))) / 64  # numbers that float32 holds
Y = np.sign(X[:, 0]) + np.arange(12) % 3
FORMS = {
    "NumPy": lambda a: a, "JAX": lambda a: jnp.asarray(a, jnp.float32), "lists": lambda a: a.tolist(),
    "pandas": lambda a: pd.DataFrame(a, columns=["a", "b"][: a.shape[1]]) if a.ndim == 2 else pd.Series(a),
}  # fmt: skip
KEY = jax.random.key(0)
KERNEL = unlazy.Laplace(1.5)
NETWORK = unlazy.Network(unlazy.MLP(1, "relu", width=4), inputs=2)
PARAMS = NETWORK.init(KEY)
RICH = {"richness": 1.0, "times": [1], "step_size": 0.1, "options": RichOptions(draws=4, runs=1)}


def _solution(X, y):
    solution = unlazy.solve(KERNEL, X, y, 0.1, options=unlazy.SolveOptions(precision="float32"))
    return solution.coefficients, solution.predict(X)


def _one_step(X, y):
    found = unlazy.one_step(X, y, validation=(X, y), width=4, key=KEY)
    return found.readout, found.predict(X)


def _decomposition(X, y):
    path = unlazy.decompose(KERNEL, X).ridge_path(y, [0.1])
    return path.fitted, path.predict(X)


def _posterior(X, y):
    found = unlazy.posterior(KERNEL, X, y, X, 0.1)
    return found.mean, found.covariance


def _machine(X, y):
    machine = unlazy.recursive_features(KERNEL, X, y, updates=1)
    return machine.metric, machine.predict(X)


def _regressor():
    return unlazy.KernelRegressor("gaussian", bandwidth=1.0, ridge=0.1).fit(X, Y)


def _stored(X):
    with tempfile.TemporaryDirectory() as folder:
        return np.array(unlazy.gram_to_store(KERNEL, X, store=folder, tile=5))


def _many(rows):
    """A learning curve asks for forty points: these, moved by 1, 2, 3 and 4, in whatever form they come."""
    if isinstance(rows, list):
        return [[v + k for v in row] if isinstance(row, list) else row + k for k in range(5) for row in rows]
    together = (
        pd.concat if hasattr(rows, "iloc") else np.concatenate if isinstance(rows, np.ndarray) else jnp.concatenate
    )
    return together([rows + k for k in range(5)])


DOORS = {
    "solve": _solution, "decompose": _decomposition, "posterior": _posterior, "one_step": _one_step,
    "recursive_features": _machine,
    "prior": lambda X, y: unlazy.prior(KERNEL, X).covariance,
    "ensemble": lambda X, y: unlazy.ensemble(KERNEL, KERNEL, X, y, X, 1.0).mean,
    "log_marginal_likelihood": lambda X, y: unlazy.log_marginal_likelihood(KERNEL, X, y, 0.1),
    "learning_curve": lambda X, y: unlazy.learning_curve(KERNEL, _many(X), _many(y), [50]).risk,
    "nngp_and_ntk": lambda X, y: unlazy.nngp_and_ntk(unlazy.MLP(1), X),
    "gram_to_store": lambda X, y: _stored(X),
    "with_metric": lambda X, y: unlazy.with_metric(KERNEL, np.cov(np.asarray(X).T)).gram(X),
    "Network": lambda X, y: (NETWORK(PARAMS, X), NETWORK.hidden(PARAMS, X)),
    "linearize": lambda X, y: unlazy.linearize(NETWORK, PARAMS)(PARAMS, X),
    "tangent_kernel": lambda X, y: (
        unlazy.tangent_kernel(NETWORK, PARAMS, X, X), unlazy.tangent_kernel(lambda p, x: x @ p, jnp.ones(2), X),
    ),
    "rich_limit": lambda X, y: unlazy.rich_limit(unlazy.MLP(1), X, y, **RICH).predict(X),
    "rich_network": lambda X, y: unlazy.rich_network(unlazy.MLP(1, width=4), X, y, **RICH).predict(X),
    "predict_interval": lambda X, y: unlazy.predict_interval(_regressor(), X, 0.8),
    "descend": lambda X, y: unlazy.descend(NETWORK, PARAMS, Data(X, y), steps=2, step_size=0.1).losses,
}  # fmt: skip
KERNELS = {
    "ArcCosine": unlazy.ArcCosine(1), "Constant": unlazy.Constant(1.0), "Custom": unlazy.Custom(jnp.dot),
    "Gaussian": unlazy.Gaussian(1.0), "Laplace": KERNEL, "LayerKernel": unlazy.LayerKernel(unlazy.MLP(1), [1.0, 1.0]),
    "Linear": unlazy.Linear(), "Matern": unlazy.Matern(smoothness=1.5), "NNGP": unlazy.NNGP(unlazy.MLP(1)),
    "NTK": unlazy.NTK(unlazy.MLP(1)), "Periodic": unlazy.Periodic(1.0), "Polynomial": unlazy.Polynomial(2),
    "ProductLaplace": unlazy.ProductLaplace(1.0), "RationalQuadratic": unlazy.RationalQuadratic(1.0),
    "SpectralMixture": unlazy.SpectralMixture([1.0], [[1.0, 1.0]], [[1.0, 1.0]]),
    "TangentKernel": unlazy.TangentKernel(NETWORK, PARAMS),
}  # fmt: skip
ESTIMATORS = {
    "FeatureMachineClassifier": {}, "FeatureMachineRegressor": {}, "GaussianProcess": {}, "KernelClassifier": {},
    "KernelRegressor": {}, "NetworkClassifier": {"width": 4}, "NetworkRegressor": {"width": 4},
    "RandomFeatures": {}, "TwoLayerRegressor": {"width": 4},
}  # fmt: skip
WITHOUT = {
    "MLP", "precision", "load", "load_predictor", "save", "Comparison", "Direct", "PreconditionedCG", "NystromCG",
    "Askotch", "EigenPro", "Richardson", "SolveOptions", "StudyOptions", "TableOptions", "Progress", "check_device",
    "watch", "Monitor", "WatchOptions", "check_scaling", "scaled", "ScalingCheck", "ScalingOptions", "sweep_rates",
    "TangentOptions", "attribution", "uncertainty",
}  # fmt: skip
"""Descriptions, settings, files and results: no points come in. `watch`, `uncertainty` and `attribution` hand theirs to
the network."""
OF_TABLES = {"compare"}


def _same(function, *arrays):
    found = {name: jax.tree.leaves(function(*map(form, arrays))) for name, form in FORMS.items()}
    for name, values in found.items():
        for got, wanted in zip(values, found["JAX"], strict=True):
            assert got.dtype == wanted.dtype and np.array_equal(got, wanted), name


def test_every_top_level_name_is_listed():
    tables = [set(DOORS), set(KERNELS), set(ESTIMATORS), WITHOUT, OF_TABLES]
    assert sum(map(len, tables)) == len(set.union(*tables)) and set.union(*tables) == set(unlazy._WHERE)


SLOW = {"rich_limit", "rich_network"}
SOLVERS = {
    "solve", "decompose", "posterior", "prior", "ensemble", "log_marginal_likelihood", "recursive_features",
    "learning_curve",
}  # fmt: skip
"""Compiled again here for seconds; tests/solvers/test_doors_of_solvers.py has most of them in the fast suite."""


@pytest.mark.slow_cases("descend", "ensemble", "one_step", "tangent_kernel")
@pytest.mark.parametrize("name", [pytest.param(k, marks=[pytest.mark.slow] * (k in SOLVERS | SLOW)) for k in DOORS])
def test_functions(name):
    _same(DOORS[name], X, Y)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_accept_all_input_types(name):
    _same(lambda X: KERNELS[name].read(X, X), X)  # what gram, diag and products begin with


@pytest.mark.parametrize("measure", [
    alignment.kernel_alignment, alignment.centered_alignment, risk.risk, risk.normalized_risk, risk.accuracy,
    subspace.energy, subspace.cosines, subspace.overlap, tangent_drift.relative_change,
], ids=lambda f: f.__name__)  # fmt: skip
def test_measures_of_two(measure):
    _same(lambda A: measure(A, A), X[:2])


@pytest.mark.parametrize(
    "measure", [neurons.pairwise_cosines, neurons.clustering, spectra.gram_spectrum], ids=lambda f: f.__name__
)
def test_measures_of_one(measure):
    _same(measure, X[:2])


def test_tables_to_compare():
    from unlazy.comparison.data.table import make_table

    tall = np.concatenate([X, X + 1, X + 2, X + 3])
    tables = [make_table(form(tall), form(tall[:, 0])) for form in FORMS.values()]
    for table in tables:
        assert np.array_equal(table.frame, tables[0].frame) and np.array_equal(table.y, tables[0].y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators(name):
    rows = np.concatenate([X, X[::-1] + 0.25, X + 0.5, X[::-1] - 0.25])
    labels = np.tile(Y, 4) if name != "TwoLayerRegressor" else rows[:, 0]
    classify = name.endswith("Classifier")

    def fitted(X, y):
        model = getattr(unlazy, name)(**ESTIMATORS[name])
        model.fit(X, y)
        return np.asarray(model.transform(X) if name == "RandomFeatures" else model.predict(X))

    found = {
        form: fitted(make(rows), make(np.sign(labels - 1) if classify else labels)) for form, make in FORMS.items()
    }
    for form, values in found.items():
        # a frame's columns lie one after another in memory, so that float64 sums in another order: 1e-9 has room for a
        # condition of 1e6. Labels come back in the type they came in
        assert np.allclose(values, found["NumPy"], rtol=0, atol=1e-9), form
