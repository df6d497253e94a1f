"""Points other than rows of a table: images, tokens, trees of arrays and lists of those."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.arrays import as_points, check_finite, n_points
from unlazy.core.precision import precision


def is_table(X: Any, takes: str) -> bool:
    """Return whether X is a table of numbers as in scikit-learn.

    For kernels of trees integers are kept as they are: they may be tokens.
    """
    if takes == "matrix" or hasattr(X, "columns") or hasattr(X, "toarray"):
        return True
    if isinstance(X, tuple):
        return False
    if not hasattr(X, "shape"):
        try:
            X = np.asarray(X)
        except ValueError:  # arrays of different shapes
            return False
    return X.ndim == 2 and (takes == "array" or X.dtype.kind == "f")


def read_points(X: Any, takes: str, dtype: np.dtype) -> Any:
    """Return a tree of NumPy arrays with a leading axis of points; floats are finite and of type `dtype`."""
    with precision(dtype.name):
        tree = jax.tree.map(np.asarray, as_points(X, "X", dtype, takes))
    for leaf in jax.tree.leaves(tree):
        check_finite("X", leaf)
    return tree


def point_shapes(X: Any) -> list[tuple[int, ...]]:
    """Shape of one point in each array."""
    return [tuple(leaf.shape[1:]) for leaf in jax.tree.leaves(X)]


def check_shapes(X: Any, fitted: list[tuple[int, ...]] | None) -> None:
    """Raise ValueError if the points of an array have another shape than in fit; for trees the kernel checks."""
    found = point_shapes(X)
    if fitted is None or len(found) != 1 or len(fitted) != 1 or found[0] == tuple(fitted[0]):
        return
    raise ValueError(
        f"the model was fitted to points of shape {tuple(fitted[0])}, got points of shape {found[0]}: images are (n, "
        "height, width, channels); X[..., None] adds a channel axis, X[None] makes a batch of one image"
    )


def take(X: Any, index: Any) -> Any:
    """Return the points at this index."""
    return jax.tree.map(lambda leaf: leaf[index], X)


def on_device(X: Any) -> Any:
    """Convert the points to JAX arrays."""
    return jax.tree.map(jnp.asarray, X)


def as_rows(X: Any) -> np.ndarray:
    """Flatten each point to one row of numbers, for comparing points."""
    n = n_points(X)
    return np.concatenate([leaf.reshape(n, -1) for leaf in jax.tree.leaves(X)], 1)
