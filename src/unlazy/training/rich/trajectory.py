"""Trajectory of a network during training: values at every recorded time with standard errors."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from unlazy.core.arrays import Matrix, Points, as_points, precision
from unlazy.core.results import Evidence, time_index
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import Values
from unlazy.training.rich.standard_errors import SampledQuantity, on_host, over_runs
from unlazy.training.rich.training_loop import System


class RichTrajectory(eqx.Module):
    """Predictions, losses and kernels at recorded times, of the rich limit [M2] or of finite networks.

    Estimates have a `value`, the mean over independent runs, and an `error`, its standard error; the leading axis is
    time.

    Attributes
    ----------
    system : TwoLayerLimit or FiniteNetwork
        The trained system.
    X : array of shape (n, d)
        Training points.
    times : array of shape (t,)
        Times of gradient flow, or numbers of steps.
    fitted : SampledQuantity
        f at the training points: (t, n, *outputs).
    losses : SampledQuantity
        Mean loss L over training points: (t,).
    features, gradients : tuple of SampledQuantity
        Φ^l and G^l at the training points, one for each hidden layer: (t, n, n).
    tangent : SampledQuantity
        Θ, summed over outputs: (t, n, n).
    states : pytree or None
        Neurons or weights, with leading axes times and runs.
    evidence : Evidence
        Statistical error and cost.
    outputs : tuple of int
        Shape of one prediction.
    """

    system: System
    X: Float[Array, "n d"]
    times: Float[Array, " t"] | Int[Array, " t"]
    """Times of gradient flow, or numbers of steps."""
    fitted: SampledQuantity
    """f at the training points: (t, n, *outputs)."""
    losses: SampledQuantity
    """Mean loss L over training points: (t,)."""
    features: tuple[SampledQuantity, ...]
    """Φ^l at the training points, one for each hidden layer: (t, n, n)."""
    gradients: tuple[SampledQuantity, ...]
    """G^l, summed over outputs, one for each hidden layer: (t, n, n)."""
    tangent: SampledQuantity
    """Θ, summed over outputs: (t, n, n)."""
    states: PyTree
    """Neurons or weights at every time, with leading axes times and runs; None if not kept."""
    evidence: Evidence
    outputs: tuple[int, ...] = eqx.field(static=True)

    def predict(self, Z: Points, t: Values | None = None) -> Float[Matrix, "..."]:
        """Evaluate f.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : float or array of float, optional
            One or several of `times`; the last by default.

        Returns
        -------
        array of shape (*t, m, *outputs)
            Predictions.

        Raises
        ------
        ValueError
            If the states were not kept or t is not one of `times`.
        """
        return self.estimate(Z, t).value

    def estimate(self, Z: Points, t: Values | None = None) -> SampledQuantity:
        """Evaluate f with its standard error.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : float or array of float, optional
            One or several of `times`; the last by default.

        Returns
        -------
        SampledQuantity
            Value and standard error, each of shape (*t, m, *outputs).

        Raises
        ------
        ValueError
            If the states were not kept or t is not one of `times`.
        """
        if self.states is None:
            raise ValueError("predictions need the states of every time: train with keep_states=True")
        dtype = self.fitted.value.dtype
        with precision(dtype.name):
            Z = as_points(Z, "Z", dtype)
            at = jnp.asarray(-1 if t is None else time_index(self.times, t))
            each = jax.lax.map(lambda i: _outputs(self.system, self._at(i), Z), at.ravel())
            each = jnp.moveaxis(each.reshape(*at.shape, *each.shape[1:-1], *self.outputs), at.ndim, 0)
            return on_host(over_runs(each))

    def kernel_at(self, t: Values) -> Kernel:
        """Return the tangent kernel at time t, averaged over runs.

        Parameters
        ----------
        t : float
            One of `times`.

        Returns
        -------
        Kernel
            The kernel at any points.

        Raises
        ------
        ValueError
            If the states were not kept or t is not one of `times`.
        """
        if self.states is None:
            raise ValueError("kernels at any points need the states of every time: train with keep_states=True")
        with precision(self.fitted.value.dtype.name):
            return self.system.kernel(self._at(time_index(self.times, t)))

    def _at(self, i: ArrayLike) -> PyTree:
        """Return the states at one time."""
        return jax.tree.map(lambda leaf: leaf[i], self.states)


@jax.jit
def _outputs(system: System, states: PyTree, Z: Array) -> Array:
    """Evaluate the system, compiled."""
    return system.predict(states, Z)
