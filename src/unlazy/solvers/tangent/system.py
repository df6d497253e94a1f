"""M = (AᵀA + τI)⁻¹ in the space of parameters, by the smaller of two Gram matrices or by conjugate gradients [I1, I2].

Posterior covariances are J(z) M J(z)ᵀ, the influence of training rows is J(z) M Aᵀ. With p parameters and N = n·c
numbers on the training rows,

- few parameters: M from AᵀA (p × p);
- few rows: M = (I - Aᵀ(AAᵀ + τI)⁻¹A)/τ from AAᵀ (N × N);
- many of both: the same by preconditioned conjugate gradients, without a matrix. The preconditioner is a randomized
  Nyström approximation of AAᵀ (Frangella, Tropp and Udell 2023).
"""

import abc
import warnings

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular

from unlazy.core.arrays import dot
from unlazy.core.errors import UnlazyWarning
from unlazy.core.progress import ProgressDisplay, ProgressOption
from unlazy.models.tangents import Tangents
from unlazy.solvers.tangent.rows import WeightedJacobian

MAX_DENSE = 8192
"""Largest matrix that is factorized."""
POWER_STEPS = 8
"""Power iterations for the largest eigenvalue, of which only the size matters."""
MAX_STEPS, RANK, COLUMNS = 500, 256, 64
"""Conjugate-gradient steps at most, rank of the preconditioner, and right-hand sides that are solved together."""


class TangentSystem(abc.ABC):
    """The operator M of a weighted Jacobian, at any τ.

    Parameters
    ----------
    data : WeightedJacobian
        A.
    """

    def __init__(self, data: WeightedJacobian) -> None:
        self.data = data

    @abc.abstractmethod
    def product(self, vectors: Float[np.ndarray, "k s"]) -> Float[np.ndarray, "k s"]:
        """Products of the Gram matrix with vectors; its nonzero eigenvalues are those of AᵀA."""

    @property
    @abc.abstractmethod
    def order(self) -> int:
        """Size of the Gram matrix."""

    @property
    def matrix(self) -> Float[np.ndarray, "s s"] | None:
        """The Gram matrix, if there is one."""
        return None

    @abc.abstractmethod
    def weights(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k N"]:
        """T M Aᵀ: what a unit change of every number on the training rows does along each tangent."""

    @abc.abstractmethod
    def inverse(self, tangents: Tangents, tau: float) -> Tangents:
        """T M."""

    @abc.abstractmethod
    def covariance(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k k"]:
        """T M Tᵀ."""


class PrimalSystem(TangentSystem):
    """Few parameters: AᵀA is factorized."""

    def __init__(self, data: WeightedJacobian) -> None:
        super().__init__(data)
        self._H = data.covariance()
        self._factor: tuple[float, np.ndarray] | None = None

    @property
    def order(self) -> int:
        return len(self._H)

    @property
    def matrix(self) -> Float[np.ndarray, "p p"]:
        return self._H

    def product(self, vectors: Float[np.ndarray, "k p"]) -> Float[np.ndarray, "k p"]:
        return dot(vectors, self._H)

    def weights(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k N"]:
        return self.data.push(self.inverse(tangents, tau))

    def inverse(self, tangents: Tangents, tau: float) -> Tangents:
        return self.data.map.to_device(self._solve(self.data.map.to_host(tangents).T, tau).T)

    def covariance(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k k"]:
        T = self.data.map.to_host(tangents)
        return dot(T, self._solve(T.T, tau))

    def _solve(self, B: Float[np.ndarray, "p k"], tau: float) -> Float[np.ndarray, "p k"]:
        if self._factor is None or self._factor[0] != tau:
            self._factor = (tau, _cholesky(self._H, tau))
        return cho_solve((self._factor[1], True), B, check_finite=False)


class DualSystem(TangentSystem):
    """Few rows: AAᵀ is factorized."""

    def __init__(self, data: WeightedJacobian) -> None:
        super().__init__(data)
        self._K = data.gram()
        self._factor: tuple[float, np.ndarray] | None = None

    @property
    def order(self) -> int:
        return self.data.size

    @property
    def matrix(self) -> Float[np.ndarray, "N N"]:
        return self._K

    def product(self, vectors: Float[np.ndarray, "k N"]) -> Float[np.ndarray, "k N"]:
        return dot(vectors, self._K)

    def weights(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k N"]:
        return cho_solve((self._lower(tau), True), self.data.push(tangents).T, check_finite=False).T

    def inverse(self, tangents: Tangents, tau: float) -> Tangents:
        return _complement(self.data, tangents, self.weights(tangents, tau), tau)

    def covariance(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k k"]:
        half = solve_triangular(self._lower(tau), self.data.push(tangents).T, lower=True, check_finite=False)
        return (self.data.map.contract(tangents, tangents) - dot(half.T, half)) / tau

    def _lower(self, tau: float) -> Float[np.ndarray, "N N"]:
        if self._factor is None or self._factor[0] != tau:
            self._factor = (tau, _cholesky(self._K, tau))
        return self._factor[1]


class IterativeSystem(TangentSystem):
    """Many rows and parameters: conjugate gradients, without a matrix.

    Parameters
    ----------
    data : WeightedJacobian
        A.
    tolerance : float, default 1e-4
        Relative residual of the solves.
    rank : int, default 256
        Rank of the preconditioner.
    progress : bool or callable, default False
        Whether to show progress.
    seed : int, default 0
        Of the preconditioner.

    Attributes
    ----------
    steps : int
        Conjugate-gradient steps of the last solve.
    residual : float
        Largest relative residual so far.
    """

    def __init__(
        self,
        data: WeightedJacobian,
        *,
        tolerance: float = 1e-4,
        rank: int = RANK,
        progress: ProgressOption = False,
        seed: int = 0,
    ) -> None:
        super().__init__(data)
        self.tolerance, self.rank, self.steps, self.residual = tolerance, min(rank, data.size // 2), 0, 0.0
        self._progress, self._seed = progress, seed
        self._sketch: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def order(self) -> int:
        return self.data.size

    def product(self, vectors: Float[np.ndarray, "k N"]) -> Float[np.ndarray, "k N"]:
        found = [self.data.push(self.data.pull(vectors[i : i + COLUMNS])) for i in range(0, len(vectors), COLUMNS)]
        return np.concatenate(found)

    def weights(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k N"]:
        found, count = [], len(tangents)
        with ProgressDisplay("solving", -(-count // COLUMNS), show=self._progress) as shown:
            for i in range(0, count, COLUMNS):
                found.append(self._solve(self.data.push(tangents[i : i + COLUMNS]), tau))
                shown.advance(f"{self.steps} steps")
        return np.concatenate(found)

    def inverse(self, tangents: Tangents, tau: float) -> Tangents:
        return _complement(self.data, tangents, self.weights(tangents, tau), tau)

    def covariance(self, tangents: Tangents, tau: float) -> Float[np.ndarray, "k k"]:
        solved = self.weights(tangents, tau)
        found = (self.data.map.contract(tangents, tangents) - dot(solved, self.data.push(tangents).T)) / tau
        return (found + found.T) / 2

    def _solve(self, B: Float[np.ndarray, "k N"], tau: float) -> Float[np.ndarray, "k N"]:
        """(AAᵀ + τ)⁻¹ B, every row to the tolerance."""
        U, values = self._nystrom()
        shrink = 1 - (values[-1] + tau) / (values + tau)

        def precondition(R: np.ndarray) -> np.ndarray:
            return R - dot(dot(R, U) * shrink, U.T)

        X, R = np.zeros_like(B), B.copy()
        size = np.maximum(np.linalg.norm(B, axis=1), np.finfo(np.float64).tiny)
        Z = precondition(R)
        P, rz = Z.copy(), np.sum(R * Z, 1)
        for step in range(MAX_STEPS):
            open_ = np.flatnonzero(np.linalg.norm(R, axis=1) > self.tolerance * size)
            self.steps = step
            if not len(open_):
                break
            AP = self.product(P[open_]) + tau * P[open_]
            a = rz[open_] / np.sum(P[open_] * AP, 1)
            X[open_] += a[:, None] * P[open_]
            R[open_] -= a[:, None] * AP
            Z = precondition(R[open_])
            new = np.sum(R[open_] * Z, 1)
            P[open_] = Z + (new / rz[open_])[:, None] * P[open_]
            rz[open_] = new
        residual = float(np.max(np.linalg.norm(R, axis=1) / size))
        if residual > self.tolerance:
            warnings.warn(
                f"conjugate gradients reached a relative residual of {residual:.1g} in {MAX_STEPS} steps: pass a "
                "larger prior_precision, or dtype='float64' in TangentOptions",
                UnlazyWarning,
                stacklevel=2,
            )
        self.residual = max(self.residual, residual)
        return X

    def _nystrom(self) -> tuple[Float[np.ndarray, "N r"], Float[np.ndarray, " r"]]:
        """Eigenvectors and eigenvalues of a randomized Nyström approximation of AAᵀ."""
        if self._sketch is None:
            Q = np.linalg.qr(np.random.default_rng(self._seed).normal(size=(self.order, self.rank)))[0]
            Y = self.product(np.ascontiguousarray(Q.T)).T
            shift = np.sqrt(self.order) * np.finfo(np.float32).eps * np.linalg.norm(Y, 2)
            Y = Y + shift * Q
            root = cholesky(dot(Q.T, Y) / 2 + dot(Y.T, Q) / 2, lower=True, check_finite=False)
            B = solve_triangular(root, Y.T, lower=True, check_finite=False).T
            U, singular, _ = np.linalg.svd(B, full_matrices=False)
            self._sketch = (U, np.maximum(singular**2 - shift, 0))
        return self._sketch


def tangent_system(
    data: WeightedJacobian,
    method: str = "auto",
    *,
    tolerance: float = 1e-4,
    progress: ProgressOption = False,
    seed: int = 0,
) -> TangentSystem:
    """The system of a weighted Jacobian, by the method for its size or the given one.

    Parameters
    ----------
    data : WeightedJacobian
        A.
    method : {"auto", "primal", "dual", "iterative"}
        Factorize AᵀA or AAᵀ, or use conjugate gradients.
    tolerance : float
        Relative residual of conjugate gradients.
    progress : bool or callable
        Whether to show progress.
    seed : int
        Of the preconditioner.

    Returns
    -------
    TangentSystem
    """
    if method == "auto":
        if data.map.size <= min(data.size, MAX_DENSE):
            method = "primal"
        else:
            method = "dual" if data.size <= MAX_DENSE else "iterative"
    if method == "iterative":
        return IterativeSystem(data, tolerance=tolerance, progress=progress, seed=seed)
    return {"primal": PrimalSystem, "dual": DualSystem}[method](data)


def largest_eigenvalue(system: TangentSystem) -> float:
    """The largest eigenvalue of the Gram matrix, from below, by a few power iterations."""
    vector, size = np.random.default_rng(0).normal(size=(1, system.order)), 0.0
    for _ in range(POWER_STEPS):
        vector = system.product(vector / np.linalg.norm(vector))
        size = float(np.linalg.norm(vector))
        if size == 0:
            break
    return size


def _cholesky(matrix: Float[np.ndarray, "s s"], tau: float) -> Float[np.ndarray, "s s"]:
    """Lower factor of the matrix plus τ."""
    shifted = np.array(matrix, order="F")
    shifted[np.diag_indices_from(shifted)] += tau
    try:
        return cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError as error:
        raise ValueError(
            f"τ = {tau:.2g} (prior precision in units of the loss) is below the rounding of the tangents: pass "
            "TangentOptions(dtype='float64') or a larger prior_precision"
        ) from error


def _complement(data: WeightedJacobian, tangents: Tangents, weights: Float[np.ndarray, "k N"], tau: float) -> Tangents:
    """(T - W A)/τ."""
    k = len(tangents)
    return data.map.add(
        data.map.combine(np.eye(k) / tau, tangents), data.map.combine(-np.eye(k) / tau, data.pull(weights))
    )
