"""Trained functions and trajectories with their tangent kernels [K9]."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree

from unlazy.core.arrays import Points, as_points
from unlazy.core.results import Evidence, time_index
from unlazy.kernels.base import Kernel
from unlazy.networks.tangent import tangent_kernel
from unlazy.solvers.path import Values

Apply = Callable[[PyTree, Array], Array]
"""f(params, X)."""


class TrainedTangentKernel(Kernel):
    """Tangent kernel Θ(x, z) = Σ_θ ∂f(x)/∂θ ∂f(z)/∂θ of a finite network at given parameters [K9], summed over outputs.

    Parameters
    ----------
    apply : callable
        Function f(params, X).
    params : pytree
        Parameters.
    """

    apply: Apply
    params: PyTree

    @property
    def input_kind(self) -> str:
        """Kind of inputs: any pytree of arrays."""
        return "tree"

    def block(self, left: PyTree, right: PyTree) -> Float[Array, "n m"]:
        """Return Θ between two sets of points."""
        return tangent_kernel(self.apply, self.params, left, right, outputs="trace")


def as_tree(apply: Apply) -> Apply:
    """Wrap a function as a pytree without leaves; modules and partial functions are returned unchanged."""
    return apply if isinstance(apply, eqx.Module | jax.tree_util.Partial) else jax.tree_util.Partial(apply)


class TrainedFunction(eqx.Module):
    """Function f(θ, ·) at the trained parameters and at the recorded ones.

    Attributes
    ----------
    apply : callable
        Function f(params, X).
    params : pytree
        Trained parameters.
    evidence : Evidence
        Evidence of the descent.
    times : integer array of shape (t,)
        Steps after which parameters were recorded.
    recorded : pytree
        Recorded parameters, with a leading axis of times.
    """

    apply: Apply = eqx.field(converter=as_tree)
    params: PyTree
    evidence: Evidence
    times: Int[Array, " t"]
    """Steps after which parameters were recorded; the total number of steps if none were."""
    recorded: PyTree
    """Parameters at those steps, with a leading axis on every leaf."""

    def predict(self, Z: Points, t: Values | None = None) -> Float[Array, "..."]:
        """Evaluate f.

        Parameters
        ----------
        Z : array of shape (m, ...)
            Points.
        t : int or array of int, optional
            One or several of `times`; the trained parameters by default.

        Returns
        -------
        array of shape (*t, m, *outputs)
            Predictions.

        Raises
        ------
        ValueError
            If t is not one of `times`.
        """
        Z = as_points(Z, "Z", input_kind="tree")
        if t is None:
            return self.apply(self.params, Z)
        at = jnp.asarray(time_index(self.times, t, "step"))
        found = jax.lax.map(lambda i: self.apply(self._recorded(i), Z), at.ravel())
        return found.reshape(*at.shape, *found.shape[1:])

    def kernel_at(self, t: Values) -> TrainedTangentKernel:
        """Return the tangent kernel at step t.

        Parameters
        ----------
        t : int
            One of `times`.

        Returns
        -------
        TrainedTangentKernel
            The kernel at the parameters recorded there.
        """
        return TrainedTangentKernel(self.apply, self._recorded(time_index(self.times, t, "step")))

    def _recorded(self, at: ArrayLike) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[at], self.recorded)
