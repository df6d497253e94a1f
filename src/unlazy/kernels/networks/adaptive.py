"""The feature kernel of an infinitely wide Bayesian network that has seen data [M4]."""

from jaxtyping import Array, Float

from unlazy.core.linalg import dot
from unlazy.kernels.base import Kernel
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP


class AdaptiveKernel(Kernel):
    """σ_w² ⟨φ(h)φ(h)ᵀ⟩ + σ_b² of two layers, hidden weights drawn from their law given the data [M4].

    `training.rich.adaptive.adaptive_kernel` finds them. With draws from the start's law it is the NNGP [K7].
    Lauditi, Bordelon and Pehlevan (2025).
    """

    network: MLP
    weights: Float[Array, "N e"]
    """Of (x, 1), rows are draws; without the last column where the network has no biases."""

    def prepare(self, X: Float[Array, "n d"]) -> Float[Array, "n N"]:
        E = embed(self.network, X)
        return self.network.activation(dot(E, self.weights.T.astype(E.dtype)))

    def block(self, left: Float[Array, "n N"], right: Float[Array, "m N"]) -> Float[Array, "n m"]:
        return self.network.sigma_w[1] ** 2 * dot(left, right.T) / left.shape[1] + self.network.sigma_b[1] ** 2

    def held(self, X: Array, accurate: bool = False) -> int:
        """Features of a point are as many numbers as there are draws."""
        return super().held(X, accurate) + self.weights.shape[0]
