"""Will hyperparameters transfer?
==============================

A network in its standard parametrization, with one learning rate for all layers, changes more and more in a step of
Adam as it becomes wider. `unlazy.check_scaling` names the parameters behind it [T1], and `unlazy.scaled` returns the
same network with an initialization and learning rates [T2] that hold at every width. Both take Equinox, Flax and
PyTorch networks too.

    python examples/check_scaling.py
"""

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import unlazy

rng = np.random.default_rng(0)
X = rng.normal(size=(128, 8)).astype(np.float32)
y = X[:, :1] * X[:, 1:2]
WIDTHS, RATE = (32, 256), 0.001  # more widths take more time to compile


def network(params, X):
    """Two hidden layers."""
    return jnp.tanh(jnp.tanh(X @ params["first"]) @ params["hidden"]) @ params["last"]


def make(width, seed):
    """The network and its parameters in the standard parametrization."""
    rng = np.random.default_rng(seed)
    shapes = {"first": (8, width), "hidden": (width, width), "last": (width, 1)}
    return network, {name: (rng.normal(size=s) / s[0] ** 0.5).astype(np.float32) for name, s in shapes.items()}


standard = unlazy.check_scaling(make, (X, y), optimizer=optax.adam(RATE), widths=WIDTHS)
print(f"standard parametrization\n{standard}\n")

factory = unlazy.scaled(make, X[:4], base=32)
print(f"exponents of the width\n{factory.frame()}\n")


def scaled_make(width, seed):
    """The same network, with the initial readout scaled."""
    return factory(width=width, seed=seed)


def scaled_adam(network):
    """Adam with a rate for each parameter."""
    width = network[1]["hidden"].shape[0]
    return optax.chain(optax.adam(RATE), factory.scale_updates(network, width=width))


scaled = unlazy.check_scaling(scaled_make, (X, y), optimizer=scaled_adam, widths=WIDTHS)
print(f"unlazy.scaled\n{scaled}")

_, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharex=True)
for axes, what in zip(panels, ("rate", "initialization")):
    for shift, label, check in ((0.15, "standard parametrization", standard), (-0.15, "unlazy.scaled", scaled)):
        found = sorted((f for f in check.findings if f.quantity == what), key=lambda f: f.name)
        rows = np.arange(len(found)) + shift
        errors = [2 * f.excess.error for f in found]
        axes.errorbar([f.excess.value for f in found], rows, xerr=errors, fmt="o", markersize=4, label=label)
        axes.set(yticks=np.arange(len(found)), yticklabels=[f.name for f in found])
    axes.axvline(0, color="gray", linewidth=0.8, linestyle=":")
    axes.set(title=what, xlabel="exponent of the width minus the right one")
panels[0].legend(fontsize=8)
plt.show()
