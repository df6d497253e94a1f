"""Tests that run a sweep are slow, except for the quickest; the most expensive are nightly.

A trial that fails is a failure of the test that ran it, not a warning beside claims that hold.
"""

import pytest

FAST = {"test_every_experiment", "test_random_features", "test_gp_prior_draws"}
NIGHTLY = {
    "test_adaptive_kernel_experiment", "test_convolution_limit", "test_dial_from_lazy_to_rich",
    "test_feature_emergence", "test_fixed_features_fail",
    "test_frobenius_nuclear", "test_images_by_kernels", "test_rich_limit_is_the_limit", "test_three_layers",
}  # fmt: skip
"""Files of half a minute or more in which every test needs the sweep."""


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/experiments/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("error:.*the next run will retry them"))
            if item.path.stem not in FAST:
                item.add_marker(pytest.mark.slow)
            if item.path.stem in NIGHTLY:
                item.add_marker(pytest.mark.nightly)
