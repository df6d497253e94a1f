"""K @ V with the rows of X sharded over devices and hosts: each host reads only the rows of its own devices.

Each device multiplies its rows (fused on a GPU, otherwise by blocks). A small Z, such as centers, is replicated on
every device: K @ V then needs no communication, Kᵀ @ U and Kᵀ(K @ V) need one all-reduce. A large Z, or X itself, is
sharded too, and its shards circulate in a ring together with those of V: every device multiplies its current shard
while the next one is transferred. Solvers keep n-vectors sharded (`shard`, `matmul_sharded`, `gather`); `matmul`,
`rmatmul` and `normal` take any V and return the result to every process. With several processes, each process makes the
same calls on the same data after `jax.distributed.initialize`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from unlazy.core import devices as core_devices
from unlazy.core.arrays import Matrix, Points, Side, float_type, n_points
from unlazy.core.devices import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import blocked
from unlazy.products.engines.base import KernelOperator, fused_available
from unlazy.products.engines.blocked import prepare_sides

AXIS = "rows"
RING_BYTES = 2**28
"""Size of Z above which it is sharded too; below, a copy on every device is cheaper than a ring."""
Reader = Callable[[int, int], Points]
"""Function of (start, stop) that returns rows start … stop-1 as NumPy arrays."""


class ShardedOperator(KernelOperator):
    """K with its rows sharded evenly over the devices of `mesh`; padding rows give zero. With `ring`, the columns are
    sharded too."""

    engine = "sharded"
    kernel: Kernel
    left: Side
    right: Side
    rows: int = eqx.field(static=True)
    columns: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    ring: bool = eqx.field(static=True, default=False)
    fused: bool = eqx.field(static=True, default=False)
    memory: int | None = eqx.field(static=True, default=None)
    on_host = True  # columns go directly to their devices, not via the first device

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def shard(self, V: Matrix) -> Float[Array, "p c"]:
        """Shard V by rows, padded with zeros to equal shards; an array that is already sharded is returned as is."""
        return shard(V, self.mesh)

    def gather(self, V: Float[Array, "p c"], rows: int | None = None) -> np.ndarray:
        """Collect the rows of a sharded array, without padding, in the memory of this process."""
        return gather(V, self.mesh)[: self.rows if rows is None else rows]

    def matmul_sharded(self, V: Float[Array, "q c"]) -> Float[Array, "p c"]:
        """K @ V as a sharded array. V is sharded if the columns are (`ring`), otherwise replicated on every device."""
        return self._program("matmul")(self.kernel, self.left, self.right, V)

    def _matmul(self, V: Matrix) -> Array:
        return jnp.asarray(self.gather(self.matmul_sharded(self._columns(V))))

    def _rmatmul(self, U: Matrix) -> Array:
        return self._of_columns(self._program("rmatmul")(self.kernel, self.left, self.right, self.shard(U)))

    def _normal(self, V: Matrix) -> Array:
        return self._of_columns(self._program("normal")(self.kernel, self.left, self.right, self._columns(V)))

    def _columns(self, V: Matrix) -> Array:
        return self.shard(V) if self.ring else replicate(V, self.mesh)

    def _of_columns(self, out: Array) -> Array:
        """Convert a result with one row per column of K to an unsharded array of this process."""
        return jnp.asarray(self.gather(out, self.columns) if self.ring else out.addressable_data(0))

    def _program(self, verb: str) -> Callable[..., Array]:
        return _program(verb, self.mesh, self.ring, self.fused, self.memory, self.rows, self.columns)


def device_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """One-dimensional mesh of the given devices; by default all devices of all hosts."""
    return Mesh(np.array(core_devices.all_devices() if devices is None else list(devices)), (AXIS,))


def sharded_operator(
    kernel: Kernel,
    X: Points,
    Z: Points | None = None,
    devices: Sequence[jax.Device] | None = None,
    memory: int | str | None = None,
) -> ShardedOperator:
    """Validate the points and shard K(X, Z), or K(X, X). A device receives only its rows of arrays in host memory."""
    X, Z = (None if side is None else jax.tree.map(np.asarray, side) for side in (X, Z))
    kernel.validate(X, Z)
    return sharded_operator_from_reader(kernel, _rows_of(X), n_points(X), Z, devices, memory)


def sharded_operator_from_reader(
    kernel: Kernel,
    read: Reader,
    n: int,
    Z: Points | None = None,
    devices: Sequence[jax.Device] | None = None,
    memory: int | str | None = None,
) -> ShardedOperator:
    """The same with rows read one shard at a time: a host reads only the rows of its own devices from a file."""
    mesh = device_mesh(devices)
    kernel = jax.tree.map(np.asarray, kernel)  # arrays on one device cannot be combined with arrays on many hosts
    X = shard_rows(read, n, mesh)
    m = n if Z is None else n_points(Z)
    ring = Z is None or sum(leaf.nbytes for leaf in jax.tree.leaves(Z)) > RING_BYTES
    if Z is not None:
        Z = shard_rows(_rows_of(Z), m, mesh) if ring else jax.tree.map(lambda leaf: replicate(leaf, mesh), Z)
    fused = fused_available(kernel, X)
    if fused:
        left, right = X, X if Z is None else Z
    elif Z is None:
        left = right = prepare_rows(mesh)(kernel, X)
    else:
        left, right = _both_prepared(mesh, ring)(kernel, X, Z)
    return ShardedOperator(
        kernel, left, right, n, m, mesh, ring, fused, None if memory is None else memory_budget(memory)
    )


def shard_rows(read: Reader, n: int, mesh: Mesh) -> Points:
    """Shard n rows evenly over a mesh, padded with copies of the first row. Only the shards of this process's devices
    are read, one after the other."""
    first = jax.tree.map(np.asarray, read(0, 1))
    leaves, structure = jax.tree.flatten(first)
    padded = _padded(n, mesh)

    def of(i: int) -> Array:
        def share(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(padded)
            rows = np.asarray(jax.tree.leaves(read(min(start, n), min(stop, n)))[i])
            extra = stop - start - len(rows)
            return np.concatenate([rows, np.repeat(leaves[i], extra, 0)]) if extra else rows

        shape = (padded, *leaves[i].shape[1:])
        return jax.make_array_from_callback(shape, NamedSharding(mesh, P(AXIS)), share)

    return jax.tree.unflatten(structure, [of(i) for i in range(len(leaves))])


def local_row_ranges(n: int, mesh: Mesh) -> list[tuple[int, int]]:
    """(start, stop) of the rows that `shard_rows` reads in this process: those of its devices, and the first row."""
    padded = _padded(n, mesh)
    held = NamedSharding(mesh, P(AXIS)).addressable_devices_indices_map((padded,)).values()
    ranges = [index[0].indices(padded)[:2] for index in held if index is not None]
    return [(0, 1), *((min(start, n), min(stop, n)) for start, stop in ranges)]


def shard(V: Matrix, mesh: Mesh) -> Float[Array, "p c"]:
    """Shard a matrix by rows, padded with zeros; an array that is already sharded is returned as is."""
    target, padded = NamedSharding(mesh, P(AXIS)), _padded(V.shape[0], mesh)
    if isinstance(V, jax.Array) and V.sharding.is_equivalent_to(target, V.ndim):
        return V
    values = np.asarray(V)

    def share(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(padded)
        rows = values[start:stop]
        return np.concatenate([rows, np.zeros((stop - start - len(rows), *values.shape[1:]), values.dtype)])

    return jax.make_array_from_callback((padded, *values.shape[1:]), target, share)


def gather(V: Float[Array, "p c"], mesh: Mesh) -> np.ndarray:
    """Collect all rows in the memory of this process; with several processes, every process must call this."""
    if V.is_fully_addressable:
        return np.asarray(V)
    return np.asarray(_replicate(mesh)(V).addressable_data(0))


def replicate(V: Matrix, mesh: Mesh) -> Array:
    """Replicate V on every device."""
    target = NamedSharding(mesh, P())
    if isinstance(V, jax.Array) and (V.sharding.is_equivalent_to(target, V.ndim) or target.is_fully_addressable):
        return jax.device_put(V, target)
    return jax.device_put(np.asarray(V), target)


def sharded_program(function: Callable, mesh: Mesh, given: tuple, result: tuple | P) -> Callable:
    """Compile a function of sharded arrays; `given` and `result` are their specifications."""
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=given, out_specs=result, check_vma=False))


def valid_rows(local: int, n: int) -> Array:
    """Mask of the rows of a device that are not padding, as a column; for use inside `shard_map`."""
    return (jax.lax.axis_index(AXIS) * local + jnp.arange(local) < n)[:, None]


def _padded(n: int, mesh: Mesh) -> int:
    return math.ceil(n / mesh.devices.size) * mesh.devices.size


def _rows_of(X: Points) -> Reader:
    return lambda start, stop: jax.tree.map(lambda leaf: leaf[start:stop], X)


@functools.cache
def prepare_rows(mesh: Mesh) -> Callable[[Kernel, Points], Side]:
    """Compiled function that prepares sharded rows for the kernel and keeps their sharding."""
    return jax.jit(lambda kernel, X: prepare_sides(kernel, X)[0], out_shardings=NamedSharding(mesh, P(AXIS)))


@functools.cache
def _both_prepared(mesh: Mesh, ring: bool) -> Callable[[Kernel, Points, Points], tuple[Side, Side]]:
    sides = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P(AXIS) if ring else P())
    return jax.jit(lambda kernel, X, Z: prepare_sides(kernel, X, Z), out_shardings=sides)


@functools.cache
def _replicate(mesh: Mesh) -> Callable[[Array], Array]:
    return jax.jit(lambda V: V, out_shardings=NamedSharding(mesh, P()))


@functools.cache
def _program(
    verb: str, mesh: Mesh, ring: bool, fused: bool, memory: int | None, rows: int, columns: int
) -> Callable[..., Array]:
    """Compiled program of one product: "matmul", "rmatmul" or "normal"."""
    devices = mesh.devices.size

    def multiply(kernel: Kernel, left: Side, right: Side, V: Array) -> Array:
        if fused:
            from unlazy.products.fused import fused_product as gpu

            return gpu.matmul(kernel, left, right, V)
        return blocked.apply(kernel, left, right, V, memory)

    def around(kernel: Kernel, left: Side, right: Side, V: Array) -> Array:
        """Sum over all shards of the right side; the next shard is transferred while this one is multiplied."""
        to_the_next = [(i, (i - 1) % devices) for i in range(devices)]

        def step(_: Array, carry: tuple[Side, Array, Array]) -> tuple[Side, Array, Array]:
            part, W, total = carry
            following = jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, to_the_next), (part, W))
            return (*following, total + multiply(kernel, left, part, W))

        zero = jnp.zeros((n_points(left), V.shape[1]), V.dtype)
        return jax.lax.fori_loop(0, devices, step, (right, V, zero))[2]

    def times(kernel: Kernel, left: Side, right: Side, V: Array) -> Array:
        out = (around if ring else multiply)(kernel, left, right, V)
        return jnp.where(valid_rows(n_points(left), rows), out, 0)

    def transposed(kernel: Kernel, left: Side, right: Side, U: Array) -> Array:
        if ring:
            return jnp.where(valid_rows(n_points(right), columns), around(kernel, right, left, U), 0)
        return jax.lax.psum(multiply(kernel, right, left, U), AXIS)

    def normal(kernel: Kernel, left: Side, right: Side, V: Array) -> Array:
        if not ring and not fused:
            real = jnp.clip(rows - jax.lax.axis_index(AXIS) * n_points(left), 0, n_points(left))
            return jax.lax.psum(blocked.normal(kernel, left, right, V, memory, real), AXIS)
        return transposed(kernel, left, right, times(kernel, left, right, V))

    side = P(AXIS) if ring else P()
    given, result = {"matmul": (side, P(AXIS)), "rmatmul": (P(AXIS), side), "normal": (side, side)}[verb]
    function = {"matmul": times, "rmatmul": transposed, "normal": normal}[verb]
    return sharded_program(function, mesh, (P(), P(AXIS), side, given), result)
