"""A fit of up to 3,000 rows on the CPU asks XLA to compile nothing: each program makes new users wait."""

import os
import subprocess
import sys

import pytest

FIT = """
import jax, numpy as np
import unlazy
from unlazy import {estimator}
requested = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: requested.append(event) if event.endswith("/backend_compile_duration") else None)
rng = np.random.default_rng(0)
X = rng.normal(size=({rows}, 10))
y = X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=len(X))
{estimator}().fit(X, y if {regression} else np.digitize(y, [-0.5, 0.5])).predict(X[:1])
print(len(requested))
jax.jit(lambda x: x + 1)(1.0)
print(len(requested))
"""


@pytest.mark.nightly_cases("FeatureMachineClassifier-1500")
@pytest.mark.slow_cases("FeatureMachineClassifier-150", "FeatureMachineRegressor-1500", "FeatureMachineClassifier-1500")
@pytest.mark.parametrize("rows", [150, 1500])
@pytest.mark.parametrize("estimator", ["FeatureMachineRegressor", "FeatureMachineClassifier"])
def test_a_fit_compiles_nothing(estimator, rows):
    code = FIT.format(estimator=estimator, rows=rows, regression=estimator.endswith("Regressor"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}
    )
    assert done.returncode == 0, done.stderr
    by_fit, with_a_program = map(int, done.stdout.split())
    assert by_fit == 0 and with_a_program > 0  # else the listener heard nothing
