"""Kernels add, multiply, scale and have powers; formulas compose where inputs are embedded alike, blocks elsewhere."""

import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import TAKES, Matrix, Points, count, float_type
from unlazy.core.errors import check_not_negative
from unlazy.kernels.base import InnerProductKernel, Kernel
from unlazy.kernels.evaluation import gram, validation


def add(first: Kernel, second: "Kernel | float | Array") -> Kernel:
    """k1 + k2; a number is the constant kernel, and 0 nothing, so that `sum(kernels)` works."""
    if isinstance(second, Kernel):
        return _combine(first, second, "add")
    return first if isinstance(second, int | float) and second == 0 else _combine(first, Constant(second), "add")


def multiply(first: Kernel, second: Kernel) -> Kernel:
    """k1 · k2, entry by entry."""
    return _combine(first, second, "multiply")


def scale(kernel: Kernel, factor: "float | Array | np.ndarray | np.number") -> Kernel:
    """factor · k, factor ≥ 0."""
    factor = check_not_negative("the factor of a kernel")(factor)
    if isinstance(factor, np.ndarray | np.number) and not isinstance(factor, float):
        factor = jnp.asarray(factor)
    if isinstance(kernel, Constant):
        return Constant(kernel.value * factor)
    formula = kernel.formula
    return ScaledGram(kernel, factor) if formula is None else ScaledFormula(formula, factor)


def power(kernel: Kernel, exponent: Any) -> Kernel:
    """k^p entry by entry, p = 1, 2, …: other powers need not be positive."""
    try:
        whole = operator.index(exponent)
    except TypeError:
        whole = 0
    if whole < 1:
        raise ValueError(f"a kernel has whole powers from 1 on, got {exponent!r}: others need not be positive")
    formula = kernel.formula
    return PowerGram(kernel, whole) if formula is None else PowerFormula(formula, whole)


def _combine(first: Kernel, second: Kernel, operation: str) -> Kernel:
    one, two = first.formula, second.formula
    if isinstance(first, Constant) and not isinstance(second, Constant):
        return _combine(second, first, operation)
    if one is None or two is None or not (isinstance(two, Constant) or one.embedding() == two.embedding()):
        return CombinedGram(first, second, operation)
    return CombinedFormula(one, two, operation)


_OPERATIONS: dict[str, Callable] = {"add": jnp.add, "multiply": jnp.multiply}


class Constant(InnerProductKernel):
    """k(x, z) = value, of any points; joins every formula.

    >>> float((Gaussian(1.0) + Constant(2.0))([0.0], [0.0]))
    3.0
    """

    value: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_not_negative("the constant"))

    @property
    def takes(self) -> str:
        return "tree"

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.value + 0 * xz  # NaN stays NaN

    @property
    def stationary(self) -> bool:
        return True

    def prepare(self, X: Any) -> Float[Array, " n"]:
        """0 of every point, NaN where it is not finite."""
        zero = jnp.zeros(count(X), float_type(X))
        for leaf in jax.tree.leaves(X):
            finite = jnp.isfinite(leaf.reshape(leaf.shape[0], -1)).all(1)
            zero = jnp.where(finite, zero, jnp.nan)
        return zero

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        return self.prepare(X), None if Z is None else self.prepare(Z)

    def block(self, left: Float[Array, " n"], right: Float[Array, " m"]) -> Float[Array, "n m"]:
        return self.value + left[:, None] + right[None, :]

    def accurate_block(self, left: Float[Array, " n"], right: Float[Array, " m"]) -> Float[Array, "n m"]:
        return self.block(left, right)

    def diag(self, X: Points) -> Float[Array, " n"]:
        return gram.plain_diagonal(self, lambda X: self.value + self.prepare(X), X)

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        return self.diag(X)

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        validation.admit_plain(self, points, names)

    admission = Kernel.admission

    def held(self, X: Any, accurate: bool = False) -> int:
        return gram.TEMPORARIES


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

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        return self.first.embed(X, inputs)

    def embedding(self) -> tuple:
        return self.first.embedding()

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        self.first.warn(xx, accurate)
        self.second.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.first.stationary and self.second.stationary

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(m for m in self.first.metrics if m in self.second.metrics)


class _OfFormula(InnerProductKernel):
    """An elementwise function of one formula: the same embedding, another entry."""

    kernel: InnerProductKernel

    def of(self, values: Any) -> Any:
        """The function."""
        raise NotImplementedError

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.of(self.kernel.entry(xz, xx, zz))

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.of(self.kernel.entry_distance(distance, half_chord, xx, zz))

    def embed(self, X: Float[Matrix, "n d"], inputs: int | None = None) -> Float[Matrix, "n e"]:
        return self.kernel.embed(X, inputs)

    def embedding(self) -> tuple:
        return self.kernel.embedding()

    def warn(self, xx: Float[np.ndarray, " n"], accurate: bool = False) -> None:
        self.kernel.warn(xx, accurate)

    @property
    def stationary(self) -> bool:
        return self.kernel.stationary

    @property
    def metrics(self) -> tuple[str, ...]:
        return self.kernel.metrics


class ScaledFormula(_OfFormula):
    """factor · k."""

    factor: float | Array

    def of(self, values: Any) -> Any:
        return self.factor * values

    @property
    def takes_gradients(self) -> bool:
        return self.kernel.takes_gradients

    @property
    def has_product(self) -> bool:
        return self.kernel.has_product

    def times(self, left: Any, right: Any, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        return self.factor * self.kernel.times(left, right, V)


class PowerFormula(_OfFormula):
    """k^exponent."""

    exponent: int = eqx.field(static=True)

    def of(self, values: Any) -> Any:
        return values**self.exponent


class _OfBlocks(Kernel):
    """An elementwise function of the blocks of one kernel or several."""

    def parts(self) -> tuple[Kernel, ...]:
        """The kernels."""
        raise NotImplementedError

    def of(self, *values: Any) -> Any:
        """The function."""
        raise NotImplementedError

    @property
    def takes(self) -> str:
        return min((k.takes for k in self.parts()), key=TAKES.index)

    @property
    def costly(self) -> bool:
        return any(k.costly for k in self.parts())

    def prepare(self, X: Any) -> tuple:
        return tuple(k.prepare(X) for k in self.parts())

    def sides(self, X: Any, Z: Any = None, keyed: bool = True) -> tuple[Any, Any]:
        left, right = zip(*(k.sides(X, Z, keyed) for k in self.parts()))
        return left, None if Z is None else right

    def block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        return self.of(*(k.block(x, z) for k, x, z in zip(self.parts(), left, right)))

    def accurate_block(self, left: Any, right: Any) -> Float[Array, "n m"]:
        return self.of(*(k.accurate_block(x, z) for k, x, z in zip(self.parts(), left, right)))

    def diag(self, X: Points) -> Float[Array, " n"]:
        return self.on_diagonal(self.read(X)[0])

    def on_diagonal(self, X: Any, accurate: bool = False) -> Any:
        return self.of(*(k.on_diagonal(X, accurate) for k in self.parts()))

    def admit(self, *points: Any, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        for k in self.parts():
            k.admit(*points, names=names, accurate=accurate)

    def held(self, X: Any, accurate: bool = False) -> int:
        return sum(k.held(X, accurate) for k in self.parts())


class CombinedGram(_OfBlocks):
    """Sum or product of kernels that share no inner products."""

    first: Kernel
    second: Kernel
    operation: str = eqx.field(static=True)

    def parts(self) -> tuple[Kernel, ...]:
        return self.first, self.second

    def of(self, *values: Any) -> Any:
        return _OPERATIONS[self.operation](*values)


class ScaledGram(_OfBlocks):
    """factor · k."""

    kernel: Kernel
    factor: float | Array

    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def of(self, *values: Any) -> Any:
        return self.factor * values[0]


class PowerGram(_OfBlocks):
    """k^exponent."""

    kernel: Kernel
    exponent: int = eqx.field(static=True)

    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def of(self, *values: Any) -> Any:
        return values[0] ** self.exponent
