"""Log evidence of a linearized network as a function of prior precision and noise [I1].

Everything depends on the Gram matrix only through tr f(G), a sum over the nodes of its spectral measure: exact from the
eigenvalues of a small matrix; of a large one by stochastic Lanczos quadrature, once for all values of the
hyperparameters. Ubaru, Chen and Saad (2017).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal, eigvalsh
from scipy.optimize import minimize_scalar

from unlazy.core.arrays import einsum
from unlazy.solvers.tangent.system import TangentSystem

MAX_EXACT = 2048
"""Largest matrix whose eigenvalues are computed."""
PROBES, STEPS = 16, 80
"""Random vectors and Lanczos steps of the quadrature."""
DECADES = (-10, 4)
"""τ is searched between these powers of ten times the mean of the largest eigenvalues."""


class SpectralMeasure(NamedTuple):
    """Nodes and weights with Σ w f(λ) = tr f(G).

    Attributes
    ----------
    nodes, weights : arrays of shape (probes, k)
        One row per random vector; a single row if exact.
    """

    nodes: Float[np.ndarray, "r k"]
    weights: Float[np.ndarray, "r k"]

    def trace_log(self, tau: float) -> tuple[float, float]:
        """log det(I + G/τ) and its standard error."""
        each = np.sum(self.weights * np.log1p(np.maximum(self.nodes, 0) / tau), 1)
        error = float(np.std(each, ddof=1) / math.sqrt(len(each))) if len(each) > 1 else 0.0
        return float(np.mean(each)), error

    @property
    def largest(self) -> float:
        """The largest eigenvalue, from below."""
        return float(np.max(self.nodes, initial=0))


def spectral_measure(system: TangentSystem, seed: int = 0) -> SpectralMeasure:
    """The spectral measure of the Gram matrix of a system.

    Parameters
    ----------
    system : TangentSystem
        The system.
    seed : int, default 0
        Of the random vectors.

    Returns
    -------
    SpectralMeasure
    """
    matrix, s = system.matrix, system.order
    if matrix is not None and s <= MAX_EXACT:
        values = eigvalsh(matrix, check_finite=False)
        return SpectralMeasure(values[None], np.ones((1, s)))
    return SpectralMeasure(*_lanczos(system, np.random.default_rng(seed).choice((-1.0, 1.0), (PROBES, s))))


def _lanczos(
    system: TangentSystem, start: Float[np.ndarray, "r s"]
) -> tuple[Float[np.ndarray, "r k"], Float[np.ndarray, "r k"]]:
    """Gauss quadrature of vᵀf(G)v for several vectors at once, with full reorthogonalization."""
    r, s = start.shape
    steps = min(STEPS, s)
    size = np.linalg.norm(start, axis=1)
    basis = np.zeros((steps, r, s))
    basis[0] = start / size[:, None]
    diagonal, side = np.zeros((r, steps)), np.zeros((r, steps - 1))
    for j in range(steps):
        image = system.product(basis[j])
        diagonal[:, j] = np.sum(image * basis[j], 1)
        for _ in range(2):
            overlap = einsum("jrs,rs->jr", basis[: j + 1], image)
            image = image - einsum("jr,jrs->rs", overlap, basis[: j + 1])
        if j + 1 < steps:
            side[:, j] = np.linalg.norm(image, axis=1)
            basis[j + 1] = image / np.maximum(side[:, j], np.finfo(np.float64).tiny)[:, None]
    nodes, weights = np.zeros((r, steps)), np.zeros((r, steps))
    for i in range(r):
        values, vectors = eigh_tridiagonal(diagonal[i], side[i])
        nodes[i], weights[i] = values, (size[i] * vectors[0]) ** 2
    return nodes, weights


class Hyperparameters(NamedTuple):
    """Prior precision and noise with the largest evidence.

    Attributes
    ----------
    tau : float
        Precision of the prior of every parameter, in units of the loss.
    noise : float
        Variance of the noise; 1 for classification.
    log_evidence : float
        Log marginal likelihood of the training targets.
    error : float
        Its standard error.
    """

    tau: float
    noise: float
    log_evidence: float
    error: float


def gaussian_evidence(
    measure: SpectralMeasure,
    residual: float,
    count: int,
    norm: float,
    tau: float | None = None,
    noise: float | None = None,
) -> Hyperparameters:
    """Evidence of regression at the trained parameters; τ (in units of the noise) maximizes it if not given.

    log p = -N/2 log 2πς² - (RSS + τ‖θ‖²)/2ς² - ½ log det(I + G/τ), whose maximum over the noise is
    ς² = (RSS + τ‖θ‖²)/N. MacKay (1992).

    Parameters
    ----------
    measure : SpectralMeasure
        Of J Jᵀ on the training rows.
    residual : float
        Sum of squared residuals.
    count : int
        Number N of targets.
    norm : float
        ‖θ - θ_0‖².
    tau : float, optional
        τ = prior precision times the variance of the noise.
    noise : float, optional
        Variance of the noise, where τ is given; by default the one with the largest evidence.

    Returns
    -------
    Hyperparameters
        With `tau` in units of the noise: the precision of the prior is tau/noise.
    """

    def variance(t: float) -> float:
        return noise or max((residual + t * norm) / count, np.finfo(np.float64).tiny)

    def at(log_tau: float) -> float:
        t = math.exp(log_tau)
        fit = count * math.log(2 * math.pi * variance(t)) + (residual + t * norm) / variance(t)
        return -0.5 * (fit + measure.trace_log(t)[0])

    t = _maximize(at, measure) if tau is None else tau
    return Hyperparameters(t, variance(t), at(math.log(t)), measure.trace_log(t)[1] / 2)


def laplace_evidence(measure: SpectralMeasure, loss: float, norm: float, tau: float | None = None) -> Hyperparameters:
    """Evidence of classification: -Σ loss - τ‖θ - θ_0‖²/2 - ½ log det(I + G/τ) [I1].

    Parameters
    ----------
    measure : SpectralMeasure
        Of A Aᵀ with the curvature of the loss in A.
    loss : float
        Sum of the losses.
    norm : float
        ‖θ - θ_0‖².
    tau : float, optional
        Precision of the prior.

    Returns
    -------
    Hyperparameters
    """

    def at(log_tau: float) -> float:
        t = math.exp(log_tau)
        return -loss - t * norm / 2 - measure.trace_log(t)[0] / 2

    t = _maximize(at, measure) if tau is None else tau
    return Hyperparameters(t, 1.0, at(math.log(t)), measure.trace_log(t)[1] / 2)


def _maximize(function, measure: SpectralMeasure) -> float:  # type: ignore[no-untyped-def]
    """The maximum over τ: the best of a grid, refined."""
    top = math.log(max(measure.largest, np.finfo(np.float64).tiny))
    low, high = (top + decade * math.log(10) for decade in DECADES)
    grid = np.linspace(low, high, 57)
    values = [function(t) for t in grid]
    best = int(np.argmax(values))
    around = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = minimize_scalar(lambda t: -function(t), bounds=around, method="bounded", options={"xatol": 1e-4})
    return math.exp(float(found.x))
