"""The product Laplace kernel exp(-‖x-z‖_1/h): not of inner-product form, strong on tables."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.errors import check_positive
from unlazy.core.inputs import Points
from unlazy.kernels import evaluate
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped


class ProductLaplace(Kernel):
    """exp(-Σ_i |x_i - z_i|/h_i), one bandwidth or one a coordinate (a diagonal metric)."""

    reads = "absolute distance"

    bandwidth: float | Float[Array, ""] | Float[Array, " d"] = eqx.field(
        default=1.0, converter=check_positive("bandwidth", several=True)
    )

    def prepare(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.where(jnp.isfinite(X), X, jnp.nan) / self.bandwidth

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        """Centred first, since bandwidths divide: a large offset would cost digits of the difference."""
        centre = jnp.mean(X if Z is None else Z, 0)
        return self.prepare(X - centre), None if Z is None else self.prepare(Z - centre)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """From differences always."""
        return jnp.exp(-_absolute_distances(left, right))

    def diag(self, X: Points) -> Float[Array, " n"]:
        return evaluate.plain_diagonal(self, lambda X: jnp.ones(X.shape[0], X.dtype), X)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("diagonal",)


@mapped.register(ProductLaplace)
def _mapped(kernel: ProductLaplace, L: Float[Array | np.ndarray, " d"]) -> ProductLaplace:
    with np.errstate(divide="ignore"):  # a column of scale 0 is not seen: its bandwidth is infinite
        return ProductLaplace(jnp.asarray(kernel.bandwidth / L))


def _absolute_distances(left: Array, right: Array) -> Array:
    """‖x-z‖_1, a coordinate at a time."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        return total + jnp.abs(columns[0][:, None] - columns[1][None, :]), None

    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (left.T, right.T))[0]
