"""The finite network of an architecture description [K6]: a function of parameters and inputs, and its start."""

from itertools import accumulate, pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.arrays import Points, points
from unlazy.core.errors import check_positive_integer, nearest
from unlazy.core.linalg import dot
from unlazy.core.precision import default_float
from unlazy.layers.description import Layer as Described
from unlazy.layers.finite import LayeredNetwork
from unlazy.layers.parametrization import Layer, Scales, check_parametrization, layer_scales
from unlazy.theory.infinite_width.architecture import MLP

STARTS = ("gaussian", "antisymmetric", "symmetric")
Parameters = tuple[Layer, ...]


class _ByDescription(type(eqx.Module)):  # type: ignore[misc]
    """Makes Network(…) of any description: one of layers that is no MLP has its own class."""

    def __call__(cls, mlp: Any, *args: Any, **options: Any) -> Any:
        if isinstance(mlp, Described):
            return LayeredNetwork(mlp, *args, **options)
        return super().__call__(mlp, *args, **options)


class Network(eqx.Module, metaclass=_ByDescription):
    """A finite fully connected network: `network.init(key)` draws parameters, `network(params, X)` evaluates.

    f¹ = m_w W¹x + m_b b¹,  f^l = s f^{l-1} + m_w W^l φ(f^{l-1}) + m_b b^l   [K6],
    multipliers, start and layer-wise rates by the parametrization. One output gives shape (n,), more give (n, c).
    A description of layers (`unlazy.layers`) gives a `LayeredNetwork`: Network(serial(…), inputs=(8, 8, 3), width=64).

    >>> import jax
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
            raise ValueError(f"an MLP has its own width and outputs: MLP(…, width={width}, outputs={outputs or 1})")
        check_parametrization(parametrization)
        self.mlp = mlp
        self.inputs = check_positive_integer("inputs (dimension of x)", inputs)
        self.parametrization = parametrization
        self.output_scale = output_scale
        _ = self.scales  # a description without a width fails here, not at the first use

    @property
    def scales(self) -> tuple[Scales, ...]:
        return layer_scales(self.mlp, self.inputs, self.parametrization, self.output_scale)

    @property
    def rates(self) -> tuple[Layer, ...]:
        """Layer-wise learning rates of the parametrization: multiply them with the step size."""
        return tuple(scale.rate for scale in self.scales)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(fan-in, fan-out) of every weight matrix."""
        width = self.mlp.width or 0
        sizes = [self.inputs, *[width] * self.mlp.depth, self.mlp.outputs]
        return tuple(pairwise(sizes))

    def init(self, key: PRNGKeyArray, start: str = "gaussian") -> Parameters:
        """Parameters at the start.

        gaussian: independent N(0, s²). antisymmetric: the second half of the last hidden layer repeats the first and
        the head has the opposite sign there, so f_0 ≡ 0 and the limit kernels are unchanged [P3]. symmetric: the same
        with head entries ±s and no biases [D3].
        """
        if start not in STARTS:
            raise ValueError(f"unknown start {start!r}{nearest(str(start), STARTS)}")
        dtype = default_float()
        sizes = [size for fan_in, fan_out in self.shapes for size in (fan_in * fan_out, fan_out)]
        normals = jax.random.normal(key, (sum(sizes),), dtype)  # one draw compiles much faster than one per layer
        parts = iter(jnp.split(normals, list(accumulate(sizes))[:-1]))
        layers = []
        for shape, scale in zip(self.shapes, self.scales):
            weight, bias = scale.deviation.weight * next(parts).reshape(shape), scale.deviation.bias * next(parts)
            layers.append(Layer(jnp.asarray(weight, dtype), jnp.asarray(bias, dtype)))
        return tuple(layers) if start == "gaussian" else self._mirrored(layers, signs=start == "symmetric")

    def _mirrored(self, layers: list[Layer], signs: bool) -> Parameters:
        width = self.mlp.width or 0
        if width % 2:
            raise ValueError(f"a mirrored start pairs neurons: the width must be even, got {width}")
        for l in range(self.mlp.depth):
            if l == self.mlp.depth - 1 or self.mlp.skips:  # a skip carries the layer below upward
                half = Layer(*(part[..., : width // 2] for part in layers[l]))
                layers[l] = Layer(*(jnp.concatenate([part, part], axis=-1) for part in half))
        head, bias = layers[-1]
        half_head = head[: width // 2]
        if signs:
            half_head = self.scales[-1].deviation.weight * jnp.where(half_head >= 0, 1.0, -1.0).astype(head.dtype)
            layers = [Layer(weight, jnp.zeros_like(b)) for weight, b in layers]
        layers[-1] = Layer(jnp.concatenate([half_head, -half_head]), jnp.zeros_like(bias))
        return tuple(layers)

    def preactivations(self, params: Parameters, X: Points) -> tuple[Float[Array, "n _"], ...]:
        """f^1 … f^{L+1}: the argument of every activation, then the output."""
        X = points(X)
        if X.shape[1] != self.inputs:
            raise ValueError(f"the network takes {self.inputs} inputs, got rows of length {X.shape[1]}")
        found: list[Array] = []
        for l, ((weight, bias), scale) in enumerate(zip(params, self.scales)):
            below = X if l == 0 else self.mlp.activation(found[-1])
            f = scale.multiplier.weight * dot(below, weight) + scale.multiplier.bias * bias
            found.append(f + self.mlp.residual * found[-1] if self.mlp.skips and 0 < l < self.mlp.depth else f)
        return tuple(found)

    def hidden(self, params: Parameters, X: Points, layer: int = -1) -> Float[Array, "n w"]:
        """Features φ(f^l) of a hidden layer, the last unless told."""
        return self.mlp.activation(self.preactivations(params, X)[:-1][layer])

    def __call__(self, params: Parameters, X: Points) -> Float[Array, "n *c"]:
        output = self.preactivations(params, X)[-1]
        return output[:, 0] if self.mlp.outputs == 1 else output
