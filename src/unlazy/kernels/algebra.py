"""Kernels add, multiply and scale; formulas compose where the inputs are embedded alike, Grams do elsewhere."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.errors import check_not_negative
from unlazy.core.inputs import Points
from unlazy.kernels.base import InnerProductKernel, Kernel


def add(first: Kernel, second: Kernel) -> Kernel:
    """k1 + k2."""
    return _combine(first, second, "add")


def multiply(first: Kernel, second: Kernel) -> Kernel:
    """k1 · k2, entry by entry."""
    return _combine(first, second, "multiply")


def scale(kernel: Kernel, factor: "float | Array | np.ndarray | np.number") -> Kernel:
    """factor · k, factor ≥ 0."""
    factor = check_not_negative("the factor of a kernel")(factor)
    if isinstance(factor, np.ndarray | np.number) and not isinstance(factor, float):
        factor = jnp.asarray(factor)
    if isinstance(kernel, InnerProductKernel):
        return ScaledFormula(kernel, factor)
    return ScaledGram(kernel, factor)


def _combine(first: Kernel, second: Kernel, operation: str) -> Kernel:
    if (
        isinstance(first, InnerProductKernel)
        and isinstance(second, InnerProductKernel)
        and first.embedding() == second.embedding()
    ):
        return CombinedFormula(first, second, operation)
    return CombinedGram(first, second, operation)


_OPERATIONS: dict[str, Callable] = {"add": jnp.add, "multiply": jnp.multiply}


class CombinedFormula(InnerProductKernel):
    """Sum or product of two formulas of the same inner products."""

    first: InnerProductKernel
    second: InnerProductKernel
    operation: str = eqx.field(static=True)

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return _OPERATIONS[self.operation](self.first.entry(xz, xx, zz), self.second.entry(xz, xx, zz))

    def entry_distance(self, distance, half_chord, xx, zz):
        values = (k.entry_distance(distance, half_chord, xx, zz) for k in (self.first, self.second))
        return _OPERATIONS[self.operation](*values)

    def embed(self, X: Float[Array, "n d"], inputs: int | None = None) -> Float[Array, "n e"]:
        return self.first.embed(X, inputs)

    def embedding(self) -> tuple:
        return self.first.embedding()

    def warn(self, xx: Float[Array, " n"], accurate: bool = False) -> None:
        self.first.warn(xx, accurate)
        self.second.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.first.stationary and self.second.stationary


class ScaledFormula(InnerProductKernel):
    """factor · k."""

    kernel: InnerProductKernel
    factor: float | Array

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.factor * self.kernel.entry(xz, xx, zz)

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.factor * self.kernel.entry_distance(distance, half_chord, xx, zz)

    def embed(self, X: Float[Array, "n d"], inputs: int | None = None) -> Float[Array, "n e"]:
        return self.kernel.embed(X, inputs)

    def embedding(self) -> tuple:
        return self.kernel.embedding()

    def warn(self, xx: Float[Array, " n"], accurate: bool = False) -> None:
        self.kernel.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.kernel.stationary


class CombinedGram(Kernel):
    """Sum or product of kernels that share no inner products."""

    first: Kernel
    second: Kernel
    operation: str = eqx.field(static=True)

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        return _OPERATIONS[self.operation](self.first.gram(X, Z, accurate), self.second.gram(X, Z, accurate))

    def diag(self, X: Points) -> Float[Array, " n"]:
        return _OPERATIONS[self.operation](self.first.diag(X), self.second.diag(X))


class ScaledGram(Kernel):
    """factor · k."""

    kernel: Kernel
    factor: float | Array

    def gram(self, X: Points, Z: Points | None = None, accurate: bool = False) -> Float[Array, "n m"]:
        return self.factor * self.kernel.gram(X, Z, accurate)

    def diag(self, X: Points) -> Float[Array, " n"]:
        return self.factor * self.kernel.diag(X)
