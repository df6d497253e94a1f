"""Arguments have the same meaning in every estimator: kernels' names, ridge, bandwidth, random_state."""

import inspect

import numpy as np
import pytest

import unlazy
from unlazy import estimators
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.estimators import named_kernels
from unlazy.estimators.persistence.registry import ESTIMATORS

X = np.random.default_rng(0).normal(size=(30, 2))
Y = np.sin(X[:, 0])


def signatures():
    return {name: inspect.signature(getattr(estimators, name)).parameters for name in ESTIMATORS}


def test_random_state_is_zero_by_default():
    found = {name: given["random_state"].default for name, given in signatures().items() if "random_state" in given}
    assert len(found) >= 7 and set(found.values()) == {0}
    draws = inspect.signature(estimators.GaussianProcess.sample_y).parameters
    assert draws["random_state"].default == 0
    twice = [unlazy.RandomFeatures().fit(X).transform(X) for _ in range(2)]
    np.testing.assert_array_equal(*twice)


@pytest.mark.slow
def test_a_kernel_name_means_one_network():
    network = named_kernels.NETWORK
    for name in ("ntk", "nngp"):
        assert named_kernels.unit_kernel(name).network == network
        assert named_kernels.kernel_named(name, 1.0, 2).kernel.network == network
        assert CANDIDATES[name].options[0](False, 0, 100).model.kernel == name  # the meaning of a name is defined once
    process = unlazy.GaussianProcess("ntk_ensemble").fit(X, Y)
    assert process.kernel_.kernel.network == process.mean_kernel_.kernel.network == network


def test_ridge_is_added_to_K():
    """A kernel machine at the ridge that a feature machine without updates reports, on the same standardized columns:
    the same coefficients to rounding times the condition of K + ρI."""
    settings = {"metric": "diagonal", "updates": 0, "relative_ridge": 0.1, "relative_bandwidth": 0.7}
    machine = unlazy.FeatureMachineRegressor("nngp", **settings).fit(X, Y)
    Z = (X - machine.offset_) / machine.scale_
    ours = unlazy.KernelRegressor(machine.kernel_, ridge=machine.ridge_).fit(Z, Y)
    assert machine.relative_ridge_ == 0.1 and abs(machine.ridge_ / 0.1 - 1) > 0.1  # k(x, x) is not 1
    condition = 1 + len(X) / 0.1  # λ_max ≤ n·mean k(x, x), and ρ is a tenth of that mean
    np.testing.assert_allclose(ours.predict(Z), machine.predict(X), atol=100 * condition * 2.0**-53)


@pytest.mark.parametrize("name", ["FeatureMachineRegressor", "FeatureMachineClassifier", "TwoLayerRegressor"])
def test_relative_ridges_are_named_relative(name):
    kind = getattr(estimators, name)
    assert not {"ridge", "bandwidth"} & set(signatures()[name])
    with pytest.raises(ValueError, match=r"ridge=0.1 of .* is relative and was renamed to relative_ridge"):
        kind(ridge=0.1)
    with pytest.raises(ValueError, match="relative_ridge must be positive"):
        kind(relative_ridge=-1.0).fit(X, Y > 0)
    kind().set_params(relative_ridge=0.1)
    if name != "TwoLayerRegressor":
        with pytest.raises(ValueError, match="renamed to relative_bandwidth"):
            kind(bandwidth=2.0)
