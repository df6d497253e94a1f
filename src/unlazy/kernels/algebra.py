"""Sums, products, multiples and powers of kernels: of formulas with the same embedding, or block by block."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.arrays import INPUT_KINDS, Matrix, Points, Side, float_type, n_points
from unlazy.core.errors import check_non_negative, check_positive_integer
from unlazy.kernels import gram_blocks
from unlazy.kernels.base import DerivedFormula, InnerProductKernel, Kernel


def add(first: Kernel, second: "Kernel | float | Array") -> Kernel:
    """Sum k1 + k2 of two kernels.

    Parameters
    ----------
    first : Kernel
        The kernel k1.
    second : Kernel or float
        The kernel k2. A number is the constant kernel; 0 is ignored, so that `sum(kernels)` works.

    Returns
    -------
    Kernel
        The sum.
    """
    if isinstance(second, Kernel):
        return _combine(first, second, "add")
    return first if isinstance(second, int | float) and second == 0 else _combine(first, Constant(second), "add")


def multiply(first: Kernel, second: Kernel) -> Kernel:
    """Elementwise product k1 · k2 of two kernels.

    Parameters
    ----------
    first, second : Kernel
        The factors.

    Returns
    -------
    Kernel
        The product.
    """
    return _combine(first, second, "multiply")


def scale(kernel: Kernel, factor: "float | Array | np.ndarray | np.number") -> Kernel:
    """Multiple factor · k of a kernel.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    factor : float
        Nonnegative factor.

    Returns
    -------
    Kernel
        The multiple.

    Raises
    ------
    ValueError
        If the factor is negative.
    """
    factor = check_non_negative("the factor of a kernel")(factor)
    if isinstance(factor, np.ndarray | np.number) and not isinstance(factor, float):
        factor = jnp.asarray(factor)
    if isinstance(kernel, Constant):
        return Constant(kernel.value * factor)
    formula = kernel.formula
    return ScaledGram(kernel, factor) if formula is None else ScaledFormula(formula, factor)


def power(kernel: Kernel, exponent: object) -> Kernel:
    """Elementwise power k^p of a kernel; other than positive integer powers need not be positive semi-definite.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    exponent : int
        p = 1, 2, ….

    Returns
    -------
    Kernel
        The power.

    Raises
    ------
    ValueError
        If the exponent is not a positive integer.
    """
    whole = check_positive_integer("the power of a kernel", exponent, "other powers need not be positive semi-definite")
    formula = kernel.formula
    return PowerGram(kernel, whole) if formula is None else PowerFormula(formula, whole)


def _combine(first: Kernel, second: Kernel, operation: str) -> Kernel:
    """Combine two formulas if they share an embedding, and blocks otherwise."""
    one, two = first.formula, second.formula
    if isinstance(first, Constant) and not isinstance(second, Constant):
        return _combine(second, first, operation)
    if one is None or two is None or not (isinstance(two, Constant) or one.embedding() == two.embedding()):
        return CombinedGram(first, second, operation)
    return CombinedFormula(one, two, operation)


_OPERATIONS: dict[str, Callable] = {"add": jnp.add, "multiply": jnp.multiply}


class Constant(InnerProductKernel):
    """Constant kernel k(x, z) = value on points of any kind.

    Parameters
    ----------
    value : float, default 1.0
        The value, nonnegative.

    Examples
    --------
    >>> from unlazy import Constant, Gaussian
    >>> float((Gaussian(1.0) + Constant(2.0))([0.0], [0.0]))
    3.0
    """

    value: float | Float[Array, ""] = eqx.field(default=1.0, converter=check_non_negative("the constant"))

    @property
    def input_kind(self) -> str:
        return "tree"

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.value + 0 * xz  # NaN stays NaN

    @property
    def stationary(self) -> bool:
        return True

    def prepare(self, X: Points) -> Float[Array, " n"]:
        """Return 0 for every point, NaN if the point is not finite."""
        zero = jnp.zeros(n_points(X), float_type(X))
        for leaf in jax.tree.leaves(X):
            finite = jnp.isfinite(leaf.reshape(leaf.shape[0], -1)).all(1)
            zero = jnp.where(finite, zero, jnp.nan)
        return zero

    def sides(
        self, X: Points, Z: Points | None = None, keyed: bool = True
    ) -> tuple[Float[Array, " n"], Float[Array, " m"] | None]:
        return self.prepare(X), None if Z is None else self.prepare(Z)

    def block(self, left: Float[Array, " n"], right: Float[Array, " m"]) -> Float[Array, "n m"]:
        return self.value + left[:, None] + right[None, :]

    def accurate_block(self, left: Float[Array, " n"], right: Float[Array, " m"]) -> Float[Array, "n m"]:
        return self.block(left, right)

    def diag(self, X: Points) -> Float[Array, " n"]:
        return gram_blocks.diagonal_from_function(self, lambda X: self.value + self.prepare(X), X)

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        gram_blocks.validate_inputs(self, points, names)

    def values_per_pair(self, X: Points, accurate: bool = False) -> int:
        return gram_blocks.GRAM_SIZED_TEMPORARIES


class CombinedFormula(InnerProductKernel):
    """Sum or product of two formulas of the same inner products.

    Parameters
    ----------
    first, second : InnerProductKernel
        Kernels with the same embedding.
    operation : {"add", "multiply"}
        The operation.
    """

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


class _TransformedFormula(DerivedFormula):
    """Elementwise function of one formula: the same embedding, another entry."""

    def transform(self, values: Array) -> Array:
        """Apply the function to kernel values."""
        raise NotImplementedError

    def entry(self, xz: Float[Array, "*#s"], xx: Float[Array, "*#s"], zz: Float[Array, "*#s"]) -> Float[Array, "*#s"]:
        return self.transform(self.kernel.entry(xz, xx, zz))

    def entry_distance(self, distance, half_chord, xx, zz):
        return self.transform(self.kernel.entry_distance(distance, half_chord, xx, zz))


class ScaledFormula(_TransformedFormula):
    """Multiple factor · k of a formula.

    Parameters
    ----------
    kernel : InnerProductKernel
        The kernel k.
    factor : float
        The factor.
    """

    factor: float | Array

    def transform(self, values: Array) -> Array:
        return self.factor * values

    @property
    def has_product(self) -> bool:
        return self.kernel.has_product

    def matmul_prepared(self, left: Side, right: Side, V: Float[Array, "m c"]) -> Float[Array, "n c"]:
        return self.factor * self.kernel.matmul_prepared(left, right, V)


class PowerFormula(_TransformedFormula):
    """Power k^exponent of a formula.

    Parameters
    ----------
    kernel : InnerProductKernel
        The kernel k.
    exponent : int
        The exponent.
    """

    exponent: int = eqx.field(static=True)

    def transform(self, values: Array) -> Array:
        return values**self.exponent


class _BlockwiseKernel(Kernel):
    """Elementwise function of the blocks of one or more kernels."""

    def parts(self) -> tuple[Kernel, ...]:
        """Return the kernels."""
        raise NotImplementedError

    def transform(self, *values: Array) -> Array:
        """Apply the function to the values of all kernels."""
        raise NotImplementedError

    @property
    def input_kind(self) -> str:
        return min((k.input_kind for k in self.parts()), key=INPUT_KINDS.index)

    @property
    def expensive(self) -> bool:
        return any(k.expensive for k in self.parts())

    def prepare(self, X: Points) -> tuple[Side, ...]:
        return tuple(k.prepare(X) for k in self.parts())

    def sides(
        self, X: Points, Z: Points | None = None, keyed: bool = True
    ) -> tuple[tuple[Side, ...], tuple[Side, ...] | None]:
        left, right = zip(*(k.sides(X, Z, keyed) for k in self.parts()))
        return left, None if Z is None else right

    def block(self, left: tuple[Side, ...], right: tuple[Side, ...]) -> Float[Array, "n m"]:
        return self.transform(*(k.block(x, z) for k, x, z in zip(self.parts(), left, right)))

    def accurate_block(self, left: tuple[Side, ...], right: tuple[Side, ...]) -> Float[Array, "n m"]:
        return self.transform(*(k.accurate_block(x, z) for k, x, z in zip(self.parts(), left, right)))

    def diag(self, X: Points) -> Float[Array, " n"]:
        X = self.read(X)[0]
        return self.transform(*(k.diag(X) for k in self.parts()))

    def validate(self, *points: Points | None, names: tuple[str, ...] = ("X", "Z"), accurate: bool = False) -> None:
        for k in self.parts():
            k.validate(*points, names=names, accurate=accurate)

    def values_per_pair(self, X: Points, accurate: bool = False) -> int:
        return sum(k.values_per_pair(X, accurate) for k in self.parts())


class CombinedGram(_BlockwiseKernel):
    """Sum or product of kernels that share no inner products.

    Parameters
    ----------
    first, second : Kernel
        The kernels.
    operation : {"add", "multiply"}
        The operation.
    """

    first: Kernel
    second: Kernel
    operation: str = eqx.field(static=True)

    def parts(self) -> tuple[Kernel, ...]:
        return self.first, self.second

    def transform(self, *values: Array) -> Array:
        return _OPERATIONS[self.operation](*values)


class ScaledGram(_BlockwiseKernel):
    """Multiple factor · k of a kernel without a formula.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    factor : float
        The factor.
    """

    kernel: Kernel
    factor: float | Array

    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def transform(self, *values: Array) -> Array:
        return self.factor * values[0]


class PowerGram(_BlockwiseKernel):
    """Power k^exponent of a kernel without a formula.

    Parameters
    ----------
    kernel : Kernel
        The kernel k.
    exponent : int
        The exponent.
    """

    kernel: Kernel
    exponent: int = eqx.field(static=True)

    def parts(self) -> tuple[Kernel, ...]:
        return (self.kernel,)

    def transform(self, *values: Array) -> Array:
        return values[0] ** self.exponent
