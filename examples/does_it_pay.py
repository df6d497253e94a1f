"""Does feature learning pay here?
===============================

`unlazy.compare` compares fixed kernels with models that learn features, on repeated splits of a table, and returns a
verdict with its evidence: pays, does not pay, undecided, or noise. The target below depends on one direction of eight.

    python examples/does_it_pay.py
"""

import numpy as np
import pandas as pd

import unlazy

rng = np.random.default_rng(0)
X = pd.DataFrame(rng.normal(size=(600, 8)), columns=[f"x{i}" for i in range(8)])
direction = X["x0"] + X["x1"]
y = (np.abs(direction) + 0.1 * rng.normal(size=len(X))).rename("y")

comparison = unlazy.compare(X, y, budget="10s", study=unlazy.StudyOptions(n_jobs=1))
print(comparison.verdict.word)
print(comparison)
print(comparison.models.round(3).to_string(index=False))
print("inputs that matter:", list(comparison.inputs[comparison.inputs.matters].input))
comparison.plot_curves()
