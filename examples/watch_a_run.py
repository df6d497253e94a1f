"""Is this training run lazy?
==========================

One network, trained at two output scales [W6]: `unlazy.watch` says which run stays a kernel machine and which learns
features.

    python examples/watch_a_run.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import unlazy

rng = np.random.default_rng(0)
X = rng.normal(size=(256, 8)).astype(np.float32)
y = np.sin(2 * X[:, 0]).astype(np.float32)[:, None]
WIDTH, STEPS, RATE = 128, 400, 0.2


def network(params, X):
    """One hidden layer."""
    return jnp.tanh(X @ params["W"] / X.shape[1] ** 0.5) @ params["a"] / WIDTH**0.5


start = {"W": rng.normal(size=(8, WIDTH)).astype(np.float32), "a": rng.normal(size=(WIDTH, 1)).astype(np.float32)}

for scale in (0.1, 30.0):

    def centered(params, X, scale=scale):
        """The network's change since the start, times the output scale: large scales are lazy."""
        return scale * (network(params, X) - network(start, X))

    def loss(params, centered=centered):
        """Mean squared error."""
        return jnp.mean((centered(params, X) - y) ** 2)

    gradient = jax.jit(jax.grad(loss))
    params = start
    monitor = unlazy.watch((centered, params), X[:64], y[:64], every=50, planned_steps=STEPS)
    for _ in range(STEPS):
        params = jax.tree.map(lambda p, g, scale=scale: p - RATE / scale**2 * g, params, gradient(params))
        monitor.update(params)
    print(f"output scale {scale}: {monitor}")
