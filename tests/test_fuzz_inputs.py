"""2,000 cases of kernels × entry_points × precisions × inputs: right within the stated error, rejected, or reported.

Every result is held against NumPy (oracles_kernels), with bounds that follow from rounding alone:

- an entry of K: ⟨x,z⟩ of d terms rounds by d units of |x||z| in any order (Higham 2002, section 3.1), ⟨x,x⟩ and ⟨z,z⟩
  too, and points closer than the snap floor, (4 + 2√d) units, count as one. So 1 - cos θ and ‖x-z‖²/r², r² the largest
  squared norm (after centering for kernels of x - z, which doubles it at most), are off by δ = (8d + 32) units. A
  kernel moves by at most `smooth`·δ, or by `kinked`·√δ where it is rough at x = z, and by 100 roundings of its own.
- K @ V: the same in every term, and n more roundings.
- a fit (K + ρI)α = y: with ‖E‖ the error of K (entries, and n roundings of ‖K‖ in the factorization or eigenvectors),
  ‖δf‖ ≤ 2‖E‖/ρ ‖y‖ at the training points while ‖E‖ ≤ ρ/2, and ‖K_zX‖/ρ more elsewhere.
- `solve` promises ‖f(X) - f°(X)‖ ≤ tolerance·‖y‖ when it says converged, and ≤ residual·‖y‖ when it does not.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import oracles_kernels as oracle
from unlazy.core.errors import UnlazyWarning
from unlazy.estimators.gaussian_process import GaussianProcess
from unlazy.estimators.kernel import KernelRegressor
from unlazy.kernels.dot_product import ArcCosine, Linear, Polynomial
from unlazy.kernels.metric import Metric
from unlazy.kernels.networks.infinite_width import NNGP, NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.products import gram, matmul
from unlazy.solvers.gaussian_process.posterior import posterior
from unlazy.solvers.method_selection import METHODS
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.theory.infinite_width.architecture import MLP

pytestmark = pytest.mark.slow

N, M, D, CASES = 16, 5, 3, 2000
TOLERANCE = 1e-3
SCALES = np.array([1.0, 0.5, 2.0])


@dataclass(frozen=True)
class Entry:
    """A kernel, its oracle, and how far it moves with δ; `bandwidth` is that of a kernel of x - z, else None."""

    make: Any
    exact: Any
    smooth: float = 0.0
    kinked: float = 0.0
    bandwidth: float | None = None
    stretch: float = 0.0
    """σ_w² where δ counts 1 + 2σ_w²|x|²/d times."""


def _network(kind, depth, activation, sigma_w, sigma_b):
    index = {NNGP: 0, NTK: 1}[kind]
    return (
        lambda: kind(MLP(depth, activation, sigma_w, sigma_b)),
        lambda X, Z: oracle.infinite_width(X, Z, depth, activation, sigma_w, sigma_b)[index],
    )


KERNELS = {
    # |dk/d‖x-z‖²| ≤ 1/(2h²), 3/(2h²), 5/(6h²), 1/(2h²); at a kink |δk| ≤ √δD/h
    "gaussian": Entry(lambda: Gaussian(1.5), lambda X, Z: oracle.gaussian(X, Z, 1.5), 0.5, 0, 1.5),
    "laplace": Entry(lambda: Laplace(1.5), lambda X, Z: oracle.laplace(X, Z, 1.5), 0, 1, 1.5),
    "matern12": Entry(lambda: Matern(1.5, 0.5), lambda X, Z: oracle.matern(X, Z, 0.5, 1.5), 0, 1, 1.5),
    "matern32": Entry(lambda: Matern(1.5, 1.5), lambda X, Z: oracle.matern(X, Z, 1.5, 1.5), 1.5, 0, 1.5),
    "matern52": Entry(lambda: Matern(1.5, 2.5), lambda X, Z: oracle.matern(X, Z, 2.5, 1.5), 1.5, 0, 1.5),
    "rational": Entry(
        lambda: RationalQuadratic(1.5, 0.7), lambda X, Z: oracle.rational_quadratic(X, Z, 1.5, 0.7), 0.5, 0, 1.5
    ),
    "metric": Entry(
        lambda: Metric(Laplace(1.5), jnp.asarray(SCALES)), lambda X, Z: oracle.laplace(X * SCALES, Z * SCALES, 1.5),
        0, 2, 1.5,  # the map stretches norms by 2 at most
    ),
    "product_laplace": Entry(lambda: ProductLaplace(2.0), lambda X, Z: oracle.product_laplace(X, Z, 2.0), 1, 0, 2.0),
    # relative to √(k(x,x) k(z,z)): 1 + c/|x|² more for an offset, degree times as much for a power
    "linear": Entry(lambda: Linear(0.5), lambda X, Z: X @ Z.T + 0.5, 1),
    "polynomial": Entry(lambda: Polynomial(3, 1.0), lambda X, Z: oracle.polynomial(X, Z, 3, 1.0), 3),
    # in u = 1 - cos θ: |δθ| ≤ √(2δ), slopes 1/π, 1, 3
    "arccos0": Entry(lambda: ArcCosine(0), lambda X, Z: oracle.arc_cosine(X, Z, 0), 0, 0.5),
    "arccos1": Entry(lambda: ArcCosine(1), lambda X, Z: oracle.arc_cosine(X, Z, 1), 1),
    "arccos2": Entry(lambda: ArcCosine(2), lambda X, Z: oracle.arc_cosine(X, Z, 2), 3),
    # normalized: NNGP slope at most 1 in u, NTK (depth/2)/π in θ besides
    "nngp_relu": Entry(*_network(NNGP, 3, "relu", 1.4, 0.3), 1),
    "ntk_relu": Entry(*_network(NTK, 3, "relu", 1.4, 0.3), 4, 0.7),
    "ntk_plain": Entry(*_network(NTK, 2, "relu", 1.4, 0.0), 4, 0.5),
    # erf: 1/√((1+2xx)(1+2zz) - 4xz²) loses a factor 1 + 2xx of digits near the diagonal, the arcsine its root
    "nngp_erf": Entry(*_network(NNGP, 2, "erf", 1.3, 0.2), 10, stretch=1.3**2),
    "ntk_erf": Entry(*_network(NTK, 2, "erf", 1.3, 0.2), 10, stretch=1.3**2),
    "sum": Entry(
        lambda: Gaussian(1.5) + 0.5 * Laplace(1.5),
        lambda X, Z: oracle.gaussian(X, Z, 1.5) + 0.5 * oracle.laplace(X, Z, 1.5), 0.5, 1, 1.5,
    ),
    "mixed": Entry(
        lambda: Linear(0.5) * ProductLaplace(2.0), lambda X, Z: (X @ Z.T + 0.5) * oracle.product_laplace(X, Z, 2.0), 3
    ),
}  # fmt: skip
INPUTS = (
    "plain", "NaN", "infinity", "minus infinity", "huge", "large", "tiny", "small", "duplicated", "constant", "zeros",
    "one row", "bfloat16", "float16", "integers", "lists", "frame", "offset", "NaN in Z",
)  # fmt: skip
REFUSED = ("NaN", "infinity", "minus infinity", "NaN in Z")
DOORS = (
    "gram", "cross", "products.gram", "matmul", *METHODS, "ridge_path", "posterior", "gp estimator", "kernel estimator",
)  # fmt: skip


def _points(kind, rng, rows):
    X = rng.normal(size=(rows, D))
    if kind == "duplicated":
        X = X[rng.integers(0, 4, rows)]
    scale = {"huge": 1e20, "large": 1e4, "tiny": 1e-22, "small": 1e-6}.get(kind, 1.0)
    X = X * scale + (100.0 if kind == "offset" else 0.0)
    if kind in ("constant", "zeros"):
        X = np.full((rows, D), 0.7 if kind == "constant" else 0.0)
    if kind in ("integers", "lists"):
        X = np.round(2 * X)
    if kind in REFUSED[:3]:
        X[rng.integers(rows), rng.integers(D)] = {"NaN": np.nan, "infinity": np.inf}.get(kind, -np.inf)
    return X


def _form(kind, X, dtype):
    """The points as a user may hold them."""
    if kind == "bfloat16":
        return jnp.asarray(X, jnp.bfloat16)
    if kind == "frame":
        return pd.DataFrame(X.astype(dtype), columns=[f"x{j}" for j in range(X.shape[1])])
    forms = {"float16": lambda: X.astype(np.float16), "integers": lambda: X.astype(int), "lists": X.tolist}
    return forms.get(kind, lambda: X.astype(dtype))()


def _bound(entry, Kxx, Kzz, X, Z, dtype):
    """Largest error of every entry of K(X, Z), from the two diagonals."""
    unit = float(np.finfo(dtype).eps) / 2
    delta = (8 * D + 32) * unit
    size = np.sqrt(Kxx)[:, None] * np.sqrt(Kzz)[None]
    if entry.bandwidth is None:
        delta = delta * (1 + 2 * entry.stretch * max((X * X).sum(1).max(), (Z * Z).sum(1).max()) / D)
        return size * (entry.smooth * delta + entry.kinked * np.sqrt(delta) + 100 * unit)
    center = Z.mean(0)
    r2 = max(((X - center) ** 2).sum(1).max(), ((Z - center) ** 2).sum(1).max())
    # the center rounds by a unit of the offset, differences of it by as much
    offset = unit * np.abs(Z).max() * np.sqrt(D) / entry.bandwidth
    moved = delta * 4 * r2 / entry.bandwidth**2
    s = np.sqrt(((X[:, None] - Z[None]) ** 2).sum(-1)) / entry.bandwidth
    # derivatives in s² of all smooth ones fall at least as fast as twice that of the rational quadratic
    smooth = 2 * entry.smooth * moved / (1 + np.maximum(s * s - moved, 0) / 1.4) ** 1.7
    # s moves by √moved at most, by moved/s away from zero, not at all where rows are the same; a metric may halve s
    step = np.where(s > 0, np.minimum(np.sqrt(moved), moved / np.where(s > 0, s, 1)), 0)
    rough = entry.kinked * step * np.exp(-np.maximum(s / 2 - step, 0))
    # |dk/ds| of every kernel here is below 3/(1 + s²/1.4)^{1.2}; both ends of s move by two offsets
    shifted = np.where(s > 0, 12 * offset / (1 + np.maximum(s - 4 * offset, 0) ** 2 / 1.4) ** 1.2, 0)
    # rows that are the same stay so whatever rounds
    return size * (np.where(s > 0, np.minimum(smooth + rough + shifted, 1.0), 0) + 100 * unit)


class Case:
    """One case: the points as given, as the library must read them, and the exact kernel of those."""

    def __init__(self, name, door, dtype, kind, seed):
        self.text = f"{name}, {door}, {dtype}, {kind}, seed {seed}"
        self.entry, self.door, self.dtype, self.kind = KERNELS[name], door, dtype, kind
        rng = np.random.default_rng(seed)
        self.given = _form(kind, _points(kind, rng, 1 if kind == "one row" else N), dtype)
        Z = _points("plain" if kind in REFUSED else kind, rng, M)
        if kind == "NaN in Z":
            Z[2, 1] = np.nan
        self.given_z = _form(kind, Z, dtype)
        self.X, self.Z = (_read(a, dtype) for a in (self.given, self.given_z))
        self.y = rng.normal(size=len(self.X))
        self.v = rng.normal(size=M).astype(dtype)
        self.share = float(rng.choice([1e-1, 1e-3, 1e-5]))
        self.rho = self.share  # where points must be rejected

    def exact(self):
        X, Z = self.X.astype(oracle.LONG), self.Z.astype(oracle.LONG)
        K = [self.entry.exact(a, b) for a, b in ((X, X), (X, Z), (Z, Z))]
        self.K, self.Kxz, self.Kzz = (k.astype(np.float64) for k in K)
        self.dx, self.dz = np.diagonal(self.K), np.diagonal(self.Kzz)
        self.rho = self.share * max(float(self.dx.mean()), 1e-30)
        # short floats are computed in float32, unless a door takes a precision by name
        short = self.kind in ("bfloat16", "float16") and self.door not in (*METHODS, "gp estimator", "kernel estimator")
        self.computed = "float32" if short else self.dtype
        unit = self.unit = float(np.finfo(self.computed).eps) / 2
        self.error_xx = _bound(self.entry, self.dx, self.dx, self.X, self.X, self.computed)
        self.error_xz = _bound(self.entry, self.dx, self.dz, self.X, self.Z, self.computed)
        # entries, and what a factorization or eigendecomposition of n rows rounds
        self.E = np.linalg.norm(self.error_xx) + 4 * len(self.X) * unit * np.linalg.norm(self.K, 2)


def _read(given, dtype):
    """The numbers that the library uses: short floats and integers exactly, others rounded to the precision."""
    array = np.asarray(given, np.float64) if not isinstance(given, jax.Array) else np.asarray(given).astype(np.float64)
    return array.astype(dtype).astype(np.float64)


def _check_gram(case, kernel):
    K = np.asarray(kernel.gram(case.given) if case.door == "gram" else gram(kernel, case.given), np.float64)
    np.testing.assert_array_less(np.abs(K - case.K), case.error_xx + 1e-300)


def _check_cross(case, kernel):
    K = np.asarray(kernel.gram(case.given, case.given_z), np.float64)
    np.testing.assert_array_less(np.abs(K - case.Kxz), case.error_xz + 1e-300)


def _check_matmul(case, kernel):
    got = np.asarray(matmul(kernel, case.given, case.given_z, case.v), np.float64)
    v = np.abs(case.v.astype(np.float64))
    allowed = case.error_xz @ v + 2 * M * case.unit * (np.abs(case.Kxz) @ v)
    np.testing.assert_array_less(np.abs(got - case.Kxz @ case.v.astype(np.float64)), allowed + 1e-300)


def _check_solve(case, kernel):
    steps = None if case.door == "direct" else 200  # missing the tolerance is acceptable if it is reported
    solution = solve(
        kernel,
        case.given,
        case.y,
        case.rho,
        method=case.door,
        tolerance=TOLERANCE,
        options=SolveOptions(precision=case.dtype, max_steps=steps),
    )
    f = np.asarray(solution.predict(case.given), np.float64)
    # jitter is reported in the notes: the solved problem has the ridge named there
    exact = case.K @ oracle.ridge(case.K, case.y, max(solution.ridge, case.rho))
    error = np.linalg.norm(f - exact) / np.linalg.norm(case.y)
    if solution.ridge > case.rho * (1 + 1e-6):
        assert solution.notes, "another ridge, and no note"
    promised = TOLERANCE if solution.converged else solution.residual
    assert error <= promised, f"error {error:.2g}, promised {promised:.2g}, converged {solution.converged}"


def _allowed_fit(case):
    """‖δf‖ at the training points and at Z for E of the kernel, or None where E/ρ says that nothing is known."""
    if case.rho / 2 < case.E:
        return None, None
    size = np.linalg.norm(case.y)
    at_x = 2 * case.E / case.rho * size
    beside = np.linalg.norm(case.Kxz.T, 2) / case.rho
    at_z = (2 * beside * case.E / case.rho + np.linalg.norm(case.error_xz) / case.rho) * size
    return at_x + 1e-300, at_z + 1e-300


def _check_ridge_path(case, kernel):
    spectrum = decompose(kernel, case.given)
    path = spectrum.ridge_path(case.y.astype(case.dtype), case.rho)
    predicted = path.predict(case.given_z)
    at_x, at_z = _allowed_fit(case)
    if at_x is None:
        return "unknown"
    alpha = oracle.ridge(case.K, case.y, case.rho)
    assert np.linalg.norm(np.asarray(path.fitted, np.float64) - case.K @ alpha) <= at_x
    assert np.linalg.norm(np.asarray(predicted, np.float64) - case.Kxz.T @ alpha) <= at_z


def _check_posterior(case, kernel):
    gp = posterior(kernel, case.given, case.y.astype(case.dtype), case.given_z, case.rho)
    _, at_z = _allowed_fit(case)
    if at_z is None:
        return "unknown"
    alpha = oracle.ridge(case.K, case.y, case.rho)
    assert np.linalg.norm(np.asarray(gp.mean, np.float64) - case.Kxz.T @ alpha) <= at_z
    covariance = case.Kzz - case.Kxz.T @ oracle.ridge(case.K, case.Kxz, case.rho)
    # K_zX (K + ρ)⁻¹ K_Xz moves by E/ρ² ‖K_zX‖², and by twice the error of K_zX over ρ; K_zz by its own entries
    cross = np.linalg.norm(case.Kxz, 2)
    own = _bound(case.entry, case.dz, case.dz, case.Z, case.Z, case.computed)
    allowed = 2 * case.E * (cross / case.rho) ** 2 + 2 * np.linalg.norm(case.error_xz) * cross / case.rho
    allowed += np.linalg.norm(own) + 8 * len(case.X) * case.unit * cross**2 / case.rho
    assert np.linalg.norm(np.asarray(gp.covariance, np.float64) - covariance) <= allowed + 1e-300


def _check_estimator(case, kernel):
    y = case.y.astype(case.dtype)
    exact_y = y.astype(np.float64)
    if case.door == "kernel estimator":
        got = KernelRegressor(kernel, ridge=case.rho, precision=case.dtype).fit(case.given, y).predict(case.given_z)
        alpha, shift = oracle.with_intercept(case.K, exact_y, case.rho)
    else:
        model = GaussianProcess(kernel, relative_noise_variance=case.share, precision=case.dtype).fit(case.given, y)
        got, shift = model.predict(case.given_z), exact_y.mean()
        case.rho = case.share * float(case.dx.mean())  # of the smallest kernels, too
        alpha = oracle.ridge(case.K, exact_y - shift, case.rho)
    _, at_z = _allowed_fit(case)
    if at_z is None or case.rho <= len(case.X) * np.finfo(case.dtype).eps * np.linalg.norm(case.K, 2):
        return "unknown"
    exact = case.Kxz.T @ alpha + shift
    # predictions are rounded to the precision once, the mean of n labels up to n times
    rounding = case.unit * (np.linalg.norm(exact) + np.sqrt(M) * np.abs(exact_y).sum())
    # the border (intercept) doubles what an error of K can do
    assert np.linalg.norm(np.asarray(got, np.float64) - exact) <= 4 * at_z + rounding


CHECKS = {
    "gram": _check_gram, "products.gram": _check_gram, "cross": _check_cross, "matmul": _check_matmul,
    "ridge_path": _check_ridge_path, "posterior": _check_posterior, "gp estimator": _check_estimator,
    "kernel estimator": _check_estimator, **dict.fromkeys(METHODS, _check_solve),
}  # fmt: skip


def _cases():
    """The same 2,000 of all combinations, by kernel: programs are then compiled once."""
    everything = [
        (name, door, dtype, kind)
        for name in KERNELS for door in DOORS for dtype in ("float32", "float64") for kind in INPUTS
        if not (kind == "NaN in Z" and door in ("gram", "products.gram", *METHODS))
    ]  # fmt: skip
    chosen = np.random.default_rng(0).choice(len(everything), CASES, replace=False)
    by_kernel: dict[str, list] = {name: [] for name in KERNELS}
    for i in chosen:
        by_kernel[everything[i][0]].append((*everything[i], int(i)))
    return by_kernel


BY_KERNEL = _cases()


def _verdict(given):
    """None, or what is wrong with this case."""
    case = Case(*given)
    with jax.enable_x64(case.dtype == "float64"), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", UnlazyWarning)
        try:
            if case.kind not in REFUSED:
                case.exact()
            outcome = CHECKS[case.door](case, case.entry.make())
        except ValueError as refusal:
            # at zero some kernels vanish, and nothing can be learned from K = 0
            fine = case.kind in (*REFUSED, "huge", "tiny") or (case.kind == "zeros" and not case.K.any())
            fine = fine or (case.door in METHODS and "worse than predicting zero" in str(refusal))
            return None if fine else f"{case.text}: refused, {refusal}"
        except AssertionError as wrong:
            return f"{case.text}: {str(wrong).strip().splitlines()[0] if str(wrong) else wrong!r}"
        if case.kind in REFUSED:
            return f"{case.text}: not refused"
        # at norms of 1e4 and more rounding leaves erf's fits without a bound, in float64 too
        excused = case.computed == "float32" or (case.entry.stretch and case.kind in ("large", "huge"))
        return None if outcome != "unknown" or excused else f"{case.text}: no bound"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.nightly) if "erf" in n or n == "nngp_relu" else n for n in KERNELS]
)
def test_no_silent_wrong_results(name):
    wrong = [text for text in map(_verdict, BY_KERNEL[name]) if text]
    assert not wrong, f"{len(wrong)} of {len(BY_KERNEL[name])} cases:\n" + "\n".join(wrong)


def test_fuzzing_has_two_thousand_cases():
    assert sum(map(len, BY_KERNEL.values())) == CASES
    seen = {part for cases in BY_KERNEL.values() for case in cases for part in case[:4]}
    assert seen == {*KERNELS, *DOORS, "float32", "float64", *INPUTS}
