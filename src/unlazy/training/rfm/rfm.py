"""Recursive feature machines [D11] for any number of rows; their rounds form a trajectory."""

import math
import time

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from unlazy.core.arrays import Labels, Points, as_real_array, check_axes, check_finite, precision, unit_roundoff
from unlazy.core.errors import check_positive_integer
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.core.results import Evidence, FitDescription, time_index
from unlazy.kernels.base import Kernel, resolve_kernel
from unlazy.kernels.metric import apply_metric
from unlazy.products import matmul
from unlazy.products.metric_gram import metric_gram
from unlazy.solvers.path import Values
from unlazy.solvers.problem import label_matrix
from unlazy.theory.numerics.geometry import evenly_spaced_rows
from unlazy.training.options import RFMOptions, check_positive_or_none
from unlazy.training.rfm.iteration import (
    Iterate,
    first_metric,
    metric_from_agop,
    metric_root,
    select_bandwidth_and_ridge,
)
from unlazy.training.rfm.large_n_fit import KernelFitter

SOLVED = "α = (K_M + ρI)⁻¹ y, M ← AGOP(f)/tr AGOP(f) [D11]"
SELECTION_ROWS = 1200
"""Number of evenly spaced rows whose leave-one-out error selects bandwidth and ridge."""


class RecursiveFeatureMachine(eqx.Module):
    """Fitted recursive feature machine: all iterates with their kernel and training rows.

    Attributes
    ----------
    kernel : Kernel
        The kernel, before the metric is applied.
    X : array of shape (n, d)
        Training rows.
    iterates : tuple of Iterate
        Metric and fit of every round; the first is the plain kernel.
    one_output : bool
        Whether the labels had one axis.
    seconds : float
        Time of the fit.
    times : integer array of shape (t,)
        Numbers of updates, 0 to the last.
    metric : array of shape (d, d) or (d,)
        M after the last update.
    evidence : Evidence
        Evidence of the least accurate fit.
    """

    kernel: Kernel
    X: Float[np.ndarray, "n d"]
    iterates: tuple[Iterate, ...] = eqx.field(converter=tuple)
    one_output: bool = eqx.field(static=True, default=False)
    """Whether the labels, and therefore the predictions, have one axis."""
    seconds: float = math.nan

    @property
    def times(self) -> Int[np.ndarray, " t"]:
        """Numbers of updates of the metric."""
        return np.arange(len(self.iterates))

    @property
    def metric(self) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """M after the last update, of trace one, or its diagonal."""
        return self.iterates[-1].matrix

    @property
    def evidence(self) -> Evidence:
        """Evidence with the largest residual of all fits and the description of the last one."""
        known = [one.evidence for one in self.iterates if one.evidence is not None]
        fine = all(np.isfinite(one.alpha).all() for one in self.iterates)
        exact = len(self.X) * unit_roundoff(self.X.dtype)
        if not known or not fine:
            residual = exact if fine else math.nan
            return Evidence(residual, steps=len(self.iterates), description=FitDescription(SOLVED, "factorization"))
        last = known[-1]
        return Evidence(
            max(float(e.residual) for e in known), last.tolerance, last.ridge, sum(int(e.steps) for e in known),
            self.seconds, max(float(e.bytes) for e in known), last.with_description(solved=SOLVED).description,
        )  # fmt: skip

    def predict(self, Z: Points, t: Values | None = None) -> Float[np.ndarray, "..."]:
        """Evaluate f.

        Parameters
        ----------
        Z : array of shape (m, d)
            Points.
        t : int or array of int, optional
            Number of updates, one or several; the last by default.

        Returns
        -------
        array of shape (*t, m, *outputs)
            Predictions.

        Raises
        ------
        ValueError
            If t is not one of `times`.
        """
        rows = as_real_array("Z", Z).astype(self.X.dtype)
        check_axes("Z", rows.shape)
        at = np.asarray(len(self.iterates) - 1 if t is None else time_index(self.times, t, "update"))
        found = np.stack([self._at(self.iterates[i], rows) for i in at.ravel()])
        return (found[..., 0] if self.one_output else found).reshape(*at.shape, len(rows), *self._outputs)

    def _at(self, one: Iterate, rows: np.ndarray) -> Float[np.ndarray, "m c"]:
        """Evaluate one iterate at the given rows."""
        centers = self.X if one.centers is None else one.centers
        with precision(self.X.dtype.name):
            return np.asarray(matmul(self._seen(one), rows, centers, one.alpha)) + one.intercept

    def _seen(self, one: Iterate) -> Kernel:
        """Return the kernel of one iterate."""
        return apply_metric(self.kernel, one.map / one.bandwidth)

    @property
    def _outputs(self) -> tuple[int, ...]:
        """Shape of one prediction."""
        return () if self.one_output else self.iterates[0].alpha.shape[1:]

    def kernel_at(self, t: Values | None = None) -> Kernel:
        """Return the learned kernel k(Lx/h, Lz/h).

        Parameters
        ----------
        t : int, optional
            Number of updates; the last by default.

        Returns
        -------
        Kernel
            The kernel under the metric after t updates.
        """
        return self._seen(self.iterates[-1 if t is None else int(time_index(self.times, t, "update"))])


def recursive_features(
    kernel: Kernel,
    X: Points,
    y: Labels,
    *,
    updates: int = 5,
    relative_ridge: float | None = None,
    weights: Values | None = None,
    options: RFMOptions | None = None,
    progress: ProgressOption = False,
    key: PRNGKeyArray | None = None,
) -> RecursiveFeatureMachine:
    """Fit a recursive feature machine: alternate kernel ridge regression with updates of the metric [D11].

    f = argmin Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖²_{K_M},   M ← (Σ_i w_i ∇f(x_i)∇f(x_i)ᵀ)^power / trace.

    Works for every kernel of linear maps of x, deep NTKs included, and any number of rows; columns are not
    standardized. A fit is one exact factorization in float64 if it fits in memory; otherwise, or if `options.method` is
    given, `solve` fits to `options.tolerance`.

    Parameters
    ----------
    kernel : Kernel
        Kernel of inner products or distances (Gaussian, Laplace, Matern, NNGP, NTK), or ProductLaplace.
    X : array of shape (n, d)
        Training points.
    y : array of shape (n,) or (n, c)
        Labels.
    updates : int, default 5
        Number of updates of the metric.
    relative_ridge : float, optional
        Ridge relative to the mean of k(x, x). None: chosen by leave-one-out before the first update, then kept; as
        ratio of noise to signal it does not depend on n.
    weights : array of shape (n,), optional
        Weights w_i of the rows; rows of weight zero are left out.
    options : RFMOptions, optional
        Kind of metric, power of the AGOP, bandwidth, and options of `solve`.
    progress : bool or callable, default False
        Whether to show a progress bar. A callable is called with a `core.progress.Progress` after every fit.
    key : PRNG key, optional
        Source of randomness of `solve`.

    Returns
    -------
    RecursiveFeatureMachine
        All iterates, with `metric`, `predict`, `kernel_at` and `evidence`.

    Raises
    ------
    ValueError
        If the kernel does not support the metric, or an argument is invalid.

    References
    ----------
    Radhakrishnan, Beaglehole, Pandit and Belkin (Science 2024), Mechanism for feature learning in neural networks and
    backpropagation-free machine learning models.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import MLP, NTK, recursive_features
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> y, Z = np.sin(X[:, 0]), X[:5]
    >>> machine = recursive_features(NTK(MLP(3, sigma_b=1.0)), X, y)
    >>> machine.metric.shape, machine.predict(Z).shape
    ((3, 3), (5,))
    """
    began, options = time.perf_counter(), options or RFMOptions()
    powers = options.powers(updates if updates == 0 else check_positive_integer("updates", updates))
    check_positive_or_none("relative_ridge", relative_ridge)
    rows = as_real_array("X", X).astype(np.float64)
    check_axes("X", rows.shape)
    check_finite("X", rows)
    Y, shape = label_matrix(y, len(rows))
    rows, Y, w = _validate_weights(rows, Y, weights)
    resolve_kernel(kernel)
    M = first_metric(kernel, rows, options)
    found: list[Iterate] = []
    with precision("float64"), ProgressDisplay("learning a metric", updates + 1, show=progress) as shown:
        factor, rho, note = _bandwidth_and_ridge(kernel, rows, Y, w, M, options.relative_bandwidth, relative_ridge)
        for t in range(updates + 1):
            seen = KernelFitter(kernel, rows, metric_root(M), w, options, key)
            h = factor * seen.default_bandwidth
            fit = seen.fit(h, rho, Y)
            evidence = fit.evidence.with_description(notes=(*fit.evidence.notes, note))
            found.append(Iterate(M, seen.map, h, rho, fit.alpha, fit.intercept, fit.centers, evidence))
            if t < updates:
                agop = seen.agop(h, fit, options.metric == "diagonal")
                M = metric_from_agop(agop, options.metric, M, options.rank, powers[t])
            shown.advance(fit.evidence.description.method)
    return RecursiveFeatureMachine(kernel, rows, tuple(found), not shape, time.perf_counter() - began)


def _bandwidth_and_ridge(
    kernel: Kernel, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, M: np.ndarray, bandwidth: float | None,
    ridge: float | None,
) -> tuple[float, float, str]:  # fmt: skip
    """Return relative bandwidth, relative ridge and a sentence about their choice."""
    if bandwidth is not None and ridge is not None:
        factor, rho, how = bandwidth, ridge, "given by the user"
    else:
        part = evenly_spaced_rows(len(X), SELECTION_ROWS)
        seen, w = metric_gram(kernel, X[part], metric_root(M)), None if weights is None else weights[part]
        factor, rho = select_bandwidth_and_ridge(seen, Y[part], w, bandwidth, ridge)
        how = f"by leave-one-out of {len(part)} rows before the first update"
    return factor, rho, f"bandwidth {factor:.3g} times the default, ridge {rho:.3g} times the mean of k(x, x), {how}"


def _validate_weights(
    X: np.ndarray, Y: np.ndarray, weights: Values | None
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n c"], Float[np.ndarray, " n"] | None]:
    """Validate the weights and drop rows of weight zero."""
    if weights is None:
        return X, Y, None
    w = as_real_array("weights", weights).astype(np.float64)
    if w.shape != (len(X),) or not np.isfinite(w).all() or (w < 0).any() or not w.any():
        raise ValueError(
            f"weights must be {len(X)} numbers of at least zero, one for each row and not all zero; got shape {w.shape}"
        )
    keep = w > 0
    return (X, Y, w) if keep.all() else (X[keep], Y[keep], w[keep])
