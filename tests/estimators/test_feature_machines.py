"""Feature machines as estimators: choices, units, many rows, several outputs, probabilities, importances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import unlazy
from unlazy.estimators import FeatureMachineClassifier, FeatureMachineRegressor
from unlazy.estimators.feature_search.choices import list_candidates
from unlazy.estimators.preprocessing.columns import ColumnScale
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.products import multiply
from unlazy.theory.infinite_width.architecture import MLP


def data(n=120, d=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


def test_default_finds_what_matters():
    X, y = data()
    Z, truth = data(seed=1)
    model = FeatureMachineRegressor().fit(X, y)
    assert model.n_updates_ >= 1 and model.leave_one_out_error_ < 0.05
    assert model.feature_importances_[:2].sum() > 0.95  # two of five columns carry the function
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.score(Z, truth) > 0.98


@pytest.mark.slow
def test_units_and_offsets_do_not_matter():
    """Columns in other units, targets shifted and scaled: the same function to rounding of a fit of condition 1e6."""
    X, y = data(60)
    units, shift = np.array([1e3, 1e-4, 1.0, 7.0, 1.0]), np.array([5.0, 0.0, -3e2, 1.0, 0.0])
    plain = FeatureMachineRegressor().fit(X, y).predict(X)
    other = FeatureMachineRegressor().fit(X * units + shift, 1e4 + 50 * y).predict(X * units + shift)
    np.testing.assert_allclose((other - 1e4) / 50, plain, atol=1e-4)


def test_more_columns_than_rows_are_weighed_one_by_one():
    """A full metric of 600 columns from 40 rows has rank 40 at most: tried only when asked for."""
    few, many = (list_candidates(FeatureMachineRegressor(), shape) for shape in ((700, 600), (40, 600)))
    assert {c.metric for c in few} == {"full", "diagonal"} and {c.metric for c in many} == {"diagonal"}
    assert {c.metric for c in list_candidates(FeatureMachineRegressor(metric="full"), (40, 600))} == {"full"}
    assert {c.metric for c in list_candidates(FeatureMachineRegressor(), (40, 400))} == {"full", "diagonal"}


@pytest.mark.slow_cases("settings0", "settings1")
@pytest.mark.parametrize(
    "settings",
    [{"kernel": "ntk", "metric": "full"}, {"kernel": NTK(MLP(2, sigma_b=0.5)), "metric": "diagonal"},
     {"kernel": "gaussian", "metric": "low_rank", "rank": 2, "iterate": "last", "updates": 3},
     pytest.param({"kernel": "matern", "metric": "full", "start": "one_step", "relative_bandwidth": 1.0,
                   "relative_ridge": 1e-3}, marks=pytest.mark.slow),
     {"kernel": "laplace", "updates": 0}, {"standardize": False, "kernel": "product_laplace"}],
)  # fmt: skip
def test_settings(settings):
    X, y = data(80)
    model = FeatureMachineRegressor(**{"updates": 2, **settings}).fit(X, np.stack([y, X[:, 1] ** 2], 1))
    assert model.predict(X[:3]).shape == (3, 2)
    assert model.score(X, np.stack([y, X[:, 1] ** 2], 1)) > 0.7
    if settings.get("iterate") == "last":
        assert model.n_updates_ == 3 and model.map_.shape == (2, 5)
    if settings.get("updates") == 0:
        assert model.n_updates_ == 0


@pytest.mark.slow
def test_probabilities_are_calibrated():
    """Labels drawn with probability σ(3 x_1): mean predicted probability within 4 standard errors of the frequency in
    the upper and lower half, and better than the frequency of the classes alone in log loss."""
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(250, 3)), rng.normal(size=(2000, 3))
    y, truth = (rng.uniform(size=len(A)) < 1 / (1 + np.exp(-3 * A[:, 0])) for A in (X, Z))
    model = FeatureMachineClassifier().fit(X, np.where(y, "yes", "no"))
    p = model.predict_proba(Z)[:, list(model.classes_).index("yes")]
    for half in (p > 0.5, p <= 0.5):
        bias = abs(p[half].mean() - truth[half].mean())
        assert bias < 4 * 0.5 * (1 / np.sqrt(half.sum()) + 1 / np.sqrt(250 / 2))
    loss = -np.mean(np.where(truth, np.log(p), np.log1p(-p)))
    assert loss < 0.8 * np.log(2)


@pytest.mark.slow
def test_saved_predictions_are_the_same_bits(tmp_path):
    X, y = data(50)
    for model in (
        FeatureMachineRegressor("product_laplace", updates=1).fit(X, y),
        FeatureMachineClassifier("ntk", metric="full", updates=1).fit(X, np.digitize(y, [-0.5, 0.5])),
    ):
        model.save(tmp_path / "machine")
        again = unlazy.load(tmp_path / "machine")
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_columns_of_two_values_are_one_apart():
    X = np.array([[0.0, 3.0, 5.0], [0.0, 9.0, 5.0], [1.0, 3.0, 5.0], [0.0, 3.0, 5.0]])
    seen = ColumnScale.from_data(X, None, True)(X)
    np.testing.assert_allclose(np.ptp(seen, 0), [1, 1, 0])
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(weights @ ColumnScale.from_data(X, weights, True)(X) / 10, 0, atol=1e-15)
    tiny = ColumnScale.from_data(np.array([[1e8], [1e8 + 1e-8]]), None, True)  # equal to rounding: constant
    np.testing.assert_allclose(tiny(np.array([[1e8]])), 0)


@pytest.mark.parametrize(
    "settings, message",
    [({"kernel": "laplac"}, "did you mean 'laplace'"), ({"metric": "ful"}, "did you mean 'full'"),
     ({"kernel": "product_laplace", "metric": "full"}, "metric='diagonal'"),
     ({"metric": "low_rank"}, "rank must be a positive integer"), ({"iterate": "first"}, "'best' or 'last'"),
     ({"start": "two_steps"}, "'one_step'"), ({"updates": -1}, "updates must be"),
     ({"relative_ridge": 0.0}, "relative_ridge must be positive"),
     ({"kernel": 3}, "kernel must be a name")],
)  # fmt: skip
def test_misuse(settings, message):
    X, y = data(20)
    with pytest.raises(ValueError, match=message):
        FeatureMachineRegressor(**settings).fit(X, y)


def test_fitted_kernel_is_a_kernel_of_standardized_columns():
    X, y = data(40)
    model = FeatureMachineRegressor("product_laplace").fit(X, y)
    assert isinstance(model.kernel_, ProductLaplace)
    with unlazy.core.arrays.precision("float64"):
        K = np.asarray(model.kernel_.gram(jnp.asarray(model.X_fit_)))
        f = K @ model.dual_coef_ + model.intercept_
    np.testing.assert_allclose(f[:, 0], model.predict(model.X_fit_ * model.scale_ + model.offset_), atol=1e-9)


@pytest.mark.parametrize("host", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["host", "device"])
def test_other_numbers_of_rows_compile_nothing(monkeypatch, host):
    """NumPy computes small products whatever their shape; a device's programs are for 16, 32, 64 … rows."""
    X, y = data(40)
    model = FeatureMachineRegressor(
        "laplace", metric="full", updates=0, relative_bandwidth=1.0, relative_ridge=0.1, precision="float32"
    ).fit(X, y)
    if not host:
        monkeypatch.setattr(multiply.NumpyEngine, "cost", lambda *_: None)
    for k in (16, 32, 40):
        want = model.predict(X[:k])
    compiled = []

    def listen(event, *_, **__):
        compiled.append(event) if "mlir" in event or "backend_compile" in event else None

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        found = [model.predict(X[:k]) for k in range(1, 41)]
        assert compiled == []
        jax.jit(lambda x: x + 1)(1.0)
        assert compiled  # or nobody would have heard
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert found[-1].dtype == np.float32
    bound = 40 * np.finfo(np.float32).eps * np.abs(model.dual_coef_).sum()  # sums of 40 terms in another order
    for one in found:
        np.testing.assert_allclose(one, want[: len(one)], rtol=0, atol=bound)
