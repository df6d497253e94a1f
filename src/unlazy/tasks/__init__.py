"""Data distributions with known targets and known theoretical properties."""

from unlazy.tasks.base import RiskEstimate, Task, nested
from unlazy.tasks.circle import Circle
from unlazy.tasks.cube import CubePolynomial, parity, staircase
from unlazy.tasks.functions_1d import Function1D, heaviside, piecewise, smooth
from unlazy.tasks.gaussian import directions
from unlazy.tasks.images import digits, idx_images, npz_images
from unlazy.tasks.index_models import (
    IndexModel,
    band_sign,
    cubic_sign,
    index_model,
    multi_index,
    quadratic_plus,
    single_index,
)
from unlazy.tasks.manifolds import Manifold, manifold
from unlazy.tasks.patterns import Patterns, pattern_task
from unlazy.tasks.polynomials import RankPolynomial, hermite_polynomial, quadratic, rank_polynomial
from unlazy.tasks.table import TableTask
from unlazy.tasks.teachers import Teacher, teacher

__all__ = [
    "Circle", "CubePolynomial", "Function1D", "IndexModel", "Manifold", "Patterns", "RankPolynomial",
    "RiskEstimate", "TableTask", "Task", "Teacher", "band_sign", "cubic_sign", "digits", "directions", "heaviside",
    "hermite_polynomial",
    "idx_images", "index_model", "manifold", "multi_index", "nested", "npz_images", "parity", "pattern_task",
    "piecewise", "quadratic", "quadratic_plus", "rank_polynomial", "single_index", "smooth", "staircase", "teacher",
]  # fmt: skip
