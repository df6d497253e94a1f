"""Every ridge, every training time and the leave-one-out error from one eigendecomposition [K2, K3].

>>> spectrum = decompose(kernel, X)                              # O(n³), once
>>> spectrum.ridge_path(y, [1e-3, 1e-2, 1e-1]).predict(Z)        # (ridges, m)
>>> spectrum.flow(y, [1.0, 10.0, float("inf")]).predict(Z)       # (times, m)

Inside jit or vmap, `decompose` works too (with `weights` that are zero on padded rows); what needs values, that is
warnings, notes and the memory check, is then left out. First derivatives in the kernel's parameters, X, y, ridges and
times are right where eigenvalues repeat (grids, circles, duplicates). The math is theory.dynamics.spectral_filters.
"""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from unlazy.core import devices
from unlazy.core.arrays import Labels, Points, concrete, count, float_type, floats, labels
from unlazy.core.errors import UnlazyWarning
from unlazy.core.linalg import dot
from unlazy.core.memory import block_rows, memory_budget
from unlazy.core.precision import precision
from unlazy.core.results import Evidence, closed_form, place
from unlazy.kernels.base import Kernel
from unlazy.kernels.resolve import given_kernel
from unlazy.solvers.learning_curve import DEFAULT_SIZES, LearningCurve, Numbers, learning_curve_of
from unlazy.solvers.solution import PROBLEM
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.numerics import matrix_functions
from unlazy.theory.numerics.divided_differences import DESCENT, FLOW, RIDGE
from unlazy.theory.numerics.matrix_functions import MatrixFunction, Rule, Spectrum, spectrum_of

Values = Real[ArrayLike, "*t"] | Sequence[float]
"""Points of a path: one number, a list or an array."""
_COPIES = 5
"""Matrices of n² entries alive at once: K, U and the workspace of the divide-and-conquer eigensolver (about 3)."""
_NOT_FINITE = "the Gram matrix has entries that are not finite: look for NaN in X, or rescale the inputs"


@runtime_checkable
class HasCurve(Protocol):
    """An estimator that knows its own learning curve."""

    def learning_curve(self, X: Any, y: Any, sizes: Numbers | None = None) -> LearningCurve: ...


class Path(eqx.Module):
    """Models along a path of ridges, times or steps: f(z) = f₀(z) + K(z,X) α, one α for each point of the path."""

    kernel: Kernel
    X: Any
    coefficients: Float[Array, "..."]
    """Shape (*path, n, *outputs)."""
    fitted: Float[Array, "..."]
    """f at the training points, same shape."""
    times: Float[Array, "*t"]
    """Where the path was computed: times of gradient flow, steps of descent, or ridges."""
    evidence: Evidence
    started_at_zero: bool = eqx.field(static=True)
    outputs: tuple[int, ...] = eqx.field(static=True)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.evidence.notes

    def predict(
        self, Z: Points, t: Any = None, *, f0: Labels | None = None, memory: int | str | None = None
    ) -> Float[Array, "..."]:
        """f(Z) at every point of the path, shape (*path, m, *outputs), or at t, one or several of `times`; `f0` holds
        the starting function at Z."""
        if f0 is None and not self.started_at_zero:
            raise ValueError("this path started from f0 ≠ 0: pass its values at these points, predict(Z, f0=f0(Z))")
        X, Z = self.kernel.read(self.X, Z)
        m = count(Z)
        f0 = None if f0 is None else _start(f0, (m, *self.outputs), "Z")
        alpha = self.coefficients if t is None else self._at(t)
        alpha = alpha.reshape(*alpha.shape[: alpha.ndim - len(self.outputs)], -1)
        rows = block_rows(3 * count(X) * alpha.dtype.itemsize, m, memory)
        parts = (jax.tree.map(lambda leaf: leaf[i : i + rows], Z) for i in range(0, m, rows))  # noqa: B023
        change = jnp.concatenate([dot(self.kernel.gram(part, X), alpha) for part in parts], axis=-2)
        change = change.reshape(*change.shape[:-1], *self.outputs)
        return change if f0 is None else f0 + change

    def kernel_at(self, t: Any) -> Kernel:
        """The same at every t: features do not move."""
        return self.kernel

    def _at(self, t: Any) -> Float[Array, "..."]:
        times = jnp.atleast_1d(self.times)
        return self.coefficients.reshape(*times.shape, *self.fitted.shape[self.times.ndim :])[place(times, t)]


class Decomposition(eqx.Module):
    """K(X,X) = U diag(λ) Uᵀ, and what follows from it for any labels."""

    kernel: Kernel
    X: Any
    spectrum: Spectrum
    floor: Float[Array, ""]
    """Eigenvalues at or below this are rounding: null directions."""
    evidence: Evidence
    weights: Float[Array, " n"] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        return self.evidence.notes

    @property
    def eigenvalues(self) -> Float[Array, " n"]:
        """Ascending; those that rounding made negative are zero. Derivatives hold for simple eigenvalues and for sums
        over coinciding ones."""
        return matrix_functions.eigenvalues(self.spectrum)

    @property
    def eigenvectors(self) -> Float[Array, "n n"]:
        """Columns; differentiating them is refused, since they have no derivative where eigenvalues meet."""
        return matrix_functions.eigenvectors(self.spectrum)

    @property
    def largest_step_size(self) -> Float[Array, ""]:
        """2/λ_max: gradient descent converges below it."""
        return spectral_filters.largest_step_size(self.eigenvalues)

    @property
    def null(self) -> Bool[Array, " n"]:
        """Directions that K cannot tell from zero."""
        return self.eigenvalues <= self.floor

    def ridge_path(self, y: Labels, ridges: Values) -> Path:
        """Kernel ridge regression, (K + ρI)α = y, for every ridge ρ [K2]. ρ = 0 interpolates."""
        rho = self._path_values("ridges", ridges)
        return self._train(y, None, self.function(RIDGE, rho), rho, f"{PROBLEM} at every ridge")

    def flow(self, y: Labels, times: Values, f0: Labels | None = None) -> Path:
        """Gradient flow on ½Σ(f - y)² from `f0` (its values at X; zero if left out) at every time [K3]; ∞ allowed."""
        t = self._path_values("times", times)
        return self._train(y, f0, self.function(FLOW, t), t, "gradient flow on ½Σ(f - y)² [K3]")

    def descent(
        self,
        y: Labels,
        step_size: Real[ArrayLike, ""],
        steps: Values,
        f0: Labels | None = None,
    ) -> Path:
        """Gradient descent on ½Σ(f - y)², α ← α + η(y - f), after every number of steps [K3]; ∞ allowed."""
        s = self._path_values("steps", steps)
        rate = jnp.asarray(step_size, self.floor.dtype)
        if concrete(rate, self.floor) and not 0 < rate < self.largest_step_size:
            raise ValueError(
                f"gradient descent with step_size {float(rate):.4g} diverges on this kernel: take one between 0 "
                f"and 2/λ_max = {float(self.largest_step_size):.4g} (`largest_step_size`)"
            )
        return self._train(y, f0, self.function(DESCENT, rate, s), s, "gradient descent on ½Σ(f - y)² [K3]")

    def leave_one_out(self, y: Labels, ridges: Values) -> Float[Array, "..."]:
        """Residuals y_i - f^{(-i)}(x_i), shape (*ridges, n, *outputs), without refitting. Ridges under the floor
        count as the floor: without it a singular K has no leave-one-out fit."""
        rho = jnp.maximum(self._path_values("ridges", ridges), self.floor)
        c = MatrixFunction(RIDGE, self.spectrum, (rho,))  # the ridge is above the floor: nothing to drop
        return spectral_filters.left_out(self.spectrum.eigenvectors, c, self._labels(y))

    def gcv(self, y: Labels, ridges: Values) -> Float[Array, "*t"]:
        """Generalized cross-validation score of every ridge; ridges under the floor count as the floor."""
        rho = jnp.maximum(self._path_values("ridges", ridges), self.floor)
        c = MatrixFunction(RIDGE, self.spectrum, (rho,))
        return spectral_filters.cross_validated(self.spectrum.eigenvectors, c, self._labels(y), self.weights)

    def learning_curve(self, y: Labels, sizes: Numbers, ridges: Numbers = ()) -> LearningCurve:
        """Expected risk of ridge regression from any number of points, also more than there are, without refits
        [G1, G2]: at the best ridge of every size, and at `ridges`. Labels are taken as they are: center them first
        where the model has an intercept, as `unlazy.learning_curve` does."""
        if self.weights is not None or not concrete(self.spectrum.eigenvalues, y):
            raise ValueError("learning curves are read off numbers: call learning_curve outside jit, without weights")
        found, labels = self.spectrum, self._labels(y)
        return learning_curve_of(found.eigenvalues, found.eigenvectors, labels, sizes, ridges, floor=float(self.floor))

    def function(self, rule: Rule, *parameters: Any) -> MatrixFunction:
        """c(K) of a way of training, null directions dropped where rounding would rule."""
        values = tuple(jnp.asarray(p, self.floor.dtype) for p in parameters)
        return MatrixFunction(rule, self.spectrum, values, self.floor)

    def _train(self, y: Labels, f0: Labels | None, c: MatrixFunction, times: jax.Array, solved: str) -> Path:
        y = self._labels(y)
        f0 = None if f0 is None else _start(f0, y.shape, "X")
        residual = y if f0 is None else self._labels(y - f0)
        U = self.spectrum.eigenvectors
        alpha = spectral_filters.coefficients(U, c, residual)
        change = spectral_filters.coefficients(U, matrix_functions.learned(self.spectrum.eigenvalues, c), residual)
        fitted = change if f0 is None else f0 + change
        evidence = self.evidence.saying(solved=solved)
        return Path(self.kernel, self.X, alpha, fitted, times, evidence, f0 is None, y.shape[1:])

    def _labels(self, y: Labels) -> jax.Array:
        """y as floats, one row per point, zero on padded rows."""
        n = count(self.X)
        if self.weights is None:
            return labels(y, n)
        y = floats(y, "y")
        keep = (self.weights > 0).reshape(-1, *(1,) * (y.ndim - 1))
        return labels(jnp.where(keep, y, 0) if y.shape[:1] == (n,) else y, n)

    def _path_values(self, what: str, values: Any) -> jax.Array:
        array = jnp.asarray(values, self.floor.dtype)
        if concrete(array) and not bool(jnp.all(array >= 0)):
            raise ValueError(f"{what} must be zero or more, got {float(jnp.min(array))}")
        return array


def decompose(
    kernel: Kernel,
    X: Points,
    *,
    weights: Labels | None = None,
    memory: int | str | None = None,
    eigh: Callable = jnp.linalg.eigh,
) -> Decomposition:
    """The eigendecomposition of K(X,X), from which all ridges, times and leave-one-out errors follow.

    Rows of weight zero are padding. XLA's `eigh` is LAPACK's divide and conquer on the CPU, as fast as SciPy's
    best driver, so the same call serves jit, vmap and GPUs.

    >>> spectrum = decompose(kernel, X)
    >>> spectrum.ridge_path(y, [1e-3, 1e-1]).predict(Z).shape
    (2, 5)
    """
    X, _ = kernel.read(X)
    n = count(X)
    weights = None if weights is None else _weights(weights, n)
    if concrete(X):
        _afforded(n, float_type(X).itemsize, memory)
    K = kernel.gram(X)
    if weights is not None:
        K = spectral_filters.masked_gram(K, weights)
    if concrete(X, K) and not bool(jnp.all(jnp.isfinite(K))):
        raise ValueError(_NOT_FINITE)
    spectrum, raw = spectrum_of(K, eigh)
    floor = spectral_filters.rounding_floor(raw)
    notes: tuple[str, ...] = ()
    if concrete(raw):
        padded = 0 if weights is None else n - int(jnp.sum(weights > 0))
        notes = _notes(raw, float(floor), padded)
    for note in notes:
        warnings.warn(note, UnlazyWarning, stacklevel=2)
    said = {"solved": "K = U diag(λ) Uᵀ", "method": "eigendecomposition", "notes": notes}
    return Decomposition(kernel, X, spectrum, floor, closed_form(raw, n, **said), weights)


def learning_curve(
    kernel: Kernel | HasCurve, X: Points, y: Labels, sizes: Numbers | None = None, *, ridges: Numbers = (),
    memory: int | str | None = None,
) -> LearningCurve:  # fmt: skip
    """What would more points bring? Expected risk of kernel ridge regression against their number [G1, G2].

    One decomposition of the points at hand, no refit. `sizes` are by default a quarter of the points to sixteen times
    as many; the model has a free intercept. Points are taken for independent draws: copies of one tell on each other.
    In place of a kernel, an unfitted estimator that knows its own law: a feature machine, whose metric is relearned in
    folds (its method `learning_curve`); it chooses its ridges itself.

    >>> curve = learning_curve(Gaussian(1.0), X, y)
    >>> print(curve)                       # risk, interval and share of the signal learned, a line for every size
    >>> learning_curve(FeatureMachineRegressor(), X, y, [2000, 4000]).risk
    """
    if isinstance(kernel, HasCurve) and not inspect.isclass(kernel):
        if np.size(ridges) or memory is not None:
            raise ValueError("ridges and memory are of kernels: a feature machine chooses its own, leave them out")
        return kernel.learning_curve(X, y, sizes)
    given_kernel(kernel)
    with precision("float64"):  # small ridges matter: float32 would hide what they learn
        X, _ = kernel.read(X)
        double = jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, X)
        n = count(double)
        _afforded(n, np.dtype(np.float64).itemsize, memory)
        targets = np.asarray(labels(y, n), float)
        values, vectors = _spectrum(_centered(np.asarray(kernel.gram(double))))
        floor = float(spectral_filters.rounding_floor(values))
        sizes = n * DEFAULT_SIZES if sizes is None else sizes
        return learning_curve_of(values, vectors, targets - targets.mean(0), sizes, ridges, floor=floor, intercept=True)


def _centered(K: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """HKH, H = I - 11ᵀ/n: the kernel of features less their mean."""
    means = K.mean(0)
    return K - means - means[:, None] + means.mean()


def _spectrum(K: Float[np.ndarray, "n n"]) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n n"]]:
    """Eigenvalues and eigenvectors in the host's memory: LAPACK's at once, since XLA compiles a program for every n and
    calls the same; a GPU's where there is one. A singular K has a learning curve like any other."""
    if not np.all(np.isfinite(K)):
        raise ValueError(_NOT_FINITE)
    values, vectors = np.linalg.eigh(K) if devices.is_host() else jnp.linalg.eigh(K)
    return np.maximum(values, 0), np.asarray(vectors)


def _afforded(n: int, itemsize: int, memory: int | str | None) -> None:
    """A ValueError where one eigendecomposition of n points needs more than the memory budget."""
    need = _COPIES * n * n * itemsize
    if need > memory_budget(memory):
        raise ValueError(
            f"n = {n} points need {need / 2**30:.2g} GiB for one eigendecomposition and the memory budget is "
            f"{memory_budget(memory) / 2**30:.2g} GiB: use fewer points, float32, an iterative solver, or allow more "
            "with memory='8GiB' or the environment variable UNLAZY_MEMORY"
        )


def _notes(raw: jax.Array, floor: float, padded: int) -> tuple[str, ...]:
    """What was mended, in words."""
    n, null, smallest = raw.shape[0] - padded, int(jnp.sum(raw <= floor)) - padded, float(raw[0])
    found = []
    if not bool(jnp.all(jnp.isfinite(raw))):
        raise ValueError("the eigendecomposition failed (non-finite eigenvalues): use float64 or rescale the inputs")
    if null > 0:
        found.append(
            f"K is singular to rounding: {null} of {n} eigenvalues are at or below {floor:.2g} (duplicate or close "
            "points, or a smooth kernel); these directions are left out of the fit where rounding would rule "
            "(t → ∞, ridge → 0). More precision (float64) or a ridge above that removes the doubt."
        )
    if smallest < -100 * floor:
        found.append(
            f"K is not positive: its smallest eigenvalue is {smallest:.2g}, far below rounding; negative "
            "eigenvalues were set to zero. Check the kernel, or compute it in float64."
        )
    return tuple(found)


def _weights(weights: Labels, n: int) -> jax.Array:
    array = labels(weights, n, "weights")
    if array.ndim != 1:
        raise ValueError(f"weights hold one number for each of the {n} rows of X, got shape {array.shape}")
    return array


def _start(f0: Labels, shape: tuple[int, ...], of: str) -> jax.Array:
    array = labels(f0, shape[0], "f0", of)
    if array.shape != shape:
        raise ValueError(f"f0 holds the start at the rows of {of}, every output: shape {shape}, got {array.shape}")
    return array
