"""Would a fixed kernel do as well? Kernel regression with the tangent kernel at initialization, beside the network."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from unlazy.diagnostics.measures.kernel_result import KernelMachine
from unlazy.diagnostics.measures.losses import is_classes, label_matrix, probe_error
from unlazy.diagnostics.probes import Probes
from unlazy.models.protocol import Model, Outputs, Params
from unlazy.solvers.learning_curve import MIN_POINTS, learning_curve_from_spectrum

MAX_POINTS = 256
"""Largest number of probe points whose kernel is computed."""
COMBINATIONS = 4
"""Largest number of outputs, or of random combinations of them, over which the kernel is averaged."""
RIDGES = np.logspace(-6, 2, 33)
"""Ridges relative to the mean of the kernel's diagonal, of which leave-one-out chooses."""
ROUNDING = 1e-6
"""Error of the kernel's eigenvalues relative to the largest: products in float32."""


def fit_kernel_machine(
    model: Model,
    reference: Params,
    probes: Probes,
    outputs: Outputs,
    *,
    count: int = MAX_POINTS,
    training_points: int | None = None,
    seed: int = 0,
) -> KernelMachine:
    """Fit labels by the tangent kernel of the reference, leaving out one point at a time.

    Parameters
    ----------
    model : Model
        The network.
    reference : pytree
        Parameters of the kernel.
    probes : Probes
        Points with targets.
    outputs : array of shape (count, c)
        The network's outputs now, on the first `count` points.
    count : int, default 256
        Number of points.
    training_points : int, optional
        Number of points for which the error is predicted, by the learning curve of the kernel.
    seed : int, default 0
        Of combinations of outputs.

    Returns
    -------
    KernelMachine

    Raises
    ------
    ValueError
        If there are no targets, or they are neither class labels nor one number per output.
    """
    targets = probes.target_array(count)
    labels = None if targets is None else label_matrix(outputs, targets)
    if targets is None or labels is None:
        raise ValueError(
            "a kernel machine needs targets that are class labels or one number per output: pass probe_targets"
        )
    start = np.asarray(model.apply(reference, probes.inputs(count)), np.float64)
    K = tangent_gram(model, reference, probes, start.shape, count, seed)
    # a pretrained network knows something already; a random one is noise
    offset = labels.mean(0)
    if not is_classes(targets, outputs) and _spread(labels - start) < _spread(labels):
        offset = start + (labels - start).mean(0)
    values, vectors = np.linalg.eigh(K + np.mean(np.diagonal(K)))  # a constant kernel is the intercept
    values = np.maximum(values, 0)
    left_out = _leave_one_out(values, vectors, labels - offset, np.mean(np.diagonal(K)))
    error, network = probe_error(left_out + offset, targets), probe_error(outputs, targets)
    found = KernelMachine(len(labels), error, network, training_points)
    if training_points is None or len(labels) < MIN_POINTS:
        return found
    floor = ROUNDING * float(values[-1])
    sizes = [len(labels), training_points]
    curve = learning_curve_from_spectrum(values, vectors, labels - offset, sizes, floor=floor)
    # labels are regressed as numbers: shares of wrong ones are taken to fall as the squared error does
    ratios = np.array([curve.risk[1], curve.low[1], curve.high[1]]) / curve.risk[0]
    return KernelMachine(len(labels), error, network, training_points, *map(float, error * ratios))


def tangent_gram(
    model: Model, params: Params, probes: Probes, shape: tuple[int, int], count: int, seed: int = 0
) -> Float[np.ndarray, "m m"]:
    """Tangent kernel of the first `count` points, averaged over outputs: exact for few, over random signs for many."""
    m, c = shape
    inputs = probes.inputs(count)
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), (COMBINATIONS, c)) / np.sqrt(c)
    combinations = np.eye(c) if c <= COMBINATIONS else signs
    K = np.zeros((m, m))
    for u in combinations:
        for j in range(m):
            if probes.rows is None:
                row = np.zeros((m, c))
                row[j] = u
                pulled = model.vjp(params, row, inputs)
            else:
                pulled = model.vjp(params, u[None], probes.point(j, count))
            K[:, j] += model.jvp(params, pulled, inputs) @ u
    return (K + K.T) / (2 * len(combinations))


def _leave_one_out(
    values: NDArray[np.float64], vectors: NDArray[np.float64], y: NDArray[np.float64], scale: float
) -> NDArray[np.float64]:
    """Predictions at every point from all others, at the ridge whose squared error is least."""
    best: tuple[float, NDArray[np.float64]] = (np.inf, np.zeros_like(y))
    rotated = vectors.T @ y
    for ridge in RIDGES * scale:
        inverse = 1 / (values + ridge)
        residual = (vectors @ (inverse[:, None] * rotated)) / (vectors**2 @ inverse)[:, None]
        best = min(best, (float(np.sum(residual**2)), y - residual), key=lambda pair: pair[0])
    return best[1]


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.sum((values - values.mean(0)) ** 2))
