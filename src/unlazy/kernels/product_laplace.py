"""The product Laplace kernel exp(-‖x-z‖_1/h): not of inner-product form, strong on tables."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.errors import check_positive
from unlazy.core.inputs import Points
from unlazy.kernels import evaluate
from unlazy.kernels.base import Kernel


class ProductLaplace(Kernel):
    """exp(-Σ_i |x_i - z_i|/h_i), one bandwidth or one a coordinate (a diagonal metric)."""

    bandwidth: float | Float[Array, ""] | Float[Array, " d"] = eqx.field(
        default=1.0, converter=check_positive("bandwidth", several=True)
    )

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        """From differences always, so `accurate` changes nothing."""
        return evaluate.by_blocks(self, X, Z)

    def diag(self, X: Points) -> Float[Array, " n"]:
        return evaluate.plain_diagonal(lambda X: jnp.ones(X.shape[0], X.dtype), X)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """The entries of some rows against all columns."""
        # centred first, since bandwidths divide: a large offset would cost digits of the difference
        left, right = (jnp.where(jnp.isfinite(X), X, jnp.nan) for X in (left, right))
        centre = jnp.mean(right, 0)
        return jnp.exp(-_absolute_distances((left - centre) / self.bandwidth, (right - centre) / self.bandwidth))


def _absolute_distances(left: Array, right: Array) -> Array:
    """‖x-z‖_1, a coordinate at a time."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        return total + jnp.abs(columns[0][:, None] - columns[1][None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]
