"""Weighted kernel ridge regression with a free intercept for a given Gram matrix, on the host [K2].

min Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖²: `fit_ridge` for one ridge from a Cholesky factor of K + ρW⁻¹, `fit_ridge_path`
for a path of ridges from one eigendecomposition of √W K √W, both with the leave-one-out error in closed form
(theory.dynamics.leave_one_out), and `coordinate_search` for the bandwidth and ridge of smallest error [K3].

For about a thousand rows LAPACK is fastest: a factor and the diagonal of its inverse cost a tenth of an
eigendecomposition, so callers that need few ridges use the factor. If the ridge is large enough for float32, the factor
is computed in float32 at half the cost, and solutions are refined with float64 residuals (Higham, Accuracy and
Stability of Numerical Algorithms, ch. 12). `solvers.methods.direct` is for kernels and large n: it computes K itself.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Float
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dpotrf, dtrtri, spotrf, strtri

from unlazy.core import devices
from unlazy.core.arrays import dot, precision
from unlazy.theory.dynamics.leave_one_out import bordered_diagonal, leave_one_out_residual, with_intercept

Square = Float[np.ndarray, "n n"]
Outputs = Float[np.ndarray, "n c"]
Weights = Float[np.ndarray, " n"]
FLOAT32_REFINABLE_RIDGE = 1e-3
"""Smallest ridge, relative to the mean of k(x, x), for which a float32 factor is refined: residuals then decrease by
about n·2⁻²⁴/FLOAT32_REFINABLE_RIDGE per round."""
FLOAT32_RIDGE = 1e-2
"""Smallest relative ridge for which a fit is evaluated in float32 altogether: a leave-one-out residual then has a
random relative error of about √n·2⁻²⁴/FLOAT32_RIDGE, 2e-4 for a thousand rows, and the mean of the squares one of
about the square of that."""
FLOAT32_MIN_ROWS = 600
"""With fewer rows, refinement costs as much as the float32 factor saves."""
REFINEMENT_TOLERANCE = 1e-9
"""Residual of a refined solution, relative to the right-hand side."""
MAX_REFINEMENTS = 8
"""Maximum number of refinement rounds."""
RELATIVE_RIDGES = np.geomspace(1e2, 1e-9, 34)
"""Ridges of a path, relative to the mean of k(x, x); from the largest, so that ties select the smoother fit."""
SMALLEST_RIDGE, LARGEST_RIDGE = 1e-9, 1e3
"""Range of the ridges, relative to the mean of k(x, x)."""
BandwidthAndRidge = tuple[float, float]
"""Bandwidth, and ridge relative to the mean of k(x, x)."""

COARSE_STEP, FINE_STEP = (2.0, 10.0), (2.0**0.5, 10.0**0.5)
"""Factors of bandwidth and ridge in the coarse and in the fine search."""


def cholesky_factor(
    K: Square, ridge: float, weights: Weights | None = None, dtype: type | None = None
) -> Square | None:
    """L with K + ρW⁻¹ = LLᵀ and zeros above the diagonal, in the precision of K or in `dtype`.

    None if the matrix is not positive definite to rounding. K is not modified.
    """
    # K is symmetric: its transpose is column-major as LAPACK requires, without a transposing copy
    A = np.array(K.T, dtype or K.dtype, order="F")
    A.reshape(-1, order="F")[:: len(K) + 1] += ridge if weights is None else ridge / weights
    L, failed = (dpotrf if A.dtype == np.float64 else spotrf)(A, lower=1, overwrite_a=1, clean=1)
    return None if failed else L


class RidgeFactorization(NamedTuple):
    """K + ρW⁻¹ with its Cholesky factor, in float32 if that is accurate enough."""

    A: Square
    """The Gram matrix K."""
    added: Float[np.ndarray, " n"] | float
    """ρW⁻¹."""
    L: Square

    def solve(self, B: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"] | None:
        """(K + ρW⁻¹)⁻¹B; None if the refinement does not converge."""
        if self.L.dtype == B.dtype:
            return cholesky_solve(self.L, B)
        added = np.broadcast_to(self.added, len(B))[:, None]
        norm = np.linalg.norm(B, axis=0)
        found, left = np.zeros_like(B), B
        for _ in range(MAX_REFINEMENTS):
            found = found + cholesky_solve(self.L, left.astype(self.L.dtype)).astype(B.dtype)
            left = B - dot(self.A, found) - added * found
            if (np.linalg.norm(left, axis=0) <= REFINEMENT_TOLERANCE * norm).all():
                return found
        return None


def factorize_ridge(
    K: Square, relative_ridge: float, weights: Weights | None, columns: int
) -> RidgeFactorization | None:
    """Factorize K + ρW⁻¹ for the given number of right-hand sides; ρ is relative to the mean of k(x, x).

    None if the matrix is not positive definite to rounding.
    """
    ridge = relative_ridge * float(np.mean(np.diagonal(K)))
    added = ridge if weights is None else ridge / weights
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    if (
        K.dtype == np.float64
        and len(K) >= FLOAT32_MIN_ROWS
        and smallest >= FLOAT32_REFINABLE_RIDGE
        and 50 * columns <= len(K)
    ):
        L = cholesky_factor(K, ridge, weights, np.float32)
        if L is not None:
            return RidgeFactorization(K, added, L)
    L = cholesky_factor(K, ridge, weights)
    return None if L is None else RidgeFactorization(K, added, L)


def evaluation_dtype(n: int, relative_ridge: float, weights: Weights | None) -> type:
    """Precision in which a fit to n rows is compared with others."""
    smallest = relative_ridge if weights is None else relative_ridge / float(weights.max())
    return np.float32 if n >= FLOAT32_MIN_ROWS and smallest >= FLOAT32_RIDGE else np.float64


def cholesky_solve(L: Square, B: Float[np.ndarray, " n *c"]) -> Float[np.ndarray, " n *c"]:
    """(LLᵀ)⁻¹B."""
    return cho_solve((L, True), B, check_finite=False)


def inverse_diagonal(L: Square, last: int | None = None) -> Float[np.ndarray, " m"]:
    """The last diagonal entries (all if None) of (LLᵀ)⁻¹.

    These are the squared column norms of the inverse of the last block of L, so a few of them cost little more than the
    factor.
    """
    part = slice(0 if last is None else len(L) - last, None)
    inverse, _ = (dtrtri if L.dtype == np.float64 else strtri)(L[part, part], lower=1)
    return np.einsum("ij,ij->j", inverse, inverse)


def eigh(K: Square, overwrite: bool = False) -> tuple[Float[np.ndarray, " n"], Square]:
    """Eigendecomposition by LAPACK on the CPU, or on the GPU if there is one, in the precision of K."""
    if not devices.is_host():
        with precision(K.dtype.name):
            s, V = jnp.linalg.eigh(jnp.asarray(K))
            return np.asarray(s), np.asarray(V)
    return scipy.linalg.eigh(K, driver="evd", check_finite=False, overwrite_a=overwrite)


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
    diagonal = bordered_diagonal(inverse_diagonal(L, last).astype(Y.dtype), ones[evaluated], ones.sum())
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


def ridge_coefficients_in_place(
    K: Square, Y: Outputs, ridge: float, weights: Weights | None = None
) -> tuple[Outputs, Float[np.ndarray, " c"]]:
    """α and the intercept in the memory of K alone: the factor overwrites K, of which the lower triangle is read.

    Raise ValueError if K + ρW⁻¹ is not positive definite to rounding.
    """
    K.reshape(-1)[:: len(K) + 1] += ridge if weights is None else ridge / weights
    # rows of the lower triangle are columns of the upper one, as LAPACK reads it: no copy
    U, failed = dpotrf(K.T, lower=0, overwrite_a=1, clean=0)
    if failed:
        raise ValueError(f"K + {ridge:.2g}·I is not positive definite to rounding: use a larger ridge")
    center = weighted_mean(Y, weights)
    S = cho_solve((U, False), np.concatenate([Y - center, np.ones((len(Y), 1))], 1), check_finite=False)
    alpha, shift = with_intercept(S[:, :-1], S[:, -1])
    return alpha, center + shift


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
    return Y.mean(0) if weights is None else dot(weights, Y) / weights.sum()


def unexplained_variance(missed: Outputs, Y: Outputs, weights: Weights | None = None) -> float:
    """Squared error divided by the variance of the outputs, all outputs together, weighted by rows."""
    w = np.full(len(Y), 1 / len(Y)) if weights is None else weights / weights.sum()
    spread = float(np.sum(dot(w, (Y - dot(w, Y)) ** 2)))
    found = float(np.sum(dot(w, missed**2)))
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
    A = factorize_ridge(K, relative_ridge, weights, B.shape[1])
    if A is None:
        return None
    S = A.solve(B)
    if S is None:  # refinement failed: use full precision
        L = cholesky_factor(K, relative_ridge * _unit(K), weights)
        if L is None:
            return None
        A, S = A._replace(L=L), cholesky_solve(L, B)
    S = S.astype(Y.dtype, copy=False)
    return *with_intercept(S[:, :-1], S[:, -1]), S[:, -1], A.L


class _Spectral:
    """(K + ρW⁻¹)⁻¹ = √W V F Vᵀ √W with √W K √W = V diag(s) Vᵀ and F = 1/(s + ρ), one column per ridge."""

    def __init__(self, K: Square, root: Float[np.ndarray, "n 1"], Y: Outputs):
        self.s, self.V = eigh(K * root * root.T)
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


def coordinate_search(
    error: Callable[[float, float], float],
    start: BandwidthAndRidge,
    *,
    ridge: bool = True,
    bandwidth: bool = True,
    steps: tuple[BandwidthAndRidge, ...] = (COARSE_STEP, FINE_STEP),
    reach: float = 128.0,
    worth: float = 1e-4,
    at_start: float | None = None,
) -> tuple[BandwidthAndRidge, float]:
    """Search a bandwidth and a ridge of small error, downhill from `start`, first by large and then by small factors.

    `ridge` and `bandwidth` say which of them may change; the bandwidth stays within a factor `reach` of its start. A
    move is accepted if it reduces the error by more than the share `worth`; a successful move is tried again first.
    `at_start` is the error at the start, if known. If it is infinite (K + ρI not positive definite), the ridge is
    increased first.
    """
    known: dict[tuple[int, int], float] = {}

    def at(h: float, rho: float) -> float:
        place = (round(1000 * math.log2(h)), round(1000 * math.log2(rho)))
        if place not in known:
            found = error(h, rho)
            known[place] = found if math.isfinite(found) else math.inf
        return known[place]

    (h, rho), (first, _) = start, start
    best = at(h, rho) if at_start is None else at_start
    while ridge and math.isinf(best) and rho < LARGEST_RIDGE:
        rho *= 10
        best = at(h, rho)
    for by_h, by_rho in steps:
        moves = [(1, by_rho), (1, 1 / by_rho)] * ridge + [(by_h, 1), (1 / by_h, 1)] * bandwidth
        moved = True
        while moved:
            moved = False
            for move in moves:
                new_h, new_rho = h * move[0], rho * move[1]
                inside = SMALLEST_RIDGE <= new_rho <= LARGEST_RIDGE and 1 / reach <= new_h / first <= reach
                if inside and at(new_h, new_rho) < best * (1 - worth):
                    h, rho, best, moved = new_h, new_rho, at(new_h, new_rho), True
                    moves = [move, *(m for m in moves if m != move)]
                    break
    return (h, rho), best


def leave_one_out(
    gram: Callable[..., Float[np.ndarray, "n n"]], Y: Outputs, weights: Weights | None = None
) -> Callable[[float, float], float]:
    """Return the leave-one-out error as a function of bandwidth and ridge.

    `gram` returns K for a bandwidth and caches the last one.
    """

    def error(h: float, rho: float) -> float:
        found = fit_ridge(gram(h, dtype=evaluation_dtype(len(Y), rho, weights)), Y, rho, weights)
        return math.inf if found is None else found.error

    return error
