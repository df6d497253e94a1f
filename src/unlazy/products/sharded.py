"""K @ V with the rows of X spread over devices and hosts; Z and V are on each of them, results come back everywhere.

Each device multiplies its own rows (fused on a GPU, else by blocks). Kᵀ @ U and Kᵀ(K @ V) end with one sum over the
devices, K @ V with one gather. With several processes every one of them makes the same calls on the same data
(`jax.distributed.initialize` first).
"""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from unlazy.core import device
from unlazy.core.inputs import Points, count, float_type
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products import blocked
from unlazy.products.pairs import both_sides, prepared
from unlazy.products.product import Product, fused_available

AXIS = "rows"


class Sharded(Product):
    """K with its rows spread over the devices of `mesh`; rows that only pad have weight zero."""

    kernel: Kernel
    left: Any
    right: Any
    weights: Float[Array, "p 1"]
    rows: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    fused: bool = eqx.field(static=True, default=False)
    memory: int | None = eqx.field(static=True, default=None)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, count(self.right)

    @property
    def how(self) -> str:
        return "sharded"

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def _matmul(self, V: Array) -> Array:
        out = _apply("matmul", self.mesh, self.fused, self.memory)(
            self.kernel, self.left, self.right, self.weights, self._everywhere(V)
        )
        return self._local(out)[: self.rows]

    def _rmatmul(self, U: Array) -> Array:
        padded = jnp.pad(U, ((0, count(self.left) - self.rows), (0, 0)))
        U = jax.device_put(np.asarray(padded), NamedSharding(self.mesh, P(AXIS)))
        return self._local(
            _apply("rmatmul", self.mesh, self.fused, self.memory)(self.kernel, self.left, self.right, self.weights, U)
        )

    def _normal(self, V: Array) -> Array:
        return self._local(
            _apply("normal", self.mesh, self.fused, self.memory)(
                self.kernel, self.left, self.right, self.weights, self._everywhere(V)
            )
        )

    def _everywhere(self, V: Array) -> Array:
        return jax.device_put(np.asarray(V), NamedSharding(self.mesh, P()))

    @staticmethod
    def _local(out: Array) -> Array:
        """A result that is the same everywhere, as an ordinary array of this process."""
        return jnp.asarray(out.addressable_data(0))


def sharded(
    kernel: Kernel,
    X: Points,
    Z: Points,
    devices: Sequence[jax.Device] | None = None,
    memory: int | str | None = None,
) -> Sharded:
    """Spread the rows of X over `devices` (all of them, on all hosts, unless told)."""
    mesh = Mesh(np.array(device.every() if devices is None else list(devices)), (AXIS,))
    X, Z = both_sides(kernel, X, Z)
    fused = fused_available(kernel, X)
    left, right = (X, Z) if fused else jax.jit(prepared)(kernel, X, Z)
    n, parts = count(X), mesh.devices.size
    extra = -n % parts
    left, right = jax.tree.map(np.asarray, (left, right))
    padded = jax.tree.map(lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], extra, 0)]), left)
    weights = (np.arange(n + extra) < n).astype(float_type(padded))[:, None]
    by_rows, everywhere = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
    return Sharded(
        kernel, jax.device_put(padded, by_rows), jax.device_put(right, everywhere),
        jax.device_put(weights, by_rows), n, mesh, fused, None if memory is None else memory_budget(memory),
    )  # fmt: skip


@functools.cache
def _apply(verb: str, mesh: Mesh, fused: bool, memory: int | None):  # type: ignore[no-untyped-def]
    """The compiled program of one verb; one sum or gather over the devices at its end."""

    def multiply(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
        if fused:
            from unlazy.products import fused as gpu

            return gpu.matmul(kernel, left, right, V)
        return blocked.apply(kernel, left, right, V, memory)

    def on_device(kernel: Kernel, left: Any, right: Any, weights: Array, V: Array) -> Array:
        if verb == "matmul":
            return jax.lax.all_gather(multiply(kernel, left, right, V), AXIS, tiled=True)
        if verb == "normal":
            U = multiply(kernel, left, right, V) * weights
        else:
            U = V * weights
        return jax.lax.psum(multiply(kernel, right, left, U), AXIS)

    sides = P(AXIS) if verb == "rmatmul" else P()
    program = jax.shard_map(
        on_device, mesh=mesh, in_specs=(P(), P(AXIS), P(), P(AXIS), sides), out_specs=P(), check_vma=False
    )
    return jax.jit(program)
