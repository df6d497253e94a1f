"""The tangent kernel of a network that JAX cannot trace, such as a PyTorch module, as a kernel like any other."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unlazy.core.arrays import Points, dot, float_type, n_points
from unlazy.kernels.base import Kernel
from unlazy.kernels.gram_blocks import diagonal_from_function
from unlazy.models.tangents import TangentMap, Tangents


class HostTangentKernel(Kernel):
    """Θ(x, z) = J(x) J(z)ᵀ, summed over outputs, with derivatives by the network's own framework.

    Made by `TangentKernel.of_network`. Every block is one call from JAX to the host.

    Parameters
    ----------
    tangents : TangentMap
        The Jacobian of the network.
    count : int
        Number of outputs.
    divisor : int
        Number that sums over outputs are divided by.
    """

    tangents: TangentMap = eqx.field(static=True)
    count: int = eqx.field(static=True)
    divisor: int = eqx.field(static=True)

    @property
    def input_kind(self) -> str:
        return "tree"

    @property
    def requires_gradients(self) -> bool:
        return True

    @property
    def has_product(self) -> bool:
        return True

    def block(self, left: PyTree, right: PyTree) -> Float[Array, "n m"]:
        def compute(X: PyTree, Z: PyTree) -> np.ndarray:
            both = self.tangents.contract(self._rows(X), self._rows(Z))
            return np.trace(both.reshape(n_points(X), self.count, n_points(Z), self.count), axis1=1, axis2=3)

        return self._call(compute, (n_points(left), n_points(right)), left, right)

    def diag(self, X: Points) -> Float[Array, " n"]:
        """Squared norms of the gradients.

        Parameters
        ----------
        X : points
            n points.

        Returns
        -------
        array of shape (n,)
            Θ(x, x) of every point.
        """
        return diagonal_from_function(self, self._diagonal, X)

    def _diagonal(self, X: PyTree) -> Float[Array, " n"]:
        def compute(X: PyTree) -> np.ndarray:
            rows = self.tangents.to_host(self._rows(X))
            return np.sum(rows.reshape(n_points(X), -1) ** 2, 1)

        return self._call(compute, (n_points(X),), X)

    def matmul_prepared(self, left: PyTree, right: PyTree, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        """K @ V by one pass backward and one forward."""

        def compute(X: PyTree, Z: PyTree, V: np.ndarray) -> np.ndarray:
            total = np.zeros((n_points(X), V.shape[1]))
            for output in np.eye(self.count):
                pulled = self.tangents.pull(Z, np.asarray(V, np.float64).T[:, :, None] * output)
                total += dot(self.tangents.push(X, pulled), output).T
            return total

        return self._call(compute, (n_points(left), V.shape[1]), left, right, V)

    def _rows(self, X: PyTree) -> Tangents:
        eye = np.broadcast_to(np.eye(self.count), (n_points(X), self.count, self.count))
        return self.tangents.rows(X, eye)

    def _call(self, compute: Callable[..., np.ndarray], shape: tuple[int, ...], *sides: PyTree) -> Array:
        """A function of NumPy arrays, from inside of compiled programs."""
        dtype = float_type(sides[0])

        def on_host(*arguments: PyTree) -> np.ndarray:
            arrays = jax.tree.map(np.asarray, arguments)
            return (compute(*arrays) / self.divisor).astype(dtype)

        return jax.pure_callback(on_host, jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), *sides)
