"""K @ V: estimate the cost of every engine and multiply with the cheapest."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core import engines as engine_switch
from unlazy.core.arrays import Labels, Points, as_point_pair, float_type, is_concrete, n_points
from unlazy.core.devices import memory_budget
from unlazy.core.errors import did_you_mean
from unlazy.kernels.base import Kernel
from unlazy.products.engines.base import (
    CustomOperator,
    FusedOperator,
    KernelOperator,
    StoredOperator,
    blocked_operator,
    fused_available,
)
from unlazy.products.engines.blocked import gram, prepared_sides
from unlazy.products.engines.numpy_engine import entry_table, numpy_operator
from unlazy.products.engines.sharded import sharded_operator


def product(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    *,
    engine: str | None = None,
    passes: int = 1,
    memory: int | str | None = None,
    devices: Sequence[jax.Device] | None = None,
) -> KernelOperator:
    """Build a linear operator for the kernel matrix K(X, Z), or K(X, X).

    By default the engine with the lowest estimated cost is used:

    - "custom" if the kernel implements its own fast product;
    - "sharded" if there are several devices: each one holds a share of the rows;
    - "fused" on a GPU: entries are recomputed on chip, which is faster than reading a stored K;
    - "stored" on the CPU if K fits into `memory` and is used more than once;
    - "numpy" on the CPU for a small float64 K that is used once, since nothing has to be compiled;
    - "blocked" otherwise: K is recomputed block by block in every product.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K. Kernels of images or trees take their own input layout.
    Z : array of shape (m, d), optional
        Points of the columns of K; X by default.
    engine : {"custom", "stored", "blocked", "fused", "sharded", "numpy"}, optional
        Force one engine instead of choosing the cheapest.
    passes : int, default 1
        Expected number of products, used to estimate costs.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".
    devices : sequence of jax.Device, optional
        Devices that share the rows; all devices by default.

    Returns
    -------
    KernelOperator
        Operator with the methods `matmul`, `rmatmul` and `normal`.

    Raises
    ------
    ValueError
        If the engine is unknown or does not support the kernel, if the points are invalid, or if a stored K exceeds
        the memory budget.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import product
    >>> X = np.random.default_rng(0).normal(size=(50, 3))
    >>> K = product(Gaussian(2.0), X, passes=10)
    >>> K.matmul(np.ones(50)).shape
    (50,)
    """
    X, Z = as_point_pair(
        X, Z, input_kind=kernel.input_kind, to_device=False
    )  # engines transfer them to the device if they need to
    engines = {known.name: known for known in ENGINES}
    if engine is not None and engine not in engines:
        raise ValueError(f"unknown engine {engine!r}{did_you_mean(str(engine), engines)}")
    job = Job(kernel, X, Z, passes, memory, devices)
    return (cheapest(job) if engine is None else engines[engine]).build(job)


def matmul(
    kernel: Kernel, X: Points, Z: Points, V: Labels, *, memory: int | str | None = None
) -> Float[Array, " n *c"]:
    """Compute K(X, Z) @ V without storing K.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K.
    Z : array of shape (m, d)
        Points of the columns of K.
    V : array of shape (m,) or (m, c)
        One or several vectors.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (n,) or (n, c)
        The product.

    Raises
    ------
    ValueError
        If the points are invalid or V does not have m rows.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import matmul
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> Z, coefficients = X[:5], np.ones(5)
    >>> matmul(Gaussian(2.0), X, Z, coefficients).shape  # predictions at X
    (60,)
    """
    return product(kernel, X, Z, memory=memory).matmul(V)


def rmatmul(
    kernel: Kernel, X: Points, Z: Points, U: Labels, *, memory: int | str | None = None
) -> Float[Array, " m *c"]:
    """Compute K(X, Z)ᵀ @ U without storing K.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Points of the rows of K.
    Z : array of shape (m, d)
        Points of the columns of K.
    U : array of shape (n,) or (n, c)
        One or several vectors.
    memory : int or str, optional
        Memory budget in bytes or as a string such as "8GiB".

    Returns
    -------
    array of shape (m,) or (m, c)
        The product.

    Raises
    ------
    ValueError
        If the points are invalid or U does not have n rows.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian
    >>> from unlazy.products import rmatmul
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> rmatmul(Gaussian(2.0), X, X[:5], np.sin(X[:, 0])).shape
    (5,)
    """
    return product(kernel, X, Z, memory=memory).rmatmul(U)


READ_COST = 1 / 6
"""Reading a stored entry: on the CPU a product with a stored K is six times faster than one that computes it."""
FUSED_COST = 1 / 8
"""Computing an entry on chip on a GPU, which is cheaper than reading it."""
NUMPY_COST = 2
"""Evaluating an entry with NumPy, where inner products and entries pass through memory: in float64, 43 ns instead of
21 for the Laplace kernel, 125 instead of 65 for an NTK, 25 instead of 16 for the product Laplace kernel."""
COMPILE_COST = 2**24
"""Compiling a program for new shapes: 0.8 to 1.4 s of a CPU, or 2^25 entries; half of it if the program was kept."""


class Job(NamedTuple):
    """Description of a problem: K(X, Z), or K(X, X) if Z is None, to be multiplied `passes` times."""

    kernel: Kernel
    X: Points
    Z: Points | None = None
    passes: int = 1
    memory: int | str | None = None
    devices: Sequence[jax.Device] | None = None
    allow_float32_sums: bool = False
    """Whether float32 sums may be computed by NumPy, with another summation order than that of the device."""

    @property
    def right(self) -> Points:
        """Points of the columns."""
        return self.X if self.Z is None else self.Z

    @property
    def entries(self) -> int:
        """Number of entries of K."""
        return n_points(self.X) * n_points(self.right)

    @property
    def workers(self) -> int:
        """Number of devices that share the rows."""
        return devices.count() if self.devices is None else len(self.devices)


class ProductEngine(abc.ABC):
    """An engine: it multiplies by K."""

    name: str

    @abc.abstractmethod
    def cost(self, job: Job) -> float | None:
        """Cost of all passes in entry evaluations; None if the engine does not support the job."""

    @abc.abstractmethod
    def build(self, job: Job) -> KernelOperator:
        """Build the operator; raises ValueError if the engine does not support the job."""


class CustomEngine(ProductEngine):
    """Product implemented by the kernel, which exploits its structure."""

    name = "custom"

    def cost(self, job: Job) -> float | None:
        """Negligible: the work is proportional to n + m, not n·m. None if the kernel has no custom product."""
        return 0.0 if job.kernel.has_product else None

    def build(self, job: Job) -> KernelOperator:
        kernel = job.kernel
        if not kernel.has_product:
            raise ValueError(f"{type(kernel).__name__} has no custom product; omit `engine` to choose one")
        return CustomOperator(kernel, *prepared_sides(kernel, job.X, job.Z))


class StoredEngine(ProductEngine):
    """K is computed once and kept in memory."""

    name = "stored"

    def cost(self, job: Job) -> float | None:
        """Each entry is evaluated once and read in every pass. For one device, several passes and enough memory."""
        if job.passes < 2 or job.workers > 1:
            return None
        if job.entries * float_type(job.X).itemsize > memory_budget(job.memory):
            return None
        return COMPILE_COST + job.entries * (1 + READ_COST * job.passes)

    def build(self, job: Job) -> KernelOperator:
        return StoredOperator(gram(job.kernel, job.X, job.Z, job.memory), job.Z is None)


class BlockedEngine(ProductEngine):
    """Blocks of K are evaluated, multiplied and discarded."""

    name = "blocked"

    def cost(self, job: Job) -> float | None:
        """Each entry is evaluated in every pass. Always supported on one device."""
        return COMPILE_COST + job.entries * job.passes if job.workers == 1 else None

    def build(self, job: Job) -> KernelOperator:
        return blocked_operator(job.kernel, job.X, job.Z, None if job.memory is None else memory_budget(job.memory))


class FusedEngine(ProductEngine):
    """Entries are evaluated on chip by a fused GPU program."""

    name = "fused"

    def cost(self, job: Job) -> float | None:
        """Each entry is computed in every pass, which is cheaper than reading it. For supported GPUs and kernels."""
        if job.workers > 1 or not fused_available(job.kernel, job.X):
            return None
        return COMPILE_COST + FUSED_COST * job.entries * job.passes

    def build(self, job: Job) -> KernelOperator:
        from unlazy.products.fused import fused_product

        return FusedOperator(*fused_product.prepare(job.kernel, job.X, job.right))


class ShardedEngine(ProductEngine):
    """Rows are sharded over devices; each device multiplies its rows, fused or by blocks."""

    name = "sharded"

    def cost(self, job: Job) -> float | None:
        """Cost per device. The only engine for several devices, since all processes must take part."""
        if job.workers < 2:
            return None
        each = FUSED_COST if fused_available(job.kernel, job.X) else 1.0
        return COMPILE_COST + each * job.entries * job.passes / job.workers

    def build(self, job: Job) -> KernelOperator:
        return sharded_operator(job.kernel, job.X, job.Z, job.devices, job.memory)


class NumpyEngine(ProductEngine):
    """NumPy matrix products, and one small compiled program for the formula, independent of the shapes."""

    name = "numpy"

    def cost(self, job: Job) -> float | None:
        """Entries are more expensive than in blocks, but nothing is compiled. For a single product of concrete points
        on the CPU, in float64 unless float32 sums are allowed."""
        if job.passes > 1 or not devices.is_host() or job.workers > 1 or entry_table(job.kernel) is None:
            return None
        X, Z = job.X, job.right
        if getattr(X, "ndim", 0) != 2 or not (job.allow_float32_sums or X.dtype == np.float64):
            return None
        # a tracer while a program is traced: computations would then become part of that program
        probe = jax.device_put(np.zeros(()))
        known = X.dtype == probe.dtype and is_concrete(job.kernel, X, Z, probe)
        return NUMPY_COST * X.shape[0] * Z.shape[0] if known else None

    def build(self, job: Job) -> KernelOperator:
        return numpy_operator(job.kernel, job.X, job.Z, job.memory)


ENGINES = (CustomEngine(), StoredEngine(), BlockedEngine(), FusedEngine(), ShardedEngine(), NumpyEngine())


def cheapest(job: Job) -> ProductEngine:
    """The engine with the lowest cost among those that are switched on."""
    on = [(i, engine) for i, engine in enumerate(ENGINES) if engine_switch.allowed(engine.name)]
    costs = [(cost, i) for i, engine in on if (cost := engine.cost(job)) is not None]
    return ENGINES[min(costs)[1]]
