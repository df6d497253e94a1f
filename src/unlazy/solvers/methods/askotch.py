"""Full kernel ridge regression by accelerated block coordinate steps: sketch and project (ASkotch), in sweeps.

For A = K + ρI, a step takes a block B of b points and solves for it, combined with Nesterov momentum:

    d = P_B⁻¹ (A_B· z - y_B)/L,   w ← z - I_B d,   v ← βv + (1 - β)z - γ I_B d,   z ← τv + (1 - τ)w,
    β = 1 - √(μ/ν),   γ = 1/√(μν),   τ = 1/(1 + γν),   ν = n/b.

P_B is A_BB (then L = 1), or its Nyström approximation U diag(s) Uᵀ + (ρ + s_r)I of rank r with L = λ_max(P_B⁻¹A_BB) by
power iteration. A step costs b·n entries of K, so n/b steps are one pass. Memory: a few vectors of length n and b × b
matrices, plus K if it fits. Rathore, Frangella, Yang, Dereziński and Udell (2024).

There are two differences from the paper. Blocks come from a new random permutation of all points in every pass instead
of independent draws: a pass then visits every row once, its residual is known at no cost, and the error decreases
faster (n = 6,000, Laplace, blocks of 60: to 3e-4 in 10 passes instead of 20). Using the same blocks in every pass, in
any order, stalls. And μ is measured instead of set to the ridge, which has the units of K. μν = 1 means no momentum: a
pass then shrinks the error by e^-u with u ≥ μν/2. With momentum it shrinks by e^-√(μν)/2, so there is nothing to gain
if u is above 1/2.
"""

import functools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from unlazy.core import devices
from unlazy.core.arrays import Points, dot, unit_roundoff
from unlazy.products import KernelOperator, product
from unlazy.products.engines.base import CustomOperator, StoredOperator, take_rows
from unlazy.products.engines.blocked import prepare_sides
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.checkpoint import State
from unlazy.solvers.methods.base import Method, positive_integer_or_none, positive_or_none
from unlazy.solvers.problem import FittedCoefficients, Problem

BLOCK_SIZE_FACTORS = {"stored": 5, "blocked": 90, "fused": 9, "custom": 90}
"""b²/n for the block whose factorization costs a fifth of computing its rows of K, by engine: at 20 GFlop/s, 0.4 ns per
stored entry and 8 ns per computed entry on the CPU; at 7 TFlop/s and 10^12 entries per second on a GPU."""
MIN_BLOCK = 64
"""Smallest default block."""
LIVE_MATRICES = 4
"""b × b matrices alive at once: K_BB, an intermediate of its entries, the factor, a workspace."""
LIVE_VECTORS = 8
"""Vectors alive at once: w, v, z, y and the intermediates of a step."""
HOST_CHECK_ENTRIES = {True: 2**31, False: 2**36}
"""Entries of K between two checks by the host, on the CPU (True) and on a GPU (False): seconds."""
MOMENTUM_THRESHOLD = 0.35
"""Momentum is used if a pass shrinks the residual by less than e^-0.35: it could then reach e^-0.42."""
MIN_RATE_SHARE = 0.8
"""If the rate is below this share of the predicted √(μν)/2, μ was too large and is halved; checked every other pass."""
MIN_MOMENTUM = 1e-4
"""Lower bound of μν: 500 passes for a factor e."""
POWER_STEPS = 10
"""Steps of the power iteration for L."""
JITTER_ATTEMPTS = 6
"""Attempts to factorize a block, each with ten times the jitter."""


def _momentum_or_none(value: Any) -> float | None:
    """Converter that accepts a number in (0, 1] or None."""
    found = positive_or_none("momentum")(value)
    if found is not None and found > 1:
        raise ValueError(f"momentum must be between 0 and 1, got {value!r}")
    return found


class Askotch(Method):
    """Accelerated block coordinate descent on all points, one block of rows at a time.

    Parameters
    ----------
    block : int, optional
        Points per block. By default as large as its factorization is cheap and fits in memory.
    rank : int, optional
        Rank of the Nyström approximation of a block; by default blocks are solved exactly.
    momentum : float, optional
        μν in (0, 1]: 1 means no momentum, smaller values mean more. Measured by default.

    References
    ----------
    Rathore, Frangella, Yang, Dereziński and Udell (2024), Have ASkotch: a neat solution for large-scale kernel ridge
    regression.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, Askotch, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=1e-3, method=Askotch(block=20)).predict(X[:5]).shape
    (5,)
    """

    name = "askotch"
    default_max_steps = 500
    supports_any_input = True
    block: int | None = eqx.field(default=None, static=True, converter=positive_integer_or_none("block"))
    rank: int | None = eqx.field(default=None, static=True, converter=positive_integer_or_none("rank"))
    momentum: float | None = eqx.field(default=None, static=True, converter=_momentum_or_none)

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α of full kernel ridge regression; a step is one pass over K."""
        problem = problem.with_resolvable_ridge()
        X = problem.X()
        n, c = problem.y.shape
        vectors = LIVE_VECTORS * n * c * problem.dtype.itemsize
        K = single_device_operator(problem, X, problem.memory - vectors - largest_block_bytes(problem))
        b = self.block_size(problem, K.engine)
        rank = None if self.rank is None or self.rank >= b else self.rank
        run = _Run(problem, callback, K, X, b, rank, self.momentum)
        residual, stopped = run.run()
        how = "solved exactly" if rank is None else f"approximated with rank {rank}"
        note = f"K {K.engine}, blocks of {b} {how}, μν = {run.share:.2g}"
        used = K.bytes + vectors + LIVE_MATRICES * b * b * problem.dtype.itemsize
        notes = (*problem.notes, note)
        return FittedCoefficients(
            run.alpha, residual, run.step, stopped, used, notes, ridge=problem.ridge, residual_vector=run.left
        )

    def block_size(self, problem: Problem, engine: str) -> int:
        """b: as requested, or as large as its factorization is cheap compared to its rows of K and fits in memory.

        The blocks of a pass have equal sizes.
        """
        n = problem.n
        if self.block is not None:
            return min(n, self.block)
        fits = math.isqrt(max(1, largest_block_bytes(problem) // (LIVE_MATRICES * problem.dtype.itemsize)))
        most = max(1, min(n, fits, max(MIN_BLOCK, math.isqrt(BLOCK_SIZE_FACTORS[engine] * n))))
        return math.ceil(n / math.ceil(n / most))


def largest_block_bytes(problem: Problem) -> int:
    """Bytes for the matrices of a block: at most a quarter of the budget, and no more than useful."""
    most = max(MIN_BLOCK**2, max(BLOCK_SIZE_FACTORS.values()) * problem.n)
    return min(problem.memory // 4, LIVE_MATRICES * problem.dtype.itemsize * most)


def single_device_operator(problem: Problem, X: Points, budget: int) -> KernelOperator:
    """K(X, X) for many passes on one device: blocks are processed sequentially."""
    first = devices.all_devices()[:1]
    return product(problem.kernel, X, passes=100, memory=max(budget, 1), devices=first)


class SweepVectors(NamedTuple):
    """State of a pass, all on the device: w, v, z, and Σ r² of the rows visited in this pass, for every output."""

    w: Float[Array, "n c"]
    v: Float[Array, "n c"]
    z: Float[Array, "n c"]
    seen: Float[Array, " c"]


class _Run:
    """Sweeps over the correction δ of α: A δ = y - A α in the precision of the kernel, α in float64 on the host.

    δ is added to α when the true residual is computed: at the end, and when rounding becomes visible in δ. Momentum is
    kept: all its vectors are shifted by δ.
    """

    def __init__(
        self,
        problem: Problem,
        callback: SolverCallback,
        K: KernelOperator,
        X: Any,
        b: int,
        rank: int | None,
        momentum: float | None,
    ):
        self.problem, self.callback, self.K, self.X, self.b, self.rank = problem, callback, K, X, b, rank
        self.fixed, self.dtype = momentum, K.dtype
        self.share = 1.0 if momentum is None else momentum
        self.step, self.at, self.since = 0, 0, 0
        self.alpha, self.left = np.zeros_like(problem.y), problem.y
        self.history: list[float] = []
        saved = callback.resume()
        if saved is None:
            zero = jnp.zeros(problem.y.shape, self.dtype)
            self.vectors = SweepVectors(zero, zero, zero, jnp.zeros(problem.y.shape[1], self.dtype))
        else:
            self.alpha, self.left = saved["alpha"], saved["left"]
            self.step, self.at, self.since = (int(number) for number in saved["where"])
            self.history, self.share = list(saved["history"]), float(saved["share"].item())
            self.vectors = SweepVectors(*(jnp.asarray(saved[name], self.dtype) for name in SweepVectors._fields))
        self.right = jnp.asarray(self.left, self.dtype)
        self.residual_at_absorb = problem.relative_residual(self.left)
        """Residual when δ was last added to α."""

    def state(self) -> State:
        """State for a checkpoint; "x" holds the coefficients, for readers of the file."""
        return {
            "x": self.coefficients(), "alpha": self.alpha, "left": self.left, "history": np.array(self.history),
            "where": np.array([self.step, self.at, self.since]), "share": np.array(self.share),
            **{name: np.asarray(array) for name, array in self.vectors._asdict().items()},
        }  # fmt: skip

    def coefficients(self) -> np.ndarray:
        """α + δ in float64."""
        return self.alpha + np.asarray(self.vectors.w, np.float64)

    def run(self) -> tuple[float, str]:
        """Run to the end; return the residual of α and the reason for stopping."""
        now = self.residual_at_absorb
        if now <= self.callback.tolerance:  # y = 0
            return now, "tolerance"
        fine, off = math.sqrt(2 * unit_roundoff(self.dtype)), 1.0
        while True:
            seen = self.sweep()
            self.history.append(seen)
            self.adapt()
            expected, before, true = self.expected(), self.residual_at_absorb, None
            last = self.step + 1 >= self.callback.max_steps or self.b == self.problem.n
            if off * expected <= self.callback.tolerance or seen <= fine * before or last or not seen < np.inf:
                true = self.absorb_correction()
                off = max(1.0, true / max(expected, np.finfo(float).tiny))
            self.step += 1
            now = max(seen, 1.01 * self.callback.tolerance) if true is None else true
            stopped = self.callback.after_step(self.step, now, self.coefficients, self.state)
            if stopped is None and true is not None and true > max(0.5 * before, 2 * expected):
                stopped = "stalled"  # the measured residual decreases, the true one does not: rounding
            if stopped is not None:
                return (self.absorb_correction() if true is None else true), stopped

    def sweep(self) -> float:
        """Run one pass, or the rest of it; return the largest ‖r‖/‖y‖ as measured block by block."""
        n, b = self.problem.n, self.b
        blocks = math.ceil(n / b)
        order = jnp.asarray(np.random.default_rng([self.problem.seed, self.step]).permutation(n))
        stretch = max(1, HOST_CHECK_ENTRIES[devices.is_host()] // (b * n))
        mu, nu = self.share * b / n, n / b
        gamma = 1 / math.sqrt(mu * nu)
        pace = jnp.asarray([1 - math.sqrt(mu / nu), gamma, 1 / (1 + gamma * nu), self.problem.ridge], self.dtype)
        while self.at < blocks:
            until = min(blocks, self.at + stretch)
            key = jax.random.key(self.problem.seed + self.step)
            self.vectors = _sweep(
                self.K, self.X, self.problem.kernel, self.right, self.vectors, order, pace, key, self.at, until, b,
                self.rank,
            )  # fmt: skip
            self.at = until
            if until < blocks:
                jax.block_until_ready(self.vectors.seen)
                self.callback.during_step(self.state)
        seen = np.sqrt(np.asarray(self.vectors.seen, np.float64)) / self.problem.y_norm
        self.vectors, self.at = self.vectors._replace(seen=jnp.zeros_like(self.vectors.seen)), 0
        return float(np.max(seen))

    def expected(self) -> float:
        """Estimated residual after the pass, from the residuals measured during it.

        Rows were measured before their block was updated, on average half a pass ago.
        """
        fell = self.history[-1] / self.history[-2] if len(self.history) > 1 else 1.0
        return self.history[-1] * math.sqrt(min(1.0, fell))

    def adapt(self) -> None:
        """Adapt the momentum to the decrease of the residual in the last two passes."""
        self.since += 1
        if self.fixed is not None or len(self.history) < 3 or self.since < 2:
            return
        u = math.log(max(self.history[-3], 1e-300) / max(self.history[-1], 1e-300)) / 2
        share = self.share
        if share == 1.0:
            share = max(u, MIN_MOMENTUM) if u < MOMENTUM_THRESHOLD else share
        elif u < 0:  # too much momentum: restart with less
            share = min(1.0, 2 * share)
            self.vectors = self.vectors._replace(v=self.vectors.w, z=self.vectors.w)
        elif u < MIN_RATE_SHARE * math.sqrt(share) / 2:
            share = max(share / 2, MIN_MOMENTUM)
        if share != self.share:
            self.share, self.since = share, 0

    def absorb_correction(self) -> float:
        """Add δ to α, compute the true residual and return its relative size."""
        self.alpha = self.coefficients()
        p, w = self.problem, self.vectors.w
        self.vectors = _shift(self.vectors, w)
        self.left = p.y - self.K.matmul_float64(self.alpha) - p.ridge * self.alpha
        self.right = jnp.asarray(self.left, self.dtype)
        self.residual_at_absorb = p.relative_residual(self.left)
        return self.residual_at_absorb


@jax.jit
def _shift(vectors: SweepVectors, w: Array) -> SweepVectors:
    """Shift all vectors by -w."""
    return SweepVectors(jnp.zeros_like(w), vectors.v - w, vectors.z - w, vectors.seen)


@functools.partial(jax.jit, static_argnames=("b", "rank"))
def _sweep(
    K: KernelOperator, X: Any, kernel: Any, y: Array, vectors: SweepVectors, order: Array, pace: Array, key: Array,
    begin: Any, until: Any, b: int, rank: int | None,
) -> SweepVectors:  # fmt: skip
    """Blocks begin … until-1 of a pass."""
    n = order.shape[0]
    beta, gamma, tau, ridge = pace

    def step(i: Array, at: SweepVectors) -> SweepVectors:
        start = jnp.minimum(i * b, n - b)  # the last block overlaps the previous one
        index = jax.lax.dynamic_slice_in_dim(order, start, b)
        rows = K.select_rows(index)
        r = rows.matmul(at.z) + ridge * at.z[index] - y[index]
        d = _solve_block(_diagonal_block(rows, kernel, X, index), ridge, r, rank, jax.random.fold_in(key, i))
        fresh = (start + jnp.arange(b) >= i * b)[:, None]
        w = at.z.at[index].add(-d)
        v = (beta * at.v + (1 - beta) * at.z).at[index].add(-gamma * d)
        return SweepVectors(w, v, tau * v + (1 - tau) * w, at.seen + jnp.sum(jnp.where(fresh, r * r, 0), 0))

    return jax.lax.fori_loop(begin, until, step, vectors)


def _diagonal_block(rows: KernelOperator, kernel: Any, X: Any, index: Array) -> Array:
    """K_BB."""
    if isinstance(rows, StoredOperator):
        return rows.K[:, index]
    if isinstance(rows, CustomOperator):
        return kernel.matmul_prepared(rows.left, rows.left, jnp.eye(index.shape[0], dtype=rows.dtype))
    side, _ = prepare_sides(kernel, take_rows(X, index))
    return kernel.block(side, side)


def _solve_block(K: Array, ridge: Array, r: Array, rank: int | None, key: Array) -> Array:
    """P_B⁻¹ r / L."""
    if rank is None:
        return jax.scipy.linalg.cho_solve((_factor(K, ridge), True), r)
    return _solve_block_nystrom(K, ridge, r, rank, key)


def _factor(K: Array, ridge: Array) -> Array:
    """Lower Cholesky factor of K + ridge·I, with the smallest jitter that makes it positive definite to rounding."""
    b = K.shape[0]
    least = unit_roundoff(K.dtype) * jnp.mean(jnp.diagonal(K))

    def tried(jitter: Array) -> Array:
        return jnp.linalg.cholesky(K + (ridge + jitter) * jnp.eye(b, dtype=K.dtype))

    def again(state: tuple[Array, Array]) -> Array:
        L, jitter = state
        return ~jnp.isfinite(L[-1, -1]) & (jitter < least * 10.0**JITTER_ATTEMPTS)

    def more(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return tried(10 * state[1]), 10 * state[1]

    return jax.lax.while_loop(again, more, (tried(least), least))[0]


def _solve_block_nystrom(K: Array, ridge: Array, r: Array, rank: int, key: Array) -> Array:
    """P_B⁻¹ r / L for a randomized Nyström approximation U diag(s) Uᵀ of K and the damped ridge ρ + s_r.

    Tropp, Yurtsever, Udell and Cevher (2017).
    """
    b = K.shape[0]
    sketch_key, start_key = jax.random.split(key)
    sketch = jnp.linalg.qr(jax.random.normal(sketch_key, (b, rank), K.dtype))[0]
    shift = unit_roundoff(K.dtype) * jnp.trace(K)
    Y = dot(K, sketch) + shift * sketch
    core = _factor(dot(sketch.T, Y), jnp.zeros((), K.dtype))
    half = jax.scipy.linalg.solve_triangular(core, Y.T, lower=True).T
    U, root, _ = jnp.linalg.svd(half, full_matrices=False)
    s = jnp.maximum(root * root - shift, 0)
    damped = ridge + s[-1]

    def inverse(g: Array) -> Array:
        inside = dot(U.T, g)
        return (g - dot(U, inside)) / damped + dot(U, inside / (s + damped)[:, None])

    def power(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        x, _ = state
        x = inverse(x / jnp.linalg.norm(x))
        x = dot(K, x) + ridge * x
        return x, jnp.linalg.norm(x)

    x = jax.random.normal(start_key, (b, 1), K.dtype)
    _, L = jax.lax.fori_loop(0, POWER_STEPS, power, (x, jnp.ones((), K.dtype)))
    return inverse(r) / jnp.maximum(L, 1)
