"""Finite fully connected networks of an architecture description [K6]: evaluation and initialization."""

from itertools import accumulate, pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Points, as_points, default_float, dot
from unlazy.core.errors import check_positive_integer, did_you_mean
from unlazy.layers import Layer as Described
from unlazy.layers.finite_network import LayeredNetwork
from unlazy.layers.protocol.parametrization import Scales, WeightBias, check_parametrization, layer_scales
from unlazy.theory.infinite_width.architecture import MLP

STARTS = ("gaussian", "antisymmetric", "symmetric")
Parameters = tuple[WeightBias, ...]


class _NetworkMeta(type(eqx.Module)):  # type: ignore[misc]
    """Metaclass that makes `Network(layers, ...)` return a `LayeredNetwork`."""

    def __call__(cls, mlp: Any, *args: Any, **options: Any) -> Any:
        if isinstance(mlp, Described):
            return LayeredNetwork(mlp, *args, **options)
        return super().__call__(mlp, *args, **options)


class Network(eqx.Module, metaclass=_NetworkMeta):
    """Finite fully connected network.

    `network.init(key)` draws parameters and `network(params, X)` evaluates

    f¹ = m_w W¹x + m_b b¹,  f^l = s f^{l-1} + m_w W^l φ(f^{l-1}) + m_b b^l   [K6].

    The parametrization sets the multipliers m, the initialization scales and the layer-wise learning rates. One output
    gives values of shape (n,), c outputs give (n, c). A description built from `unlazy.layers` instead of an `MLP`
    returns a `LayeredNetwork`: `Network(serial(...), inputs=(8, 8, 3), width=64)`.

    Parameters
    ----------
    mlp : MLP
        Architecture: depth, width, activation and number of outputs.
    inputs : int
        Dimension of x.
    parametrization : {"ntk", "standard", "mean_field", "mup"}, default "ntk"
        Parametrization of the weights.
    output_scale : float, default 1.0
        Factor α of the readout layer; every learning rate is divided by α². α → ∞ is the lazy limit.
    width, outputs : int, optional
        Only for descriptions of layers; an `MLP` has its own.

    Attributes
    ----------
    scales : tuple of Scales
        Multiplier, initialization scale and learning rate of every layer.
    rates : tuple of Layer
        Layer-wise learning rates.
    shapes : tuple of (int, int)
        (fan-in, fan-out) of every weight matrix.

    Raises
    ------
    ValueError
        If the MLP has no width, `inputs` is not a positive integer, or the parametrization is unknown.

    Examples
    --------
    >>> import jax
    >>> from unlazy import MLP, Network
    >>> network = Network(MLP(depth=1, width=4), inputs=3)
    >>> network(network.init(jax.random.key(0)), jax.numpy.ones((2, 3))).shape
    (2,)
    """

    mlp: MLP
    inputs: int = eqx.field(static=True)
    parametrization: str = eqx.field(static=True)
    output_scale: Any

    def __init__(
        self, mlp: Any, inputs: Any, parametrization: str = "ntk", *, output_scale: Any = 1.0,
        width: int | None = None, outputs: int | None = None,
    ):  # fmt: skip
        if width is not None or outputs is not None:
            raise ValueError(f"an MLP has its own width and outputs; use MLP(…, width={width}, outputs={outputs or 1})")
        check_parametrization(parametrization)
        self.mlp = mlp
        self.inputs = check_positive_integer("inputs (dimension of x)", inputs)
        self.parametrization = parametrization
        self.output_scale = output_scale
        _ = self.scales  # raises now, not at first use, if the MLP has no width

    @property
    def scales(self) -> tuple[Scales, ...]:
        """Multiplier, initialization scale and learning rate of every layer."""
        return layer_scales(self.mlp, self.inputs, self.parametrization, self.output_scale)

    @property
    def rates(self) -> tuple[WeightBias, ...]:
        """Layer-wise learning rates of the parametrization, to be multiplied by the step size."""
        return tuple(scale.rate for scale in self.scales)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(fan-in, fan-out) of every weight matrix."""
        width = self.mlp.width or 0
        sizes = [self.inputs, *[width] * self.mlp.depth, self.mlp.outputs]
        return tuple(pairwise(sizes))

    def init(self, key: PRNGKeyArray, start: str = "gaussian") -> Parameters:
        """Draw initial parameters.

        Parameters
        ----------
        key : PRNG key
            Source of randomness.
        start : {"gaussian", "antisymmetric", "symmetric"}, default "gaussian"
            "gaussian": independent N(0, s²). "antisymmetric": the second half of the last hidden layer repeats the
            first half and has the opposite readout weights, so that f_0 ≡ 0 with unchanged limit kernels [P3].
            "symmetric": the same with readout weights ±s and zero biases [D3].

        Returns
        -------
        tuple of Layer
            Weights and biases of every layer.

        Raises
        ------
        ValueError
            If `start` is unknown, or the width is odd and the start pairs neurons.
        """
        if start not in STARTS:
            raise ValueError(f"unknown start {start!r}{did_you_mean(str(start), STARTS)}")
        dtype = default_float()
        sizes = [size for fan_in, fan_out in self.shapes for size in (fan_in * fan_out, fan_out)]
        normals = jax.random.normal(key, (sum(sizes),), dtype)  # one draw compiles much faster than one per layer
        parts = iter(jnp.split(normals, list(accumulate(sizes))[:-1]))
        layers = []
        for shape, scale in zip(self.shapes, self.scales):
            weight, bias = scale.deviation.weight * next(parts).reshape(shape), scale.deviation.bias * next(parts)
            layers.append(WeightBias(jnp.asarray(weight, dtype), jnp.asarray(bias, dtype)))
        return tuple(layers) if start == "gaussian" else self._mirrored(layers, signs=start == "symmetric")

    def _mirrored(self, layers: list[WeightBias], signs: bool) -> Parameters:
        """Repeat the first half of the neurons with opposite readout weights."""
        width = self.mlp.width or 0
        if width % 2:
            raise ValueError(f"this start pairs neurons: the width must be even, got {width}")
        for l in range(self.mlp.depth):
            if l == self.mlp.depth - 1 or self.mlp.skips:  # a skip connection passes on the layer below
                half = WeightBias(*(part[..., : width // 2] for part in layers[l]))
                layers[l] = WeightBias(*(jnp.concatenate([part, part], axis=-1) for part in half))
        head, bias = layers[-1]
        half_head = head[: width // 2]
        if signs:
            half_head = self.scales[-1].deviation.weight * jnp.where(half_head >= 0, 1.0, -1.0).astype(head.dtype)
            layers = [WeightBias(weight, jnp.zeros_like(b)) for weight, b in layers]
        layers[-1] = WeightBias(jnp.concatenate([half_head, -half_head]), jnp.zeros_like(bias))
        return tuple(layers)

    def preactivations(self, params: Parameters, X: Points) -> tuple[Float[Array, "n _"], ...]:
        """Return f^1 … f^{L+1}: the argument of every activation, then the output.

        Parameters
        ----------
        params : tuple of Layer
            Parameters from `init`.
        X : array of shape (n, d)
            Inputs.

        Returns
        -------
        tuple of arrays of shape (n, width), the last of shape (n, outputs)
            Preactivations of every layer.

        Raises
        ------
        ValueError
            If the rows of X do not have `inputs` entries.
        """
        X = as_points(X)
        if X.shape[1] != self.inputs:
            raise ValueError(f"the network takes {self.inputs} inputs, got rows of length {X.shape[1]}")
        found: list[Array] = []
        for l, ((weight, bias), scale) in enumerate(zip(params, self.scales)):
            below = X if l == 0 else self.mlp.activation(found[-1])
            f = scale.multiplier.weight * dot(below, weight) + scale.multiplier.bias * bias
            found.append(f + self.mlp.residual * found[-1] if self.mlp.skips and 0 < l < self.mlp.depth else f)
        return tuple(found)

    def hidden(self, params: Parameters, X: Points, layer: int = -1) -> Float[Array, "n w"]:
        """Return the features φ(f^l) of a hidden layer.

        Parameters
        ----------
        params : tuple of Layer
            Parameters from `init`.
        X : array of shape (n, d)
            Inputs.
        layer : int, default -1
            Index of the hidden layer; the last by default.

        Returns
        -------
        array of shape (n, width)
            Features.
        """
        return self.mlp.activation(self.preactivations(params, X)[:-1][layer])

    def __call__(self, params: Parameters, X: Points) -> Float[Array, " n *c"]:
        """Evaluate the network.

        Parameters
        ----------
        params : tuple of Layer
            Parameters from `init`.
        X : array of shape (n, d)
            Inputs.

        Returns
        -------
        array of shape (n,) or (n, c)
            Outputs.
        """
        output = self.preactivations(params, X)[-1]
        return output[:, 0] if self.mlp.outputs == 1 else output
