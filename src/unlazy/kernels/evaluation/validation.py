"""Validation of kernel inputs: NaN, infinity, and squared norms out of the range of floats.

Concrete points raise ValueError before anything is computed from them. Points in host memory are checked with NumPy,
since compiling a program for each shape would take longer than running it. Traced points cannot be checked: for them
`squares` is NaN, and every formula propagates NaN to the result.
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
from unlazy.core.arrays import check_finite, floats_on_device, is_concrete

HEADROOM = 16.0
"""Squared norms stay below the largest float by this factor: centering may double a norm, and ‖x-z‖² adds four."""


def squares(X: Float[Array, "n e"]) -> Float[Array, " n"]:
    """⟨x,x⟩ of every row; NaN if it is not finite, or so large that ‖x-z‖² may overflow."""
    xx = jnp.sum(X * X, 1)
    return jnp.where(xx <= float(jnp.finfo(xx.dtype).max) / HEADROOM, xx, jnp.nan)


def host_squares(F: Float[np.ndarray, "n e"]) -> Float[np.ndarray, " n"]:
    """⟨x,x⟩ of embedded NumPy rows; raises ValueError instead of NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        xx = np.einsum("ij,ij->i", F, F)
    if not xx.max(initial=0) <= float(np.finfo(F.dtype).max) / HEADROOM:
        check_finite("X", F)
        raise _range_error(F, "X", "squared norms overflow")
    return xx


def validate_formula_inputs(kernel: Any, points: tuple, names: tuple[str, ...], accurate: bool) -> None:
    """Raise ValueError if k(x, x) or a squared norm of a point is not finite.

    It takes one reduction, and does nothing under a JAX transformation.
    """
    deferred_formula_validation(kernel, points, names, accurate)()


def deferred_formula_validation(
    kernel: Any, points: tuple, names: tuple[str, ...], accurate: bool
) -> Callable[[], None]:
    """Start `validate_formula_inputs`, and return a function that waits for the result and raises.

    Points that were checked recently with the same kernel are not checked again: that can take as long as 10^9 pairs.
    """
    given = tuple(X for X in points if X is not None)
    seen = _recent_summary(kernel, given)
    if seen is None:
        if not is_concrete(kernel, given):
            return lambda: None
        seen = _host_summary(kernel, given) if _on_host(given) else _summary(floats_on_device(kernel), given)

    def complete() -> None:
        _check_summary(kernel, given, names, accurate, seen)
        _remember(kernel, given, seen)

    return complete


_RECENT: deque = deque(maxlen=8)
"""Weak references to kernels and points that were checked recently, with the summaries of the points."""


def _recent_summary(kernel: Any, points: tuple) -> Any:
    """The summary of these very points, which cannot have changed, or None."""
    wanted = (kernel, *points)
    for known, seen in _RECENT:
        if len(known) == len(wanted) and all(ref() is item for ref, item in zip(known, wanted)):
            return seen
    return None


def _remember(kernel: Any, points: tuple, seen: tuple) -> None:
    """Store a summary, unless the points may change (NumPy arrays)."""
    if _recent_summary(kernel, points) is None and is_concrete(seen):
        held = [*jax.tree.leaves(kernel), *points]
        if all(isinstance(item, jax.Array | float | int) for item in held):  # NumPy arrays may change
            _RECENT.appendleft((tuple(map(weakref.ref, (kernel, *points))), jax.tree.map(np.asarray, seen)))


def validate_inputs(kernel: Any, points: tuple, names: tuple[str, ...]) -> None:
    """Raise ValueError if points of a kernel without an entry formula are invalid, by its diagonal."""
    given = tuple(X for X in points if X is not None)
    if not is_concrete(kernel, given):
        return
    for X, name in zip(given, names):
        validate_diagonal(kernel.diag(X), X, name)


def diagonal(kernel: Any, X: Float[Array, "n d"], name: str = "X", accurate: bool = False) -> Any:
    """k(x, x) of every row by the entry formula; raises ValueError like `validate_formula_inputs`."""
    if kernel.stationary and is_concrete(kernel, X) and _on_host((X,)):  # one value: no program for this n
        at_ends = _check_summary(kernel, (X,), (name,), accurate)
        if at_ends is not None:
            return jax.tree.map(lambda ends: jax.device_put(np.full(X.shape[0], np.asarray(ends)[0])), at_ends)
    values, range_and_size, largest = _diagonal(kernel, X)
    if is_concrete(values):
        _raise_if_invalid(kernel, np.asarray(range_and_size), np.asarray(largest), (X,), (name,))
        kernel.warn(np.asarray(range_and_size)[:2], accurate)
    return values


def validate_diagonal(values: Float[Array, " n"], X: Any, name: str = "X") -> Float[Array, " n"]:
    """Check k(x, x) of a kernel without an entry formula, and return it.

    Raises ValueError if a point or k(x, x) is not finite; at traced points that are not finite the value becomes NaN.
    """
    floats = [leaf for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    if not is_concrete(values, X):
        for leaf in floats:
            values = jnp.where(jnp.isfinite(jnp.sum(leaf.reshape(leaf.shape[0], -1), 1)), values, jnp.nan)
        return values
    for leaf in floats:
        check_finite(name, np.asarray(leaf))
    if not np.isfinite(np.asarray(values)).all():
        raise _range_error(np.asarray((floats or jax.tree.leaves(X))[0]), name, "k(x, x) overflows")
    return values


def validate_finite(points: tuple, names: tuple[str, ...]) -> None:
    """Raise ValueError if concrete points are not finite."""
    for X, name in zip((X for X in points if X is not None), names):
        for leaf in jax.tree.leaves(X) if is_concrete(X) else ():
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                check_finite(name, np.asarray(leaf))


def validate_magnitude(X: Any, name: str = "X") -> None:
    """Raise ValueError if concrete points are not finite, or if their squares overflow."""
    for leaf in jax.tree.leaves(X):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            array = np.asarray(leaf)
            check_finite(name, array)
            if not np.max(np.abs(array)) <= np.sqrt(np.finfo(array.dtype).max / HEADROOM / max(1, array[0].size)):
                raise _range_error(array, name, "squared norms overflow")


def _check_summary(
    kernel: Any, points: tuple[Any, ...], names: tuple[str, ...], accurate: bool, seen: tuple | None = None
) -> Any:
    """Raise ValueError for invalid points, or return k(x, x) at the smallest and the largest norm.

    Returns None inside a traced program. k(x, x) depends on |x| alone and increases with it, so that the two ends stand
    for all points, in one program for all shapes.
    """
    if seen is None:
        seen = _host_summary(kernel, points) if _on_host(points) else _summary(kernel, points)
    if not is_concrete(seen):  # constants inside a traced program
        return None
    found, at_ends = np.asarray(seen[0]), seen[1]
    _raise_if_invalid(
        kernel, found, np.max([np.abs(values).max() for values in jax.tree.leaves(at_ends)]), points, names
    )
    kernel.warn(found[:2], accurate)
    return at_ends


def _on_host(points: tuple[Any, ...]) -> bool:
    """Whether NumPy can read these arrays in place, and JAX keeps their dtype."""
    return all(devices.is_on_host(X) and jax.dtypes.canonicalize_dtype(X.dtype) == X.dtype for X in points)


def _host_summary(kernel: Any, points: tuple[Any, ...]) -> tuple:
    """`_summary` by NumPy, without a temporary of the size of the points."""
    embedded = [kernel.embed(X) for X in points]
    if not is_concrete(embedded):
        return tuple(embedded)
    ends = []
    with np.errstate(all="ignore"):  # overflow is what the check is for
        for E in map(np.asarray, embedded):
            xx, limit = np.einsum("ij,ij->i", E, E), float(np.finfo(E.dtype).max) / HEADROOM
            small, large = xx.min(), xx.max()
            ends.append((small, large if large <= limit else np.nan, max(E.max(), -E.min())))
    low, high, size = np.asarray(ends, E.dtype).T
    found = np.stack([low.min(), high.max(), size.max()])
    return found, _diag_entry(kernel, found[:2])


@jax.jit
def _summary(kernel: Any, points: tuple[Any, ...]) -> tuple[Array, Any]:
    """Smallest and largest squared norm and largest coordinate of embedded points, and k(x, x) at the two norms.

    One maximum of three values per row, so that a GPU launches few programs.
    """
    embedded = [kernel.embed(X) for X in points]
    xx, size = (jnp.concatenate([f(E) for E in embedded]) for f in (squares, lambda E: jnp.max(jnp.abs(E), 1)))
    low, *high = jnp.max(jnp.stack([-xx, xx, size]), 1)
    found = jnp.stack([-low, *high])
    return found, kernel.diag_entry(found[:2])


@jax.jit
def _diag_entry(kernel: Any, xx: Any) -> Any:
    return kernel.diag_entry(xx)


@jax.jit
def _diagonal(kernel: Any, X: Array) -> Any:
    E = kernel.embed(X)
    xx = squares(E)
    values = kernel.diag_entry(xx)
    return values, _ends(E), _largest(values)


def _ends(E: Array) -> Array:
    xx = squares(E)
    return jnp.stack([jnp.min(xx), jnp.max(xx), jnp.max(jnp.abs(E))])


def _largest(values: Any) -> Array:
    return jnp.max(jnp.stack([jnp.max(jnp.abs(v)) for v in jax.tree.leaves(values)]))


def _raise_if_invalid(
    kernel: Any, seen: np.ndarray, largest: Any, points: tuple[Any, ...], names: tuple[str, ...]
) -> None:
    """Raise the ValueError that applies, if any. NaN in any row is NaN in `seen`."""
    _, square, coordinate = seen
    limits = np.finfo(seen.dtype)
    # squares below tiny/ε have lost digits, and so have all differences of points
    too_small = coordinate > 0 and square < limits.tiny / limits.eps
    if np.isfinite(square) and np.isfinite(largest) and not too_small:
        return
    for X, name in zip(points, names):
        check_finite(name, np.asarray(X))
        kernel.embed(X)  # `embed` may raise a more specific error
    sizes = [float(jnp.max(jnp.abs(X))) for X in points]
    X, name = points[int(np.argmax(sizes))], names[int(np.argmax(sizes))]
    if too_small:
        raise _range_error(np.asarray(X), name, "squared norms underflow")
    raise _range_error(
        np.asarray(X), name, "squared norms overflow" if not np.isfinite(square) else "k(x, x) overflows"
    )


def _range_error(X: np.ndarray, name: str, what: str) -> ValueError:
    """The error for points that are too large or too small."""
    size = "small" if "underflow" in what else "large"
    return ValueError(
        f"{what} {X.dtype} for inputs as {size} as {float(np.max(np.abs(X))):.3g} in {name}; rescale the inputs (for "
        "example to unit standard deviation)" + ("" if X.dtype == np.float64 else " or use float64")
    )
