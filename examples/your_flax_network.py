"""A flax network
==============

The tangent kernel of a flax model at its random start, as a kernel like any other: regression with it is what training
the model would do, were it very wide. Needs flax (`pip install flax`); without it the script says so.

    python examples/your_flax_network.py
"""

import importlib.util

import jax
import numpy as np

import unlazy


def main():
    """Digits 3 against 8: the kernel of a small model."""
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
    print(f"tangent kernel of a flax model, 200 digits: {right:.1%} of {len(X) - 200} others right")


if importlib.util.find_spec("flax") is None:
    print("flax is not installed: pip install flax")
else:
    main()
