"""The tangent kernel of a two-layer network of finite width, and its limit at infinite width [L1]."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.kernels.base import Kernel
from unlazy.kernels.networks.infinite_width import LayerKernel
from unlazy.theory.activations.functions import ActivationFunction, activation
from unlazy.theory.finite_width import two_layer
from unlazy.theory.infinite_width.architecture import MLP


class TwoLayer(Kernel):
    """Tangent kernel first · K_1 + head · K_2 of the network f(x) = Σ_j a_j φ(w_j·x) [L1].

    `first=0, head=1` is random features, `first=1, head=0` a frozen head.

    Parameters
    ----------
    W : array of shape (width, d)
        First-layer weights w_j.
    a : array of shape (width,)
        Head weights a_j.
    phi : Activation, default relu
        φ.
    first, head : float, default 1.0
        Factors of the two layers.
    """

    W: Float[Array, "w d"]
    a: Float[Array, " w"]
    phi: ActivationFunction = eqx.field(static=True, default=activation("relu"))
    first: float | Float[Array, ""] = 1.0
    head: float | Float[Array, ""] = 1.0

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Finite sums of features: differences of inputs would not be more accurate."""
        first = self.first * two_layer.first_layer_kernel(left, right, self.W, self.a, self.phi)
        return first + self.head * two_layer.head_kernel(left, right, self.W, self.phi)


def sample_two_layer(
    key: PRNGKeyArray,
    width: int,
    inputs: int,
    phi: str | ActivationFunction = "relu",
    first: float = 1.0,
    head: float = 1.0,
) -> TwoLayer:
    """Draw a two-layer network in the NTK parametrization with σ_w = 1, and return its tangent kernel.

    w_j ~ N(0, I/d), a_j = ±1/√width, and K_2 is divided by the width.

    Parameters
    ----------
    key : JAX key
        Random key.
    width : int
        Number of neurons.
    inputs : int
        Number of inputs d.
    phi : str or Activation, default "relu"
        Activation.
    first, head : float, default 1.0
        Factors of the two layers.

    Returns
    -------
    TwoLayer
        The kernel.
    """
    check_positive_integer("width", width)
    key_w, key_a = jax.random.split(key)
    W = jax.random.normal(key_w, (width, inputs)) / jnp.sqrt(inputs)
    a = jax.random.rademacher(key_a, (width,), dtype=W.dtype) / jnp.sqrt(width)
    return TwoLayer(W, a, activation(phi), first / inputs, head / width)


def infinite_two_layer(phi: str | ActivationFunction = "relu", first: float = 1.0, head: float = 1.0) -> LayerKernel:
    """Limit of `sample_two_layer` at infinite width.

    Parameters
    ----------
    phi : str or Activation, default "relu"
        Activation.
    first, head : float, default 1.0
        Factors of the two layers.

    Returns
    -------
    LayerKernel
        The kernel.
    """
    return LayerKernel(MLP(1, phi, sigma_w=1.0), (first, head))
