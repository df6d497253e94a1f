"""From lazy to rich
=================

One number, γ_0, takes an infinitely wide network from a fixed kernel to learned features. The target has one latent
direction in eight.

    python examples/lazy_to_rich.py
"""

import numpy as np

import unlazy
from unlazy.training import RichOptions

rng = np.random.default_rng(0)
X = rng.normal(size=(460, 8))
y = np.abs(X[:, 0]) - np.sqrt(2 / np.pi)
X, y, X_test, y_test = X[:60], y[:60], X[60:], y[60:]

network = unlazy.MLP(1, "relu")
# long enough for all but the smallest eigenmodes of the lazy kernel
times = np.array([0.0, 0.1, 0.3, 1.0, 3.0])
options = RichOptions(draws=1024, runs=2)
for richness in (0.1, 1.0, 4.0):
    rich = unlazy.rich_limit(network, X, y, richness=richness, times=times, options=options)
    theta = rich.tangent.value
    moved = np.linalg.norm(theta[-1] - theta[0]) / np.linalg.norm(theta[0])
    risk = np.mean((rich.predict(X_test, times[-1]) - y_test) ** 2) / np.var(y_test)
    w = rich.states.w[-1].reshape(-1, 8)
    share = np.sum(w[:, 0] ** 2) / np.sum(w**2)
    print(
        f"γ_0 = {richness:<4g} training loss {rich.losses.value[-1]:.4f}, unexplained variance {risk:.3f}, "
        f"kernel changed by {moved:.0%}, share of weights in the latent direction {share:.2f} (initially 1/8)"
    )
