"""K @ V with the rows of X spread over devices and hosts: a device holds its own rows, a host reads no others.

Each device multiplies its own rows (fused on a GPU, else by blocks). A short Z, centers say, lies on every device:
K @ V then needs no word between devices, Kᵀ @ U and Kᵀ(K @ V) end with one sum. A long Z, or X itself, is spread too,
and its parts go around in a ring with those of V: every device multiplies the part it has while the next one travels.
n-vectors may stay spread (`spread`, `times`, `gathered`), which is what solvers do; `matmul` and its sisters take any V
and give the result to every process. With several processes every one of them makes the same calls on the same data
(`jax.distributed.initialize` first).
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

from unlazy.core.arrays import count, float_type
from unlazy.core.memory import memory_budget
from unlazy.kernels.base import Kernel
from unlazy.products.engines import blocked
from unlazy.products.engines.base import Product, fused_available
from unlazy.products.engines.pairs import prepared

AXIS = "rows"
LARGE = 2**28
"""Bytes of a Z that is spread too: below, a copy on every device is cheaper than a ring."""
Reader = Callable[[int, int], Any]
"""Rows start … stop-1 of something, as NumPy's arrays."""


class Sharded(Product):
    """K with its rows spread over the devices of `mesh`, as many on each; rows that only pad give zero. With `ring` its
    columns are spread too."""

    kernel: Kernel
    left: Any
    right: Any
    rows: int = eqx.field(static=True)
    columns: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    ring: bool = eqx.field(static=True, default=False)
    fused: bool = eqx.field(static=True, default=False)
    memory: int | None = eqx.field(static=True, default=None)
    on_host = True  # columns go from there to their devices, not by way of the first of them

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    @property
    def how(self) -> str:
        return "sharded"

    @property
    def dtype(self) -> jnp.dtype:
        return float_type(self.left)

    def spread(self, V: Any) -> Float[Array, "p c"]:
        """The rows of V over the devices, padded with zeros to as many on each; what is spread already stays."""
        return spread(V, self.mesh)

    def gathered(self, V: Float[Array, "p c"], rows: int | None = None) -> np.ndarray:
        """The rows that do not pad, in this process's memory."""
        return gathered(V, self.mesh)[: self.rows if rows is None else rows]

    def times(self, V: Float[Array, "q c"]) -> Float[Array, "p c"]:
        """K @ V, spread; V spread where the columns are (`ring`), else on every device."""
        return self._program("matmul")(self.kernel, self.left, self.right, V)

    def _matmul(self, V: Any) -> Array:
        return jnp.asarray(self.gathered(self.times(self._columns(V))))

    def _rmatmul(self, U: Any) -> Array:
        return self._of_columns(self._program("rmatmul")(self.kernel, self.left, self.right, self.spread(U)))

    def _normal(self, V: Any) -> Array:
        return self._of_columns(self._program("normal")(self.kernel, self.left, self.right, self._columns(V)))

    def _columns(self, V: Any) -> Array:
        return self.spread(V) if self.ring else everywhere(V, self.mesh)

    def _of_columns(self, out: Array) -> Array:
        """A result with a row for each column of K, as an ordinary array of this process."""
        return jnp.asarray(self.gathered(out, self.columns) if self.ring else out.addressable_data(0))

    def _program(self, verb: str) -> Callable[..., Array]:
        return _program(verb, self.mesh, self.ring, self.fused, self.memory, self.rows, self.columns)


def mesh_of(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A row of devices: all of them, on all hosts, unless told."""
    return Mesh(np.array(devices.every() if devices is None else list(devices)), (AXIS,))


def sharded(
    kernel: Kernel,
    X: Any,
    Z: Any = None,
    devices: Sequence[jax.Device] | None = None,
    memory: int | str | None = None,
) -> Sharded:
    """K(X, Z), or K(X, X), of points as the kernel reads them; of arrays in the host's memory each device gets its
    rows, and no device all of them."""
    X, Z = (None if side is None else jax.tree.map(np.asarray, side) for side in (X, Z))
    kernel.admit(X, Z)
    return sharded_rows(kernel, _rows_of(X), count(X), Z, devices, memory)


def sharded_rows(
    kernel: Kernel,
    read: Reader,
    n: int,
    Z: Any = None,
    devices: Sequence[jax.Device] | None = None,
    memory: int | str | None = None,
) -> Sharded:
    """The same from rows that are read a device's share at a time: of a file a host reads what its own devices hold."""
    mesh = mesh_of(devices)
    kernel = jax.tree.map(np.asarray, kernel)  # arrays of one device do not go with those of many hosts
    X = spread_rows(read, n, mesh)
    m = n if Z is None else count(Z)
    ring = Z is None or sum(leaf.nbytes for leaf in jax.tree.leaves(Z)) > LARGE
    if Z is not None:
        Z = spread_rows(_rows_of(Z), m, mesh) if ring else jax.tree.map(lambda leaf: everywhere(leaf, mesh), Z)
    fused = fused_available(kernel, X)
    if fused:
        left, right = X, X if Z is None else Z
    elif Z is None:
        left = right = prepared_rows(mesh)(kernel, X)
    else:
        left, right = _both_prepared(mesh, ring)(kernel, X, Z)
    return Sharded(kernel, left, right, n, m, mesh, ring, fused, None if memory is None else memory_budget(memory))


def spread_rows(read: Reader, n: int, mesh: Mesh) -> Any:
    """n rows over the devices of a mesh, as many on each, padded with the first; only what this process's devices hold
    is read, one share after the other."""
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


def own_ranges(n: int, mesh: Mesh) -> list[tuple[int, int]]:
    """(start, stop) of the rows that `spread_rows` will read in this process: those of its devices, and the first."""
    padded = _padded(n, mesh)
    held = NamedSharding(mesh, P(AXIS)).addressable_devices_indices_map((padded,)).values()
    ranges = [index[0].indices(padded)[:2] for index in held if index is not None]
    return [(0, 1), *((min(start, n), min(stop, n)) for start, stop in ranges)]


def spread(V: Any, mesh: Mesh) -> Float[Array, "p c"]:
    """A matrix of columns over the devices by rows, padded with zeros; what is spread already stays."""
    target, padded = NamedSharding(mesh, P(AXIS)), _padded(V.shape[0], mesh)
    if isinstance(V, jax.Array) and V.sharding.is_equivalent_to(target, V.ndim):
        return V
    values = np.asarray(V)

    def share(index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(padded)
        rows = values[start:stop]
        return np.concatenate([rows, np.zeros((stop - start - len(rows), *values.shape[1:]), values.dtype)])

    return jax.make_array_from_callback((padded, *values.shape[1:]), target, share)


def gathered(V: Float[Array, "p c"], mesh: Mesh) -> np.ndarray:
    """All rows in this process's memory; where others hold some, every process asks."""
    if V.is_fully_addressable:
        return np.asarray(V)
    return np.asarray(_everywhere(mesh)(V).addressable_data(0))


def everywhere(V: Any, mesh: Mesh) -> Array:
    """The same on every device."""
    target = NamedSharding(mesh, P())
    if isinstance(V, jax.Array) and (V.sharding.is_equivalent_to(target, V.ndim) or target.is_fully_addressable):
        return jax.device_put(V, target)
    return jax.device_put(np.asarray(V), target)


def real_rows(local: int, n: int) -> Array:
    """Inside a program on all devices: which of a device's rows do not pad, as a column."""
    return (jax.lax.axis_index(AXIS) * local + jnp.arange(local) < n)[:, None]


def _padded(n: int, mesh: Mesh) -> int:
    return math.ceil(n / mesh.devices.size) * mesh.devices.size


def _rows_of(X: Any) -> Reader:
    return lambda start, stop: jax.tree.map(lambda leaf: leaf[start:stop], X)


@functools.cache
def prepared_rows(mesh: Mesh) -> Callable[[Kernel, Any], Any]:
    """Rows that are spread, as the kernel prepares them alone; spread as they were."""
    return jax.jit(lambda kernel, X: prepared(kernel, X)[0], out_shardings=NamedSharding(mesh, P(AXIS)))


@functools.cache
def _both_prepared(mesh: Mesh, ring: bool) -> Callable[[Kernel, Any, Any], tuple[Any, Any]]:
    sides = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P(AXIS) if ring else P())
    return jax.jit(lambda kernel, X, Z: prepared(kernel, X, Z), out_shardings=sides)


@functools.cache
def _everywhere(mesh: Mesh) -> Callable[[Array], Array]:
    return jax.jit(lambda V: V, out_shardings=NamedSharding(mesh, P()))


@functools.cache
def _program(
    verb: str, mesh: Mesh, ring: bool, fused: bool, memory: int | None, rows: int, columns: int
) -> Callable[..., Array]:
    """The compiled program of one verb."""
    devices = mesh.devices.size

    def multiply(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
        if fused:
            from unlazy.products.fused import fused_product as gpu

            return gpu.matmul(kernel, left, right, V)
        return blocked.apply(kernel, left, right, V, memory)

    def around(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
        """Σ over all parts of the right side: the next part is on its way while this one is multiplied."""
        to_the_next = [(i, (i - 1) % devices) for i in range(devices)]

        def step(_: Any, carry: tuple[Any, Array, Array]) -> tuple[Any, Array, Array]:
            part, W, total = carry
            following = jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, to_the_next), (part, W))
            return (*following, total + multiply(kernel, left, part, W))

        zero = jnp.zeros((count(left), V.shape[1]), V.dtype)
        return jax.lax.fori_loop(0, devices, step, (right, V, zero))[2]

    def times(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
        out = (around if ring else multiply)(kernel, left, right, V)
        return jnp.where(real_rows(count(left), rows), out, 0)

    def transposed(kernel: Kernel, left: Any, right: Any, U: Array) -> Array:
        if ring:
            return jnp.where(real_rows(count(right), columns), around(kernel, right, left, U), 0)
        return jax.lax.psum(multiply(kernel, right, left, U), AXIS)

    def normal(kernel: Kernel, left: Any, right: Any, V: Array) -> Array:
        if not ring and not fused:
            real = jnp.clip(rows - jax.lax.axis_index(AXIS) * count(left), 0, count(left))
            return jax.lax.psum(blocked.normal(kernel, left, right, V, memory, real), AXIS)
        return transposed(kernel, left, right, times(kernel, left, right, V))

    side = P(AXIS) if ring else P()
    given, result = {"matmul": (side, P(AXIS)), "rmatmul": (P(AXIS), side), "normal": (side, side)}[verb]
    program = jax.shard_map(
        {"matmul": times, "rmatmul": transposed, "normal": normal}[verb], mesh=mesh,
        in_specs=(P(), P(AXIS), side, given), out_specs=result, check_vma=False,
    )  # fmt: skip
    return jax.jit(program)
