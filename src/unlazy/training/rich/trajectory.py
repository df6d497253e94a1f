"""A network along its training, with what is known of it at every recorded time and how well."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from unlazy.core.arrays import Matrix, Points, points
from unlazy.core.precision import precision
from unlazy.core.results import Evidence, place
from unlazy.kernels.base import Kernel
from unlazy.training.rich.estimate import Estimate, on_host, over_runs


class RichTrajectory(eqx.Module):
    """Predictions, losses and moving kernels at recorded times, of the limit [M2] or of finite networks beside it.

    Estimates have a `value`, the mean over independent runs, and an `error`, its standard error; times lead.
    """

    system: Any
    X: Float[Array, "n d"]
    times: Float[Array, " t"] | Int[Array, " t"]
    """Of gradient flow, or numbers of steps."""
    fitted: Estimate
    """f at the training points: (t, n, *outputs)."""
    losses: Estimate
    """Mean loss over training points: (t,)."""
    features: tuple[Estimate, ...]
    """Φ^l at the training points, one for each hidden layer: (t, n, n)."""
    gradients: tuple[Estimate, ...]
    """G^l, summed over outputs, one for each hidden layer: (t, n, n)."""
    tangent: Estimate
    """Θ, summed over outputs: (t, n, n)."""
    states: Any
    """All that moves, at every time: leading axes are times and runs; None where it was not kept."""
    evidence: Evidence
    outputs: tuple[int, ...] = eqx.field(static=True)

    def predict(self, Z: Points, t: Any = None) -> Float[Matrix, "..."]:
        """f at Z at the last time, or at t, one or several of `times`: shape (*t, m, *outputs)."""
        return self.estimate(Z, t).value

    def estimate(self, Z: Points, t: Any = None) -> Estimate:
        """The same with its standard error."""
        if self.states is None:
            raise ValueError("predictions need the states of every time: train with keep=True; got keep=False")
        dtype = self.fitted.value.dtype
        with precision(dtype.name):
            Z = points(Z, "Z", dtype)
            at = jnp.asarray(-1 if t is None else place(self.times, t))
            each = jax.lax.map(lambda i: _outputs(self.system, self._at(i), Z), at.ravel())
            each = jnp.moveaxis(each.reshape(*at.shape, *each.shape[1:-1], *self.outputs), at.ndim, 0)
            return on_host(over_runs(each))

    def kernel_at(self, t: Any) -> Kernel:
        """The tangent kernel at time t, a mean over runs."""
        if self.states is None:
            raise ValueError("kernels at any points need the states of every time: train with keep=True")
        with precision(self.fitted.value.dtype.name):
            return self.system.kernel(self._at(place(self.times, t)))

    def _at(self, i: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[i], self.states)


@jax.jit
def _outputs(system: Any, states: Any, Z: Array) -> Array:
    return system.predict(states, Z)
