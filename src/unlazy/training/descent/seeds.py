"""Run one function for many seeds: vectorized on a GPU, sequentially on a CPU unless the arrays are tiny."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from unlazy.core import devices

T = TypeVar("T", bound=PyTree)
_SMALL = 4096
"""Size in bytes of the largest array up to which vectorized seeds are faster on a CPU; beyond, they overflow its caches
(measured: 1.3× faster at 2 kB, 1.5 to 3× slower from 30 kB on).
"""


def over_seeds(run: Callable[[Array], T], keys: Key[Array, " seeds"], side_by_side: int | None = None) -> T:
    """Evaluate `run(key)` for every key in one compiled call.

    Parameters
    ----------
    run : callable
        Function of one key.
    keys : array of PRNG keys of shape (seeds,)
        The keys.
    side_by_side : int, optional
        Number of seeds vectorized together; the blocks run sequentially. By default all on a GPU, and one on a CPU
        unless the arrays are tiny.

    Returns
    -------
    pytree
        Results of `jax.vmap(run)` up to rounding, with a leading axis of seeds.
    """
    if side_by_side is None:
        side_by_side = len(keys) if not devices.is_host() or _largest_array(run, keys[0]) <= _SMALL else 1
    if side_by_side >= len(keys):
        return jax.jit(jax.vmap(run))(keys)
    batch = None if side_by_side == 1 else side_by_side
    return jax.jit(lambda keys: jax.lax.map(run, keys, batch_size=batch))(keys)


def _largest_array(run: Callable, key: Array) -> int:
    """Return the size in bytes of the largest array in the program."""

    def of(jaxpr: Any) -> int:
        sizes = [0]
        for equation in jaxpr.eqns:
            for value in equation.outvars:
                shape, dtype = getattr(value.aval, "shape", ()), getattr(value.aval, "dtype", None)
                sizes.append(int(np.prod(shape)) * getattr(dtype, "itemsize", 8))
            inner = [v for v in equation.params.values() if hasattr(v, "jaxpr") or hasattr(v, "eqns")]
            sizes += [of(getattr(program, "jaxpr", program)) for program in inner]
        return max(sizes)

    return of(jax.make_jaxpr(run)(key).jaxpr)
