"""Every ridge, every training time and the leave-one-out error from one eigendecomposition [K2, K3].

>>> import numpy as np
>>> from unlazy import Gaussian, decompose
>>> X = np.random.default_rng(0).normal(size=(60, 3))
>>> y, Z = np.sin(X[:, 0]), X[:5]
>>> spectrum = decompose(Gaussian(1.0), X)  # O(n³), once
>>> spectrum.ridge_path(y, [1e-3, 1e-2, 1e-1]).predict(Z).shape  # (ridges, m)
(3, 5)
>>> spectrum.flow(y, [1.0, 10.0, float("inf")]).predict(Z).shape  # (times, m)
(3, 5)

`decompose` also works inside jit and vmap (with `weights` of zero on padded rows); warnings, notes and the memory check
are skipped there because they need concrete values. First derivatives in the parameters of the kernel, X, y, ridges and
times are correct for repeated eigenvalues (grids, circles, duplicates). Formulas: theory.dynamics.spectral_filters.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Real

from unlazy.core.arrays import (
    Labels,
    Points,
    Values,
    as_floats,
    as_labels,
    cast_floats,
    dot,
    float_type,
    is_concrete,
    n_points,
    precision,
)
from unlazy.core.devices import block_rows, memory_budget
from unlazy.core.errors import UnlazyWarning
from unlazy.core.results import Evidence, closed_form_evidence, time_index
from unlazy.kernels.base import Kernel, resolve_kernel
from unlazy.solvers.learning_curve import DEFAULT_SIZES, LearningCurve, Numbers, learning_curve_from_spectrum
from unlazy.solvers.ridge import eigh
from unlazy.solvers.solution import PROBLEM
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.numerics import matrix_functions
from unlazy.theory.numerics.divided_differences import DESCENT, FLOW, RIDGE
from unlazy.theory.numerics.matrix_functions import FilterRule, MatrixFunction, Spectrum, spectrum_of

_LIVE_MATRICES = 5
"""n × n matrices alive at once: K, U and the workspace of the divide-and-conquer eigensolver (about 3)."""
_NOT_FINITE = "the Gram matrix has entries that are not finite: check X for NaN, or rescale the inputs"


@runtime_checkable
class HasLearningCurve(Protocol):
    """An estimator with a method `learning_curve`."""

    def learning_curve(self, X: Points, y: Labels, sizes: Numbers | None = None) -> LearningCurve:
        """Return the expected risk at each number of training points."""


class Path(eqx.Module):
    """Models along a path of ridges, times or steps: f(z) = f₀(z) + K(z,X) α, with one α per point of the path.

    Returned by `Decomposition.ridge_path`, `Decomposition.flow`, `Decomposition.descent` and
    `solvers.gradient_flow.flow`.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d) or pytree
        Training points.
    coefficients : array of shape (*path, n, *outputs)
        The coefficients α.
    fitted : array of shape (*path, n, *outputs)
        f at the training points.
    times : array of shape path
        Ridges, times of gradient flow, or numbers of descent steps.
    evidence : Evidence
        Error estimate and messages.
    started_at_zero : bool
        Whether f₀ = 0.
    outputs : tuple of int
        Shape of one label.
    """

    kernel: Kernel
    X: Any
    coefficients: Float[Array, "..."]
    """Shape (*path, n, *outputs)."""
    fitted: Float[Array, "..."]
    """f at the training points, same shape."""
    times: Float[Array, "*t"]
    """Ridges, times of gradient flow, or numbers of descent steps."""
    evidence: Evidence
    started_at_zero: bool = eqx.field(static=True)
    outputs: tuple[int, ...] = eqx.field(static=True)

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the computation."""
        return self.evidence.notes

    def predict(
        self, Z: Points, t: Values | None = None, *, f0: Labels | None = None, memory: int | str | None = None
    ) -> Float[Array, "..."]:
        """Evaluate the models at Z.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points, in any form the kernel accepts.
        t : float or array, optional
            One or several of `times`; all of them by default.
        f0 : array of shape (m, *outputs), optional
            Values of the initial function f₀ at Z; required if the path did not start at zero.
        memory : int or str, optional
            Memory budget.

        Returns
        -------
        array of shape (*path, m, *outputs)

        Raises
        ------
        ValueError
            If `f0` is missing although the path did not start at zero, or if `t` is not one of `times`.
        """
        if f0 is None and not self.started_at_zero:
            raise ValueError("this path started from f0 ≠ 0: pass the values of f0 at Z, predict(Z, f0=f0(Z))")
        X, Z = self.kernel.read(self.X, Z)
        m = n_points(Z)
        f0 = None if f0 is None else _initial_values(f0, (m, *self.outputs), "Z")
        alpha = self.coefficients if t is None else self._coefficients_at(t)
        alpha = alpha.reshape(*alpha.shape[: alpha.ndim - len(self.outputs)], -1)
        rows = block_rows(3 * n_points(X) * alpha.dtype.itemsize, m, memory)
        parts = (jax.tree.map(lambda leaf: leaf[i : i + rows], Z) for i in range(0, m, rows))  # noqa: B023
        change = jnp.concatenate([dot(self.kernel.gram(part, X), alpha) for part in parts], axis=-2)
        change = change.reshape(*change.shape[:-1], *self.outputs)
        return change if f0 is None else f0 + change

    def kernel_at(self, t: Values) -> Kernel:
        """Return the kernel at time t, which is the same at every t: the features are fixed."""
        return self.kernel

    def _coefficients_at(self, t: Values) -> Float[Array, "..."]:
        """The coefficients at one or several of `times`."""
        times = jnp.atleast_1d(self.times)
        return self.coefficients.reshape(*times.shape, *self.fitted.shape[self.times.ndim :])[time_index(times, t)]


class Decomposition(eqx.Module):
    """Eigendecomposition K(X,X) = U diag(λ) Uᵀ, from which models for any labels follow.

    Returned by `decompose`.

    Attributes
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d) or pytree
        Training points.
    spectrum : Spectrum
        Eigenvalues and eigenvectors in a form with safe derivatives.
    floor : float
        Eigenvalues at or below this are rounding errors.
    evidence : Evidence
        Error estimate and messages.
    weights : array of shape (n,), optional
        Zero on padded rows.
    """

    kernel: Kernel
    X: Any
    spectrum: Spectrum
    floor: Float[Array, ""]
    """Eigenvalues at or below this are rounding errors: null directions."""
    evidence: Evidence
    weights: Float[Array, " n"] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Messages about the decomposition, such as a singular K."""
        return self.evidence.notes

    @property
    def eigenvalues(self) -> Float[Array, " n"]:
        """Eigenvalues in ascending order; values that rounding made negative are set to zero.

        Derivatives are correct for simple eigenvalues and for sums over repeated ones.
        """
        return matrix_functions.eigenvalues(self.spectrum)

    @property
    def eigenvectors(self) -> Float[Array, "n n"]:
        """Eigenvectors as columns. Differentiating them raises: they have no derivative at repeated eigenvalues."""
        return matrix_functions.eigenvectors(self.spectrum)

    @property
    def largest_step_size(self) -> Float[Array, ""]:
        """2/λ_max: gradient descent converges for smaller step sizes."""
        return spectral_filters.largest_step_size(self.eigenvalues)

    @property
    def null(self) -> Bool[Array, " n"]:
        """Mask of the eigenvalues that are zero to rounding."""
        return self.eigenvalues <= self.floor

    def ridge_path(self, y: Labels, ridges: Values) -> Path:
        """Kernel ridge regression, (K + ρI)α = y, for every ridge ρ [K2].

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels.
        ridges : float or array
            Values of ρ, absolute, zero or more; 0 interpolates.

        Returns
        -------
        Path
        """
        rho = self._path_values("ridges", ridges)
        return self._train_path(y, None, self.function(RIDGE, rho), rho, f"{PROBLEM} at every ridge")

    def flow(self, y: Labels, times: Values, f0: Labels | None = None) -> Path:
        """Gradient flow on ½Σ(f - y)² at every time [K3].

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels.
        times : float or array
            Training times, zero or more; infinity is allowed.
        f0 : array of the shape of y, optional
            Values of the initial function at X; zero by default.

        Returns
        -------
        Path
        """
        t = self._path_values("times", times)
        return self._train_path(y, f0, self.function(FLOW, t), t, "gradient flow on ½Σ(f - y)² [K3]")

    def descent(self, y: Labels, step_size: Real[ArrayLike, ""], steps: Values, f0: Labels | None = None) -> Path:
        """Gradient descent on ½Σ(f - y)², α ← α + η(y - f), after every number of steps [K3].

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels.
        step_size : float
            The step size η, between 0 and `largest_step_size`.
        steps : int or array
            Numbers of steps, zero or more; infinity is allowed.
        f0 : array of the shape of y, optional
            Values of the initial function at X; zero by default.

        Returns
        -------
        Path

        Raises
        ------
        ValueError
            If gradient descent diverges with this step size.
        """
        s = self._path_values("steps", steps)
        rate = jnp.asarray(step_size, self.floor.dtype)
        if is_concrete(rate, self.floor) and not 0 < rate < self.largest_step_size:
            raise ValueError(
                f"gradient descent with step_size {float(rate):.4g} diverges on this kernel: use a value between 0 "
                f"and 2/λ_max = {float(self.largest_step_size):.4g} (`largest_step_size`)"
            )
        return self._train_path(y, f0, self.function(DESCENT, rate, s), s, "gradient descent on ½Σ(f - y)² [K3]")

    def leave_one_out(self, y: Labels, ridges: Values) -> Float[Array, "..."]:
        """Leave-one-out residuals y_i - f^{(-i)}(x_i), without refitting.

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels.
        ridges : float or array
            Values of ρ. Values below `floor` are replaced by it: a singular K has no leave-one-out fit without a ridge.

        Returns
        -------
        array of shape (*ridges, n, *outputs)
        """
        rho = jnp.maximum(self._path_values("ridges", ridges), self.floor)
        c = MatrixFunction(RIDGE, self.spectrum, (rho,))  # the ridge is at least the floor: nothing to drop
        return spectral_filters.leave_one_out_from_coefficient(self.spectrum.eigenvectors, c, self._labels(y))

    def gcv(self, y: Labels, ridges: Values) -> Float[Array, "*t"]:
        """Generalized cross-validation score of every ridge.

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels.
        ridges : float or array
            Values of ρ. Smaller values than `floor` are replaced by it.

        Returns
        -------
        array of shape ridges
        """
        rho = jnp.maximum(self._path_values("ridges", ridges), self.floor)
        c = MatrixFunction(RIDGE, self.spectrum, (rho,))
        return spectral_filters.gcv_from_coefficient(self.spectrum.eigenvectors, c, self._labels(y), self.weights)

    def learning_curve(self, y: Labels, sizes: Numbers, ridges: Numbers = ()) -> LearningCurve:
        """Expected risk of ridge regression at any number of training points, also beyond n, without refits [G1, G2].

        Parameters
        ----------
        y : array of shape (n,) or (n, c)
            Labels, used as they are. If the model has an intercept, center them first, as `unlazy.learning_curve` does.
        sizes : array of shape (s,)
            Numbers of training points.
        ridges : array of shape (r,), optional
            Ridges at which the risk is computed in addition to the best ridge of every size.

        Returns
        -------
        LearningCurve

        Raises
        ------
        ValueError
            If called inside jit or with `weights`.
        """
        if self.weights is not None or not is_concrete(self.spectrum.eigenvalues, y):
            raise ValueError("learning_curve needs concrete values: call it outside jit, without weights")
        found, labels = self.spectrum, self._labels(y)
        return learning_curve_from_spectrum(
            found.eigenvalues, found.eigenvectors, labels, sizes, ridges, floor=float(self.floor)
        )

    def function(self, rule: FilterRule, *parameters: ArrayLike) -> MatrixFunction:
        """Return the filter c(K) of a training rule; null directions are dropped if rounding would dominate them."""
        values = tuple(jnp.asarray(p, self.floor.dtype) for p in parameters)
        return MatrixFunction(rule, self.spectrum, values, self.floor)

    def _train_path(self, y: Labels, f0: Labels | None, c: MatrixFunction, times: jax.Array, solved: str) -> Path:
        """The path with filter c, from the initial function f0."""
        y = self._labels(y)
        f0 = None if f0 is None else _initial_values(f0, y.shape, "X")
        residual = y if f0 is None else self._labels(y - f0)
        U = self.spectrum.eigenvectors
        alpha = spectral_filters.coefficients(U, c, residual)
        change = spectral_filters.coefficients(
            U, matrix_functions.learned_fraction(self.spectrum.eigenvalues, c), residual
        )
        fitted = change if f0 is None else f0 + change
        evidence = self.evidence.with_description(solved=solved)
        return Path(self.kernel, self.X, alpha, fitted, times, evidence, f0 is None, y.shape[1:])

    def _labels(self, y: Labels) -> jax.Array:
        """y as floats, one row per point, zero on padded rows."""
        n = n_points(self.X)
        if self.weights is None:
            return as_labels(y, n)
        y = as_floats(y, "y")
        keep = (self.weights > 0).reshape(-1, *(1,) * (y.ndim - 1))
        return as_labels(jnp.where(keep, y, 0) if y.shape[:1] == (n,) else y, n)

    def _path_values(self, what: str, values: Any) -> jax.Array:
        """Validated path parameters, zero or more."""
        array = jnp.asarray(values, self.floor.dtype)
        if is_concrete(array) and not bool(jnp.all(array >= 0)):
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
    """Eigendecomposition of K(X,X), from which all ridges, training times and leave-one-out errors follow.

    XLA's `eigh` calls LAPACK's divide-and-conquer driver on the CPU, as fast as the best driver of SciPy, so the same
    call serves jit, vmap and GPUs.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    X : array of shape (n, d)
        Training points, in any form the kernel accepts.
    weights : array of shape (n,), optional
        Rows with weight zero are padding.
    memory : int or str, optional
        Memory budget.
    eigh : callable, default jnp.linalg.eigh
        Eigensolver for symmetric matrices.

    Returns
    -------
    Decomposition

    Raises
    ------
    ValueError
        If the Gram matrix is not finite or does not fit the memory budget.

    Warns
    -----
    UnlazyWarning
        If K is singular or not positive semi-definite to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Laplace, decompose
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> spectrum = decompose(Laplace(1.0), X)
    >>> spectrum.ridge_path(np.sin(X[:, 0]), [1e-3, 1e-1]).predict(X[:5]).shape
    (2, 5)
    """
    X, _ = kernel.read(X)
    n = n_points(X)
    weights = None if weights is None else _weights(weights, n)
    if is_concrete(X):
        _check_memory(n, float_type(X).itemsize, memory)
    K = kernel.gram(X)
    if weights is not None:
        K = spectral_filters.masked_gram(K, weights)
    if is_concrete(X, K) and not bool(jnp.all(jnp.isfinite(K))):
        raise ValueError(_NOT_FINITE)
    spectrum, raw = spectrum_of(K, eigh)
    floor = jnp.asarray(spectral_filters.rounding_floor(raw))
    notes: tuple[str, ...] = ()
    if is_concrete(raw):
        padded = 0 if weights is None else n - int(jnp.sum(weights > 0))
        notes = _notes(raw, float(floor), padded)
    for note in notes:
        warnings.warn(note, UnlazyWarning, stacklevel=2)
    evidence = closed_form_evidence(raw, n, solved="K = U diag(λ) Uᵀ", method="eigendecomposition", notes=notes)
    return Decomposition(kernel, X, spectrum, floor, evidence, weights)


def learning_curve(
    kernel: Kernel | HasLearningCurve, X: Points, y: Labels, sizes: Numbers | None = None, *, ridges: Numbers = (),
    memory: int | str | None = None,
) -> LearningCurve:  # fmt: skip
    """Expected risk of kernel ridge regression against the number of training points [G1, G2].

    Uses one eigendecomposition of the given points and no refit. The model has a free intercept. The points are assumed
    to be independent draws: duplicates bias the estimate.

    Parameters
    ----------
    kernel : Kernel or estimator
        A kernel, or an unfitted estimator with a method `learning_curve`, such as a feature machine, which relearns its
        metric in folds and chooses its own ridges.
    X : array of shape (n, d)
        Points.
    y : array of shape (n,) or (n, c)
        Labels.
    sizes : array of shape (s,), optional
        Numbers of training points; from n/4 to 16n by default.
    ridges : array of shape (r,), optional
        Ridges at which the risk is computed in addition to the best ridge of every size. Kernels only.
    memory : int or str, optional
        Memory budget. Kernels only.

    Returns
    -------
    LearningCurve

    Raises
    ------
    ValueError
        If there are too few points, if y is constant, or if K does not fit the memory budget.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, learning_curve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> curve = learning_curve(Gaussian(1.0), X, np.sin(X[:, 0]))
    >>> print(curve)                       # risk, interval and share of the signal learned, one line per size
    >>> curve.risk.shape
    (7,)
    """
    if isinstance(kernel, HasLearningCurve) and not inspect.isclass(kernel):
        if np.size(ridges) or memory is not None:
            raise ValueError("ridges and memory apply to kernels only: an estimator chooses its own")
        return kernel.learning_curve(X, y, sizes)
    resolve_kernel(kernel)
    with precision("float64"):  # float32 would hide what small ridges learn
        X, _ = kernel.read(X)
        double = cast_floats(X, jnp.float64)
        n = n_points(double)
        _check_memory(n, np.dtype(np.float64).itemsize, memory)
        targets = np.asarray(as_labels(y, n), float)
        K = np.asarray(kernel.gram(double))
        if not np.all(np.isfinite(K)):
            raise ValueError(_NOT_FINITE)
        means = K.mean(0)  # HKH with H = I - 11ᵀ/n: the kernel of centered features
        values, vectors = eigh(K - means - means[:, None] + means.mean(), overwrite=True)
        values = np.maximum(values, 0)  # a singular K has a learning curve like any other
        floor = float(spectral_filters.rounding_floor(values))
        sizes = n * DEFAULT_SIZES if sizes is None else sizes
        return learning_curve_from_spectrum(
            values, vectors, targets - targets.mean(0), sizes, ridges, floor=floor, intercept=True
        )


def _check_memory(n: int, itemsize: int, memory: int | str | None) -> None:
    """Raise ValueError if one eigendecomposition of n points exceeds the memory budget."""
    need = _LIVE_MATRICES * n * n * itemsize
    if need > memory_budget(memory):
        raise ValueError(
            f"n = {n} points need {need / 2**30:.2g} GiB for one eigendecomposition and the memory budget is "
            f"{memory_budget(memory) / 2**30:.2g} GiB: use fewer points, float32 or `solve`, or increase the budget "
            "with memory='8GiB' or the environment variable UNLAZY_MEMORY"
        )


def _notes(raw: jax.Array, floor: float, padded: int) -> tuple[str, ...]:
    """Messages about null and negative eigenvalues."""
    n, null, smallest = raw.shape[0] - padded, int(jnp.sum(raw <= floor)) - padded, float(raw[0])
    found = []
    if not bool(jnp.all(jnp.isfinite(raw))):
        raise ValueError("the eigendecomposition failed (non-finite eigenvalues): use float64 or rescale the inputs")
    if null > 0:
        found.append(
            f"K is singular to rounding: {null} of {n} eigenvalues are at or below {floor:.2g} (duplicate or close "
            "points, or a smooth kernel); these directions are dropped from the fit if rounding would dominate "
            "(t → ∞, ridge → 0). Use float64 or a larger ridge to avoid this."
        )
    if smallest < -100 * floor:
        found.append(
            f"K is not positive: its smallest eigenvalue is {smallest:.2g}, far below rounding; negative "
            "eigenvalues were set to zero. Check the kernel, or compute it in float64."
        )
    return tuple(found)


def _weights(weights: Labels, n: int) -> jax.Array:
    """Validated row weights."""
    array = as_labels(weights, n, "weights")
    if array.ndim != 1:
        raise ValueError(f"weights must have one value for each of the {n} rows of X, got shape {array.shape}")
    return array


def _initial_values(f0: Labels, shape: tuple[int, ...], of: str) -> jax.Array:
    """Validated values of the initial function."""
    array = as_labels(f0, shape[0], "f0", of)
    if array.shape != shape:
        raise ValueError(f"f0 must have the values of the initial function at {of}, shape {shape}, got {array.shape}")
    return array
