"""What all estimators share: checked inputs, precision, random keys, weights, progress, and `save`.

A subclass lists its parameters in `__init__` and only stores them (scikit-learn's rule); `precision`, `random_state`
and `progress` are read here where it has them. Fitted attributes end in an underscore and hold NumPy arrays, numbers,
text, kernels, architectures, estimators, or lists, tuples and dicts of those: `persistence` can then save them.

`random_state` is 0 by default, everywhere: a fit is the same each time. None draws anew, as scikit-learn reads it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from unlazy.core.arrays import count
from unlazy.core.precision import precision as in_precision
from unlazy.estimators.preprocessing.points import as_rows, check_shapes, is_table, point_shapes, read_points, take
from unlazy.estimators.preprocessing.validation import dense_floats
from unlazy.kernels.base import Kernel
from unlazy.kernels.resolve import given_kernel


class Training(NamedTuple):
    """Checked training data, all of the estimator's float type; weights None where all are equal to one."""

    X: Any
    """Rows of numbers; for kernels that take them, any tree of arrays with a leading axis of points."""
    Y: np.ndarray
    """(n, c), also for one output."""
    weights: np.ndarray | None

    @property
    def n(self) -> int:
        return len(self.Y)

    def rows(self, index: np.ndarray | slice) -> "Training":
        """Some of the points."""
        return Training(take(self.X, index), self.Y[index], None if self.weights is None else self.weights[index])

    def merged(self) -> "Training":
        """Equal rows as one row of their total weight and mean label.

        The weighted least-squares problem is the same up to a constant; K loses exact duplicates, and leave-one-out
        cannot see a left-out point through its copy. Rows come back sorted: a fit does not depend on their order.
        """
        unique, first, index = np.unique(as_rows(self.X), axis=0, return_index=True, return_inverse=True)
        if len(unique) == self.n:
            return self.rows(np.argsort(index.ravel()))
        w = np.ones(self.n, self.Y.dtype) if self.weights is None else self.weights
        total = np.bincount(index.ravel(), w)
        means = np.stack([np.bincount(index.ravel(), w * column) / total for column in self.Y.T], 1)
        return Training(take(self.X, first), means.astype(self.Y.dtype), total.astype(self.Y.dtype))


class Estimator(BaseEstimator):
    """Mixin under every estimator: `class KernelRegressor(RegressorMixin, Estimator)`."""

    _renamed: ClassVar[dict[str, str]] = {}
    """Parameters of an earlier release and what they are called now: the old word would mean something else."""

    def __new__(cls, *args: Any, **given: Any) -> Any:
        for old, new in cls._renamed.items():
            if old in given:
                raise ValueError(f"{old}={given[old]!r} of {cls.__name__} was always relative: it is called {new} now")
        return super().__new__(cls)

    @property
    def _dtype(self) -> np.dtype:
        """float64 on every device, unless `precision` says otherwise."""
        asked = getattr(self, "precision", None)
        if asked not in (None, "float32", "float64"):
            raise ValueError(f"precision must be 'float32', 'float64' or None, got {asked!r}")
        return np.dtype(asked or "float64")

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """JAX computes in this estimator's precision inside; the caller's setting is back afterward."""
        with in_precision(self._dtype.name):
            yield

    def _key(self) -> PRNGKeyArray:
        """A JAX key from `random_state` (None, a number or a NumPy RandomState), as scikit-learn reads it."""
        seed = check_random_state(getattr(self, "random_state", 0)).randint(np.iinfo(np.int32).max)
        return jax.random.key(int(seed))

    def _training(self, X: Any, y: Any, sample_weight: Any = None, multi_output: bool = True) -> Training:
        """Checked X and real-valued y; remembers columns' names and whether y had one axis (`_y_axes_`)."""
        X, y = self._pair(X, y, y_numeric=True, multi_output=multi_output)
        self._y_axes_ = int(y.ndim)
        Y = np.asarray(y, dtype=self._dtype).reshape(len(y), -1)
        return self._weighted(X, Y, sample_weight)

    def _labeled(self, X: Any, y: Any, sample_weight: Any = None) -> Training:
        """The same for classes: sets `classes_`, Y is one-hot; `class_weight` multiplies the weights."""
        X, y = self._pair(X, y)
        check_classification_targets(y)
        asked = getattr(self, "class_weight", None)
        if asked is not None:
            by_class = compute_sample_weight(asked, y)
            given = 1.0 if sample_weight is None else _check_sample_weight(sample_weight, y, ensure_non_negative=True)
            sample_weight = by_class * given
        self.classes_, codes = np.unique(y, return_inverse=True)
        Y = np.eye(len(self.classes_), dtype=self._dtype)[codes]
        return self._weighted(X, Y, sample_weight)

    @property
    def _takes(self) -> str:
        """What points may be (`core.arrays.TAKES`): rows, unless the estimator is given a kernel of more."""
        return "matrix"

    def _inputs(self, X: Any) -> Any:
        """Checked points to predict at: fitted, same columns as in training."""
        check_is_fitted(self)
        if getattr(self, "_table_", True):
            return self._columns(X, reset=False)
        points = read_points(X, self._takes, self._dtype)
        check_shapes(points, getattr(self, "_shapes_", None))  # files of earlier releases do not say them
        return points

    def _columns(self, X: Any, reset: bool) -> np.ndarray:
        """Checked X alone."""
        if not reset and self._plain(X):
            return dense_floats(X, lambda X: X, self._dtype)
        keep = {"ensure_all_finite": False, "dtype": np.float64}
        return dense_floats(X, lambda X: validate_data(self, X, reset=reset, **keep), self._dtype)

    def _plain(self, X: Any) -> bool:
        """Whether X is an array in which scikit-learn would find nothing to convert or to say: looking costs it as much
        as a small prediction."""
        fits = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
        return fits and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")

    def _pair(self, X: Any, y: Any, **check_y: Any) -> tuple[Any, np.ndarray]:
        table = is_table(X, self._takes)
        if table:
            X, y = self._pair_of(X, y, **check_y)
        else:
            X = read_points(X, self._takes, self._dtype)
            _, y = self._pair_of(np.zeros((count(X), 1)), y, **check_y)  # y is checked as beside a table
            del self.n_features_in_
            self._shapes_ = point_shapes(X)
        self._table_ = table
        return X, y

    def _pair_of(self, X: Any, y: Any, **check_y: Any) -> tuple[np.ndarray, np.ndarray]:
        found = {}

        def validate(X: Any) -> np.ndarray:
            try:
                X, found["y"] = validate_data(self, X, y, ensure_all_finite=False, dtype=np.float64, **check_y)
            except ValueError as error:
                if "Input y contains" in str(error):
                    raise ValueError(f"{error} Drop the rows whose target is unknown or infinite.") from error
                raise
            return X

        y = np.asarray(y) if isinstance(y, jax.Array) else y
        return dense_floats(X, validate, self._dtype), found["y"]

    def _weighted(self, X: Any, Y: np.ndarray, sample_weight: Any) -> Training:
        """Rows of weight zero are left out; equal weights of one are no weights."""
        if sample_weight is None:
            return Training(X, Y, None)
        weights = _check_sample_weight(sample_weight, Y, dtype=self._dtype, ensure_non_negative=True)
        keep = weights > 0
        if not keep.any():
            raise ValueError("all sample weights are zero: give at least one row a positive weight")
        X, Y, weights = take(X, keep), Y[keep], weights[keep]
        return Training(X, Y, None if np.all(weights == 1) else weights)

    def _shaped(self, Y: Any) -> np.ndarray:
        """Predictions (m, c) as NumPy, with as many axes as the y of `fit`."""
        Y = np.asarray(Y)
        return Y[:, 0] if self._y_axes_ == 1 else Y

    def __getstate__(self) -> dict[str, Any]:
        # JAX would read pickled float64 arrays back as float32 outside a float64 scope: kernels travel as NumPy
        return {name: _map_leaves(value, jax.Array, _Travelling) for name, value in super().__getstate__().items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrive = _Travelling.arrive
        super().__setstate__({name: _map_leaves(value, _Travelling, arrive) for name, value in state.items()})

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a file that `unlazy.load` reads: safetensors with JSON, never pickle."""
        from unlazy.estimators.persistence.files import save

        save(self, path)


class KernelEstimator(Estimator):
    """An estimator of a `kernel`: by name for rows of numbers, or an object for whatever that takes."""

    _named: ClassVar[str] = "a name such as 'laplace'"
    kernel: str | Kernel
    offset_: np.ndarray
    """Taken off rows before a kernel given by name sees them."""

    @property
    def _takes(self) -> str:
        return "matrix" if self._given is None else self._given.takes

    @property
    def _given(self) -> Kernel | None:
        """The kernel, where it is an object; None where it is a name."""
        return given_kernel(self.kernel, self._named)

    def _no_offset(self, X: Any) -> np.ndarray:
        """Of a kernel object: zero for every column, or for points that have none."""
        return np.zeros(X.shape[1] if self._table_ else (), self._dtype)

    def _moved(self, X: Any) -> Any:
        return X - self.offset_ if self.offset_.ndim else X


class _Travelling:
    """A JAX array on its way through pickle."""

    def __init__(self, array: jax.Array):
        self.array = np.asarray(array)

    def arrive(self) -> jax.Array:
        with jax.enable_x64(self.array.dtype.itemsize == 8):
            return jnp.asarray(self.array)


def _map_leaves(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Kernels and networks with their arrays of one kind changed; other attributes as they are."""
    if not isinstance(value, eqx.Module | kind):
        return value

    def is_kind(leaf: Any) -> bool:
        return isinstance(leaf, kind)

    return jax.tree.map(lambda leaf: change(leaf) if is_kind(leaf) else leaf, value, is_leaf=is_kind)


def by_blocks(f: Callable[[Any], Any], X: Any, rows: int = 4096) -> np.ndarray:
    """f of blocks of points, joined. Short blocks are padded to a power of two, so that few shapes are compiled."""
    found, n = [], count(X)
    for i in range(0, n, rows):
        length = min(rows, n - i)
        size = min(rows, max(16, 1 << (length - 1).bit_length()))
        index = np.where(np.arange(size) < length, np.arange(i, i + size), i)  # the first point again
        found.append(np.asarray(f(take(X, index)))[:length])
    return np.concatenate(found)
