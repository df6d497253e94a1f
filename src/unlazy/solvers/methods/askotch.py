"""Full kernel regression block by block, accelerated: sketch and project (ASkotch), in sweeps.

For A = K + ρI a step takes a block B of b points and solves for it, Nesterov's momentum around it:

    d = P_B⁻¹ (A_B· z - y_B)/L,   w ← z - I_B d,   v ← βv + (1 - β)z - γ I_B d,   z ← τv + (1 - τ)w,
    β = 1 - √(μ/ν),   γ = 1/√(μν),   τ = 1/(1 + γν),   ν = n/b.

P_B is A_BB (then L = 1), or its Nyström approximation U diag(s) Uᵀ + (ρ + s_r)I of rank r with L = λ_max(P_B⁻¹A_BB) by
powering. A step costs b·n entries of K, so n/b of them are a pass. Memory: a few vectors of n and matrices of b × b, K
where it fits. Rathore, Frangella, Yang, Dereziński and Udell (2024).

Two things are not as there. Blocks come from a new random order of all points in every pass, not drawn anew: a pass
then sees every row once, its residual is known for nothing, and the error falls faster (n = 6,000, Laplace, blocks of
60: to 3e-4 in 10 passes, not 20). The same blocks in every pass, in any order, stall. And μ is measured, not the ridge,
which has the units of K: μν = 1 is no momentum, with which a pass shrinks the error by e^-u, u ≥ μν/2; with it by
e^-√(μν)/2, so there is nothing to gain where u is above 1/2.
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
from unlazy.core.linalg import dot
from unlazy.core.precision import rounding
from unlazy.products import Product, product
from unlazy.products.engines.base import Own, Stored, rows_of
from unlazy.products.engines.pairs import entries, prepared
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.checkpoint import State
from unlazy.solvers.methods.base import Method, count, positive
from unlazy.solvers.problem import Fit, Problem

WORTH = {"stored": 5, "blocked": 90, "fused": 9, "own": 90}
"""b²/n for the block whose factor costs a fifth of its rows of K: at 20 GFlop/s, 0.4 ns for an entry that is stored and
8 ns for one that is computed on the CPU; at 7 TFlop/s and 10^12 entries a second on a GPU."""
LEAST_BLOCK = 64
MATRICES = 4
"""b × b matrices alive at once: K_BB, what its entries are made of, the factor, a workspace."""
VECTORS = 8
"""Vectors alive at once: w, v, z, y and what a step makes of them."""
STRETCH = {True: 2**31, False: 2**36}
"""Entries of K between two looks from the host, on the CPU and on a card: seconds."""
SLOW = 0.35
"""Momentum where a pass shrinks the residual by less than e^-0.35: it could reach e^-0.42 then."""
SHORT = 0.8
"""Part of the promised √(μν)/2 below which μ was too large, and is halved; looked at every other pass."""
LEAST_MOMENTUM = 1e-4
"""μν at least: 500 passes for a factor e."""
POWERS = 10
TRIES = 6
"""Factors of a block tried, each with ten times the jitter."""


def _share(value: Any) -> float | None:
    found = positive("momentum")(value)
    if found is not None and found > 1:
        raise ValueError(f"momentum must lie between 0 and 1, got {value!r}")
    return found


class Askotch(Method):
    """All points as centers, `block` of them at a time. `rank` approximates a block by so much of its spectrum (all of
    it unless given), `momentum` is μν, 1 for none and less for more of it (measured unless given).

    >>> solve(kernel, X, y, ridge=1e-3, method=Askotch(block=20)).predict(Z).shape
    (5,)
    """

    name = "askotch"
    most_steps = 500
    any_data = True
    block: int | None = eqx.field(default=None, static=True, converter=count("block"))
    rank: int | None = eqx.field(default=None, static=True, converter=count("rank"))
    momentum: float | None = eqx.field(default=None, static=True, converter=_share)

    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """α of full kernel ridge regression; a step is a pass over K."""
        problem = problem.mended()
        X = problem.X()
        n, c = problem.y.shape
        vectors = VECTORS * n * c * problem.dtype.itemsize
        K = one_device(problem, X, problem.memory - vectors - largest_block_bytes(problem))
        b = self.block_of(problem, K.how)
        rank = None if self.rank is None or self.rank >= b else self.rank
        run = _Run(problem, watch, K, X, b, rank, self.momentum)
        residual, stopped = run.to_the_end()
        how = "solved" if rank is None else f"of rank {rank}"
        note = f"K {K.how}, blocks of {b} {how}, μν = {run.share:.2g}"
        used = K.bytes + vectors + MATRICES * b * b * problem.dtype.itemsize
        notes = (*problem.notes, note)
        return Fit(run.alpha, residual, run.step, stopped, used, notes, ridge=problem.ridge, left=run.left)

    def block_of(self, problem: Problem, how: str) -> int:
        """b: as asked, or as large as its factor is cheap beside its rows of K and fits; blocks of a pass are alike."""
        n = problem.n
        if self.block is not None:
            return min(n, self.block)
        fits = math.isqrt(max(1, largest_block_bytes(problem) // (MATRICES * problem.dtype.itemsize)))
        most = max(1, min(n, fits, max(LEAST_BLOCK, math.isqrt(WORTH[how] * n))))
        return math.ceil(n / math.ceil(n / most))


def largest_block_bytes(problem: Problem) -> int:
    """What matrices of a block may take: a quarter of the budget, and no more than blocks are worth."""
    most = max(LEAST_BLOCK**2, max(WORTH.values()) * problem.n)
    return min(problem.memory // 4, MATRICES * problem.dtype.itemsize * most)


def one_device(problem: Problem, X: Any, budget: int) -> Product:
    """K(X, X) for many passes on one device: blocks come one after the other."""
    first = devices.every()[:1]
    return product(problem.kernel, X, passes=100, memory=max(budget, 1), devices=first)


class Vectors(NamedTuple):
    """What a pass changes, all on the device: w, v, z, and Σ r² of the rows this pass has seen, for every output."""

    w: Float[Array, "n c"]
    v: Float[Array, "n c"]
    z: Float[Array, "n c"]
    seen: Float[Array, " c"]


class _Run:
    """Sweeps over the correction δ of α: A δ = y - A α in the kernel's precision, α in float64 on the host.

    α takes δ in where the true residual is formed: at the end, and when rounding begins to count in δ. Momentum stays:
    all of it is shifted by δ.
    """

    def __init__(
        self, problem: Problem, watch: Watch, K: Product, X: Any, b: int, rank: int | None, momentum: float | None
    ):
        self.problem, self.watch, self.K, self.X, self.b, self.rank = problem, watch, K, X, b, rank
        self.fixed, self.dtype = momentum, K.dtype
        self.share = 1.0 if momentum is None else momentum
        self.step, self.at, self.since = 0, 0, 0
        self.alpha, self.left = np.zeros_like(problem.y), problem.y
        self.history: list[float] = []
        kept = watch.resume()
        if kept is None:
            zero = jnp.zeros(problem.y.shape, self.dtype)
            self.vectors = Vectors(zero, zero, zero, jnp.zeros(problem.y.shape[1], self.dtype))
        else:
            self.alpha, self.left = kept["alpha"], kept["left"]
            self.step, self.at, self.since = (int(number) for number in kept["where"])
            self.history, self.share = list(kept["history"]), float(kept["share"].item())
            self.vectors = Vectors(*(jnp.asarray(kept[name], self.dtype) for name in Vectors._fields))
        self.right = jnp.asarray(self.left, self.dtype)
        self.entered = problem.relative(self.left)
        """Residual where α last took δ in."""

    def state(self) -> State:
        """What a checkpoint keeps; x, the coefficients, for whoever reads the file."""
        return {
            "x": self.coefficients(), "alpha": self.alpha, "left": self.left, "history": np.array(self.history),
            "where": np.array([self.step, self.at, self.since]), "share": np.array(self.share),
            **{name: np.asarray(array) for name, array in self.vectors._asdict().items()},
        }  # fmt: skip

    def coefficients(self) -> np.ndarray:
        return self.alpha + np.asarray(self.vectors.w, np.float64)

    def to_the_end(self) -> tuple[float, str]:
        """The residual of α and why it is the end."""
        now = self.entered
        if now <= self.watch.tolerance:  # y = 0
            return now, "tolerance"
        fine, off = math.sqrt(2 * rounding(self.dtype)), 1.0
        while True:
            seen = self.sweep()
            self.history.append(seen)
            self.adapt()
            expected, before, true = self.expected(), self.entered, None
            last = self.step + 1 >= self.watch.max_steps or self.b == self.problem.n
            if off * expected <= self.watch.tolerance or seen <= fine * before or last or not seen < np.inf:
                true = self.take_in()
                off = max(1.0, true / max(expected, np.finfo(float).tiny))
            self.step += 1
            now = max(seen, 1.01 * self.watch.tolerance) if true is None else true
            stopped = self.watch.after(self.step, now, self.coefficients, self.state)
            if stopped is None and true is not None and true > max(0.5 * before, 2 * expected):
                stopped = "stalled"  # what blocks see falls, and the truth does not: rounding
            if stopped is not None:
                return (self.take_in() if true is None else true), stopped

    def sweep(self) -> float:
        """One pass, from where it stands; the largest of ‖r‖/‖y‖ as the blocks saw it."""
        n, b = self.problem.n, self.b
        blocks = math.ceil(n / b)
        order = jnp.asarray(np.random.default_rng([self.problem.seed, self.step]).permutation(n))
        stretch = max(1, STRETCH[devices.is_host()] // (b * n))
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
                self.watch.within(self.state)
        seen = np.sqrt(np.asarray(self.vectors.seen, np.float64)) / self.problem.y_norm
        self.vectors, self.at = self.vectors._replace(seen=jnp.zeros_like(self.vectors.seen)), 0
        return float(np.max(seen))

    def expected(self) -> float:
        """The residual after the pass, from what was seen during it: of rows before their block moved, half a pass ago
        in the mean."""
        fell = self.history[-1] / self.history[-2] if len(self.history) > 1 else 1.0
        return self.history[-1] * math.sqrt(min(1.0, fell))

    def adapt(self) -> None:
        """Momentum from how the residual fell in the last two passes."""
        self.since += 1
        if self.fixed is not None or len(self.history) < 3 or self.since < 2:
            return
        u = math.log(max(self.history[-3], 1e-300) / max(self.history[-1], 1e-300)) / 2
        share = self.share
        if share == 1.0:
            share = max(u, LEAST_MOMENTUM) if u < SLOW else share
        elif u < 0:  # too much of it: begin again with less
            share = min(1.0, 2 * share)
            self.vectors = self.vectors._replace(v=self.vectors.w, z=self.vectors.w)
        elif u < SHORT * math.sqrt(share) / 2:
            share = max(share / 2, LEAST_MOMENTUM)
        if share != self.share:
            self.share, self.since = share, 0

    def take_in(self) -> float:
        """α takes δ in, and its true residual is formed."""
        self.alpha = self.coefficients()
        p, w = self.problem, self.vectors.w
        self.vectors = _shifted(self.vectors, w)
        self.left = p.y - self.K.accurate(self.alpha) - p.ridge * self.alpha
        self.right = jnp.asarray(self.left, self.dtype)
        self.entered = p.relative(self.left)
        return self.entered


@jax.jit
def _shifted(vectors: Vectors, w: Array) -> Vectors:
    return Vectors(jnp.zeros_like(w), vectors.v - w, vectors.z - w, vectors.seen)


@functools.partial(jax.jit, static_argnames=("b", "rank"))
def _sweep(
    K: Product, X: Any, kernel: Any, y: Array, vectors: Vectors, order: Array, pace: Array, key: Array, begin: Any,
    until: Any, b: int, rank: int | None,
) -> Vectors:  # fmt: skip
    """Blocks begin … until-1 of a pass."""
    n = order.shape[0]
    beta, gamma, tau, ridge = pace

    def step(i: Array, at: Vectors) -> Vectors:
        start = jnp.minimum(i * b, n - b)  # the last block overlaps the one before
        index = jax.lax.dynamic_slice_in_dim(order, start, b)
        rows = K.taken(index)
        r = rows.matmul(at.z) + ridge * at.z[index] - y[index]
        d = _solved(_square(rows, kernel, X, index), ridge, r, rank, jax.random.fold_in(key, i))
        fresh = (start + jnp.arange(b) >= i * b)[:, None]
        w = at.z.at[index].add(-d)
        v = (beta * at.v + (1 - beta) * at.z).at[index].add(-gamma * d)
        return Vectors(w, v, tau * v + (1 - tau) * w, at.seen + jnp.sum(jnp.where(fresh, r * r, 0), 0))

    return jax.lax.fori_loop(begin, until, step, vectors)


def _square(rows: Product, kernel: Any, X: Any, index: Array) -> Array:
    """K_BB."""
    if isinstance(rows, Stored):
        return rows.K[:, index]
    if isinstance(rows, Own):
        return kernel.times(rows.left, rows.left, jnp.eye(index.shape[0], dtype=rows.dtype))
    side, _ = prepared(kernel, rows_of(X, index))
    return entries(kernel, side, side)


def _solved(K: Array, ridge: Array, r: Array, rank: int | None, key: Array) -> Array:
    """P_B⁻¹ r / L."""
    if rank is None:
        return jax.scipy.linalg.cho_solve((_factor(K, ridge), True), r)
    return _approximate(K, ridge, r, rank, key)


def _factor(K: Array, ridge: Array) -> Array:
    """The lower factor of K + ridge·I, with the least jitter that makes it positive to rounding."""
    b = K.shape[0]
    least = rounding(K.dtype) * jnp.mean(jnp.diagonal(K))

    def tried(jitter: Array) -> Array:
        return jnp.linalg.cholesky(K + (ridge + jitter) * jnp.eye(b, dtype=K.dtype))

    def again(state: tuple[Array, Array]) -> Array:
        L, jitter = state
        return ~jnp.isfinite(L[-1, -1]) & (jitter < least * 10.0**TRIES)

    def more(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return tried(10 * state[1]), 10 * state[1]

    return jax.lax.while_loop(again, more, (tried(least), least))[0]


def _approximate(K: Array, ridge: Array, r: Array, rank: int, key: Array) -> Array:
    """The same for a randomized Nyström approximation U diag(s) Uᵀ of K and the damped ridge ρ + s_r, with L. Tropp,
    Yurtsever, Udell and Cevher (2017)."""
    b = K.shape[0]
    sketch_key, start_key = jax.random.split(key)
    sketch = jnp.linalg.qr(jax.random.normal(sketch_key, (b, rank), K.dtype))[0]
    shift = rounding(K.dtype) * jnp.trace(K)
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
    _, L = jax.lax.fori_loop(0, POWERS, power, (x, jnp.ones((), K.dtype)))
    return inverse(r) / jnp.maximum(L, 1)
