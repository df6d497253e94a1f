"""The recursive feature machine [D11] as a kernel user's tool, and its rounds as one trajectory: round 0 is the plain
kernel."""

import math
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from unlazy.core.arrays import Points, check_axes, real_numbers, refuse_not_finite
from unlazy.core.errors import check_positive_integer
from unlazy.core.precision import precision, rounding
from unlazy.core.progress import Display
from unlazy.core.results import Evidence, Words, place
from unlazy.kernels.base import Kernel
from unlazy.kernels.metric import mapped
from unlazy.kernels.resolve import given_kernel
from unlazy.products import matmul
from unlazy.products.metric_gram import view
from unlazy.solvers.methods.base import Method
from unlazy.solvers.problem import labels
from unlazy.theory.numerics.bandwidth import some_rows
from unlazy.training.rfm.bandwidth_and_ridge import descend, leave_one_out
from unlazy.training.rfm.iteration import (
    FIRST_RIDGE,
    Iterate,
    check_metric,
    every_power,
    isotropic,
    normalized,
    root,
    sharpened,
)
from unlazy.training.rfm.large_n_fit import AnySize, Means

SOLVED = "α = (K_M + ρI)⁻¹ y, M ← AGOP(f)/tr AGOP(f) [D11]"
CHOOSING = 1200
"""Rows whose leave-one-out error chooses bandwidth and ridge, evenly spread over all."""


class Machine(eqx.Module):
    """All iterates of a machine with the kernel and the rows they belong to."""

    kernel: Kernel
    X: Float[np.ndarray, "n d"]
    iterates: tuple[Iterate, ...] = eqx.field(converter=tuple)
    one_output: bool = eqx.field(static=True, default=False)
    """Whether the labels had one axis, and predictions have."""
    seconds: float = math.nan

    @property
    def times(self) -> Int[np.ndarray, " t"]:
        """Updates of the metric."""
        return np.arange(len(self.iterates))

    @property
    def metric(self) -> Float[np.ndarray, "d d"] | Float[np.ndarray, " d"]:
        """M after the last update, of trace one, or its diagonal."""
        return self.iterates[-1].matrix

    @property
    def evidence(self) -> Evidence:
        """Of the worst fit; the words of the last one, with how bandwidth and ridge came about."""
        known = [one.evidence for one in self.iterates if one.evidence is not None]
        fine = all(np.isfinite(one.alpha).all() for one in self.iterates)
        exact = len(self.X) * rounding(self.X.dtype)
        if not known or not fine:
            residual = exact if fine else math.nan
            return Evidence(residual, steps=len(self.iterates), words=Words(SOLVED, "factorization"))
        last = known[-1]
        return Evidence(
            max(float(e.residual) for e in known), last.tolerance, last.ridge, sum(int(e.steps) for e in known),
            self.seconds, max(float(e.bytes) for e in known), last.saying(solved=SOLVED).words,
        )  # fmt: skip

    def predict(self, Z: Points, t: Any = None) -> Float[np.ndarray, "..."]:
        """f after the last update, or after t of them, one number or several: shape (*t, m, *outputs)."""
        rows = real_numbers("Z", Z).astype(self.X.dtype)
        check_axes("Z", rows.shape)
        at = np.asarray(len(self.iterates) - 1 if t is None else place(self.times, t, "update"))
        found = np.stack([self._at(self.iterates[i], rows) for i in at.ravel()])
        return (found[..., 0] if self.one_output else found).reshape(*at.shape, len(rows), *self._outputs)

    def _at(self, one: Iterate, rows: np.ndarray) -> Float[np.ndarray, "m c"]:
        centers = self.X if one.centers is None else one.centers
        with precision(self.X.dtype.name):
            return np.asarray(matmul(self._seen(one), rows, centers, one.alpha)) + one.intercept

    def _seen(self, one: Iterate) -> Kernel:
        return mapped(self.kernel, one.map / one.bandwidth)

    @property
    def _outputs(self) -> tuple[int, ...]:
        return () if self.one_output else self.iterates[0].alpha.shape[1:]

    def kernel_at(self, t: Any = None) -> Kernel:
        """k(Lx/h, Lz/h) with what all updates, or t of them, have learned."""
        return self._seen(self.iterates[-1 if t is None else int(place(self.times, t, "update"))])


def recursive_features(
    kernel: Kernel,
    X: Points,
    y: Any,
    *,
    updates: int = 5,
    metric: str = "full",
    rank: int | None = None,
    power: float | Sequence[float] = 1.0,
    relative_bandwidth: float | None = None,
    relative_ridge: float | None = None,
    weights: Any = None,
    start: Any = None,
    gradients: int = 5000,
    method: str | Method | None = None,
    tolerance: float = 1e-3,
    memory: int | str | None = None,
    progress: bool = False,
    key: PRNGKeyArray | None = None,
) -> Machine:
    """Fit, take the average gradient outer product M of the fit, fit again in ⟨x, Mz⟩; any number of rows [D11].

    f = argmin Σ_i w_i (f(x_i) + b - y_i)² + ρ‖f‖²_{K_M},   M ← (Σ_i w_i ∇f(x_i)∇f(x_i)ᵀ)^power / trace.

    For every kernel of linear maps of x, deep NTKs included; columns are taken as they are. As long as one
    factorization in float64 holds all rows a fit is exact; beyond, or where a `method` is named, `solve` makes it to
    the `tolerance`, within `memory`. Gradients are averaged over `gradients` rows. `metric` is "full", "diagonal" or
    "low_rank" with its `rank`. `relative_bandwidth` is a multiple of the median distance (of the root mean square norm,
    for kernels of inner products) under each metric, `relative_ridge` one of the mean of k(x, x); what is None is
    chosen by leave-one-out before the first update and kept: as noise over signal, the ridge does not depend on n.
    `start` is a metric to begin with. Radhakrishnan, Beaglehole, Pandit and Belkin (Science 2024).

    >>> machine = recursive_features(NTK(MLP(3, sigma_b=1.0)), X, y)
    >>> machine.metric, machine.predict(Z), machine.kernel_at(), machine.evidence
    """
    began = time.perf_counter()
    metric = _kind(kernel, metric, rank)
    powers = every_power(power, updates if updates == 0 else check_positive_integer("updates", updates))
    rows = real_numbers("X", X).astype(np.float64)
    check_axes("X", rows.shape)
    refuse_not_finite("X", rows)
    Y, shape = labels(y, len(rows))
    rows, Y, w = _weighted(rows, Y, weights)
    means = Means(method, tolerance, memory, check_positive_integer("gradients", gradients), key)
    M = isotropic(rows.shape[1], metric) if start is None else normalized(real_numbers("start", start), metric)
    found: list[Iterate] = []
    with precision("float64"), Display("learning a metric", updates + 1, show=progress) as shown:
        factor, rho, note = _chosen(kernel, rows, Y, w, M, relative_bandwidth, relative_ridge)
        for t in range(updates + 1):
            seen = AnySize(kernel, rows, root(M), w, means)
            h = factor * seen.usual
            fit = seen.fit(h, rho, Y)
            evidence = fit.evidence.saying(notes=(*fit.evidence.notes, note))
            found.append(Iterate(M, seen.map, h, rho, fit.alpha, fit.intercept, fit.centers, evidence))
            if t < updates:
                M = sharpened(seen.agop(h, fit, metric == "diagonal"), metric, M, rank, powers[t])
            shown.advance(fit.evidence.words.method)
    return Machine(kernel, rows, tuple(found), not shape, time.perf_counter() - began)


def _chosen(
    kernel: Kernel, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None, M: np.ndarray, bandwidth: float | None,
    ridge: float | None,
) -> tuple[float, float, str]:  # fmt: skip
    """Bandwidth and ridge, both relative, and a sentence about them."""
    for what, value in (("relative_bandwidth", bandwidth), ("relative_ridge", ridge)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{what} must be positive or None (leave-one-out), got {value!r}")
    size = "bandwidth {:.3g} times the usual, ridge {:.3g} times the mean of k(x, x)"
    if bandwidth is not None and ridge is not None:
        return float(bandwidth), float(ridge), f"{size.format(bandwidth, ridge)}, as given"
    part = some_rows(len(X), CHOOSING)
    seen = view(kernel, X[part], root(M))
    error = leave_one_out(seen.gram, Y[part], None if weights is None else weights[part])
    first = ((bandwidth or 1.0) * seen.usual, ridge or FIRST_RIDGE)
    (h, rho), _ = descend(error, first, ridge=ridge is None, bandwidth=bandwidth is None)
    factor = h / seen.usual
    return factor, rho, f"{size.format(factor, rho)}, by leave-one-out of {len(part)} rows before the first update"


def _kind(kernel: Kernel, metric: str, rank: int | None) -> str:
    """The kind of metric; a rank makes a full one low."""
    given_kernel(kernel)
    metric = "low_rank" if metric == "full" and rank is not None else metric
    check_metric(kernel, metric)
    if metric == "low_rank":
        check_positive_integer("rank", rank, "metric='low_rank' keeps so many directions")
    elif rank is not None:
        raise ValueError(f"rank={rank!r} belongs to metric='low_rank', not to {metric!r}")
    return metric


def _weighted(
    X: np.ndarray, Y: np.ndarray, weights: Any
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n c"], Float[np.ndarray, " n"] | None]:
    """Checked weights; rows of weight zero are left out."""
    if weights is None:
        return X, Y, None
    w = real_numbers("weights", weights).astype(np.float64)
    if w.shape != (len(X),) or not np.isfinite(w).all() or (w < 0).any() or not w.any():
        raise ValueError(
            f"weights must be {len(X)} numbers of at least zero, one for each row and not all zero; got shape {w.shape}"
        )
    keep = w > 0
    return (X, Y, w) if keep.all() else (X[keep], Y[keep], w[keep])
