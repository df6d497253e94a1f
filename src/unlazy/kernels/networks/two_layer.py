"""The tangent kernel of a two-layer network of finite width, beside its infinite limit [L1]."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import LayerKernel
from unlazy.theory.activations.functions import Activation, activation
from unlazy.theory.infinite_width import two_layer
from unlazy.theory.infinite_width.architecture import MLP


class TwoLayer(Kernel):
    """first·K_1 + head·K_2 of f(x) = Σ_j a_j φ(w_j·x) [L1]: (0, 1) random features, (1, 0) a frozen head."""

    W: Float[Array, "w d"]
    a: Float[Array, " w"]
    phi: Activation = eqx.field(static=True, default=activation("relu"))
    first: float | Float[Array, ""] = 1.0
    head: float | Float[Array, ""] = 1.0

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Features are finite sums: from differences nothing would be gained."""
        first = self.first * two_layer.first_layer_kernel(left, right, self.W, self.a, self.phi)
        return first + self.head * two_layer.head_kernel(left, right, self.W, self.phi)


def sample_two_layer(
    key: PRNGKeyArray, width: int, inputs: int, phi: str | Activation = "relu", first: float = 1.0, head: float = 1.0
) -> TwoLayer:
    """w_j ~ N(0, I/d), a_j = ±1/√width, K_2 divided by the width: the NTK parametrization with σ_w = 1."""
    check_positive_integer("width", width)
    key_w, key_a = jax.random.split(key)
    W = jax.random.normal(key_w, (width, inputs)) / jnp.sqrt(inputs)
    a = jax.random.rademacher(key_a, (width,), dtype=W.dtype) / jnp.sqrt(width)
    return TwoLayer(W, a, activation(phi), first / inputs, head / width)


def infinite_two_layer(phi: str | Activation = "relu", first: float = 1.0, head: float = 1.0) -> LayerKernel:
    """What `sample_two_layer` tends to as the width grows."""
    return LayerKernel(MLP(1, phi, sigma_w=1.0), (first, head))
