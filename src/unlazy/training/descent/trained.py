"""What descent found, as a function and as a trajectory with its tangent kernel [K9]."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unlazy.core.arrays import Points, points
from unlazy.core.results import Evidence, place
from unlazy.kernels.base import Kernel
from unlazy.networks.tangent import tangent_kernel


class TangentKernel(Kernel):
    """Θ(x, z) = Σ_θ ∂f(x)/∂θ ∂f(z)/∂θ of a finite network at some parameters [K9], summed over outputs."""

    apply: Any
    params: Any

    @property
    def takes(self) -> str:
        return "tree"

    def block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        return tangent_kernel(self.apply, self.params, left, right, outputs="trace")


def as_tree(apply: Any) -> Any:
    """A function as a tree without leaves; a network or a bound method of one is a tree already."""
    return apply if isinstance(apply, eqx.Module | jax.tree_util.Partial) else jax.tree_util.Partial(apply)


class TrainedFunction(eqx.Module):
    """f(θ, ·) at the parameters that descent found, and at those it recorded on the way."""

    apply: Any = eqx.field(converter=as_tree)
    params: Any
    evidence: Evidence
    times: Int[Array, " t"]
    """Steps after which parameters were recorded; the number of all steps where none were."""
    recorded: Any
    """Parameters at those steps, a leading axis on every leaf."""

    def predict(self, Z: Points, t: Any = None) -> Float[Array, "..."]:
        """f at Z with the parameters that were found, or at t, one or several of `times`: shape (*t, m, *outputs)."""
        Z = points(Z, "Z", takes="tree")
        if t is None:
            return self.apply(self.params, Z)
        at = jnp.asarray(place(self.times, t, "step"))
        found = jax.lax.map(lambda i: self.apply(self._recorded(i), Z), at.ravel())
        return found.reshape(*at.shape, *found.shape[1:])

    def kernel_at(self, t: Any) -> TangentKernel:
        """The tangent kernel at step t."""
        return TangentKernel(self.apply, self._recorded(place(self.times, t, "step")))

    def _recorded(self, at: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[at], self.recorded)
