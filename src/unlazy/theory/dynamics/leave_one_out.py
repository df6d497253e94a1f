"""Leave-one-out residuals of ridge regression in closed form, with and without an intercept [K2].

A = K + ρW⁻¹. Without an intercept the fit without point i misses y_i by (A⁻¹y)_i/(A⁻¹)_ii. With an intercept b, α and b
solve [A, 1; 1ᵀ, 0][α; b] = [y; 0], and A⁻¹ becomes P = A⁻¹ - A⁻¹11ᵀA⁻¹/(1ᵀA⁻¹1):

    α = Py,   b = 1ᵀA⁻¹y/(1ᵀA⁻¹1),   y_i - f^(-i)(x_i) = α_i/P_ii.

A⁻¹Y, A⁻¹1 and diag A⁻¹ can come from a factorization or from a spectrum; or P = H(HKH + ρI)⁻¹H, H = I - 11ᵀ/n, from the
spectrum of HKH. NumPy arrays give NumPy; JAX arrays are differentiable. Golub, Heath and Wahba (1979); Wahba, Spline
Models for Observational Data (1990), section 4.2.
"""

from typing import TypeVar

from jaxtyping import Array
from numpy import ndarray

from unlazy.core.arrays import A, namespace

S = TypeVar("S", float, Array, ndarray)


def with_intercept(solved: A, ones: A) -> tuple[A, A]:
    """α and b from A⁻¹Y and A⁻¹1."""
    intercept = solved.sum(0) / ones.sum()
    return solved - ones[:, None] * intercept, intercept


def bordered_diagonal(diagonal: A, ones: A, total: float | Array | ndarray) -> A:
    """P_ii from (A⁻¹)_ii and (A⁻¹1)_i of some points and 1ᵀA⁻¹1 of all; at least the rounding of (A⁻¹)_ii."""
    xp = namespace(diagonal)
    return xp.maximum(diagonal - ones * ones / total, xp.finfo(diagonal.dtype).eps * diagonal)


def leave_one_out_residual(alpha: A, diagonal: A) -> A:
    """y_i - f^(-i)(x_i) = α_i/P_ii; zero where P_ii is zero, as on padded rows. Shapes broadcast."""
    xp = namespace(alpha, diagonal)
    zero = diagonal == 0
    return xp.where(zero, xp.zeros_like(alpha), alpha / xp.where(zero, 1, diagonal))


def gcv_score(squares: S, trace: S, n: S | float) -> S:
    """GCV = (1/n)‖(I - H)y‖²/((1/n) tr(I - H))² from ‖(I - H)y‖² and tr(I - H) (Golub, Heath and Wahba 1979).

    A common factor of I - H cancels.
    """
    mean = trace / n
    return squares / n / (mean * mean)
