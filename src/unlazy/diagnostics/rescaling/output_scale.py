"""f_0 + α (f - f_0) of outputs, and θ_0 as a constant of a network [W6]."""

import jax
from jaxtyping import PyTree


class Constant:
    """A value that is no part of a pytree: neither trained nor decayed. Compares by identity."""

    def __init__(self, value: PyTree) -> None:
        self.value = value


def scale_output(f: PyTree, f_0: PyTree, scale: float) -> PyTree:
    """f_0 + α (f - f_0) of every array."""
    return jax.tree.map(lambda a, b: b + scale * (a - b), f, f_0)
