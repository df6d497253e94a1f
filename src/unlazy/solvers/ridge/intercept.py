"""Weighted kernel ridge regression with a free intercept, and its leave-one-out error in closed form [K2].

min Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖² for a given Gram matrix: `fit_ridge` for one ridge from a Cholesky factor,
`fit_ridge_path` for a path of ridges from one eigendecomposition of √W K √W. The formula is in
theory.dynamics.leave_one_out, the linear algebra in solvers.ridge.factorization.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from unlazy.core.linalg import dot
from unlazy.solvers.ridge import factorization
from unlazy.theory.dynamics.leave_one_out import bordered_diagonal, leave_one_out_residual, with_intercept

Square = Float[np.ndarray, "n n"]
Outputs = Float[np.ndarray, "n c"]
Weights = Float[np.ndarray, " n"]
RELATIVE_RIDGES = np.geomspace(1e2, 1e-9, 34)
"""Ridges of a path, relative to the mean of k(x, x); from the largest, so that ties select the smoother fit."""


class RidgeFit(NamedTuple):
    """Coefficients, intercept, and for every evaluated point the prediction of the fit without it."""

    alpha: Outputs
    intercept: Float[np.ndarray, " c"]
    held_out: Float[np.ndarray, "m c"]
    """Leave-one-out predictions."""
    error: float
    """Mean squared leave-one-out error divided by the variance of the outputs: 1 for predicting the mean."""
    ridge: float
    """The ridge added to K (divided by the weight of a row)."""


def fit_ridge(
    K: Square, Y: Outputs, relative_ridge: float, weights: Weights | None = None, last: int | None = None
) -> RidgeFit | None:
    """Fit at one ridge, relative to the mean of k(x, x), evaluated at its `last` points (all if None).

    The error is that of all outputs together. None if K + ρW⁻¹ is not positive definite to rounding.
    """
    center = weighted_mean(Y, weights)
    solved = _solved(K, Y - center, relative_ridge, weights)
    if solved is None:
        return None
    alpha, shift, ones, L = solved
    evaluated = slice(len(K) - (len(K) if last is None else last), None)
    diagonal = bordered_diagonal(factorization.inverse_diagonal(L, last).astype(Y.dtype), ones[evaluated], ones.sum())
    missed = leave_one_out_residual(alpha[evaluated], diagonal[:, None])
    error = unexplained_variance(missed, Y[evaluated], None if weights is None else weights[evaluated])
    return RidgeFit(alpha, center + shift, Y[evaluated] - missed, error, relative_ridge * _unit(K))


def ridge_coefficients(
    K: Square, Y: Outputs, relative_ridge: float, weights: Weights | None = None
) -> tuple[Outputs, Float[np.ndarray, " c"]]:
    """α and the intercept only, at half the cost; raise ValueError if K + ρW⁻¹ is not positive definite."""
    center = weighted_mean(Y, weights)
    solved = _solved(K, Y - center, relative_ridge, weights)
    if solved is None:
        raise ValueError(
            f"K + {relative_ridge:.2g}·mean k(x, x)·I is not positive definite: use a larger ridge or float64"
        )
    return solved[0], center + solved[1]


def fit_ridge_path(K: Square, Y: Outputs, weights: Weights | None, ridge: float | None) -> RidgeFit:
    """Fit at `ridge`, or at the ridge of the path with the smallest leave-one-out error if it is None.

    The error is the mean over outputs, each relative to its variance. Points must be distinct rows: merge duplicates
    first.
    """
    n = len(K)
    w = np.ones(n, Y.dtype) if weights is None else weights
    center = dot(w, Y) / w.sum()
    if n == 1:
        return RidgeFit(np.zeros_like(Y), center, Y, 0.0, 0.0 if ridge is None else float(ridge))
    inverse = _Spectral(K, np.sqrt(w)[:, None], Y - center)
    rho = np.maximum(RELATIVE_RIDGES * _unit(K) if ridge is None else np.array([ridge]), inverse.floor)
    scale = np.maximum(dot(w, (Y - center) ** 2) / w.sum(), np.finfo(Y.dtype).tiny)
    found = inverse.fits(rho)
    errors = [float(np.mean(dot(w, e**2) / w.sum() / scale)) for _, _, e in found]
    best = int(np.nanargmin(errors)) if np.isfinite(errors).any() else 0
    alpha, shift, missed = found[best]
    return RidgeFit(alpha, center + shift, Y - missed, errors[best], float(rho[best]))


def weighted_mean(Y: Outputs, weights: Weights | None) -> Float[np.ndarray, " c"]:
    """Mean label, weighted by rows."""
    return Y.mean(0) if weights is None else weights @ Y / weights.sum()


def unexplained_variance(missed: Outputs, Y: Outputs, weights: Weights | None = None) -> float:
    """Squared error divided by the variance of the outputs, all outputs together, weighted by rows."""
    w = np.full(len(Y), 1 / len(Y)) if weights is None else weights / weights.sum()
    spread = float(np.sum(w @ (Y - w @ Y) ** 2))
    found = float(np.sum(w @ missed**2))
    return found / spread if spread > 0 else 0.0


def _unit(K: Square) -> float:
    """Mean of k(x, x)."""
    return float(np.mean(np.diagonal(K)))


def _solved(
    K: Square, Y: Outputs, relative_ridge: float, weights: Weights | None
) -> tuple[Outputs, Float[np.ndarray, " c"], Weights, Square] | None:
    """α, the shift of the intercept, A⁻¹1 and the factor; None if A is not positive definite to rounding.

    Computed in the precision of K, returned in that of Y.
    """
    B = np.concatenate([Y, np.ones((len(Y), 1), Y.dtype)], 1).astype(K.dtype, copy=False)
    A = factorization.factorize_ridge(K, relative_ridge, weights, B.shape[1])
    if A is None:
        return None
    S = A.solve(B)
    if S is None:  # refinement failed: use full precision
        L = factorization.cholesky_factor(K, relative_ridge * _unit(K), weights)
        if L is None:
            return None
        A, S = A._replace(L=L), factorization.cholesky_solve(L, B)
    S = S.astype(Y.dtype, copy=False)
    return *with_intercept(S[:, :-1], S[:, -1]), S[:, -1], A.L


class _Spectral:
    """(K + ρW⁻¹)⁻¹ = √W V F Vᵀ √W with √W K √W = V diag(s) Vᵀ and F = 1/(s + ρ), one column per ridge."""

    def __init__(self, K: Square, root: Float[np.ndarray, "n 1"], Y: Outputs):
        self.s, self.V = factorization.eigh(K * root * root.T)
        self.root, self.inside = root, dot(self.V.T, root * Y)
        kind = np.finfo(K.dtype)
        self.floor = len(K) * float(kind.eps) * max(float(self.s[-1]), float(kind.tiny))

    def fits(self, rho: Float[np.ndarray, " l"]) -> list[tuple[Outputs, Float[np.ndarray, " c"], Outputs]]:
        """α, the shift of the intercept and the leave-one-out residuals at every ridge."""
        V, root = self.V, self.root
        F = 1 / (np.maximum(self.s, 0)[:, None] + rho)
        diagonals, ones = root**2 * dot(V**2, F), root * dot(V, F * dot(V.T, root))
        found = []
        for filtered, diagonal, one in zip(F.T, diagonals.T, ones.T):
            alpha, shift = with_intercept(root * dot(V, filtered[:, None] * self.inside), one)
            found.append(
                (alpha, shift, leave_one_out_residual(alpha, bordered_diagonal(diagonal, one, one.sum())[:, None]))
            )
        return found
