"""RandomFeatures, TwoLayerRegressor and the networks against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from estimator_roster import data, make

import unlazy
from unlazy.estimators.network import NetworkClassifier, NetworkRegressor
from unlazy.estimators.random_features import KERNELS, RandomFeatures
from unlazy.estimators.two_layer import TwoLayerRegressor


@pytest.mark.parametrize("kernel", [*KERNELS[:-1], pytest.param("nngp", marks=pytest.mark.slow)])
def test_random_features_approach_their_kernel(kernel):
    """Entries are means of 2,000 terms: cosines, variance at most 1/2 each, so 5 standard errors of 136 entries are
    5/√4,000. Two random layers add their errors, and a relu feature's fourth moment is a few times its kernel squared:
    twice that, relative to the largest entry."""
    X, _ = data(16)
    model = RandomFeatures(kernel, n_components=4000, random_state=0).fit(X)
    Phi = model.transform(X)
    with jax.enable_x64(True):
        K = np.asarray(model.kernel_.gram(jnp.asarray(X - model.offset_)))
    assert np.abs(Phi @ Phi.T - K).max() < (2 if kernel == "nngp" else 1) * 5 / np.sqrt(4000) * K.max()
    assert list(model.get_feature_names_out()[:2]) == ["randomfeatures0", "randomfeatures1"]


def test_random_features_misuse():
    X, _ = data()
    for given, message in (
        ({"kernel": "ntk"}, "is not supported"),
        ({"n_components": 0}, "n_components must be a positive"),
        ({"bandwidth": 0.0}, "bandwidth must be"),
        ({"network": unlazy.MLP(1)}, "network applies to kernel='nngp'"),
    ):
        with pytest.raises(ValueError, match=message):
            RandomFeatures(**given).fit(X)


@pytest.mark.slow
def test_two_layer_finds_the_direction():
    """y = He_2(u·x)/√2 in d = 10, n = 2,000 > d²: one step finds u [D6]; prototypes reach an alignment of 0.95 here."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10)) * 3 + 1  # other units: columns are standardized inside
    t = (X[:, 0] - 1) / 3
    y = 100 + (t**2 - 1) / np.sqrt(2)
    model = TwoLayerRegressor(128, random_state=0).fit(X[:1500], y[:1500])
    assert model.feature_importances_[0] > 0.8 and model.feature_importances_.sum() == pytest.approx(1)
    top = np.linalg.eigh(model.metric_)[1][:, -1]
    assert abs(top[0]) > 0.9
    assert model.score(X[1500:], y[1500:]) > 0.8


def test_two_layer_misuse():
    X, y = data()
    for given, message in (
        ({"width": 7}, "width must be even"),
        ({"relative_ridge": 0.0}, "relative_ridge must be positive"),
        ({"step": 0.0}, "step must be positive"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie"),
    ):
        with pytest.raises(ValueError, match=message):
            TwoLayerRegressor(**given).fit(X, y)


@pytest.mark.slow
def test_network_predictions_equal_its_layers():
    """The forward pass in NumPy: standardize, relu layers, undo."""
    X, y = data()
    model = make("NetworkRegressor").fit(X, y)
    h = (X - model.center_) / model.scale_
    for weight, bias in model.layers_[:-1]:
        h = np.maximum(h @ weight + bias, 0)
    weight, bias = model.layers_[-1]
    expected = (h @ weight + bias)[:, 0] * model.y_scale_[0] + model.y_center_[0]
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12, atol=1e-12)
    assert model.score(X, y) > 0.9


@pytest.mark.slow
def test_network_stops_by_held_out_points(capsys):
    """Pure noise: the held-out loss rises as the network learns by heart, and the best parameters are kept."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 5)), rng.normal(size=400)
    model = NetworkRegressor(width=64, step_size=1e-2, random_state=0, progress=True).fit(X, y)
    assert model.n_steps_ < 2000
    best = model.validation_losses_.min()
    assert best <= model.validation_losses_[0] and model.score(X[:360], y[:360]) < 0.5
    three = np.digitize(X[:, 0], [-0.5, 0.5])
    classes = NetworkClassifier(random_state=0).fit(X, three)
    assert classes.score(X, three) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("parametrization", ["ntk", "standard", "mup", "mean_field"])
def test_network_parametrizations(parametrization):
    X, y = data()
    model = make("NetworkRegressor", parametrization=parametrization, width=64, steps=1000).fit(X, y)
    assert model.score(X, y) > 0.7


def test_network_misuse():
    X, y = data()
    for given, message in (
        ({"depth": 0}, "depth must be a positive"),
        ({"step_size": 0.0}, "step_size must be positive"),
        ({"decay": -1.0}, "decay must be non-negative"),
        ({"activation": "rellu"}, "did you mean 'relu'"),
        ({"parametrization": "nkt"}, "did you mean 'ntk'"),
        ({"validation_fraction": 1.0}, "validation_fraction must be"),
    ):
        with pytest.raises(ValueError, match=message):
            NetworkRegressor(**given).fit(X, y)


def test_standard_deviations_of_a_network(tmp_path):
    """Larger away from the rows, in the units and the shape of the targets, and the same after loading."""
    X = np.random.default_rng(0).uniform(-1, 1, (150, 1))
    y = np.stack([np.sin(3 * X[:, 0]), 100 * np.cos(3 * X[:, 0])], 1) + [0.1, 10] * np.random.default_rng(1).normal(
        size=(150, 2)
    )
    model = make("NetworkRegressor").fit(X, y)
    Z = np.array([[0.0], [4.0]])
    mean, std = model.predict(Z, return_std=True)
    np.testing.assert_array_equal(mean, model.predict(Z))
    assert std.shape == (2, 2)
    assert np.all(std[1] > 3 * std[0])
    assert np.all(std[0] < [0.1, 10])  # below the noise, with 150 rows
    assert 30 < np.median(std[:, 1] / std[:, 0]) < 300
    unlazy.save(model, tmp_path / "network.unlazy")
    np.testing.assert_allclose(unlazy.load(tmp_path / "network.unlazy").predict(Z, return_std=True)[1], std, rtol=1e-6)
    alone = make("NetworkRegressor").fit(X, y[:, 0])
    assert alone.predict(Z, return_std=True)[1].shape == (2,)


def test_weights_of_rows_count_in_standard_deviations():
    """A row of weight 4 has 4 times the curvature."""
    X, y = data()
    weights = np.random.default_rng(0).choice([1.0, 4.0], len(X))
    model = make("NetworkRegressor", validation_fraction=0.0, steps=50).fit(X, y, sample_weight=weights)
    assert np.all(model.predict(X[:5], return_std=True)[1] > 0)
    root = model._posterior()._fit.quadratic.root
    np.testing.assert_allclose(root[:, 0, 0] ** 2, model.sample_weight_fit_)
