"""Programs that a first fit asks XLA to compile: each makes new users wait."""

import os
import subprocess
import sys

import pytest

BUDGET = 5
"""Programs of a fit without arguments on the CPU: three draw a random integer, two are formulas of kernels.

None depends on the number of rows or columns, so that all folds and all sizes share them.
"""
FIT = """
import jax, numpy as np
import unlazy
from unlazy import {estimator}
requested = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: requested.append(event) if event.endswith("/backend_compile_duration") else None)
rng = np.random.default_rng(0)
for rows, columns in {sizes}:
    X = rng.normal(size=(rows, columns))
    y = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=rows)
    {estimator}().fit(X, y if {regression} else np.digitize(y, [-0.5, 0.5]))
    print(len(requested))
"""


def programs(estimator: str, sizes: list[tuple[int, int]]) -> list[int]:
    """Programs requested so far, after each of these fits in one fresh process on the CPU."""
    code = FIT.format(estimator=estimator, sizes=sizes, regression=estimator.endswith("Regressor"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.nightly_cases("FeatureMachineClassifier")
@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["FeatureMachineRegressor", "FeatureMachineClassifier"])
def test_a_fit_of_1500_rows_compiles_few_programs(estimator):
    (found,) = programs(estimator, [(1500, 10)])
    assert 0 < found <= BUDGET


@pytest.mark.parametrize(
    "estimator", ["FeatureMachineRegressor", pytest.param("FeatureMachineClassifier", marks=pytest.mark.slow)]
)
def test_small_fits_of_other_shapes_compile_nothing_more(estimator):
    first, second = programs(estimator, [(150, 4), (230, 6)])
    assert 0 < first <= BUDGET and second == first
