"""A flax network
==============

Kernel regression with the tangent kernel of a flax model at initialization, which is what training the model would
compute if it were very wide. Requires flax (`pip install flax`).

    python examples/your_flax_network.py
"""

import importlib.util

import jax
import numpy as np

import unlazy


def main():
    """Digits 3 and 8, with the tangent kernel of a small model."""
    from flax import linen

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Dense(64)(x))
            return linen.Dense(1)(x)[:, 0]

    from sklearn.datasets import load_digits

    digits = load_digits()
    keep = np.isin(digits.target, (3, 8))
    X = (digits.data[keep] / 16 - 0.3).astype(np.float32)
    y = np.where(digits.target[keep] == 8, 1.0, -1.0)
    model = Model()
    variables = model.init(jax.random.key(0), X[:1])
    kernel = unlazy.TangentKernel(model.apply, variables)
    fit = unlazy.solve(kernel, X[:200], y[:200], ridge=1e-2)
    right = np.mean(np.sign(fit.predict(X[200:])) == y[200:])
    print(f"tangent kernel of a flax model, 200 training digits: accuracy {right:.1%} on {len(X) - 200} others")


if importlib.util.find_spec("flax") is None:
    print("flax is not installed: pip install flax")
else:
    main()
