"""The feature kernel of an infinitely wide Bayesian network conditioned on data [M4]."""

from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.kernels.base import Kernel
from unlazy.theory.feature_learning.mean_field import embed
from unlazy.theory.infinite_width.architecture import MLP


class AdaptiveKernel(Kernel):
    """Feature kernel σ_w² ⟨φ(h)φ(h)ᵀ⟩ + σ_b² of a two-layer network, with hidden weights from their posterior [M4].

    `training.rich.adaptive.adaptive_kernel` computes it. With weights drawn from the prior it is the NNGP [K7].

    Parameters
    ----------
    network : MLP
        Description of the network.
    weights : array of shape (N, e)
        Draws of hidden weights.

    References
    ----------
    Lauditi, Bordelon and Pehlevan (2025), Adaptive kernel predictors from feature-learning infinite limits of neural
    networks.
    """

    network: MLP
    weights: Float[Array, "N e"]
    """Weights of (x, 1), one draw per row; without the last column if the network has no biases."""

    def prepare(self, X: Float[Array, "n d"]) -> Float[Array, "n N"]:
        E = embed(self.network, X)
        return self.network.activation(dot(E, self.weights.T.astype(E.dtype)))

    def block(self, left: Float[Array, "n N"], right: Float[Array, "m N"]) -> Float[Array, "n m"]:
        return self.network.sigma_w[1] ** 2 * dot(left, right.T) / left.shape[1] + self.network.sigma_b[1] ** 2

    def values_per_pair(self, X: Array, accurate: bool = False) -> int:
        """A point has as many features as there are draws."""
        return super().values_per_pair(X, accurate) + self.weights.shape[0]
