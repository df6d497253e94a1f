"""A table with named columns
==========================

Fit models to a table, predict probabilities and uncertainty, save and load.

    python examples/tables.py
"""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import unlazy

# Regression: scale the columns first; the estimator chooses bandwidth and ridge.
X, y = load_diabetes(return_X_y=True, as_frame=True)
train, test, y_train, y_test = train_test_split(X, y, random_state=0)
for kernel in ("laplace", "product_laplace", unlazy.NTK(unlazy.MLP(depth=2, sigma_b=0.5))):
    model = make_pipeline(StandardScaler(), unlazy.KernelRegressor(kernel)).fit(train, y_train)
    name = kernel if isinstance(kernel, str) else "ntk, 2 layers"
    fitted = model[-1]
    print(f"{name:16s} R² {model.score(test, y_test):.3f}   ridge {fitted.ridge_:.3g} by leave-one-out")

# Uncertainty: an infinitely wide Bayesian network. Intervals for noisy labels include the noise variance.
process = make_pipeline(StandardScaler(), unlazy.GaussianProcess()).fit(train, y_train)
mean, std = process.predict(test, return_std=True)
total = np.sqrt(std**2 + process[-1].noise_variance_[0])
print(f"nngp             R² {process.score(test, y_test):.3f}   {np.mean(np.abs(mean - y_test) < 1.96 * total):.0%} of "
      "test points inside the 95% interval")  # fmt: skip

# Classification with calibrated probabilities.
X, labels = load_iris(return_X_y=True, as_frame=True)
classifier = unlazy.KernelClassifier("gaussian")
print(f"iris             accuracy {cross_val_score(classifier, X, labels, cv=5).mean():.3f}")

# Files contain numbers and names, never code, so it is safe to open files from others.
classifier.fit(X, labels)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "iris.unlazy"
    classifier.save(path)
    again = unlazy.load(path)
    same = np.array_equal(again.predict_proba(X), classifier.predict_proba(X))
    print(f"saved {path.stat().st_size} bytes; predictions after loading are bitwise equal: {same}")
    served = unlazy.load_predictor(path).predict_proba(X)  # needs NumPy and SciPy only, so a server starts at once
    print(f"without JAX      largest difference {np.abs(served - classifier.predict_proba(X)).max():.0e}")
