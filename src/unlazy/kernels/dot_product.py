"""Kernels of the inner product [K1, L7]: linear, polynomial, arc-cosine."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from unlazy.core.arrays import dot
from unlazy.core.errors import check_non_negative, check_positive_integer
from unlazy.kernels.base import InnerProductKernel
from unlazy.kernels.gram_blocks import PreparedPoints
from unlazy.theory.numerics.geometry import angle_and_gap, cosine_gap, safe_sqrt


class Linear(InnerProductKernel):
    """Linear kernel ⟨x,z⟩ + offset.

    Parameters
    ----------
    offset : float, default 0.0
        Nonnegative constant.

    Examples
    --------
    >>> from unlazy import Linear
    >>> float(Linear(offset=1.0)([1.0, 2.0], [3.0, 4.0]))
    12.0
    """

    offset: float | Float[Array, ""] = eqx.field(default=0.0, converter=check_non_negative("offset"))

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return xz + self.offset

    @property
    def has_product(self) -> bool:
        return True

    def matmul_prepared(
        self, left: PreparedPoints, right: PreparedPoints, V: Float[Array, "m c"]
    ) -> Float[Array, "n c"]:
        """X(ZᵀV) + offset · 1ᵀV: (n + m)d operations per column."""
        return dot(left.points, dot(right.points.T, V)) + self.offset * jnp.sum(V, 0)


class Polynomial(InnerProductKernel):
    """Polynomial kernel (⟨x,z⟩ + offset)^degree [K1].

    With offset 0 its features are the monomials of exactly this degree.

    Parameters
    ----------
    degree : int, default 2
        Positive degree.
    offset : float, default 1.0
        Nonnegative constant.

    Raises
    ------
    ValueError
        If the degree is not a positive integer.

    Examples
    --------
    >>> from unlazy import Polynomial
    >>> float(Polynomial(2, offset=1.0)([1.0, 2.0], [3.0, 4.0]))
    144.0
    """

    degree: int = eqx.field(static=True, default=2)
    offset: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_non_negative("offset"))

    def __check_init__(self):
        check_positive_integer("degree", self.degree)

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return (xz + self.offset) ** self.degree

    @property
    def has_product(self) -> bool:
        return self.degree == 1

    def matmul_prepared(
        self, left: PreparedPoints, right: PreparedPoints, V: Float[Array, "m c"]
    ) -> Float[Array, "n c"]:
        return Linear(self.offset).matmul_prepared(left, right, V)


class ArcCosine(InnerProductKernel):
    """Arc-cosine kernel 2 E max(w·x, 0)^k max(w·z, 0)^k for w ~ N(0, I), which is |x|^k |z|^k J_k(θ)/π [L7].

    J_0 = π - θ,  J_1 = sin θ + (π - θ) cos θ,  J_2 = 3 sin θ cos θ + (π - θ)(1 + 2 cos²θ). Each is computed from
    u = 1 - cos θ and h = sin θ - θ cos θ, so that nothing cancels near θ = 0.

    Parameters
    ----------
    order : {0, 1, 2}, default 1
        k.

    Raises
    ------
    ValueError
        If the order is not 0, 1 or 2.

    References
    ----------
    Cho and Saul (2009), Kernel methods for deep learning.

    Examples
    --------
    >>> from unlazy import ArcCosine
    >>> round(float(ArcCosine(1)([1.0, 0.0], [0.0, 1.0])), 4)  # 1/π
    0.3183
    """

    order: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        if self.order not in (0, 1, 2):
            raise ValueError(f"order must be 0, 1 or 2, got {self.order!r}")

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self._of_angle(cosine_gap(xz, xx, zz), xx, zz)

    def entry_distance(self, distance, half_chord, xx, zz):
        return self._of_angle(half_chord, xx, zz)

    def _of_angle(self, u: Array, xx: Array, zz: Array) -> Array:
        theta, gap = angle_and_gap(u)
        if self.order == 0:
            return 1 - theta / math.pi
        if self.order == 1:
            return safe_sqrt(xx) * safe_sqrt(zz) * (1 - u + gap / math.pi)
        cosine = 1 - u
        return xx * zz * (1 + 2 * cosine**2 + (3 * cosine * gap - theta * u * (2 - u)) / math.pi)
