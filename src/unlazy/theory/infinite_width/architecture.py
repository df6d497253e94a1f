"""Description of a fully connected network, shared by the finite network and its infinitely wide limit."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np

from unlazy.core.errors import check_positive_integer
from unlazy.theory.activations.functions import ActivationFunction, activation

SQRT2 = math.sqrt(2.0)
"""σ_w with which ReLU layers preserve the size of their inputs."""


Number = float | jax.Array | np.ndarray | np.generic


class MLP(eqx.Module):
    """Description of a fully connected network with `depth` hidden layers [K6].

    f¹ = σ_w W¹x/√d + σ_b b¹,  f^l = s f^{l-1} + σ_w W^l φ(f^{l-1})/√w + σ_b b^l, with weights N(0,1): depth + 1 weight
    matrices. Finite networks (`unlazy.Network`) and kernels (`unlazy.NNGP`, `unlazy.NTK`) both take it.

    Parameters
    ----------
    depth : int, default 1
        Number of hidden layers.
    activation : str, ActivationFunction or callable, default "relu"
        φ: a name such as "relu", "erf", "gelu" or "tanh", or any elementwise function.
    sigma_w : float or sequence of depth + 1 floats, default √2
        Standard deviation of the weights, one value or one per weight matrix.
    sigma_b : float or sequence of depth + 1 floats, default 0.0
        Standard deviation of the biases.
    residual : float, default 0.0
        Weight s of the skip connection around each hidden layer but the first; the head has none.
    scale_input : bool, default True
        Divide ⟨x,z⟩ by the number of inputs d, the fan-in of the first layer.
    width : int, optional
        Width of the hidden layers; finite networks only.
    outputs : int, default 1
        Number of outputs; finite networks only.

    Attributes
    ----------
    biases, skips : bool
        Whether the architecture has biases, or skip connections. Fixed at construction: False if every σ_b, or s, was
        the number 0. Kernels then use specialized formulas, also inside jit, where values are not known.

    Examples
    --------
    >>> import jax
    >>> from unlazy import MLP, NTK, Network
    >>> len(Network(MLP(2, "gelu", width=64), 3).init(jax.random.key(0)))
    3
    >>> X = jax.random.normal(jax.random.key(1), (4, 3))
    >>> NTK(MLP(2, sigma_w=[1.0, 2.0, 1.0], residual=1.0)).gram(X).shape
    (4, 4)
    """

    depth: int = eqx.field(static=True)
    activation: ActivationFunction = eqx.field(static=True)
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
        activation: str | ActivationFunction | Callable = "relu",
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
        self.residual = validate_scale("residual", residual)
        self.scale_input = scale_input
        self.width = None if width is None else check_positive_integer("width", width)
        self.outputs = check_positive_integer("outputs", outputs)
        self.biases = not all(_is_zero(b) for b in self.sigma_b)
        self.skips = not _is_zero(residual)


_activation = activation  # the class has a field of this name


def _is_zero(value: object) -> bool:
    """Whether the value is the Python number zero, not an array that may be traced."""
    return isinstance(value, int | float) and value == 0


def per_layer(what: str, value: Number | Sequence, layers: int) -> tuple:
    """One value per weight matrix, from one number or from a tuple, list or array of that length.

    Raises
    ------
    ValueError
        If the length is wrong or a value is negative or not finite.
    """
    if isinstance(value, tuple | list):
        values = tuple(value)
    elif np.ndim(value) == 1:
        values = tuple(value[i] for i in range(np.shape(value)[0]))  # type: ignore[index]
    else:
        return (validate_scale(what, value),) * layers  # type: ignore[arg-type]
    if len(values) != layers:
        raise ValueError(f"{what} must be one value or {layers} values (one per weight matrix), got {len(values)}")
    return tuple(validate_scale(what, v) for v in values)


def validate_scale(what: str, value: Number) -> Any:
    """Return the scalar if it is finite and nonnegative, or traced; raise ValueError otherwise."""
    if np.ndim(value) != 0:
        raise ValueError(f"{what} must be a scalar for each weight matrix, got an array of shape {np.shape(value)}")
    if isinstance(value, jax.core.Tracer) or not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
        return value  # traced, or a placeholder of a transformation
    if not 0 <= float(value) < math.inf:
        raise ValueError(f"{what} must be finite and at least 0, got {float(value)!r}")
    # a Python number takes the dtype of the inputs; a NumPy scalar would impose its own
    return float(value) if isinstance(value, np.generic | np.ndarray) else value
