"""One network description, read by the finite network and by its infinitely wide limit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from unlazy.core.errors import check_positive_integer
from unlazy.theory.activations.functions import Activation, activation

SQRT2 = math.sqrt(2.0)
"""σ_w with which ReLU layers keep the size of their inputs."""


Number = float | jax.Array | np.ndarray | np.generic


class MLP(eqx.Module):
    """Fully connected network [K6] with `depth` hidden layers, so depth + 1 weight matrices.

    f¹ = σ_w W¹x/√d + σ_b b¹,  f^l = s f^{l-1} + σ_w W^l φ(f^{l-1})/√w + σ_b b^l,  weights N(0,1).

    `sigma_w` and `sigma_b` are one number or one per weight matrix (a tuple, list or array of depth + 1).
    `scale_input` divides ⟨x,z⟩ by d (the fan-in of the first layer). `residual` is the weight s of the skip past each
    hidden layer but the first; the head has none. `width` and `outputs` matter to finite networks only.

    `biases` and `skips` are facts about the architecture, fixed when it is made: false where every σ_b (or s) was
    given as the number 0. Kernels then use formulas that know it, also inside jit, where values are not known.

    >>> len(Network(MLP(2, "gelu", width=64), 3).init(key))
    3
    >>> NTK(MLP(2, sigma_w=[1.0, 2.0, 1.0], residual=1.0)).gram(X).shape
    (60, 60)
    """

    depth: int = eqx.field(static=True)
    activation: Activation = eqx.field(static=True)
    sigma_w: tuple
    sigma_b: tuple
    residual: float | jax.Array
    scale_input: bool = eqx.field(static=True)
    width: int | None = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    biases: bool = eqx.field(static=True)
    skips: bool = eqx.field(static=True)

    def __init__(
        self,
        depth: int = 1,
        activation: str | Activation | Callable = "relu",
        sigma_w: Number | Sequence = SQRT2,
        sigma_b: Number | Sequence = 0.0,
        *,
        residual: Number = 0.0,
        scale_input: bool = True,
        width: int | None = None,
        outputs: int = 1,
    ):
        self.depth = check_positive_integer("depth (number of hidden layers)", depth)
        self.activation = _activation(activation)
        self.sigma_w = per_layer("sigma_w", sigma_w, depth + 1)
        self.sigma_b = per_layer("sigma_b", sigma_b, depth + 1)
        self.residual = checked("residual", residual)
        self.scale_input = scale_input
        self.width = None if width is None else check_positive_integer("width", width)
        self.outputs = check_positive_integer("outputs", outputs)
        self.biases = not all(_is_zero(b) for b in self.sigma_b)
        self.skips = not _is_zero(residual)


_activation = activation  # the class has a field of that name


def _is_zero(value: object) -> bool:
    """Known to be zero: a plain number, not an array that may be traced."""
    return isinstance(value, int | float) and value == 0


def per_layer(what: str, value: Number | Sequence, layers: int) -> tuple:
    """One value per weight matrix from one number, or from a tuple, list or array of the right length."""
    if isinstance(value, tuple | list):
        values = tuple(value)
    elif np.ndim(value) == 1:
        values = tuple(value[i] for i in range(np.shape(value)[0]))  # type: ignore[index]
    else:
        return (checked(what, value),) * layers  # type: ignore[arg-type]
    if len(values) != layers:
        raise ValueError(f"{what} needs one value or {layers} (one per weight matrix), got {len(values)}")
    return tuple(checked(what, v) for v in values)


def checked(what: str, value: Number) -> Any:
    """The value itself where it is one number of at least 0, or not yet known; else a ValueError."""
    if np.ndim(value) != 0:
        raise ValueError(f"{what} needs one number per weight matrix, got an array of shape {np.shape(value)}")
    if isinstance(value, jax.core.Tracer) or not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
        return value  # known later, or a mark that a transformation put there
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{what} must be finite and at least 0, got {float(value)!r}")
    # a plain number takes the type of the inputs; one of NumPy's would impose its own
    return float(value) if isinstance(value, np.generic | np.ndarray) else value
