"""Errors in units of the best constant: 1 knows nothing but the mean (or the shares of the classes), 0 is exact."""

import numpy as np


def spread_of(y: np.ndarray, classes: np.ndarray | None) -> float:
    """Error of the constant: the variance, or 1 - Σ p_c² for classes of shares p_c."""
    if classes is None:
        return float(np.var(y))
    shares = np.array([np.mean(y == c) for c in classes])
    return float(1 - np.sum(shares**2))


def risk_of(
    predicted: np.ndarray, columns: np.ndarray | None, y: np.ndarray, classes: np.ndarray | None,
    spread: float | None = None,
) -> float:  # fmt: skip
    """Mean squared error, or Brier score Σ_c (p_c - 1{y = c})², over `spread` (by default the constant's on y)."""
    unit = spread_of(y, classes) if spread is None else spread
    if classes is None:
        found = float(np.mean((np.ravel(predicted) - y) ** 2))
    else:
        found = float(np.mean(np.sum((aligned(predicted, columns, classes) - one_hot(y, classes)) ** 2, 1)))
    return found / unit if unit > 0 else found


def aligned(probabilities: np.ndarray, columns: np.ndarray | None, classes: np.ndarray) -> np.ndarray:
    """Probabilities by class of the whole table; a class that training never met has none."""
    if columns is None or len(columns) == len(classes):
        return probabilities
    full = np.zeros((len(probabilities), len(classes)))
    full[:, np.searchsorted(classes, columns)] = probabilities
    return full


def one_hot(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Indicators (rows, classes)."""
    return (y[:, None] == classes[None]).astype(np.float64)
