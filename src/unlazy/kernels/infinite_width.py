"""NNGP, NTK and the tangent family of infinitely wide networks [K7, K8, L1, L2]; the maths is theory.infinite_width."""

import math

from jaxtyping import Array, Float

from unlazy.core.architecture import MLP
from unlazy.kernels import evaluate
from unlazy.kernels.base import InnerProductKernel
from unlazy.theory import infinite_width


class NetworkKernel(InnerProductKernel):
    """A kernel read off a network description: inputs are divided by √d where the network says so."""

    network: MLP

    def embed(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return X / math.sqrt(X.shape[1]) if self.network.scale_input else X

    def embedding(self) -> tuple:
        return ("1/√d",) if self.network.scale_input else ()


class NNGP(NetworkKernel):
    """Covariance of an infinitely wide network at its random start [K7]. Lee et al. (2018)."""

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return infinite_width.nngp(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        return infinite_width.nngp(0.5 * (xx + zz - distance), xx, zz, self.network, half_chord)


class NTK(NetworkKernel):
    """Neural tangent kernel of a fully connected network [K8]. Jacot, Gabriel and Hongler (2018)."""

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return infinite_width.ntk(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        return infinite_width.ntk(0.5 * (xx + zz - distance), xx, zz, self.network, half_chord)


class _Both(NetworkKernel):
    """Both formulas in one pass: an entry is a pair."""

    def entry(self, xz, xx, zz):
        return infinite_width.nngp_and_ntk(xz, xx, zz, self.network)

    def entry_distance(self, distance, half_chord, xx, zz):
        return infinite_width.nngp_and_ntk(0.5 * (xx + zz - distance), xx, zz, self.network, half_chord)


def nngp_and_ntk(
    network: MLP, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None, accurate: bool = False
) -> tuple[Float[Array, "n m"], Float[Array, "n m"]]:
    """The NNGP's and the NTK's Gram matrices together, for little more than one of them."""
    return evaluate.gram(_Both(network), X, Z, accurate)
