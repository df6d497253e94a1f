"""Tests that run a sweep belong to the slow suite, but for the quickest; what every experiment must have is fast.
A trial that fails is a failure of the test that ran it, not a warning beside claims that hold."""

import pytest

FAST = {"test_every_experiment", "test_random_features", "test_gp_prior_draws"}


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/experiments/" in item.path.as_posix():
            item.add_marker(pytest.mark.filterwarnings("error:.*the next run tries them again"))
            if item.path.stem not in FAST:
                item.add_marker(pytest.mark.slow)
