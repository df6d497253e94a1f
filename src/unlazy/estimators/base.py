"""Base classes of the estimators: validation of points and tables, precision, random keys, weights and `save`.

A subclass lists its parameters in `__init__` and only stores them, as scikit-learn requires; `precision` and
`random_state` are read here if it has them. Fitted attributes end in an underscore and hold NumPy arrays, numbers,
strings, kernels, architectures, estimators, or lists, tuples and dicts of those, so that `persistence` can save them.

`random_state` is 0 by default in all estimators, so fits are reproducible. None draws a new seed, as in scikit-learn.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from unlazy.core.arrays import Labels, Points, as_points, check_finite, n_points
from unlazy.core.arrays import precision as in_precision
from unlazy.estimators.persistence import files
from unlazy.estimators.preprocessing.columns import column_position
from unlazy.estimators.preprocessing.frames import as_frame, frame_names, match_columns, needs_encoder
from unlazy.estimators.validation import check_entries, dense_floats, reject_text_labels
from unlazy.kernels.base import Kernel, resolve_kernel

if TYPE_CHECKING:
    import pandas as pd

    from unlazy.estimators.preprocessing.table_encoder import TableEncoder

RandomState = int | np.random.RandomState | None
"""Seed of an estimator, or a generator; None draws a new seed."""


class TrainingData(NamedTuple):
    """Validated training data in the floating-point type of the estimator; weights are None if all are one."""

    X: Points
    """Rows of numbers; for kernels that take them, any tree of arrays with a leading axis of points."""
    Y: np.ndarray
    """Shape (n, c), also for one output."""
    weights: np.ndarray | None

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.Y)

    def rows(self, index: np.ndarray | slice) -> "TrainingData":
        """Return the rows at this index."""
        return TrainingData(take(self.X, index), self.Y[index], None if self.weights is None else self.weights[index])

    def merge_duplicates(self) -> "TrainingData":
        """Merge equal rows into one row with their total weight and mean label.

        The weighted least-squares problem is the same up to a constant, K has no exact duplicates, and leave-one-out
        cannot see a left-out point through its copy. Rows are returned sorted, so that a fit does not depend on their
        order.
        """
        return self.merge_and_place()[0]

    def merge_and_place(self) -> tuple["TrainingData", np.ndarray]:
        """Merge as `merge_duplicates`; return also the merged row to which each row belongs."""
        unique, first, index = np.unique(as_rows(self.X), axis=0, return_index=True, return_inverse=True)
        place = index.ravel()
        if len(unique) == self.n:
            return self.rows(np.argsort(place)), place
        w = np.ones(self.n, self.Y.dtype) if self.weights is None else self.weights
        total = np.bincount(place, w)
        means = np.stack([np.bincount(place, w * column) / total for column in self.Y.T], 1)
        return TrainingData(take(self.X, first), means.astype(self.Y.dtype), total.astype(self.Y.dtype)), place


def places_in(rows: np.ndarray, n: int) -> np.ndarray:
    """Place of each of n rows in a list of some of them; -1 for the others."""
    found = np.full(n, -1)
    found[rows] = np.arange(len(rows))
    return found


def rows_by_place(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose place is not -1, sorted by it, and their places."""
    rows = np.argsort(place, kind="stable")
    rows = rows[place[rows] >= 0]
    return rows, place[rows]


class Estimator(BaseEstimator):
    """Base class of all estimators: `class KernelRegressor(RegressorMixin, Estimator)`."""

    encoder_: "TableEncoder"
    """Encoder of the frame passed to `fit`; only set if it held more than numbers."""
    _renamed: ClassVar[dict[str, str]] = {}
    """Parameters of earlier releases and their new names. Passing an old name raises ValueError."""

    def __new__(cls, *args: Any, **given: Any) -> Any:
        for old, new in cls._renamed.items():
            if old in given:
                raise ValueError(f"{old}={given[old]!r} of {cls.__name__} is relative and was renamed to {new}")
        return super().__new__(cls)

    @property
    def _dtype(self) -> np.dtype:
        """float64 on every device, unless `precision` is "float32"."""
        asked = getattr(self, "precision", None)
        if asked not in (None, "float32", "float64"):
            raise ValueError(f"precision must be 'float32', 'float64' or None, got {asked!r}")
        return np.dtype(asked or "float64")

    @contextmanager
    def _precision_scope(self) -> Iterator[None]:
        """Make JAX compute in the precision of this estimator; the previous setting is restored on exit."""
        with in_precision(self._dtype.name):
            yield

    def _key(self) -> PRNGKeyArray:
        """JAX key from `random_state` (None, an int or a NumPy RandomState)."""
        seed = check_random_state(getattr(self, "random_state", 0)).randint(np.iinfo(np.int32).max)
        with in_precision("float32"):  # the same programs in every scope
            return jax.random.key(int(seed))

    def _validate_regression(
        self, X: Points, y: Labels, sample_weight: ArrayLike | None = None, multi_output: bool = True
    ) -> TrainingData:
        """Validate X and real-valued y; store column names and the number of axes of y (`_y_axes_`)."""
        reject_text_labels(y, type(self).__name__)
        X, y = self._validate_pair(X, y, sample_weight, y_numeric=True, multi_output=multi_output)
        self._y_axes_ = int(y.ndim)
        Y = np.asarray(y, dtype=self._dtype).reshape(len(y), -1)
        return self._with_weights(X, Y, sample_weight)

    def _validate_classification(self, X: Points, y: Labels, sample_weight: ArrayLike | None = None) -> TrainingData:
        """Validate X and class labels: set `classes_`, make Y one-hot, apply `class_weight` to the weights."""
        X, y = self._validate_pair(X, y, sample_weight)
        check_classification_targets(y)
        asked = getattr(self, "class_weight", None)
        if asked is not None:
            by_class = compute_sample_weight(asked, y)
            given = 1.0 if sample_weight is None else _check_sample_weight(sample_weight, y, ensure_non_negative=True)
            sample_weight = by_class * given
        self.classes_, codes = np.unique(y, return_inverse=True)
        Y = np.eye(len(self.classes_), dtype=self._dtype)[codes]
        return self._with_weights(X, Y, sample_weight)

    @property
    def _input_kind(self) -> str:
        """Kind of points accepted (`core.arrays`): rows of numbers, unless a kernel object accepts more."""
        return "matrix"

    def _validate_inputs(self, X: Points) -> Any:
        """Validate the points passed to predict: the estimator is fitted and the columns match."""
        check_is_fitted(self)
        if getattr(self, "_table_", True):
            return self._validate_columns(X, reset=False)
        points = read_points(X, self._input_kind, self._dtype)
        check_shapes(points, getattr(self, "_shapes_", None))  # not in files of earlier releases
        return points

    def _validate_columns(self, X: Points, reset: bool) -> np.ndarray:
        """Validate a table X without targets; a frame that needs an encoder is encoded."""
        if not reset and getattr(self, "encoder_", None) is not None:
            return self._checked(self.encoder_._encode_table(X))
        if not reset and self._needs_no_conversion(X):
            return dense_floats(X, lambda X: X, self._dtype)
        frame = as_frame(X)
        X = X if frame is None else frame
        if reset:
            self.__dict__.pop("encoder_", None)
            if frame is not None and needs_encoder(frame):
                return self._fit_encoder(frame, None, None)
        elif frame is not None and hasattr(self, "feature_names_in_") and all(isinstance(c, str) for c in frame):
            X = match_columns(frame, list(self.feature_names_in_))
        keep = {"ensure_all_finite": False, "dtype": np.float64}
        return dense_floats(X, lambda X: validate_data(self, X, reset=reset, **keep), self._dtype)

    def _needs_no_conversion(self, X: Points) -> bool:
        """Whether X is a plain float64 array of the right width, for which scikit-learn's validation is skipped.

        That validation takes as long as a small prediction.
        """
        fits = type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2 and len(X) > 0
        return fits and X.shape[1] == self.n_features_in_ and not hasattr(self, "feature_names_in_")

    def _validate_pair(
        self, X: Points, y: Labels, sample_weight: ArrayLike | None = None, **check_y: Any
    ) -> tuple[Any, np.ndarray]:
        """Validate X and y together; a frame that needs an encoder is encoded."""
        table = is_table(X, self._input_kind)
        self.__dict__.pop("encoder_", None)  # of an earlier fit
        frame = as_frame(X) if table else None
        if frame is not None and needs_encoder(frame):
            _, y = self._validate_table_pair(np.zeros((len(frame), 1)), y, **check_y)
            numbers = check_y.get("y_numeric", False)
            targets = y.astype(np.float64) if numbers else np.unique(y, return_inverse=True)[1]
            X = self._fit_encoder(frame, targets, sample_weight)
        elif table:
            X, y = self._validate_table_pair(X if frame is None else frame, y, **check_y)
        else:
            X = read_points(X, self._input_kind, self._dtype)
            _, y = self._validate_table_pair(np.zeros((n_points(X), 1)), y, **check_y)  # validate y as for a table
            del self.n_features_in_
            self._shapes_ = point_shapes(X)
        self._table_ = table
        return X, y

    def _fit_encoder(self, frame: "pd.DataFrame", y: np.ndarray | None, sample_weight: ArrayLike | None) -> np.ndarray:
        """Fit `encoder_` to the rows of positive weight and return the encoded rows."""
        from unlazy.estimators.preprocessing.table_encoder import TableEncoder

        names = frame_names(frame)
        validate_data(self, frame, reset=True, skip_check_array=True)  # names and number of columns
        for column in getattr(self, "categorical", None) or ():
            j = column_position(column, len(names), names)
            frame = frame.astype({frame.columns[j]: "category"})
        encoder = TableEncoder()
        if sample_weight is None:
            X = encoder._fit_table(frame, y, None)
        else:
            weights = _check_sample_weight(sample_weight, np.zeros((len(frame), 1)), ensure_non_negative=True)
            keep = weights > 0
            known = encoder._fit_table(frame[keep], None if y is None else y[keep], weights[keep])
            X = np.zeros((len(frame), known.shape[1]))
            X[keep] = known  # the others are dropped
        self.encoder_ = encoder
        return self._checked(X)

    def _checked(self, X: np.ndarray) -> np.ndarray:
        """Return encoded rows in the precision of the estimator."""
        check_entries(X, self.encoder_.names_, self._dtype)
        return X.astype(self._dtype, copy=False)

    @property
    def _column_names(self) -> list[str] | None:
        """Names of the columns as the model sees them, encoded if there is an encoder; None if they have none."""
        encoder = getattr(self, "encoder_", None)
        names = getattr(self, "feature_names_in_", None) if encoder is None else encoder.names_
        return None if names is None else [str(name) for name in names]

    @property
    def _n_columns(self) -> int:
        """Number of columns as the model sees them."""
        encoder = getattr(self, "encoder_", None)
        return self.n_features_in_ if encoder is None else len(encoder.names_)

    def _per_input(self, weight: np.ndarray) -> np.ndarray:
        """Sum weights of encoded columns over those that come from the same column of the frame."""
        encoder = getattr(self, "encoder_", None)
        return weight if encoder is None else np.bincount(encoder.source_, weight, self.n_features_in_)

    def _validate_table_pair(self, X: Points, y: Labels, **check_y: Any) -> tuple[np.ndarray, np.ndarray]:
        """Validate a table X and targets y with scikit-learn."""
        found = {}

        def validate(X: Points) -> np.ndarray:
            try:
                X, found["y"] = validate_data(self, X, y, ensure_all_finite=False, dtype=np.float64, **check_y)
            except ValueError as error:
                if "Input y contains" in str(error):
                    raise ValueError(f"{error} Drop the rows whose target is unknown or infinite.") from error
                raise
            return X

        y = np.asarray(y) if isinstance(y, jax.Array) else y
        return dense_floats(X, validate, self._dtype), found["y"]

    def _with_weights(self, X: Points, Y: np.ndarray, sample_weight: Any) -> TrainingData:
        """Drop rows of weight zero; store None for weights that are all one."""
        if sample_weight is None:
            return TrainingData(X, Y, None)
        weights = _check_sample_weight(sample_weight, Y, dtype=self._dtype, ensure_non_negative=True)
        keep = weights > 0
        if not keep.any():
            raise ValueError("all sample weights are zero: give at least one row a positive weight")
        X, Y, weights = take(X, keep), Y[keep], weights[keep]
        return TrainingData(X, Y, None if np.all(weights == 1) else weights)

    def _restore_output_axes(self, Y: Any) -> np.ndarray:
        """Return predictions (m, c) as a NumPy array with as many axes as the y of `fit`."""
        Y = np.asarray(Y)
        return Y[:, 0] if self._y_axes_ == 1 else Y

    def __getstate__(self) -> dict[str, Any]:
        # JAX would unpickle float64 arrays as float32 outside a float64 scope, so kernels are pickled as NumPy
        return {name: _map_leaves(value, jax.Array, _PickledArray) for name, value in super().__getstate__().items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        to_jax = _PickledArray.to_jax
        super().__setstate__({name: _map_leaves(value, _PickledArray, to_jax) for name, value in state.items()})

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator to a file that `unlazy.load` reads.

        The file is in safetensors format with a JSON header; pickle is never used.

        Parameters
        ----------
        path : str or Path
            File to write.

        Raises
        ------
        UnlazyError
            If the estimator holds something that files cannot hold, such as a Python function, or if the file cannot be
            written.
        """
        files.save(self, path)


class KernelEstimator(Estimator):
    """Base class of estimators with a `kernel`: a name, for rows of numbers, or a kernel object."""

    _kernel_options: ClassVar[str] = "a name such as 'laplace'"
    kernel: str | Kernel
    offset_: np.ndarray
    """Subtracted from rows before a kernel given by name is applied."""

    @property
    def _input_kind(self) -> str:
        return "matrix" if self._kernel_object is None else self._kernel_object.input_kind

    @property
    def _kernel_object(self) -> Kernel | None:
        """The kernel if it is an object; None if it is a name."""
        return resolve_kernel(self.kernel, self._kernel_options)

    def _zero_offset(self, X: Points) -> np.ndarray:
        """Zero offset for a kernel object: one entry per column, or a scalar for points that are not rows."""
        return np.zeros(X.shape[1] if self._table_ else (), self._dtype)

    def _centered(self, X: Points) -> Any:
        """Subtract the offset."""
        return X - self.offset_ if self.offset_.ndim else X


class _PickledArray:
    """A JAX array stored as NumPy in a pickle."""

    def __init__(self, array: jax.Array):
        self.array = np.asarray(array)

    def to_jax(self) -> jax.Array:
        """Return the JAX array in its original precision."""
        with jax.enable_x64(self.array.dtype.itemsize == 8):
            return jnp.asarray(self.array)


def _map_leaves(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to the leaves of type `kind` of kernels and networks; return other values unchanged."""
    if not isinstance(value, eqx.Module | kind):
        return value

    def is_kind(leaf: Any) -> bool:
        return isinstance(leaf, kind)

    return jax.tree.map(lambda leaf: change(leaf) if is_kind(leaf) else leaf, value, is_leaf=is_kind)


def map_blocks(f: Callable[[Points], ArrayLike], X: Points, rows: int = 4096) -> np.ndarray:
    """Apply f to blocks of points and concatenate. Short blocks are padded to powers of two to limit compilations."""
    found, n = [], n_points(X)
    for i in range(0, n, rows):
        length = min(rows, n - i)
        size = min(rows, max(16, 1 << (length - 1).bit_length()))
        index = np.where(np.arange(size) < length, np.arange(i, i + size), i)  # pad with the first point
        found.append(np.asarray(f(take(X, index)))[:length])
    return np.concatenate(found)


def is_table(X: Points, takes: str) -> bool:
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


def read_points(X: Points, takes: str, dtype: np.dtype) -> Points:
    """Return a tree of NumPy arrays with a leading axis of points; floats are finite and of type `dtype`."""
    with in_precision(dtype.name):
        tree = jax.tree.map(np.asarray, as_points(X, "X", dtype, takes))
    for leaf in jax.tree.leaves(tree):
        check_finite("X", leaf)
    return tree


def point_shapes(X: Points) -> list[tuple[int, ...]]:
    """Shape of one point in each array."""
    return [tuple(leaf.shape[1:]) for leaf in jax.tree.leaves(X)]


def check_shapes(X: Points, fitted: list[tuple[int, ...]] | None) -> None:
    """Raise ValueError if the points of an array have another shape than in fit; for trees the kernel checks."""
    found = point_shapes(X)
    if fitted is None or len(found) != 1 or len(fitted) != 1 or found[0] == tuple(fitted[0]):
        return
    raise ValueError(
        f"the model was fitted to points of shape {tuple(fitted[0])}, got points of shape {found[0]}: images are (n, "
        "height, width, channels); X[..., None] adds a channel axis, X[None] makes a batch of one image"
    )


def take(X: Points, index: np.ndarray | slice) -> Points:
    """Return the points at this index."""
    return jax.tree.map(lambda leaf: leaf[index], X)


def on_device(X: Points) -> Points:
    """Convert the points to JAX arrays."""
    return jax.tree.map(jnp.asarray, X)


def as_rows(X: Points) -> np.ndarray:
    """Flatten each point to one row of numbers, for comparing points."""
    n = n_points(X)
    return np.concatenate([leaf.reshape(n, -1) for leaf in jax.tree.leaves(X)], 1)
