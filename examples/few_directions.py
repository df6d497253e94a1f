"""Few directions
==============

The target depends on one direction in twenty dimensions. Fixed kernels miss it; features learned in one step find it.

    python examples/few_directions.py
"""

import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline

import unlazy

rng = np.random.default_rng(0)
d, n = 20, 2000
u = np.ones(d) / np.sqrt(d)


def sample(count):
    """Standard normal x, and a polynomial of degree four in u·x with variance one."""
    X = rng.normal(size=(count, d))
    t = X @ u
    return X, (t**2 - 1) / 2 + (t**4 - 6 * t**2 + 3) / np.sqrt(48)


X, y = sample(n)
X_test, y_test = sample(4000)

models = {
    "random relu features, 512": make_pipeline(unlazy.RandomFeatures("nngp", n_components=512, random_state=0),
                                               RidgeCV(np.logspace(-8, 2, 21))),
    "Gaussian kernel": unlazy.KernelRegressor("gaussian"),
    "NTK of two layers": unlazy.KernelRegressor("ntk"),
    "one gradient step (Algorithm 1)": unlazy.TwoLayerRegressor(random_state=0),
}  # fmt: skip
for name, model in models.items():
    model.fit(X, y)
    print(f"{name:32s} unexplained variance {1 - model.score(X_test, y_test):.3f}")

found = np.linalg.eigh(models["one gradient step (Algorithm 1)"].metric_)[1][:, -1]
print(f"|cosine| between u and the leading direction of the step: {abs(found @ u):.3f}")
