"""Arrays: conversion and validation of inputs, float types, matrix products at full precision.

Lists, NumPy and JAX arrays and data frames become float32 or float64: integers become the default float type, float16
and bfloat16 become float32. Inputs that cannot be converted raise ValueError. Under jit values cannot be checked, and
NaN propagates to the result.

By default, a GPU rounds the factors of a float32 product to tf32 (three digits); on a CPU there is no such choice. All
products of JAX arrays in this package go through this module.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce, wraps
from types import ModuleType
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, PyTree, Real

from unlazy.core.compilation_cache import enable_compilation_cache

enable_compilation_cache()  # here, because what compiles programs imports this module
R = TypeVar("R")
A = TypeVar("A", Array, np.ndarray)
"""Type variable of functions that return a NumPy array for NumPy arrays, and a JAX array for JAX arrays."""
Points = PyTree
"""n points of dimension d: a JAX array (also traced), a NumPy array, nested lists, a pandas data frame, or a pytree of
arrays. Static types cannot express this; `as_points` checks it."""
Labels = PyTree
"""One label, or a row of labels, per point; the same types as `Points`."""
Values = Real[ArrayLike, "*t"] | Sequence[float]
"""Parameters of a path: a number, a list or an array."""
Matrix = Array | np.ndarray
"""An array on the device or on the host."""
Side = PyTree
"""One prepared side of a block of kernel entries, as `Kernel.prepare` returns it: any pytree of arrays whose leading
axis is the points."""
Entries = PyTree
"""Kernel values: an array, or a pytree of arrays of one shape, such as NNGP and NTK as a pair."""
INPUT_KINDS = ("matrix", "array", "tree")
"""Inputs that a kernel accepts for n points, most specific first: a matrix n × d; an array whose leading axis is the
points (images); a pytree of arrays whose leading axis is the points (sequences with masks, graphs)."""


def is_concrete(*trees: PyTree) -> bool:
    """Whether the values of all leaves are known: false if any is a tracer."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


_DEVICE_FLOATS: dict = {}
"""Cache of pytrees of Python floats that were transferred to the device."""


def floats_on_device(tree: PyTree) -> PyTree:
    """Transfer a pytree of Python floats (parameters of a kernel) to the device, once.

    Without the cache they would be transferred for every program that takes them, which costs as much as 10^8 kernel
    evaluations. Any other pytree is returned unchanged.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves or any(type(leaf) is not float for leaf in leaves):
        return tree
    key = (structure, *leaves, default_float(), getattr(jax.config, "jax_default_device", None))
    if key not in _DEVICE_FLOATS:
        arrays = [jnp.asarray(leaf) for leaf in leaves]
        if not is_concrete(arrays):  # within a traced program
            return tree
        if len(_DEVICE_FLOATS) >= 256:
            _DEVICE_FLOATS.clear()
        _DEVICE_FLOATS[key] = jax.tree.unflatten(structure, arrays)
    return _DEVICE_FLOATS[key]


def as_floats(values: object, what: str = "X", dtype: DTypeLike | None = None) -> Float[Array, "..."]:
    """The values as a JAX array of float32 or float64, or of `dtype`; shapes are not checked."""
    if not isinstance(values, jax.Array):
        return jnp.asarray(as_host_floats(values, what, dtype))
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise ValueError(f"{what} must contain real numbers, got {values.dtype}: pass its real and imaginary parts")
    wanted = jnp.dtype(dtype or _compute_dtype(values.dtype))
    return values if values.dtype == wanted else values.astype(wanted)


def as_host_floats(values: object, what: str = "X", dtype: DTypeLike | None = None) -> Float[np.ndarray, "..."]:
    """Like `as_floats`, but a NumPy array: for computations on the host."""
    values = as_real_array(what, values)
    wide = values.dtype == np.float64
    return np.asarray(values, dtype or (default_float() if wide else jnp.float32))


def floats_if_numeric(values: PyTree) -> PyTree:
    """Convert lists, NumPy arrays and data frames to JAX arrays of floats; anything else is returned unchanged."""
    given = isinstance(values, list | tuple | np.ndarray) or hasattr(values, "to_numpy")
    return as_floats(values, "the argument") if given else values


def accepts_array_likes(function: Callable[..., R]) -> Callable[..., R]:
    """Wrap a function of JAX arrays so that it accepts lists, NumPy arrays and data frames too.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy.core.arrays import accepts_array_likes
    >>> print(accepts_array_likes(jnp.sum)([1, 2]))
    3.0
    """

    @functools.wraps(function)
    def read(*args: Any, **keywords: Any) -> R:
        return function(*map(floats_if_numeric, args), **{name: floats_if_numeric(v) for name, v in keywords.items()})

    return read


def as_points(
    X: Points, what: str = "X", dtype: DTypeLike | None = None, input_kind: str = "matrix", to_device: bool = True
) -> PyTree:
    """The points as floats; raise ValueError if they are empty or not of this kind (see `INPUT_KINDS`).

    With `to_device=False`, arrays that are not JAX arrays stay on the host.
    """
    if input_kind == "tree":
        return _tree(X, what, dtype)
    array = as_floats(X, what, dtype) if to_device or isinstance(X, jax.Array) else as_host_floats(X, what, dtype)
    check_axes(what, array.shape, input_kind == "array")
    return array


def as_point_pair(
    X: Points,
    Z: Points | None = None,
    names: tuple[str, str] = ("X", "Z"),
    input_kind: str = "matrix",
    to_device: bool = True,
) -> tuple[PyTree, PyTree]:
    """The row points and the column points of a Gram matrix, validated and promoted to a common float type.

    The second is None if Z is None. With `to_device=False`, arrays that are not JAX arrays stay on the host.
    """
    left = as_points(X, names[0], input_kind=input_kind, to_device=to_device)
    if Z is None:
        return left, None
    right = as_points(Z, names[1], input_kind=input_kind, to_device=to_device)
    if input_kind == "tree":
        _check_same_structure(left, right, names)
    elif left.shape[1:] != right.shape[1:]:
        raise ValueError(
            f"{names[0]} has {_width(left)} columns and {names[1]} has {_width(right)}; both must have the same "
            "number of columns"
        )
    if input_kind != "tree" and left.dtype == right.dtype:
        return left, right
    dtype = jnp.promote_types(float_type(left), float_type(right))
    return cast_floats(left, dtype), cast_floats(right, dtype)


def n_points(X: PyTree) -> int:
    """Number of points: the size of the leading axis of every array."""
    return jax.tree.leaves(X)[0].shape[0]


def float_type(X: PyTree) -> np.dtype:
    """The promoted float type of all float arrays; the default float type if there are none (tokens)."""
    found = [leaf.dtype for leaf in jax.tree.leaves(X) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return jnp.dtype(jnp.result_type(*found)) if found else default_float()


def cast_floats(X: PyTree, dtype: DTypeLike) -> PyTree:
    """Cast the float arrays to `dtype`; integer arrays (tokens, edges) are unchanged."""

    def typed(leaf: Any) -> Any:
        return leaf.astype(dtype) if leaf.dtype != dtype and jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(typed, X)


def _tree(X: Any, what: str, dtype: Any) -> Any:
    """Validate a pytree of arrays with a common leading axis.

    A list is an array, or a list of points that are pytrees themselves; tuples, dictionaries and other registered
    containers are pytrees.
    """
    if isinstance(X, list) or hasattr(X, "to_numpy"):
        X = stack_points(X, what)
    leaves, structure = jax.tree.flatten(X)
    arrays = [_leaf(leaf, what, dtype) for leaf in leaves]
    shapes = [a.shape for a in arrays]
    if not shapes or any(not s or 0 in s for s in shapes) or len({s[0] for s in shapes}) > 1:
        raise ValueError(
            f"{what} must consist of non-empty arrays with the same leading axis (points), got shapes {shapes}"
        )
    return jax.tree.unflatten(structure, arrays)


def stack_points(X: PyTree, what: str = "X") -> PyTree:
    """Stack a list of points into one pytree: dictionaries and other containers are stacked leaf by leaf."""
    first = X[0] if isinstance(X, list) and X else None
    plain = isinstance(first, list | tuple) and not hasattr(first, "_fields")
    try:
        if first is None or plain or jax.tree_util.all_leaves([first]):
            return np.asarray(X)
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *X)
    except ValueError as error:
        raise ValueError(f"{what} is a list of points that differ in structure or shape: {error}") from error


def _leaf(leaf: Any, what: str, dtype: Any) -> Array:
    """Convert one leaf to floats; integers and booleans are kept, since they may be tokens, edges or masks."""
    array = leaf if isinstance(leaf, jax.Array) else np.asarray(leaf)
    return jnp.asarray(array) if array.dtype.kind in "iub" else as_floats(leaf, what, dtype)


def _check_same_structure(left: Any, right: Any, names: tuple[str, str]) -> None:
    """Raise ValueError unless the points of both sides have the same pytree structure and shapes."""
    one, two = str(jax.tree.structure(left)), str(jax.tree.structure(right))
    if one != two:
        raise ValueError(f"{names[0]} and {names[1]} must be trees of the same structure, got {one} and {two}")
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(side)] for side in (left, right)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            f"{names[0]} has points of shapes {shapes[0]} and {names[1]} of {shapes[1]}; the shapes of the points must "
            "agree"
        )


def as_labels(
    y: Labels, n: int, what: str = "y", points_name: str = "X", dtype: DTypeLike | None = None
) -> Float[Array, "n ..."]:
    """Labels as floats; raise ValueError unless there is one row per point and all are finite."""
    array = as_floats(y, what, dtype)
    if array.ndim == 0 or array.shape[0] != n:
        raise ValueError(f"{what} must have one row for each of the {n} rows of {points_name}, got shape {array.shape}")
    if is_concrete(array):
        check_finite(what, np.asarray(array))
    return array


def check_axes(what: str, shape: tuple[int, ...], more_axes: bool = False) -> None:
    """Raise ValueError unless the shape is (n points, d features), with n, d ≥ 1; the message says how to reshape."""
    if len(shape) == 1:
        raise ValueError(
            f"{what} must be two-dimensional (points × features), got shape {shape}: use {what}.reshape(-1, 1) for "
            f"{shape[0]} points with one feature, or {what}.reshape(1, -1) for one point with {shape[0]} features"
        )
    if len(shape) < 2 or (len(shape) > 2 and not more_axes):
        remedy = f"; {what}.reshape(len({what}), -1) flattens every point" if shape else ""
        raise ValueError(f"{what} must be two-dimensional (points × features), got shape {shape}{remedy}")
    if 0 in shape:
        raise ValueError(f"{what} is empty, shape {shape}: at least one point with at least one feature is required")


def as_real_array(what: str, values: object) -> np.ndarray:
    """The values as a NumPy array of float32 or float64; raise ValueError if they are not real numbers."""
    if hasattr(values, "toarray"):
        raise ValueError(f"{what} is sparse, but kernels need dense inputs: pass {what}.toarray()")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{what} is not a numeric array: its rows differ in length or contain other objects"
        ) from error
    if array.dtype.kind == "O":
        array = _from_objects(what, values, array)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array if array.dtype in (np.float32, np.float64) else array.astype(_compute_dtype(array.dtype))
    if array.dtype.kind in "iub":
        return array.astype(np.float64)
    raise ValueError(
        f"{what} must contain real numbers, got {_kind_name(array)}: encode text and dates as numbers first"
    )


def check_finite(what: str, array: np.ndarray, first: int = 0) -> None:
    """Raise ValueError that names the first row with NaN or infinity; rows are counted from `first`."""
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is what we check for
        finite = array.size == 0 or np.isfinite(array.sum())  # not summed in float64: half the time
    if finite:
        return
    bad = ~np.isfinite(array.reshape(array.shape[0] if array.ndim else 1, -1)).all(1)
    if bad.any():
        row = first + int(bad.argmax())
        raise ValueError(
            f"{what} has NaN or infinity in {int(bad.sum())} rows, first in row {row}: remove or impute them"
        )


def _compute_dtype(dtype: Any) -> Any:
    """The float type to compute in: float32 for shorter floats, float64 for longer ones, the default for integers."""
    if not jnp.issubdtype(dtype, jnp.floating):
        return default_float()
    size = jnp.dtype(dtype).itemsize
    return jnp.dtype("float32") if size < 4 else jnp.dtype("float64") if size > 8 else jnp.dtype(dtype)


def _from_objects(what: str, values: Any, array: np.ndarray) -> np.ndarray:
    """float64 from Python objects; raise ValueError that names the first entry that is not a number and its column."""
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
                    f"{what} must contain real numbers, got {entry!r}{column}: encode text and categories as numbers, "
                    "impute or drop missing values"
                ) from error
        raise


def _kind_name(array: np.ndarray) -> str:
    """Description of the dtype, for error messages."""
    return {"U": "strings", "S": "strings", "c": "complex numbers", "M": "dates", "m": "durations"}.get(
        array.dtype.kind, f"entries of type {array.dtype}"
    )


def _width(array: Matrix) -> Any:
    """Number of columns, or the shape of one point."""
    return array.shape[1] if array.ndim == 2 else array.shape[1:]


Precision = Literal["float32", "float64"]


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Run a block of code in float32 or float64.

    Parameters
    ----------
    name : {"float32", "float64"}
        Default float type of new arrays within the block.

    Raises
    ------
    ValueError
        If `name` is neither of the two.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from unlazy import precision
    >>> with precision("float64"):
    ...     print(jnp.ones(1).dtype)
    float64
    """
    if name not in ("float32", "float64"):
        raise ValueError(f"precision must be 'float32' or 'float64', got {name!r}")
    with jax.enable_x64(name == "float64"):
        yield


def default_float() -> jnp.dtype:
    """The default float type of new arrays in the current scope."""
    return jnp.result_type(float)  # creates no array: called at every entry point


def unit_roundoff(dtype: object) -> float:
    """Unit roundoff of a float type: 2^-24 for float32, 2^-53 for float64."""
    return float(jnp.finfo(dtype).eps) / 2


HIGHEST = jax.lax.Precision.HIGHEST


def dot(first: Any, *others: Any) -> Any:
    """Matrix product A @ B @ C …, from left to right, at the highest precision.

    If all factors are NumPy arrays, NumPy computes the product: no compilation is needed on the host.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.core.arrays import dot
    >>> print(dot(np.eye(2), np.ones((2, 3)), np.ones(3)))
    [3. 3.]
    """
    return reduce(_pair, others, first)


def einsum(formula: str, *factors: Any) -> Any:
    """Einstein summation at the highest precision; by NumPy if all factors are NumPy arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.core.arrays import einsum
    >>> print(einsum("ij,ij->i", np.ones((2, 3)), np.ones((2, 3))))
    [3. 3.]
    """
    if _on_host(*factors):
        return np.einsum(formula, *factors)
    return jnp.einsum(formula, *factors, precision=HIGHEST)


def vdot(A: Any, B: Any) -> Any:
    """Sum of the elementwise product, Σ A_ij B_ij, at the highest precision."""
    return np.vdot(A, B) if _on_host(A, B) else jnp.vdot(A, B, precision=HIGHEST)


def convolution(
    x: Array,
    weight: Array,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    input_dilation: Sequence[int] | None,
    dilation: Sequence[int] | None,
    letters: tuple[str, str, str],
) -> Array:
    """`jax.lax.conv_general_dilated` at the highest precision.

    `input_dilation` dilates x, `dilation` the window; `letters` are the dimension numbers of x, the weights and the
    result.
    """
    return jax.lax.conv_general_dilated(
        x, weight, strides, padding, input_dilation, dilation, letters, precision=HIGHEST
    )


def with_highest_precision(function: Callable) -> Callable:
    """Wrap a user's function so that its matrix products run at the highest precision."""

    @wraps(function)
    def called(*arguments: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*arguments)

    return called


def namespace(*arrays: object) -> ModuleType:
    """`numpy` if all arrays are NumPy arrays, otherwise `jax.numpy`.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.core.arrays import namespace
    >>> namespace(np.ones(2)).__name__
    'numpy'
    """
    return np if _on_host(*arrays) else jnp


def _pair(A: Any, B: Any) -> Any:
    return np.matmul(A, B) if _on_host(A, B) else jnp.matmul(A, B, precision=HIGHEST)


def _on_host(*arrays: Any) -> bool:
    return all(isinstance(array, np.ndarray) for array in arrays)


def is_on_host(array: object) -> bool:
    """Whether NumPy can use the values in place: not a tracer and not in GPU memory."""
    if not isinstance(array, jax.Array):
        return True
    return not isinstance(array, jax.core.Tracer) and all(d.platform == "cpu" for d in array.devices())
