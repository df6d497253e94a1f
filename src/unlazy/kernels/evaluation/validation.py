"""The one rule for points that a kernel cannot see rightly: NaN, infinity, squares outside the range of floats.

Points that can be looked at are refused with a sentence, before anything is computed from them; in the host's memory
NumPy looks, since a program for each shape would cost more to compile than to run. Traced points cannot be looked at:
there `squares` is NaN, every formula lets NaN through, and the result says so.
"""

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import concrete, on_device, refuse_not_finite

HEADROOM = 16.0
"""A squared norm stays below the largest float by this: centering may double a norm, and ‖x-z‖² adds four of them."""


def squares(X: Float[Array, "n e"]) -> Float[Array, " n"]:
    """⟨x,x⟩ of every row; NaN where it is not finite or so large that ‖x-z‖² may overflow."""
    xx = jnp.sum(X * X, 1)
    return jnp.where(xx <= float(jnp.finfo(xx.dtype).max) / HEADROOM, xx, jnp.nan)


def host_squares(F: Float[np.ndarray, "n e"]) -> Float[np.ndarray, " n"]:
    """The same for embedded NumPy rows, refused."""
    with np.errstate(over="ignore", invalid="ignore"):
        xx = np.einsum("ij,ij->i", F, F)
    if not xx.max(initial=0) <= float(np.finfo(F.dtype).max) / HEADROOM:
        refuse_not_finite("X", F)
        raise _overflow(F, "X", "squared norms overflow")
    return xx


def admit_formula(kernel: Any, points: tuple, names: tuple[str, ...], accurate: bool) -> None:
    """Refuses points whose k(x, x) or squared norm is not finite; one reduction, nothing while tracing."""
    formula_admission(kernel, points, names, accurate)()


def formula_admission(kernel: Any, points: tuple, names: tuple[str, ...], accurate: bool) -> Callable[[], None]:
    """`admit_formula` in two halves: a card begins to look, and what is returned waits for it and refuses. Points that
    a kernel met a moment ago are not looked at again: that can cost as much as 10^9 pairs."""
    given = tuple(X for X in points if X is not None)
    seen = _met(kernel, given)
    if seen is None:
        if not concrete(kernel, given):
            return lambda: None
        seen = _seen_on_host(kernel, given) if _on_host(given) else _seen(on_device(kernel), given)

    def refuse() -> None:
        _look(kernel, given, names, accurate, seen)
        _meet(kernel, given, seen)

    return refuse


_MET: deque = deque(maxlen=8)
"""A kernel and the points it has met, as long as they live, with what was seen of them."""


def _met(kernel: Any, points: tuple) -> Any:
    """What was seen of these very points, which cannot have changed; None where nothing was."""
    wanted = (kernel, *points)
    for known, seen in _MET:
        if len(known) == len(wanted) and all(ref() is item for ref, item in zip(known, wanted)):
            return seen
    return None


def _meet(kernel: Any, points: tuple, seen: tuple) -> None:
    if _met(kernel, points) is None and concrete(seen):
        held = [*jax.tree.leaves(kernel), *points]
        if all(isinstance(item, jax.Array | float | int) for item in held):  # NumPy's arrays may change
            _MET.appendleft((tuple(map(weakref.ref, (kernel, *points))), jax.tree.map(np.asarray, seen)))


def admit_plain(kernel: Any, points: tuple, names: tuple[str, ...]) -> None:
    """The same for a kernel without an entry formula, by its diagonal."""
    given = tuple(X for X in points if X is not None)
    if not concrete(kernel, given):
        return
    for X, name in zip(given, names):
        admit_diagonal(kernel.diag(X), X, name)


def diagonal(kernel: Any, X: Float[Array, "n d"], name: str = "X", accurate: bool = False) -> Any:
    """k(x, x) of every row by the entry formula, refused by the same rule."""
    if kernel.stationary and concrete(kernel, X) and _on_host((X,)):  # one number: no program for this n
        at_ends = _look(kernel, (X,), (name,), accurate)
        if at_ends is not None:
            return jax.tree.map(lambda ends: jax.device_put(np.full(X.shape[0], np.asarray(ends)[0])), at_ends)
    values, range_and_size, largest = _diagonal(kernel, X)
    if concrete(values):
        _refuse(kernel, np.asarray(range_and_size), np.asarray(largest), (X,), (name,))
        kernel.warn(np.asarray(range_and_size)[:2], accurate)
    return values


def admit_diagonal(values: Float[Array, " n"], X: Any, name: str = "X") -> Float[Array, " n"]:
    """k(x, x) of a kernel without an entry formula: refused, or NaN at a traced point, where that is not finite."""
    floats = [leaf for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not concrete(values, X):
        for leaf in floats:
            values = jnp.where(jnp.isfinite(jnp.sum(leaf.reshape(leaf.shape[0], -1), 1)), values, jnp.nan)
        return values
    for leaf in floats:
        refuse_not_finite(name, np.asarray(leaf))
    if not np.isfinite(np.asarray(values)).all():
        raise _overflow(np.asarray((floats or jax.tree.leaves(X))[0]), name, "k(x, x) overflows")
    return values


def admit_finite(points: tuple, names: tuple[str, ...]) -> None:
    """Refuses concrete points that are not finite, and nothing else."""
    for X, name in zip((X for X in points if X is not None), names):
        for leaf in jax.tree.leaves(X) if concrete(X) else ():
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                refuse_not_finite(name, np.asarray(leaf))


def admit_size(X: Any, name: str = "X") -> None:
    """Refuses concrete points that are not finite, or whose squares overflow."""
    for leaf in jax.tree.leaves(X):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            array = np.asarray(leaf)
            refuse_not_finite(name, array)
            if not np.max(np.abs(array)) <= np.sqrt(np.finfo(array.dtype).max / HEADROOM / max(1, array[0].size)):
                raise _overflow(array, name, "squared norms overflow")


def _look(
    kernel: Any, points: tuple[Any, ...], names: tuple[str, ...], accurate: bool, seen: tuple | None = None
) -> Any:
    """Refuses concrete points, or gives k(x, x) at the smallest and the largest norm; None inside another program.

    k(x, x) depends on |x| alone, and grows with it: the two ends speak for all, in one program for all shapes.
    """
    if seen is None:
        seen = _seen_on_host(kernel, points) if _on_host(points) else _seen(kernel, points)
    if not concrete(seen):  # constants inside a program that is being traced
        return None
    found, at_ends = np.asarray(seen[0]), seen[1]
    _refuse(kernel, found, np.max([np.abs(values).max() for values in jax.tree.leaves(at_ends)]), points, names)
    kernel.warn(found[:2], accurate)
    return at_ends


def _on_host(points: tuple[Any, ...]) -> bool:
    """Whether NumPy reads these where they are, and JAX takes their type back as it is."""
    return all(devices.lies_on_host(X) and jax.dtypes.canonicalize_dtype(X.dtype) == X.dtype for X in points)


def _seen_on_host(kernel: Any, points: tuple[Any, ...]) -> tuple:
    """`_seen` by NumPy, without a temporary of the points' size."""
    embedded = [kernel.embed(X) for X in points]
    if not concrete(embedded):
        return tuple(embedded)
    ends = []
    with np.errstate(all="ignore"):  # that is what is being looked for
        for E in map(np.asarray, embedded):
            xx, limit = np.einsum("ij,ij->i", E, E), float(np.finfo(E.dtype).max) / HEADROOM
            small, large = xx.min(), xx.max()
            ends.append((small, large if large <= limit else np.nan, max(E.max(), -E.min())))
    low, high, size = np.asarray(ends, E.dtype).T
    found = np.stack([low.min(), high.max(), size.max()])
    return found, _at_itself(kernel, found[:2])


@jax.jit
def _seen(kernel: Any, points: tuple[Any, ...]) -> tuple[Array, Any]:
    """Smallest and largest squared norm, and the largest coordinate, of embedded points; k(x, x) at the two norms.

    One maximum of three numbers of every row: a card begins few programs.
    """
    embedded = [kernel.embed(X) for X in points]
    xx, size = (jnp.concatenate([f(E) for E in embedded]) for f in (squares, lambda E: jnp.max(jnp.abs(E), 1)))
    low, *high = jnp.max(jnp.stack([-xx, xx, size]), 1)
    found = jnp.stack([-low, *high])
    return found, kernel.at_itself(found[:2])


@jax.jit
def _at_itself(kernel: Any, xx: Any) -> Any:
    return kernel.at_itself(xx)


@jax.jit
def _diagonal(kernel: Any, X: Array) -> Any:
    E = kernel.embed(X)
    xx = squares(E)
    values = kernel.at_itself(xx)
    return values, _ends(E), _size(values)


def _ends(E: Array) -> Array:
    xx = squares(E)
    return jnp.stack([jnp.min(xx), jnp.max(xx), jnp.max(jnp.abs(E))])


def _size(values: Any) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in jax.tree.leaves(values)]))


def _refuse(kernel: Any, seen: np.ndarray, largest: Any, points: tuple[Any, ...], names: tuple[str, ...]) -> None:
    """The sentence, where one is due. NaN of any row is NaN in `seen`."""
    _, square, coordinate = seen
    limits = np.finfo(seen.dtype)
    # squares under tiny/ε have lost digits, and all differences of points with them
    too_small = coordinate > 0 and square < limits.tiny / limits.eps
    if np.isfinite(square) and np.isfinite(largest) and not too_small:
        return
    for X, name in zip(points, names):
        refuse_not_finite(name, np.asarray(X))
        kernel.embed(X)  # a map that cannot take these points says so itself, unless it is traced
    sizes = [float(jnp.max(jnp.abs(X))) for X in points]
    X, name = points[int(np.argmax(sizes))], names[int(np.argmax(sizes))]
    if too_small:
        raise _overflow(np.asarray(X), name, "squared norms underflow")
    raise _overflow(np.asarray(X), name, "squared norms overflow" if not np.isfinite(square) else "k(x, x) overflows")


def _overflow(X: np.ndarray, name: str, what: str) -> ValueError:
    size = "small" if "underflow" in what else "large"
    return ValueError(
        f"{what} {X.dtype} for inputs as {size} as {float(np.max(np.abs(X))):.3g} in {name}; rescale the inputs (for "
        "example to unit standard deviation)" + ("" if X.dtype == np.float64 else " or use float64")
    )
