"""The ways to multiply by K as values: what each would cost, and how it is built. `multiply` takes the cheapest.

Costs count entries: 1 is what it takes to evaluate one entry by blocks, some twenty nanoseconds on a CPU. None: this
engine cannot, or what it keeps does not fit.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from unlazy.core import devices
from unlazy.core.arrays import concrete, count, float_type
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import numpy_entries
from unlazy.products.engines.base import Product, fused_available, fused_product, own_product, recomputed, stored
from unlazy.products.engines.numpy_engine import hosted
from unlazy.products.engines.sharded import sharded

READ = 1 / 6
"""To read an entry that is stored: a pass over a stored K is six times faster than one that computes it, on the CPU."""
FUSED = 1 / 8
"""To compute an entry on the chip of a GPU: less than to read one."""
HOST = 2
"""To evaluate an entry on the host, where inner products and entries pass through memory: 43 ns against 21 for the
Laplace kernel in float64, 125 against 65 for an NTK, 25 against 16 for the product Laplace kernel."""
PROGRAM = 2**23
"""A program compiled for the shapes at hand: a second, or 2^25 entries, which some products of those shapes share."""


class Job(NamedTuple):
    """K(X, Z), or K(X, X) where Z is None, of points as the kernel reads them, to be multiplied `passes` times."""

    kernel: Kernel
    X: Any
    Z: Any = None
    passes: int = 1
    memory: int | str | None = None
    devices: Sequence[jax.Device] | None = None
    any_sums: bool = False
    """Whether float32 sums may be NumPy's too: nobody gives evidence of the rounding of the device's own."""

    @property
    def right(self) -> Any:
        """The second side."""
        return self.X if self.Z is None else self.Z

    @property
    def entries(self) -> int:
        """Of K."""
        return count(self.X) * count(self.right)

    @property
    def workers(self) -> int:
        """Devices to share the rows."""
        return devices.count() if self.devices is None else len(self.devices)


class Engine(abc.ABC):
    """One way to multiply."""

    name: str

    @abc.abstractmethod
    def cost(self, job: Job) -> float | None:
        """What all passes take, in entries; None where this engine cannot."""

    @abc.abstractmethod
    def build(self, job: Job) -> Product:
        """The product, or a ValueError that says why not."""


class Own(Engine):
    """The way of a kernel that knows its structure."""

    name = "own"

    def cost(self, job: Job) -> float | None:
        """Nothing beside what entries cost: its work grows with n + m, not with n·m. Where the kernel has one."""
        return 0.0 if job.kernel.has_product else None

    def build(self, job: Job) -> Product:
        return own_product(job.kernel, job.X, job.Z)


class Stored(Engine):
    """K is formed once and kept."""

    name = "stored"

    def cost(self, job: Job) -> float | None:
        """Each entry evaluated once, read in every pass; for one device, where K is used again and fits the budget."""
        if job.passes < 2 or job.workers > 1:
            return None
        if job.entries * float_type(job.X).itemsize > memory_budget(job.memory):
            return None
        return PROGRAM + job.entries * (1 + READ * job.passes)

    def build(self, job: Job) -> Product:
        return stored(job.kernel, job.X, job.Z, job.memory)


class Blocked(Engine):
    """Blocks of K are evaluated, used and forgotten."""

    name = "blocked"

    def cost(self, job: Job) -> float | None:
        """Each entry evaluated in every pass; for one device, and always possible there."""
        return PROGRAM + job.entries * job.passes if job.workers == 1 else None

    def build(self, job: Job) -> Product:
        return recomputed(job.kernel, job.X, job.Z, None if job.memory is None else memory_budget(job.memory))


class Fused(Engine):
    """The same on the chip of a GPU."""

    name = "fused"

    def cost(self, job: Job) -> float | None:
        """Each entry computed in every pass, cheaper than it could be read; where a GPU can."""
        if job.workers > 1 or not fused_available(job.kernel, job.X):
            return None
        return PROGRAM + FUSED * job.entries * job.passes

    def build(self, job: Job) -> Product:
        return fused_product(job.kernel, job.X, job.right)


class Sharded(Engine):
    """Rows are spread over devices, each of which multiplies its own: fused, or by blocks."""

    name = "sharded"

    def cost(self, job: Job) -> float | None:
        """The share of one of several devices. The only way where there are several: all processes must take part."""
        if job.workers < 2:
            return None
        each = FUSED if fused_available(job.kernel, job.X) else 1.0
        return PROGRAM + each * job.entries * job.passes / job.workers

    def build(self, job: Job) -> Product:
        return sharded(job.kernel, job.X, job.Z, job.devices, job.memory)


@jax.jit
def _zero() -> Array:
    """Traced where a program is being traced, which would make what is computed meanwhile its own."""
    return jnp.zeros(())


class Host(Engine):
    """NumPy's products, and one small program for the formula whatever the shapes."""

    name = "host"

    def cost(self, job: Job) -> float | None:
        """Each entry evaluated, dearer than by blocks, but nothing is compiled: for one product of known points on the
        CPU. In float64, unless all sums will do."""
        if job.passes > 1 or not devices.is_host() or job.workers > 1 or numpy_entries.table_of(job.kernel) is None:
            return None
        X, Z = job.X, job.right
        if getattr(X, "ndim", 0) != 2 or not (job.any_sums or X.dtype == np.float64):
            return None
        probe = _zero()
        known = X.dtype == probe.dtype and concrete(job.kernel, X, Z, probe)
        return HOST * X.shape[0] * Z.shape[0] if known else None

    def build(self, job: Job) -> Product:
        return hosted(job.kernel, job.X, job.Z, job.memory)


ENGINES = (Own(), Stored(), Blocked(), Fused(), Sharded(), Host())


def cheapest(job: Job) -> Engine:
    """The engine that costs least."""
    costs = [(cost, i) for i, engine in enumerate(ENGINES) if (cost := engine.cost(job)) is not None]
    return ENGINES[min(costs)[1]]
