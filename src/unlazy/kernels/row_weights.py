"""Row weights inside a kernel: (√W K √W + ρI)β = √W y is weighted regression with α = √W β [K2]."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from unlazy.core.arrays import Matrix, Points, Side
from unlazy.kernels.base import Kernel

WeightedSide = tuple[Side, Array]
"""A prepared side of the kernel, and the square roots of the weights."""


class Weighted(Kernel):
    """Kernel √w √v k(x, z) of rows with weights w and v.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    pairs : bool, default False
        Points are pairs (points, square roots of weights). By default they are rows with the square root of the weight
        in the last column.
    """

    kernel: Kernel
    pairs: bool = eqx.field(static=True, default=False)

    @property
    def input_kind(self) -> str:
        return "tree" if self.pairs else "matrix"

    @property
    def expensive(self) -> bool:
        return self.kernel.expensive

    def parts(self, X: Points) -> tuple[Points, Matrix]:
        """Return points and square roots of weights."""
        return X if self.pairs else (X[:, :-1], X[:, -1])

    def prepare(self, X: Points) -> WeightedSide:
        points, root = self.parts(X)
        return self.kernel.prepare(points), jnp.asarray(root)

    def sides(self, X: Points, Z: Points | None = None, keyed: bool = True) -> tuple[WeightedSide, WeightedSide | None]:
        (points, root), more = self.parts(X), None if Z is None else self.parts(Z)
        left, right = self.kernel.sides(points, None if more is None else more[0], keyed)
        return (left, jnp.asarray(root)), None if more is None else (right, jnp.asarray(more[1]))

    def block(self, left: WeightedSide, right: WeightedSide) -> Array:
        return left[1][:, None] * self.kernel.block(left[0], right[0]) * right[1]

    def accurate_block(self, left: WeightedSide, right: WeightedSide) -> Array:
        return left[1][:, None] * self.kernel.accurate_block(left[0], right[0]) * right[1]

    def diag(self, X: Points) -> Array:
        points, root = self.parts(X)
        return jnp.asarray(root) ** 2 * self.kernel.diag(points)

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        self.kernel.validate(*(P if P is None else self.parts(P)[0] for P in points), names=names, accurate=accurate)

    def values_per_pair(self, X: Points, accurate: bool = False) -> int:
        return self.kernel.values_per_pair(self.parts(X)[0], accurate)
