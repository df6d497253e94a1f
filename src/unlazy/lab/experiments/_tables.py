"""Small scikit-learn datasets, shuffled and standardized, for experiments on real data."""

import numpy as np

TABLES = ("diabetes", "breast_cancer", "wine", "digits")
MOST = 600
"""Maximum number of rows of a dataset: training, validation and test rows together."""


def table(name: str, seed: int, n: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels, and the labels again, in random order, standardized by the first n rows.

    Inputs are zero-padded or projected onto the leading principal components, so that all have `columns` columns.
    """
    from sklearn import datasets

    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    y = {"breast_cancer": 2.0 * y - 1, "wine": np.where(y == 1, 1.0, -1.0)}.get(name, y.astype(float))
    order = np.random.default_rng(seed).permutation(len(y))[:MOST]
    X, y = X[order], y[order]
    spread = X[:n].std(0)
    X = (X - X[:n].mean(0)) / np.where(spread > 0, spread, 1)
    X = np.clip(X, -5, 5)
    if X.shape[1] > columns:
        X = X @ np.linalg.svd(X[:n], full_matrices=False)[2][:columns].T
    y = (y - y[:n].mean()) / y[:n].std()
    return pad_columns(X, columns), y, y


def pad_columns(X: np.ndarray, columns: int) -> np.ndarray:
    """Append zero columns and rescale the others, so that x·z/d is unchanged."""
    return np.pad(X * np.sqrt(columns / X.shape[1]), ((0, 0), (0, columns - X.shape[1])))
