"""Estimators accept the inputs of their kernel: the same fit as for rows with the same numbers."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.model_selection import cross_val_predict

from unlazy.estimators.gaussian_process import GaussianProcess
from unlazy.estimators.kernel import KernelClassifier, KernelRegressor
from unlazy.kernels.custom import Custom
from unlazy.kernels.radial import Gaussian

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(24, 12))
IMAGES = ROWS.reshape(24, 2, 2, 3)
TREE = {"image": IMAGES[..., :2], "rest": IMAGES[..., 2]}
LISTED = [{"image": TREE["image"][i], "rest": TREE["rest"][i]} for i in range(24)]
Y = np.stack([np.sin(ROWS[:, 0]), ROWS[:, 1] ** 2], 1)
ROW_KERNEL = Gaussian(3.0)
IMAGE_KERNEL = Custom(lambda x, z: jnp.exp(-jnp.sum((x - z) ** 2) / 18.0))
TREE_KERNEL = Custom(
    lambda x, z: jnp.exp(-(jnp.sum((x["image"] - z["image"]) ** 2) + jnp.sum((x["rest"] - z["rest"]) ** 2)) / 18.0)
)
DATA = {"images": (IMAGE_KERNEL, IMAGES), "tree": (TREE_KERNEL, TREE), "list": (TREE_KERNEL, LISTED)}
CLOSE = {"rtol": 0, "atol": 1e-9}
"""float64: conditions of K + ridge·I stay below 1e5 here, times 2^-53 and n."""


def some(data, index):
    if isinstance(data, list):
        return [data[i] for i in np.arange(24)[index]]
    return {name: leaf[index] for name, leaf in data.items()} if isinstance(data, dict) else data[index]


@pytest.mark.parametrize(
    "name, weights",
    [
        ("images", None),
        pytest.param("tree", np.arange(20) % 3, marks=pytest.mark.slow),
        pytest.param("list", None, marks=pytest.mark.slow),
    ],
)
def test_regression_is_that_of_the_same_numbers_in_rows(name, weights):
    kernel, data = DATA[name]
    plain = KernelRegressor(ROW_KERNEL, ridge=1e-2).fit(ROWS[:20], Y[:20], weights)
    found = KernelRegressor(kernel, ridge=1e-2).fit(some(data, slice(20)), Y[:20], weights)
    np.testing.assert_allclose(found.predict(some(data, slice(20, 24))), plain.predict(ROWS[20:]), **CLOSE)
    assert found.leave_one_out_error_ == pytest.approx(plain.leave_one_out_error_, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["list", pytest.param("images", marks=pytest.mark.slow)])
def test_classes_and_processes_are_those_of_the_same_numbers_in_rows(name):
    kernel, data = DATA[name]
    train, test = some(data, slice(20)), some(data, slice(20, 24))
    labels = np.where(ROWS[:20, 0] > 0, "up", "down")
    plain = KernelClassifier(ROW_KERNEL, ridge=1e-2).fit(ROWS[:20], labels).predict_proba(ROWS[20:])
    # calibration is a search: equal to the accuracy it is run to
    np.testing.assert_allclose(
        KernelClassifier(kernel, ridge=1e-2).fit(train, labels).predict_proba(test), plain, atol=1e-6
    )
    rows = GaussianProcess(ROW_KERNEL, relative_noise_variance=1e-2).fit(ROWS[:20], Y[:20, 0])
    process = GaussianProcess(kernel, relative_noise_variance=1e-2).fit(train, Y[:20, 0])
    for a, b in zip(process.predict(test, return_std=True), rows.predict(ROWS[20:], return_std=True)):
        np.testing.assert_allclose(a, b, **CLOSE)
    np.testing.assert_allclose(process.sample_y(test, 2).shape, (4, 2))


@pytest.mark.slow
def test_copies_of_a_point_count_as_one():
    twice = {leaf: np.concatenate([TREE[leaf], TREE[leaf]]) for leaf in TREE}
    one = KernelRegressor(TREE_KERNEL, ridge=1e-2).fit(TREE, Y)
    two = KernelRegressor(TREE_KERNEL, ridge=2e-2).fit(
        twice, np.concatenate([Y, Y])
    )  # twice the weight, twice the ridge
    np.testing.assert_allclose(two.predict(TREE), one.predict(TREE), **CLOSE)


@pytest.mark.slow
def test_many_points_go_through_the_solver_with_their_weights(monkeypatch):
    from unlazy.estimators import kernel as module

    monkeypatch.setattr(module, "MAX_EXACT_ROWS", 10)
    weights = 1.0 + np.arange(24) % 3
    settings = {"ridge": 1e-2, "tolerance": 1e-9}
    plain = KernelRegressor(ROW_KERNEL, **settings).fit(ROWS, Y, weights)
    found = KernelRegressor(TREE_KERNEL, **settings).fit(TREE, Y, weights)
    assert found.solver_ == plain.solver_ == "direct" and found.converged_
    # both within the tolerance of the solution
    np.testing.assert_allclose(found.predict(TREE), plain.predict(ROWS), rtol=0, atol=4e-9 * np.linalg.norm(Y))


@pytest.mark.slow
def test_tokens_stay_integers_and_tables_stay_tables():
    tokens = RNG.integers(0, 5, (24, 6))
    shared = Custom(lambda x, z: jnp.exp(jnp.mean(jnp.asarray(x == z, float))) if x.dtype == jnp.int32 else jnp.nan)
    model = KernelRegressor(shared, ridge=1e-1).fit(tokens.astype(np.int32), Y[:, 0])
    assert np.isfinite(model.predict(tokens.astype(np.int32))).all() and not hasattr(model, "n_features_in_")
    table = KernelRegressor(IMAGE_KERNEL, ridge=1e-2).fit(ROWS, Y)
    assert table.n_features_in_ == 12
    np.testing.assert_allclose(
        table.predict(ROWS), KernelRegressor(ROW_KERNEL, ridge=1e-2).fit(ROWS, Y).predict(ROWS), **CLOSE
    )


def test_scikit_learn_splits_images_and_misuse_is_named():
    found = cross_val_predict(KernelRegressor(IMAGE_KERNEL, ridge=1e-2), IMAGES, Y[:, 0], cv=3)
    rows = cross_val_predict(KernelRegressor(ROW_KERNEL, ridge=1e-2), ROWS, Y[:, 0], cv=3)
    np.testing.assert_allclose(found, rows, **CLOSE)
    model = KernelRegressor(TREE_KERNEL, ridge=1e-2).fit(TREE, Y)
    with pytest.raises(ValueError, match="trees of the same structure"):
        model.predict({"image": TREE["image"]})
    with pytest.raises(ValueError, match="NaN or infinity in 1 rows, first in row 2"):
        model.predict(
            {"image": TREE["image"], "rest": np.where(np.arange(24)[:, None, None] == 2, np.nan, TREE["rest"])}
        )
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        KernelRegressor(TREE_KERNEL).fit(TREE, Y[:5])
    with pytest.raises(ValueError, match="differ in structure or shape"):
        KernelRegressor(TREE_KERNEL).fit([*LISTED[:2], {"image": 1.0}], Y[:3])
    with pytest.raises(ValueError, match="Found array with dim 4"):
        KernelRegressor(Gaussian(1.0)).fit(IMAGES, Y)
