"""Stochastic gradient descent in function space with the top of the spectrum flattened (EigenPro).

For A = K + ρI and a sample s of the points with A_ss = V diag(σ) Vᵀ, a batch b changes

    α_b ← α_b + η r_b,   α_s ← α_s - η Q A_sb r_b,   r_b = y_b - A_b· α,   Q = Σ_{i≤q} (1 - σ_{q+1}/σ_i)/σ_i v_i v_iᵀ,

so that the largest eigenvalue of a batch decreases from σ_1 to about σ_{q+1}, and η increases by the same factor. Every
batch has the solution of Aα = y as a fixed point, so there is no noise floor. η = 1/λ_max of the preconditioned kernel,
measured on batches: nothing is assumed about k(x, x), which is not 1 for an NTK. Ma and Belkin (2019).

α, y, Q and the intermediates of a batch stay on the device, in float64, while products are in the precision of the
kernel (solvers.problem); an epoch transfers one number per output to the host.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from unlazy.core.arrays import dot, precision, unit_roundoff
from unlazy.products import KernelOperator, gram, product
from unlazy.products.engines.base import StoredOperator
from unlazy.products.engines.sharded import ShardedOperator
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.checkpoint import State
from unlazy.solvers.methods.base import Method, positive_integer_or_none
from unlazy.solvers.problem import FittedCoefficients, Problem

MARGIN = 0.9
"""η over 1/λ_max of the measured batches; convergence requires less than 2."""


class EigenPro(Method):
    """Preconditioned stochastic gradient descent in function space.

    Parameters
    ----------
    rank : int, optional
        Number of leading eigendirections of the sample to flatten; by default as many as the sample resolves.
    sample : int, default 2000
        Points from which the leading eigendirections are computed.
    batch : int, default 1000
        Points per batch.

    References
    ----------
    Ma and Belkin (2019), Kernel machines that adapt to GPUs for effective large batch training.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, EigenPro, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=0.1, method=EigenPro(batch=20)).predict(X[:5]).shape
    (5,)
    """

    name = "eigenpro"
    default_max_steps = 500
    rank: int | None = eqx.field(default=None, static=True, converter=positive_integer_or_none("rank"))
    sample: int = eqx.field(default=2000, static=True, converter=positive_integer_or_none("sample"))
    batch: int = eqx.field(default=1000, static=True, converter=positive_integer_or_none("batch"))

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α; a step is an epoch, one pass over K."""
        problem = problem.with_resolvable_ridge()
        rng = problem.rng()
        order = rng.permutation(problem.n)
        X = problem.X()[jnp.asarray(order)]
        y = problem.y[order]
        n, s = problem.n, min(problem.n, self.sample)
        K = problem.product(X, problem.memory - 3 * s * s * 8)
        pre = EigenProPreconditioner(problem, X[:s], self.rank)
        batch = min(n, self.batch)
        eta = MARGIN / pre.batch_eigenvalue(problem, X, batch, rng)
        rows = BatchProducts(problem, K, X, batch)
        saved = callback.resume()
        alpha, epoch = (np.zeros_like(y), 0) if saved is None else (saved["x"][order], int(saved["step"].item()))
        notes, stopped, last = list(problem.notes), None, np.inf
        at = EigenProBatches(problem, pre, rows, y, alpha)
        good = at.alpha

        def in_order() -> np.ndarray:
            out = np.empty_like(y)
            out[order] = np.asarray(at.alpha)
            return out

        def state(epoch: int) -> State:
            return {"x": in_order(), "step": np.array(epoch)}

        while stopped is None:
            seen = at.epoch(rng.permutation(np.arange(0, n, batch)), eta)
            epoch += 1
            now = float(np.max(np.sqrt(seen) / problem.y_norm))
            if not now < 2 * last:  # the measured batches underestimated λ_max
                at.alpha, eta = good, eta / 2
                notes.append(f"step size halved to {eta:.2g} in epoch {epoch}")
                now = last
            else:
                good, last = at.alpha, now
            if now <= 2 * callback.tolerance or epoch >= callback.max_steps:
                # the batch residuals are older than α
                now = problem.relative_residual(_residual(problem, K, np.asarray(at.alpha), y))
            else:
                now = max(now, 1.01 * callback.tolerance)
            stopped = callback.after_step(epoch, now, in_order, functools.partial(state, epoch))
            if eta < 1e-12:
                stopped = "stalled"
        left = np.empty_like(y)
        left[order] = _residual(problem, K, np.asarray(at.alpha), y)
        notes.append(f"K {K.engine}, {pre.n_directions} directions of {s} flattened, batches of {batch}")
        used, residual = K.bytes + 3 * s * s * 8, problem.relative_residual(left)
        return FittedCoefficients(
            in_order(), residual, epoch, stopped, used, tuple(notes), ridge=problem.ridge, residual_vector=left
        )


def _residual(problem: Problem, K: KernelOperator, alpha: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y - (K + ρI)α."""
    return y - np.asarray(K.matmul(jnp.asarray(alpha, K.dtype)), np.float64) - problem.ridge * alpha


class EigenProPreconditioner:
    """Q of a sample, and its effect on a batch."""

    def __init__(self, problem: Problem, sample: jax.Array, rank: int | None):
        self.kernel, self.sample, self.ridge = problem.kernel, sample, problem.ridge
        s = sample.shape[0]
        A = np.asarray(problem.kernel.gram(sample), np.float64) + problem.ridge * np.eye(s)
        values, vectors = np.linalg.eigh(A)
        values, vectors = np.maximum(values[::-1], problem.ridge), vectors[:, ::-1]
        # a sample resolves its smaller eigenvalues less well; with all points they are exact
        most = s - 1 if s == problem.n else s // 4
        # directions within 100 unit roundoffs of zero are noise, which 1/σ_i would amplify
        most = min(most, max(0, int(np.sum(values > 100 * unit_roundoff(problem.dtype) * values[0])) - 1))
        q = max(0, min(most, most if rank is None else rank))
        self.n_directions = q
        self.weights = (1 - values[q] / values[:q]) / values[:q] if q else np.zeros(0)
        self.vectors = vectors[:, :q]

    def columns(self, X: jax.Array, start: int) -> np.ndarray:
        """A_sb."""
        A = np.array(gram(self.kernel, self.sample, X), np.float64)
        inside = np.arange(start, min(start + X.shape[0], A.shape[0]))
        A[inside, inside - start] += self.ridge
        return A

    def batch_eigenvalue(self, problem: Problem, X: jax.Array, batch: int, rng: np.random.Generator) -> float:
        """λ_max of A_bb - A_bs Q A_sb over a few batches."""
        worst = 0.0
        starts = {0, X.shape[0] - batch, int(rng.integers(0, X.shape[0] - batch + 1))}
        for start in starts:
            part = X[start : start + batch]
            A = np.asarray(problem.kernel.gram(part), np.float64) + problem.ridge * np.eye(batch)
            half = dot((self.vectors * np.sqrt(np.maximum(self.weights, 0))).T, self.columns(part, start))
            worst = max(worst, _largest_eigenvalue(A - dot(half.T, half), rng))
        return max(worst, problem.ridge)


def _largest_eigenvalue(A: np.ndarray, rng: np.random.Generator) -> float:
    """Lower estimate of λ_max by 50 power iterations; MARGIN and the halving of η cover the rest."""
    v = rng.normal(size=A.shape[0])
    for _ in range(50):
        v = dot(A, v / np.linalg.norm(v))
    return float(np.linalg.norm(v))


class EigenProBatches:
    """State of the descent, on the device, and one epoch of it."""

    def __init__(
        self, problem: Problem, pre: EigenProPreconditioner, rows: "BatchProducts", y: np.ndarray, alpha: np.ndarray
    ):
        self.problem, self.rows = problem, rows
        with precision("float64"):
            self.y, self.alpha = jnp.asarray(y), jnp.asarray(alpha)
            self.vectors, self.weights = jnp.asarray(pre.vectors), jnp.asarray(pre.weights)
            self.ridge = jnp.asarray(problem.ridge)

    def epoch(self, starts: np.ndarray, eta: float) -> np.ndarray:
        """Process all batches; return Σ r² as measured batch by batch, for every output."""
        rows, batch = self.rows, self.rows.batch
        with precision("float64"):
            seen, rate = jnp.zeros(self.y.shape[1]), jnp.asarray(eta)
            narrow = self.alpha.astype(rows.K.dtype)
        for start in starts:
            start = min(int(start), self.problem.n - batch)
            K_alpha = rows.matmul_batch(start, narrow)
            with precision("float64"):
                self.alpha, r, seen, small = _batch_step(
                    self.alpha, self.y, K_alpha, self.ridge, rate, seen, start, rows.K.dtype
                )
            K_r = rows.matmul_sample(start, self.vectors.shape[0], small)
            with precision("float64"):
                self.alpha, narrow = _sample_correction(
                    self.alpha, self.vectors, self.weights, K_r, r, self.ridge, rate, start, rows.K.dtype
                )
        return np.asarray(seen)


@functools.partial(jax.jit, static_argnames="dtype")
def _batch_step(
    alpha: jax.Array, y: jax.Array, K_alpha: jax.Array, ridge: jax.Array, eta: jax.Array, seen: jax.Array, start: Any,
    dtype: Any,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """α_b + η r_b, r_b, the accumulated Σ r², and r_b in the precision of the kernel."""
    batch = K_alpha.shape[0]
    mine = jax.lax.dynamic_slice_in_dim(alpha, start, batch)
    r = jax.lax.dynamic_slice_in_dim(y, start, batch) - K_alpha.astype(alpha.dtype) - ridge * mine
    alpha = jax.lax.dynamic_update_slice_in_dim(alpha, mine + eta * r, start, 0)
    return alpha, r, seen + jnp.sum(r * r, 0), r.astype(dtype)


@functools.partial(jax.jit, static_argnames="dtype")
def _sample_correction(
    alpha: jax.Array, vectors: jax.Array, weights: jax.Array, K_r: jax.Array, r: jax.Array, ridge: jax.Array,
    eta: jax.Array, start: Any, dtype: Any,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """α_s - η Q A_sb r_b from K_sb r_b, and α in the precision of the kernel.

    A also contains the ridge where a point of the batch is in the sample. The sample is the first s points, so this
    affects no batch behind them.
    """
    s = vectors.shape[0]
    A_r = K_r.astype(alpha.dtype).at[start + jnp.arange(r.shape[0])].add(ridge * r, mode="drop")
    alpha = alpha.at[:s].add(-eta * dot(vectors, weights[:, None] * dot(vectors.T, A_r)))
    return alpha, alpha.astype(dtype)


class BatchProducts:
    """K(batch, X) @ α and K(sample, batch) @ r: from rows of a stored K, or recomputed."""

    def __init__(self, problem: Problem, K: KernelOperator, X: jax.Array, batch: int):
        self.problem, self.K, self.X, self.batch = problem, K, X, batch

    def matmul_batch(self, start: int, alpha: jax.Array) -> jax.Array:
        """K(batch, X) @ α."""
        if isinstance(self.K, ShardedOperator):
            return self._product(self.X[start : start + self.batch], self.X).matmul(alpha)
        return _matmul_batch(self.K, alpha, start, self.batch)

    def matmul_sample(self, start: int, s: int, r: jax.Array) -> jax.Array:
        """K(sample, batch) @ r."""
        if isinstance(self.K, ShardedOperator):
            return self._product(self.X[:s], self.X[start : start + self.batch]).matmul(r)
        return _matmul_sample(self.K, r, start, self.batch, s)

    def _product(self, X: jax.Array, Z: jax.Array) -> KernelOperator:
        return product(self.problem.kernel, X, Z, memory=self.problem.memory)


@functools.partial(jax.jit, static_argnames="batch")
def _matmul_batch(K: KernelOperator, alpha: jax.Array, start: Any, batch: int) -> jax.Array:
    """K(batch, X) @ α inside jit."""
    if isinstance(K, StoredOperator):
        return dot(jax.lax.dynamic_slice_in_dim(K.K, start, batch), alpha)
    return K.select_rows(start + jnp.arange(batch)).matmul(alpha)


@functools.partial(jax.jit, static_argnames=("batch", "s"))
def _matmul_sample(K: KernelOperator, r: jax.Array, start: Any, batch: int, s: int) -> jax.Array:
    """K_sb r; for a stored K as (rᵀ K_bs)ᵀ: K is symmetric, and rows are contiguous."""
    if isinstance(K, StoredOperator):
        return dot(r.T, jax.lax.dynamic_slice(K.K, (start, 0), (batch, s))).T
    return K.select_rows(jnp.arange(s), start + jnp.arange(batch)).matmul(r)
