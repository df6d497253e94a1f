"""One door for arrays: lists, NumPy, JAX, frames and any type of number come in, float32 or float64 come out.

Whole numbers become the default float, float16 and bfloat16 are computed in float32. What cannot be read is refused
with a sentence; values inside jit cannot be looked at, so there NaN goes through to the result.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core.precision import default_float

R = TypeVar("R")
Points = Any
"""n points of d inputs: an array of JAX or NumPy (also traced), nested lists, a pandas frame."""
Labels = Any
"""One label, or a row of labels, for each point; the same forms."""
Matrix = Array | np.ndarray
"""What serves the device and the host alike: JAX's arrays or NumPy's."""
TAKES = ("matrix", "array", "tree")
"""What a kernel takes for n points, narrowest first: a matrix n × d; an array with a leading axis of points and more
behind it (images); any tree of arrays with a leading axis of points (sequences with masks, graphs)."""


def concrete(*trees: Any) -> bool:
    """Whether values can be looked at: false while tracing."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


_PLACED: dict = {}
"""Trees of Python's floats that were put on the device, by what they are."""


def on_device(tree: Any) -> Any:
    """A tree of Python's floats (a kernel's parameters) with them on the device: put there once, not for every program
    that is given them, which costs as much as 10^8 pairs. Any other tree is left alone."""
    leaves, structure = jax.tree.flatten(tree)
    if not leaves or any(type(leaf) is not float for leaf in leaves):
        return tree
    key = (structure, *leaves, default_float(), getattr(jax.config, "jax_default_device", None))
    if key not in _PLACED:
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        if not concrete(arrays):  # inside a program that is being traced
            return tree
        if len(_PLACED) >= 256:
            _PLACED.clear()
        _PLACED[key] = jax.tree.unflatten(structure, arrays)
    return _PLACED[key]


def floats(values: Any, what: str = "X", dtype: Any = None) -> Float[Array, "..."]:
    """The values as a JAX array of float32 or float64 (`dtype` where it is given); shapes are not looked at."""
    if not isinstance(values, jax.Array):
        return jnp.asarray(host_floats(values, what, dtype))
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise ValueError(f"{what} must hold real numbers, got {values.dtype}: pass its real and imaginary parts")
    wanted = jnp.dtype(dtype or _computed_in(values.dtype))
    return values if values.dtype == wanted else values.astype(wanted)


def host_floats(values: Any, what: str = "X", dtype: Any = None) -> Float[np.ndarray, "..."]:
    """The same by NumPy, in the type that JAX would give them: for those who may compute in the host's memory."""
    values = real_numbers(what, values)
    wide = values.dtype == np.float64
    return np.asarray(values, dtype or (default_float() if wide else jnp.float32))


def read_numbers(values: Any) -> Any:
    """Lists, NumPy's arrays and frames as JAX's floats; anything else is left alone."""
    given = isinstance(values, list | tuple | np.ndarray) or hasattr(values, "to_numpy")
    return floats(values, "the numbers given") if given else values


def of_any_numbers(function: Callable[..., R]) -> Callable[..., R]:
    """A function of JAX's arrays that takes lists, NumPy's arrays and frames too.

    >>> print(of_any_numbers(jnp.sum)([1, 2]))
    3.0
    """

    @functools.wraps(function)
    def read(*args: Any, **keywords: Any) -> R:
        return function(*map(read_numbers, args), **{name: read_numbers(v) for name, v in keywords.items()})

    return read


def points(X: Points, what: str = "X", dtype: Any = None, takes: str = "matrix", put: bool = True) -> Any:
    """The points as floats; a ValueError unless they have the axes that the kernel `takes`, none of them empty."""
    if takes == "tree":
        return _tree(X, what, dtype)
    array = floats(X, what, dtype) if put or isinstance(X, jax.Array) else host_floats(X, what, dtype)
    check_axes(what, array.shape, takes == "array")
    return array


def sides(
    X: Points,
    Z: Points | None = None,
    names: tuple[str, str] = ("X", "Z"),
    takes: str = "matrix",
    put: bool = True,
) -> tuple[Any, Any]:
    """Both sides of a Gram matrix, of one type, the wider of the two; without `put` rows that are not JAX's stay in the
    host's memory."""
    left = points(X, names[0], takes=takes, put=put)
    if Z is None:
        return left, None
    right = points(Z, names[1], takes=takes, put=put)
    if takes == "tree":
        _check_alike(left, right, names)
    elif left.shape[1:] != right.shape[1:]:
        raise ValueError(
            f"{names[0]} has {_width(left)} columns and {names[1]} has {_width(right)}; they must be the same inputs, "
            "so the numbers must agree"
        )
    if takes != "tree" and left.dtype == right.dtype:
        return left, right
    dtype = jnp.promote_types(float_type(left), float_type(right))
    return with_type(left, dtype), with_type(right, dtype)


def count(X: Any) -> int:
    """How many points: the leading axis of every array."""
    return jax.tree.leaves(X)[0].shape[0]


def float_type(X: Any) -> Any:
    """The widest type of the floats among the arrays; the default float where there are none (tokens)."""
    found = [leaf.dtype for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.dtype(jnp.result_type(*found)) if found else default_float()


def with_type(X: Any, dtype: Any) -> Any:
    """The points with their floats in that type; whole numbers of a tree (tokens, edges) stay what they are."""

    def typed(leaf: Any) -> Any:
        return leaf.astype(dtype) if leaf.dtype != dtype and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(typed, X)


def _tree(X: Any, what: str, dtype: Any) -> Any:
    """A tree of arrays with one leading axis. A list is an array, as everywhere, or points that are trees themselves;
    tuples, dictionaries and other registered containers are trees."""
    if isinstance(X, list) or hasattr(X, "to_numpy"):
        X = gathered(X, what)
    leaves, structure = jax.tree.flatten(X)
    arrays = [_leaf(leaf, what, dtype) for leaf in leaves]
    shapes = [a.shape for a in arrays]
    if not shapes or any(not s or 0 in s for s in shapes) or len({s[0] for s in shapes}) > 1:
        raise ValueError(
            f"{what} must be arrays with one leading axis, the points, none of them empty; got shapes {shapes}"
        )
    return jax.tree.unflatten(structure, arrays)


def gathered(X: Any, what: str = "X") -> Any:
    """A list of points as one tree: dictionaries (or other containers with names) are put together leaf by leaf."""
    first = X[0] if isinstance(X, list) and X else None
    plain = isinstance(first, list | tuple) and not hasattr(first, "_fields")
    try:
        if first is None or plain or jax.tree_util.all_leaves([first]):
            return np.asarray(X)
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *X)
    except ValueError as error:
        raise ValueError(f"{what} is a list of points that differ in structure or shape: {error}") from error


def _leaf(leaf: Any, what: str, dtype: Any) -> Array:
    """Whole numbers and truth values stay what they are: they may be tokens, edges or masks."""
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return jnp.asarray(array) if array.dtype.kind in "iub" else floats(leaf, what, dtype)


def _check_alike(left: Any, right: Any, names: tuple[str, str]) -> None:
    one, two = str(jax.tree.structure(left)), str(jax.tree.structure(right))
    if one != two:
        raise ValueError(f"{names[0]} and {names[1]} must be trees of the same structure, got {one} and {two}")
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(side)] for side in (left, right)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{names[0]} has points of shapes {shapes[0]} and {names[1]} of {shapes[1]}; they must be the same inputs, "
            "so the shapes must agree"
        )


def labels(y: Labels, n: int, what: str = "y", of: str = "X", dtype: Any = None) -> Float[Array, "n ..."]:
    """Labels as floats, one row for each of the n points; concrete ones must be finite."""
    array = floats(y, what, dtype)
    if array.ndim == 0 or array.shape[0] != n:
        raise ValueError(f"{what} must have one row for each of the {n} rows of {of}, got shape {array.shape}")
    if concrete(array):
        refuse_not_finite(what, np.asarray(array))
    return array


def check_axes(what: str, shape: tuple[int, ...], more_axes: bool = False) -> None:
    """A ValueError with the remedy unless the shape is points × inputs, at least one of each."""
    if len(shape) == 1:
        raise ValueError(
            f"{what} has one axis, shape {shape}, and must have two, points × inputs: {what}.reshape(-1, 1) if these "
            f"are {shape[0]} points of one input, {what}.reshape(1, -1) if they are one point of {shape[0]} inputs"
        )
    if len(shape) < 2 or (len(shape) > 2 and not more_axes):
        remedy = f"; {what}.reshape(len({what}), -1) makes a row of every point" if shape else ""
        raise ValueError(f"{what} must have two axes, points × inputs, got shape {shape}{remedy}")
    if 0 in shape:
        raise ValueError(f"{what} is empty, shape {shape}: give at least one point with at least one input")


def real_numbers(what: str, values: Any) -> np.ndarray:
    """NumPy's float32 or float64 from anything that holds real numbers, or a ValueError that names what does not."""
    if hasattr(values, "toarray"):
        raise ValueError(f"{what} is sparse and kernels need dense inputs: pass {what}.toarray()")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} is not a table of numbers: its rows differ in length or hold other things") from error
    if array.dtype.kind == "O":
        array = _from_objects(what, values, array)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array if array.dtype in (np.float32, np.float64) else array.astype(_computed_in(array.dtype))
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    raise ValueError(
        f"{what} must hold real numbers, and {_of_kind(array)} are not: encode text and dates as numbers first"
    )


def refuse_not_finite(what: str, array: np.ndarray, first: int = 0) -> None:
    """A ValueError that names the first row with NaN or infinity; rows are counted from `first`."""
    with np.errstate(over="ignore", invalid="ignore"):  # that is what is being looked for
        fine = array.size == 0 or np.isfinite(array.sum())  # in its own type: half the time
    if fine:
        return
    bad = ~np.isfinite(array.reshape(array.shape[0] if array.ndim else 1, -1)).all(1)
    if bad.any():
        row = first + int(bad.argmax())
        raise ValueError(
            f"{what} has NaN or infinity in {int(bad.sum())} rows, first in row {row}: remove or impute them"
        )


def _computed_in(dtype: Any) -> Any:
    """float32 for shorter floats, the default float for whole numbers, float64 for longer ones where it is allowed."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return default_float()
    size = jnp.dtype(dtype).itemsize
    return jnp.dtype("float32") if size < 4 else jnp.dtype("float64") if size > 8 else jnp.dtype(dtype)


def _from_objects(what: str, values: Any, array: np.ndarray) -> np.ndarray:
    """float64 from Python objects; the ValueError names the first entry that is no number, by its column."""
    try:
        return array.astype(np.float64)
    except (ValueError, TypeError) as error:
        names = getattr(values, "columns", None)
        for index, entry in np.ndenumerate(array):
            try:
                float(entry)
            except (ValueError, TypeError):
                column = "" if len(index) < 2 else f" in column {index[1] if names is None else names[index[1]]!r}"
                raise ValueError(
                    f"{what} must hold real numbers, and {entry!r}{column} is not one: encode text and categories as "
                    "numbers, impute or drop what is missing"
                ) from error
        raise


def _of_kind(array: np.ndarray) -> str:
    return {"U": "texts", "S": "texts", "c": "complex numbers", "M": "dates", "m": "durations"}.get(
        array.dtype.kind, f"entries of type {array.dtype}"
    )


def _width(array: Matrix) -> Any:
    return array.shape[1] if array.ndim == 2 else array.shape[1:]
