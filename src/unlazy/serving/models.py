"""Saved estimators as functions of rows: scores f(x), and what `predict` makes of them."""

from collections.abc import Callable

import numpy as np
from scipy.special import softmax

from unlazy.core.errors import UnlazyError
from unlazy.serving.kernels import Gram, gram_function
from unlazy.serving.saved_objects import SavedObject

Scores = Callable[[np.ndarray], np.ndarray]
BLOCK_ENTRIES = 10**6
"""Entries of K that are held at once."""


class KernelSum:
    """f(z) = b + Σ_i α_i k(Lz/h, Lx_i/h), in blocks of rows."""

    def __init__(self, gram: Gram, X: np.ndarray, alpha: np.ndarray, b: np.ndarray, L: np.ndarray, h: float = 1.0):
        self._gram, self._alpha, self._b = gram, np.asarray(alpha, np.float64), np.asarray(b, np.float64)
        self._map, self._h = np.asarray(L, np.float64), float(h)
        self._centers = self._mapped(X)

    def __call__(self, Z: np.ndarray) -> np.ndarray:
        rows = max(1, BLOCK_ENTRIES // len(self._centers))
        starts = range(0, len(Z), rows)
        parts = [self._gram(self._mapped(Z[i : i + rows]), self._centers) @ self._alpha for i in starts]
        return np.concatenate(parts) + self._b

    def _mapped(self, Z: np.ndarray) -> np.ndarray:
        Z = np.asarray(Z, np.float64)
        return (Z * self._map if self._map.ndim == 1 else Z @ self._map.T) / self._h


def scores_of(model: SavedObject) -> Scores:
    """Return f of a saved estimator; raise UnlazyError if NumPy cannot evaluate it."""
    if model.kind.startswith("FeatureMachine"):
        return _feature_machine(model)
    if model.kind in ("KernelRegressor", "KernelClassifier"):
        return _kernel_machine(model)
    raise UnlazyError(f"{model.kind} needs JAX: load the model with unlazy.load")


def predict(model: SavedObject, scores: np.ndarray) -> np.ndarray:
    """What the estimator's `predict` returns for these scores."""
    classes = model.get("classes_")
    if classes is not None:
        return np.asarray(classes)[np.argmax(_logits(model, scores), axis=1)]
    return scores[:, 0] if model.get("_y_axes_", 1) == 1 else scores


def probabilities(model: SavedObject, scores: np.ndarray) -> np.ndarray:
    """What the classifier's `predict_proba` returns for these scores."""
    if model.get("classes_") is None:
        raise ValueError(f"{model.kind} predicts numbers, which have no class probabilities: call predict")
    return softmax(_logits(model, scores), axis=1)


def _logits(model: SavedObject, scores: np.ndarray) -> np.ndarray:
    return model["calibration_slope_"] * scores + np.asarray(model["calibration_shift_"])


def _kernel_machine(model: SavedObject) -> Scores:
    X = np.asarray(model["X_fit_"], np.float64)
    if X.ndim != 2:
        raise UnlazyError(f"this {model.kind} was fitted to points that are no rows of numbers: use unlazy.load")
    offset = np.asarray(model["offset_"], np.float64)
    f = KernelSum(gram_function(model["kernel_"]), X, model["dual_coef_"], model["intercept_"], np.ones(X.shape[1]))
    return lambda Z: f(Z - offset)


def _feature_machine(model: SavedObject) -> Scores:
    base, tree = gram_function(model["_base_"]), model.get("_tree_")
    offset, scale = np.asarray(model["offset_"], np.float64), np.asarray(model["scale_"], np.float64)
    if tree is None:
        f = _ensemble(model, base)
    else:
        f = _partitioned(model, base, tree)
    codes = model.get("_codes_") or {"columns": (), "levels": (), "numbers": True}
    return lambda Z: f((_encode(Z, **codes) - offset) / scale)


def _ensemble(model: SavedObject, base: Gram) -> Scores:
    """The weighted mean of the members."""
    X, others = model["X_fit_"], model.get("_others_") or []
    first = KernelSum(base, X, model["dual_coef_"], model["intercept_"], model["map_"], model["bandwidth_"])
    members = [(1 - sum(one["weight"] for one in others), first)]
    for one in others:
        f = KernelSum(gram_function(one["kernel"]), X, one["dual_coef"], one["intercept"], one["map"], one["bandwidth"])
        members.append((one["weight"], f))
    return lambda Z: sum(weight * f(Z) for weight, f in members)  # type: ignore[return-value]


def _partitioned(model: SavedObject, base: Gram, tree: dict) -> Scores:
    """One fit for each leaf of a tree: node i sends x left if directions[i]·x ≤ thresholds[i]."""
    parts = zip(model["X_fit_"], model["dual_coef_"], model["intercept_"])
    leaves = [KernelSum(base, X, alpha, b, model["map_"], model["bandwidth_"]) for X, alpha, b in parts]
    outputs = np.asarray(model["intercept_"]).shape[1]

    def f(Z: np.ndarray) -> np.ndarray:
        leaf, found = _leaf(tree, Z), np.empty((len(Z), outputs))
        for i, fit in enumerate(leaves):
            rows = np.flatnonzero(leaf == i)
            if len(rows):
                found[rows] = fit(Z[rows])
        return found

    return f


def _leaf(tree: dict, Z: np.ndarray) -> np.ndarray:
    """Leaf of every row; a child c < 0 is the leaf -1 - c."""
    directions, thresholds, children = (np.asarray(tree[name]) for name in ("directions", "thresholds", "children"))
    node = np.full(len(Z), 0 if len(thresholds) else -1)
    inner = np.flatnonzero(node >= 0)
    while len(inner):
        at = node[inner]
        right = np.einsum("ij,ij->i", Z[inner], directions[at]) > thresholds[at]
        node[inner] = children[at, right.astype(int)]
        inner = inner[node[inner] >= 0]
    return -1 - node


def _encode(Z: np.ndarray, columns: tuple, levels: tuple, numbers: bool) -> np.ndarray:
    """Indicators of the columns that hold integer codes, in addition to the numbers or in place of them."""
    if not columns:
        return Z
    kept = Z if numbers else np.delete(Z, columns, 1)
    return np.hstack([kept, *(Z[:, [j]] == np.asarray(values) for j, values in zip(columns, levels))])
