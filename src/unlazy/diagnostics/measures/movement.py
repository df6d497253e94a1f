"""Measures of a network in training, against its initial parameters [W1, W3, W4]: pure functions, NumPy results.

θ_0 is the reference (initialization or pretrained weights), θ_t the current parameters, f(θ, x) the outputs on m probe
points, h_l the outputs of layer l.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from unlazy.models.protocol import Inputs, Model, Outputs, Params

Features: TypeAlias = Float[np.ndarray, "m _"]
"""Outputs of a layer on m points."""


class GapEstimate(NamedTuple):
    """The linearization gap on the probe points, and what it says about points like them.

    Attributes
    ----------
    value : float
        The gap [W1] on these points, up to rounding. NaN if f did not change.
    standard_error : float
        Of the gap as an estimate for the distribution the points were drawn from.
    change : float
        ‖f(θ_t) - f(θ_0)‖/‖f(θ_0)‖.
    """

    value: float
    standard_error: float
    change: float


def linearization_gap(model: Model, reference: Params, inputs: Inputs, *, params: Params | None = None) -> float:
    """Share of the change in f that is not linear in the parameters [W1].

    ``|f(θ) - f(θ0) - J(θ0)(θ - θ0)| / |f(θ) - f(θ0)|``; Chizat, Oyallon and Bach (2019).

    Parameters
    ----------
    model : Model
        The network.
    reference : pytree
        Parameters θ0 at initialization.
    inputs : array of shape (m, ...)
        Probe points.
    params : pytree, optional
        Parameters θ; those of the model by default.

    Returns
    -------
    float
        0 is lazy; NaN if the function did not change on these points.
    """
    return estimate_gap(*function_change(model, reference, inputs, params=params)).value


def function_change(
    model: Model,
    reference: Params,
    inputs: Inputs,
    *,
    params: Params | None = None,
    initial: Outputs | None = None,
) -> tuple[Outputs, Outputs, Outputs]:
    """f(θ_0), f(θ_t) - f(θ_0) and its linear part J(θ_0)(θ_t - θ_0) on the probe points, in float64.

    `initial` is f(θ_0), if known.
    """
    params = model.params if params is None else params
    found = model.change(reference, params, inputs, initial)
    start, end, linear = (np.asarray(part, np.float64) for part in found)
    with np.errstate(invalid="ignore"):  # outputs of a diverged network
        return start, end - start, linear


def estimate_gap(initial: Outputs, change: Outputs, linear: Outputs, derivative_error: float = 0.0) -> GapEstimate:
    """The gap of a change and its linear part, with its standard error over points.

    g² = Σ a_i / Σ b_i is a ratio of sums over points; to first order its variance is that of the sum of
    (a_i - g² b_i) / Σ b, and the error of g is that of g² over 2g. `derivative_error`, the relative error of the linear
    part, is added in quadrature.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        error, size = np.sum((change - linear) ** 2, 1), np.sum(change**2, 1)
        total, m = float(size.sum()), len(size)
    if not np.isfinite(total) or total <= 0:
        return GapEstimate(np.nan, np.nan, 0.0 if total == 0 else np.nan)
    gap = float(np.sqrt(error.sum() / total))
    spread = float(np.sqrt(m / max(m - 1, 1) * np.sum((error - gap**2 * size) ** 2))) / total
    start = float(np.linalg.norm(initial))
    relative = float(np.sqrt(total)) / start if start > 0 else np.inf
    inexact = derivative_error * float(np.linalg.norm(linear)) / float(np.sqrt(total))
    return GapEstimate(gap, float(np.hypot(spread / (2 * gap) if gap > 0 else 0.0, inexact)), relative)


def parameter_movement(model: Model, reference: Params, *, params: Params | None = None) -> dict[str, float]:
    """‖θ_l - θ_{0,l}‖ / ‖θ_{0,l}‖ of every named layer; infinite where a layer started at 0 and moved."""
    start, end = model.layers(reference), model.layers(model.params if params is None else params)
    found = {}
    for name, before in start.items():  # the difference of one layer at a time, to save memory
        moved = model.subtract(end[name], before)
        found[name] = _ratio(model.inner(moved, moved), model.inner(before, before))
    return found


def _ratio(moved: float, start: float) -> float:
    """Square root of a ratio of squares; 0 if nothing moved."""
    if moved == 0:
        return 0.0
    return float(np.sqrt(moved / start)) if start > 0 else np.inf


class FeatureChange(NamedTuple):
    """How the outputs of one layer on the probe points changed [W4].

    Attributes
    ----------
    movement : float
        ‖h(t) - h(0)‖/‖h(0)‖.
    similarity : float
        Centered kernel alignment of h(t) and h(0): 1 if their geometry is the same.
    effective_rank : float
        Exponential of the entropy of the normalized spectrum of h(t), centered.
    initial_rank : float
        The same of h(0).
    """

    movement: float
    similarity: float
    effective_rank: float
    initial_rank: float


def feature_changes(before: Mapping[str, Features], after: Mapping[str, Features]) -> dict[str, FeatureChange]:
    """Movement, centered kernel alignment and effective ranks of every layer's outputs [W4]."""
    found = {}
    for name in before:
        one, two = (np.asarray(h[name], np.float64) for h in (before, after))
        size = float(np.sum(one**2))
        K, L = centered_gram(one), centered_gram(two)
        found[name] = FeatureChange(
            _ratio(float(np.sum((two - one) ** 2)), size), alignment(K, L), effective_rank(L), effective_rank(K)
        )
    return found


def centered_gram(features: Features) -> Float[np.ndarray, "m m"]:
    """Gram matrix of features after subtracting their mean over points."""
    features = np.asarray(features, np.float64)
    features = features - features.mean(0)
    return features @ features.T


def alignment(K: Float[np.ndarray, "m m"], L: Float[np.ndarray, "m m"]) -> float:
    """Cosine ⟨K, L⟩/(‖K‖‖L‖) of two matrices; NaN if one is 0."""
    size = float(np.linalg.norm(K) * np.linalg.norm(L))
    return float(np.sum(K * L)) / size if size > 0 else np.nan


def effective_rank(K: Float[np.ndarray, "m m"]) -> float:
    """exp(entropy of the normalized spectrum) of a Gram matrix; Roy and Vetterli (2007)."""
    values = np.linalg.eigvalsh(K)
    values = values[values > len(values) * np.finfo(np.float64).eps * max(values[-1], 0.0)]
    if not len(values):
        return 0.0
    p = values / values.sum()
    return float(np.exp(-np.sum(p * np.log(p))))


def richness(features: Features, outputs: Outputs) -> float:
    """1 - centered kernel alignment of the last features with the outputs' own geometry [W4].

    The outputs enter by the projection onto the span of their centered columns, the simplest kernel that represents
    them: the value is small when the features carry nothing but the function learned, as in neural collapse.
    Nam et al. (2024), arXiv 2410.04264.
    """
    centered = np.asarray(outputs, np.float64)
    centered = centered - centered.mean(0)
    U, s, _ = np.linalg.svd(centered, full_matrices=False)
    # outputs are computed in float32: directions below its rounding are noise
    U = U[:, s > len(s) * np.finfo(np.float32).eps * (s[0] if len(s) else 0)]
    return 1 - alignment(centered_gram(features), U @ U.T)


def homogeneous_degree(model: Model, params: Params, inputs: Inputs) -> float:
    """k with f(σθ) = σ^k f(θ) at these parameters; NaN if there is none.

    ReLU networks without biases have the degree of their number of layers; normalization layers lower it.
    """
    scale = 1.25
    before = np.asarray(model.apply(params, inputs), np.float64)
    after = np.asarray(model.apply(model.add_scaled(params, scale - 1, params), inputs), np.float64)
    size = float(np.sum(before**2))
    ratio = float(np.sum(before * after)) / size if size > 0 else 0.0
    if not ratio > 0 or np.linalg.norm(after - ratio * before) > 1e-4 * np.linalg.norm(after):
        return float("nan")
    return float(np.log(ratio) / np.log(scale))
