"""Weights of rows inside a kernel: (√W K √W + ρI)β = √W y is regression by weights, with α = √W β [K2]."""

from typing import Any

import equinox as eqx

from unlazy.kernels.base import Kernel


class Weighted(Kernel):
    """√w √v k(x, z) of rows that carry the root of their weight in the last column, or of pairs (points, roots)."""

    kernel: Kernel
    pairs: bool = eqx.field(static=True, default=False)

    @property
    def takes(self) -> str:
        return "tree" if self.pairs else "matrix"

    @property
    def costly(self) -> bool:
        return self.kernel.costly

    def parts(self, X: Any) -> tuple[Any, Any]:
        """Points and roots."""
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

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        points, root = self.parts(X)
        return root**2 * self.kernel.on_diagonal(points, accurate)

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        self.kernel.admit(*(P if P is None else self.parts(P)[0] for P in points), names=names, accurate=accurate)

    def held(self, X: Any, accurate: bool = False) -> int:
        return self.kernel.held(self.parts(X)[0], accurate)
