"""Row weights inside a kernel: (√W K √W + ρI)β = √W y is weighted regression with α = √W β [K2]."""

from typing import Any

import equinox as eqx

from unlazy.kernels.base import Kernel


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

    def parts(self, X: Any) -> tuple[Any, Any]:
        """Return points and square roots of weights."""
        return X if self.pairs else (X[:, :-1], X[:, -1])

    def prepare(self, X: Any) -> Any:
        points, root = self.parts(X)
        return self.kernel.prepare(points), root

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        (one, root), (two, other) = self.parts(X), (None, None) if Z is None else self.parts(Z)
        left, right = self.kernel.sides(one, two, keyed)
        return (left, root), None if Z is None else (right, other)

    def block(self, left: Any, right: Any) -> Any:
        return left[1][:, None] * self.kernel.block(left[0], right[0]) * right[1]

    def accurate_block(self, left: Any, right: Any) -> Any:
        return left[1][:, None] * self.kernel.accurate_block(left[0], right[0]) * right[1]

    def diag(self, X: Any) -> Any:
        points, root = self.parts(X)
        return root**2 * self.kernel.diag(points)

    def prepared_diag(self, X: Any, accurate: bool = False) -> Any:
        points, root = self.parts(X)
        return root**2 * self.kernel.prepared_diag(points, accurate)

    def validate(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        self.kernel.validate(*(P if P is None else self.parts(P)[0] for P in points), names=names, accurate=accurate)

    def values_per_pair(self, X: Any, accurate: bool = False) -> int:
        return self.kernel.values_per_pair(self.parts(X)[0], accurate)
