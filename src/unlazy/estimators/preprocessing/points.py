"""Points that are no rows of a table: images, tokens, trees of arrays, lists of such, for kernels that take them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.arrays import count, points, refuse_not_finite
from unlazy.core.precision import precision


def is_table(X: Any, takes: str) -> bool:
    """Whether X is rows of numbers, as scikit-learn knows them. Whole numbers stay whole for a kernel of trees: they
    may be tokens."""
    if takes == "matrix" or hasattr(X, "columns") or hasattr(X, "toarray"):
        return True
    if isinstance(X, tuple):
        return False
    if not hasattr(X, "shape"):
        try:
            X = np.asarray(X)
        except ValueError:  # of different shapes
            return False
    return X.ndim == 2 and (takes == "array" or X.dtype.kind == "f")


def read_points(X: Any, takes: str, dtype: np.dtype) -> Any:
    """A tree of NumPy arrays with a leading axis of points, floats in `dtype` and finite."""
    with precision(dtype.name):
        tree = jax.tree.map(np.asarray, points(X, "X", dtype, takes))
    for leaf in jax.tree.leaves(tree):
        refuse_not_finite("X", leaf)
    return tree


def point_shapes(X: Any) -> list[tuple[int, ...]]:
    """The shape of one point, array by array."""
    return [tuple(leaf.shape[1:]) for leaf in jax.tree.leaves(X)]


def check_shapes(X: Any, fitted: list[tuple[int, ...]] | None) -> None:
    """A ValueError where an array has points of another shape than that fitted; of trees the kernel says so."""
    found = point_shapes(X)
    if fitted is None or len(found) != 1 or len(fitted) != 1 or found[0] == tuple(fitted[0]):
        return
    raise ValueError(
        f"the model was fitted to points of shape {tuple(fitted[0])}, and those of X have {found[0]}: images are (n, "
        "height, width, channels); X[..., None] adds one channel, X[None] makes one image a set of one"
    )


def take(X: Any, index: Any) -> Any:
    """Some of the points."""
    return jax.tree.map(lambda leaf: leaf[index], X)


def on_device(X: Any) -> Any:
    """The points as JAX arrays."""
    return jax.tree.map(jnp.asarray, X)


def as_rows(X: Any) -> np.ndarray:
    """One row of numbers for every point, to tell which are equal."""
    n = count(X)
    return np.concatenate([leaf.reshape(n, -1) for leaf in jax.tree.leaves(X)], 1)
