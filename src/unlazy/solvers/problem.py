"""A validated problem: (K + ridge·I)α = y, or its restriction to M centers, with the operations solvers need.

A float32 kernel needs float64 vectors: CG must not round what it subtracts from them. They stay where products are
computed, as NumPy arrays on the host and as JAX arrays on a GPU; within `precision("float64")` JAX supports both types.
The product with the kernel stays outside of that scope, in its own precision, so a step is a few compiled programs;
only a few numbers per output reach the host.
"""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Labels, Matrix, Points, dot, precision, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.fingerprint import fingerprint
from unlazy.kernels.base import Kernel, resolve_kernel
from unlazy.products import KernelOperator, gram, matmul, product
from unlazy.products.engines.blocked import TILE
from unlazy.products.engines.sharded import ShardedOperator, sharded_operator_from_reader
from unlazy.solvers.sources import Source, as_source, finite_floats

SPECTRUM_SAMPLE = TILE
"""Points of the sample from which λ_max is estimated: one tile, which larger Gram matrices compile anyway."""

CUSTOM_PRODUCT_STEPS = 8
"""Power iterations with a kernel's custom product, each as expensive as a solver step on the sample."""


class FittedCoefficients(NamedTuple):
    """Result of a method; `centers` is None if all points are centers."""

    coefficients: np.ndarray
    residual: float
    steps: int
    stopped: str
    bytes: int
    notes: tuple[str, ...] = ()
    centers: np.ndarray | None = None
    ridge: float | None = None
    """The ridge used, if it differs from the requested one."""
    residual_vector: np.ndarray | None = None
    """y - (K + ridge)α of every row as known to the method, for full regression."""


@dataclass(frozen=True)
class Problem:
    """Validated problem: inputs (read in blocks if they are large), labels (n, c) in float64, and the ridge added to K.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    source : Source
        The inputs.
    y : array of shape (n, c), float64
        Labels.
    ridge : float
        Added to the diagonal of K.
    dtype : dtype
        Precision of the kernel entries.
    memory : int
        Memory budget in bytes.
    seed : int
        Seed of random choices.
    notes : tuple of str
        Messages.
    """

    kernel: Kernel
    source: Source
    y: np.ndarray
    ridge: float
    dtype: np.dtype
    memory: int
    seed: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def n(self) -> int:
        """Number of points."""
        return self.source.n

    @functools.cached_property
    def y_norm(self) -> np.ndarray:
        """‖y‖ of every output, 1 for zero outputs. Allocates no temporary of the size of y."""
        norm = np.array([np.linalg.norm(column) for column in self.y.T])
        return np.where(norm > 0, norm, 1.0)

    def rng(self) -> np.random.Generator:
        """Generator for the random choices of a method; the same in every run."""
        return np.random.default_rng(self.seed)

    def X(self) -> Points:
        """All inputs on the device; raises ValueError if they exceed half of the memory budget."""
        if self.source.array is None:
            need = self.n * self.source.d * self.dtype.itemsize
            if need > self.memory // 2:
                raise ValueError(
                    f"this method stores all inputs in memory ({need / 2**30:.3g} GiB, more than half of the budget of "
                    f"{self.memory / 2**30:.3g} GiB): use method='nystrom_cg', which reads blocks, or increase memory="
                )
            return on_device(self.source.rows(0, self.n), self.dtype)
        return on_device(self.source.array, self.dtype)

    def inputs_to_store(self) -> Points:
        """All inputs, to be stored in a model: in host memory if they are sharded over devices."""
        return np.asarray(self.source.rows(0, self.n), self.dtype) if self.is_sharded else self.X()

    @property
    def is_sharded(self) -> bool:
        """Whether the rows are sharded over several devices."""
        return devices.count() > 1 and self.source.is_matrix and not self.kernel.has_product

    @property
    def n_device_memories(self) -> int:
        """Number of devices with separate memory over which rows and factors are sharded: GPUs, not CPU cores."""
        return devices.count() if self.is_sharded and not devices.is_host() else 1

    def sharded_operator(self, Z: jax.Array | None = None, budget: int | None = None) -> ShardedOperator:
        """K(X, Z), or K(X, X), with the rows of X sharded over all devices.

        No device holds all rows, and no host reads the rows of another.
        """
        centers = None if Z is None else np.asarray(Z)

        def read(start: int, stop: int) -> np.ndarray:
            return self.rows(start, stop, centers)

        return sharded_operator_from_reader(
            self.kernel, read, self.n, centers, memory=None if budget is None else max(budget, 1)
        )

    def rows(self, start: int, stop: int, beside: np.ndarray | None = None) -> np.ndarray:
        """Rows start … stop-1 in the problem's precision, in host memory, validated by the kernel."""
        rows = np.asarray(self.source.rows(start, stop), self.dtype)
        if len(rows):
            self.kernel.validate(rows, beside)
        return rows

    def product(self, X: Points, budget: int) -> KernelOperator:
        """K(X, X) for many passes: stored if `budget` bytes allow."""
        return product(self.kernel, X, passes=100, memory=max(budget, 1))

    def largest_eigenvalue(self) -> float:
        """Estimate of λ_max of K from a sample of s points: n/s λ_max(K_ss)."""
        sample = self._sample()
        size = min(self.n, SPECTRUM_SAMPLE)
        K: Any
        if self.kernel.requires_gradients:
            K, steps = product(self.kernel, sample, passes=CUSTOM_PRODUCT_STEPS), CUSTOM_PRODUCT_STEPS
        else:
            K, steps = np.asarray(gram(self.kernel, sample), np.float64), 30
        v = self.rng().normal(size=(size, 1))
        for _ in range(steps):  # an estimate suffices
            v = v / np.linalg.norm(v)
            v = dot(K, v) if isinstance(K, np.ndarray) else np.asarray(kernel_matmul(K, v))
        if not np.isfinite(v).all():
            raise ValueError("the kernel is NaN or infinite on these inputs: rescale them, or use float64")
        return float(np.linalg.norm(v)) * self.n / size

    def ridge_below(self, share: float) -> bool:
        """Whether the ridge is below `share` of the estimated λ_max."""
        if not self.kernel.requires_gradients:
            trace = self.n * float(np.mean(np.asarray(self.kernel.diag(self._sample()), np.float64)))
            if self.ridge >= share * trace:  # the estimate is at most the trace of the same sample
                return False
        return self.ridge < share * self.largest_eigenvalue()

    def _sample(self) -> Any:
        """SPECTRUM_SAMPLE of the points, or all if there are fewer."""
        index = np.sort(self.rng().choice(self.n, min(self.n, SPECTRUM_SAMPLE), replace=False))
        return on_device(self.source.take(index), self.dtype)

    def with_resolvable_ridge(self, least: float = 0.0) -> "Problem":
        """The problem with the ridge raised to the rounding floor of K if it is below, and a note about it.

        Below the floor the smallest directions of (K + ridge·I) are noise that no iteration in this precision can fit.
        The floor is 4 unit roundoffs of λ_max, or the share `least` of it if the method needs more.
        """
        share = max(4 * unit_roundoff(self.dtype), least)
        if not self.ridge_below(share):
            return self
        floor = share * self.largest_eigenvalue()
        note = (
            f"ridge {self.ridge:.2g} is too small for this method in {self.dtype.name}; {floor:.2g} was used "
            "instead (jitter)" + ("; float64 allows smaller values" if self.dtype == np.float32 else "")
        )
        return replace(self, ridge=floor, notes=(*self.notes, note))

    def residual(self, K: KernelOperator, alpha: np.ndarray) -> np.ndarray:
        """y - (K + ridge·I)α."""
        return self.y - np.asarray(kernel_matmul(K, alpha)) - self.ridge * alpha

    def relative_residual(self, residual: np.ndarray) -> float:
        """Largest ‖residual‖/‖y‖ over outputs: a bound on the error of the fitted values, since ‖K(K+ρ)⁻¹‖ ≤ 1."""
        return float(np.max(np.linalg.norm(residual, axis=0) / self.y_norm))

    def checkpoint_identity(self, method: str, extra: object = ()) -> dict[str, str]:
        """Fingerprints that a checkpoint must share with this problem. All rows are read, as in one step."""
        data = hashlib.sha256(_bytes_view(self.y))
        for _, rows in self.source.blocks(max(1, 2**24 // self.source.d)):
            for leaf in jax.tree.leaves(rows):
                data.update(_bytes_view(leaf))
        return {
            "method": method + fingerprint(extra), "data": data.hexdigest(), "ridge": repr(self.ridge),
            "kernel": fingerprint(self.kernel), "precision": self.dtype.name,
            "shape": repr((self.n, self.source.d, self.y.shape[1])),
        }  # fmt: skip


def _bytes_view(array: Any) -> memoryview:
    """The bytes of an array, without a copy if it is contiguous."""
    return memoryview(np.ascontiguousarray(array).data).cast("B")


def on_device(X: Points, dtype: np.dtype) -> Points:
    """Inputs in the problem's precision, on the device; integers of a pytree keep their type."""
    return jax.tree.map(lambda a: jnp.asarray(a, dtype if np.issubdtype(a.dtype, np.floating) else None), X)


def predict(kernel: Kernel, X: np.ndarray, centers: Matrix, alpha: np.ndarray, memory: int) -> np.ndarray:
    """Predictions as float64."""
    out = matmul(kernel, jnp.asarray(X, centers.dtype), centers, jnp.asarray(alpha, centers.dtype), memory=memory)
    return np.asarray(out, np.float64)


def label_matrix(y: Labels, n: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Labels as (n, c) float64, and the shape of one label."""
    array = finite_floats("y", np.asarray(y))
    if array.ndim not in (1, 2) or array.shape[0] != n or 0 in array.shape:
        raise ValueError(f"y must have one row for each of the {n} rows of X and one or two axes, got {array.shape}")
    return array.reshape(n, -1).astype(np.float64), array.shape[1:]


def make_problem(
    kernel: Kernel, X: Points, y: Labels, ridge: object, memory: int | str | None = None, seed: int = 0
) -> Problem:
    """Validate the arguments; `solve` then chooses precision and method."""
    resolve_kernel(kernel)
    source = X if isinstance(X, Source) else as_source(X, kernel.input_kind)
    columns, _ = label_matrix(y, source.n)
    if isinstance(ridge, jax.Array | np.ndarray) and ridge.ndim == 0 and ridge.dtype.kind in "fiu":
        ridge = float(ridge)
    if isinstance(ridge, bool) or not isinstance(ridge, int | float | np.number) or not 0 <= ridge < np.inf:
        raise ValueError(f"ridge must be a finite number, zero or more, got {ridge!r}")
    return Problem(kernel, source, columns, float(ridge), np.dtype("float32"), memory_budget(memory), seed)


Vectors = Float[Matrix, "n c"]
"""One column per output."""
Operator = Callable[[Any], Matrix]
"""Linear map of vectors, all of them NumPy or all of them JAX arrays."""


def to_float64(x: Matrix) -> Matrix:
    """x in float64, on the device that computes products."""
    if devices.is_host():
        return np.asarray(x, np.float64)
    with precision("float64"):
        return jnp.asarray(x, jnp.float64)


def to_dtype(x: Matrix, dtype: DTypeLike) -> Array:
    """x in the precision of a product."""
    if isinstance(x, np.ndarray):
        return jnp.asarray(x, dtype)
    with precision("float64"):
        return x.astype(dtype)


def kernel_matmul(K: KernelOperator, V: Matrix) -> Matrix:
    """K @ V computed in the precision of the kernel, returned in float64."""
    return to_float64(K.matmul(to_dtype(V, K.dtype)))


def jit_float64(function: Callable) -> Callable:
    """Decorator for functions of float64 vectors: called directly for NumPy arrays, compiled for JAX arrays."""
    compiled = jax.jit(function)

    def called(*arguments: Any) -> Any:
        if isinstance(arguments[0], np.ndarray):
            return function(*arguments)
        with precision("float64"):
            return compiled(*arguments)

    return called


@jit_float64
def add_scaled(x: Matrix, y: Matrix, scale: float | Array) -> Matrix:
    """x + scale · y in float64."""
    return x + scale * y
