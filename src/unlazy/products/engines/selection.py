"""Product engines with their cost estimates and constructors. `multiply.product` builds the cheapest one.

The unit of cost is the evaluation of one entry in blocks, about 20 ns on a CPU. A cost of None means that the engine
does not support the problem or exceeds the memory budget.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import float_type, is_concrete, n_points
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import numpy_entries
from unlazy.products.engines.base import (
    KernelOperator,
    blocked_operator,
    custom_operator,
    fused_available,
    fused_operator,
    stored_operator,
)
from unlazy.products.engines.numpy_engine import numpy_operator
from unlazy.products.engines.sharded import sharded_operator

READ_COST = 1 / 6
"""Reading a stored entry: on the CPU a product with a stored K is six times faster than one that computes it."""
FUSED_COST = 1 / 8
"""Computing an entry on chip on a GPU, which is cheaper than reading it."""
NUMPY_COST = 2
"""Evaluating an entry with NumPy, where inner products and entries pass through memory: in float64, 43 ns instead of
21 for the Laplace kernel, 125 instead of 65 for an NTK, 25 instead of 16 for the product Laplace kernel."""
COMPILE_COST = 2**23
"""Compiling a program for new shapes: one second, or 2^25 entries, amortized over several products."""


class Job(NamedTuple):
    """Description of a problem: K(X, Z), or K(X, X) if Z is None, to be multiplied `passes` times."""

    kernel: Kernel
    X: Any
    Z: Any = None
    passes: int = 1
    memory: int | str | None = None
    devices: Sequence[jax.Device] | None = None
    allow_float32_sums: bool = False
    """Whether float32 sums may be computed by NumPy, with another summation order than that of the device."""

    @property
    def right(self) -> Any:
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
        return custom_operator(job.kernel, job.X, job.Z)


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
        return stored_operator(job.kernel, job.X, job.Z, job.memory)


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
        return fused_operator(job.kernel, job.X, job.right)


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


@jax.jit
def _zero() -> Array:
    """A tracer if called while a program is traced: computations would then become part of that program."""
    return jnp.zeros(())


class NumpyEngine(ProductEngine):
    """NumPy matrix products, and one small compiled program for the formula, independent of the shapes."""

    name = "numpy"

    def cost(self, job: Job) -> float | None:
        """Entries are more expensive than in blocks, but nothing is compiled. For a single product of concrete points
        on the CPU, in float64 unless float32 sums are allowed."""
        if job.passes > 1 or not devices.is_host() or job.workers > 1 or numpy_entries.entry_table(job.kernel) is None:
            return None
        X, Z = job.X, job.right
        if getattr(X, "ndim", 0) != 2 or not (job.allow_float32_sums or X.dtype == np.float64):
            return None
        probe = _zero()
        known = X.dtype == probe.dtype and is_concrete(job.kernel, X, Z, probe)
        return NUMPY_COST * X.shape[0] * Z.shape[0] if known else None

    def build(self, job: Job) -> KernelOperator:
        return numpy_operator(job.kernel, job.X, job.Z, job.memory)


ENGINES = (CustomEngine(), StoredEngine(), BlockedEngine(), FusedEngine(), ShardedEngine(), NumpyEngine())


def cheapest(job: Job) -> ProductEngine:
    """The engine with the lowest cost."""
    costs = [(cost, i) for i, engine in enumerate(ENGINES) if (cost := engine.cost(job)) is not None]
    return ENGINES[min(costs)[1]]
