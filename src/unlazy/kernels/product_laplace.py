"""The product Laplace kernel exp(-‖x-z‖_1/h): not a formula of inner products, and strong on tabular data."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import Points
from unlazy.core.errors import check_positive
from unlazy.kernels import gram_blocks
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import apply_metric
from unlazy.theory.numerics.geometry import robust_center


class ProductLaplace(Kernel):
    """Product Laplace kernel exp(-Σ_i |x_i - z_i|/h_i).

    Parameters
    ----------
    bandwidth : float or array of shape (d,), default 1.0
        h: one, or one per coordinate (a diagonal metric).

    Examples
    --------
    >>> from unlazy import ProductLaplace
    >>> round(float(ProductLaplace([1.0, 2.0])([0.0, 0.0], [0.5, 1.0])), 4)
    0.3679
    """

    bandwidth: float | Float[Array, ""] | Float[Array, " d"] = eqx.field(
        default=1.0, converter=check_positive("bandwidth", several=True)
    )

    def prepare(self, X: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return jnp.where(jnp.isfinite(X), X, jnp.nan) / self.bandwidth

    def sides(
        self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None, keyed: bool = True
    ) -> tuple[Float[Array, "n d"], Float[Array, "m d"] | None]:
        """Center both sides before dividing by bandwidths: a large offset would cost digits of differences."""
        center = robust_center(X if Z is None else Z)
        return self.prepare(X - center), None if Z is None else self.prepare(Z - center)

    def block(self, left: Float[Array, "n d"], right: Float[Array, "m d"]) -> Float[Array, "n m"]:
        """Always from differences of inputs."""
        return jnp.exp(-_absolute_distances(left, right))

    def diag(self, X: Points) -> Float[Array, " n"]:
        return gram_blocks.diagonal_from_function(self, lambda X: jnp.ones(X.shape[0], X.dtype), X)

    @property
    def metrics(self) -> tuple[str, ...]:
        return ("diagonal",)


@apply_metric.register(ProductLaplace)
def _mapped(kernel: ProductLaplace, L: Float[Array | np.ndarray, " d"]) -> ProductLaplace:
    with np.errstate(divide="ignore"):  # a column of scale 0 is ignored: its bandwidth is infinite
        return ProductLaplace(jnp.asarray(kernel.bandwidth / L))


CHUNK = 8
"""Coordinates that an accelerator adds up before it writes the sum back to memory."""


def _absolute_distances(left: Array, right: Array) -> Array:
    """‖x-z‖_1, a chunk of coordinates at a time: one on the CPU, where the sum stays in the cache."""

    def added(size: int) -> Callable[[Array, Array], Array]:
        return lambda left, right: _by_coordinates(left, right, size)

    return jax.lax.platform_dependent(left, right, cpu=added(1), default=added(CHUNK))


def _by_coordinates(left: Array, right: Array, size: int) -> Array:
    """‖x-z‖_1, `size` coordinates at a time."""

    def add(total: Array, columns: tuple[Array, Array]) -> tuple[Array, None]:
        for x, z in zip(*columns):
            total = total + jnp.abs(x[:, None] - z[None, :])
        return total, None

    steps = -(-left.shape[1] // size)
    fill = ((0, 0), (0, steps * size - left.shape[1]))
    columns = [jnp.pad(side, fill).T.reshape(steps, size, -1) for side in (left, right)]
    start = jnp.zeros((left.shape[0], right.shape[0]), left.dtype)
    return jax.lax.scan(add, start, (columns[0], columns[1]))[0]
