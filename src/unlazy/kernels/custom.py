"""A kernel from a Python function of two points: rows, images, sequences, graphs."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from unlazy.kernels import gram_blocks
from unlazy.kernels.base import Kernel


class Custom(Kernel):
    """Kernel from a function of two single points, vectorized over all pairs.

    Parameters
    ----------
    function : callable
        k(x, z), or k(params, x, z) if `params` is given; symmetric and positive semi-definite, written with JAX, and
        returning a scalar. A point is one entry along the leading axis of the data: an array, a number, or a tree of
        arrays.
    params : tree of numbers, optional
        Parameters of the function; the kernel can be differentiated with respect to them.

    Raises
    ------
    ValueError
        If the function does not return a scalar.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import numpy as np
    >>> from unlazy import Custom
    >>> Custom(lambda x, z: jnp.exp(-jnp.abs(x - z).max())).gram(np.eye(3)).shape
    (3, 3)
    >>> kernel = Custom(lambda p, x, z: p["scale"] * jnp.vdot(x["image"], z["image"]), {"scale": 2.0})
    >>> kernel.gram({"image": np.ones((4, 2, 2))}).shape
    (4, 4)
    """

    function: Callable = eqx.field(static=True)
    params: PyTree = None

    @property
    def input_kind(self) -> str:
        return "tree"

    def prepare(self, X: PyTree) -> PyTree:
        """Replace values that are not finite by NaN, so that the function cannot turn them into finite ones."""
        return jax.tree.map(_finite_or_nan, X)

    def block(self, left: PyTree, right: PyTree) -> Float[Array, "n m"]:
        of_row = jax.vmap(self._of_pair, (None, 0))
        return jax.vmap(of_row, (0, None))(left, right)

    def values_per_pair(self, X: PyTree, accurate: bool = False) -> int:
        """Twice the size of a point: the function may form x - z, for example, of every pair of a block."""
        return gram_blocks.GRAM_SIZED_TEMPORARIES + 2 * sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(X))

    def _of_pair(self, x: PyTree, z: PyTree) -> Float[Array, ""]:
        """k of two points."""
        value = self.function(x, z) if self.params is None else self.function(self.params, x, z)
        if jnp.shape(value) != ():
            raise ValueError(
                f"the function of a Custom kernel must return one number for two points, got shape {jnp.shape(value)}"
            )
        return value


def _finite_or_nan(leaf: Array) -> Array:
    return jnp.where(jnp.isfinite(leaf), leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
