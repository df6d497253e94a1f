"""A kernel from any function of two points: rows, images, sequences, graphs."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.functions import settled
from unlazy.kernels.base import Kernel
from unlazy.kernels.evaluation import gram


class Custom(Kernel):
    """k(x, z) as a function of two single points, symmetric and positive semi-definite; vectorized over all pairs.

    A point is one entry along the leading axis of the data: an array, a number, or a tree of arrays. With `params`, any
    tree of numbers, the function is k(params, x, z) and can be differentiated in them.

    >>> Custom(lambda x, z: jnp.exp(-jnp.abs(x - z).max())).gram(X)
    >>> Custom(lambda p, x, z: p["scale"] * jnp.vdot(x["image"], z["image"]), {"scale": 2.0}).gram({"image": images})
    """

    function: Callable = eqx.field(static=True, converter=settled)
    params: Any = None

    @property
    def takes(self) -> str:
        return "tree"

    def prepare(self, X: Any) -> Any:
        """NaN where a number is not finite, so that the function cannot make another number of it."""
        return jax.tree.map(_finite_or_nan, X)

    def block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        of_row = jax.vmap(self._of_pair, (None, 0))
        return jax.vmap(of_row, (0, None))(left, right)

    def held(self, X: Any, accurate: bool = False) -> int:
        """What a point has, twice: the function may form x - z, say, of every pair of a block."""
        return gram.TEMPORARIES + 2 * sum(int(np.prod(leaf.shape[1:])) for leaf in jax.tree.leaves(X))

    def _of_pair(self, x: Any, z: Any) -> Float[Array, ""]:
        value = self.function(x, z) if self.params is None else self.function(self.params, x, z)
        if jnp.shape(value) != ():
            raise ValueError(
                f"the function of a Custom kernel gives one number for two points, got shape {jnp.shape(value)}"
            )
        return value


def _finite_or_nan(leaf: Array) -> Array:
    return jnp.where(jnp.isfinite(leaf), leaf, jnp.nan) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
