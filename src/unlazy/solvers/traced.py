"""`solve` inside jit, grad, jvp and vmap: one Cholesky factorization, differentiated implicitly.

    (K + ρI)α = y   ⇒   (K + ρI)dα = dy - (dK + dρ I)α,

so derivatives of any order in the parameters of the kernel, X, y and the ridge cost one more triangular solve each.
"""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jax.typing import ArrayLike

from unlazy.core.arrays import Labels, Points, as_labels, dot, float_type, n_points, unit_roundoff
from unlazy.core.devices import memory_budget
from unlazy.core.results import Evidence, FitDescription
from unlazy.kernels.base import Kernel
from unlazy.solvers.solution import PROBLEM, Solution

JITTER_ATTEMPTS = 8
"""Attempts to factorize, each with ten times the jitter."""
LIVE_MATRICES = 3
"""n × n matrices alive at once: K, its factor and a workspace."""


def solve(kernel: Kernel, X: Points, y: Labels, ridge: ArrayLike, memory: int | str | None) -> Solution:
    """Direct solution in the precision of the inputs."""
    X, _ = kernel.read(X)
    n, dtype = n_points(X), float_type(X)
    y = as_labels(y, n, dtype=dtype)
    if y.ndim > 2:
        raise ValueError(f"y must have one or two axes, got shape {y.shape}")
    need = LIVE_MATRICES * n * n * dtype.itemsize
    if need > memory_budget(memory):
        raise ValueError(
            f"inside jit, grad or vmap n = {n} points take {need / 2**30:.3g} GiB, and the memory budget is "
            f"{memory_budget(memory) / 2**30:.3g} GiB: use fewer points or increase it with memory='…GiB'"
        )
    A = kernel.gram(X) + jnp.asarray(ridge, dtype) * jnp.eye(n, dtype=dtype)
    alpha = coefficients(A, y)
    description = FitDescription(
        PROBLEM, "direct", "it runs inside jit, grad or vmap", "traced",
        (f"traced: one factorization in {dtype.name}, whose error was not estimated",),
    )  # fmt: skip
    return Solution(kernel, X, alpha, Evidence(ridge=ridge, bytes=need, description=description))


def coefficients(A: jax.Array, y: jax.Array) -> jax.Array:
    """α of Aα = y for a given A = K + ρI, positive definite up to rounding; use `jax.vmap` for a stack of systems."""
    L = _factor(jax.lax.stop_gradient(A))
    return jax.lax.custom_linear_solve(lambda v: dot(A, v), y, lambda _, b: cho_solve((L, True), b), symmetric=True)


def _factor(A: jax.Array) -> jax.Array:
    """Cholesky factor of A plus the smallest jitter that lets it succeed, growing by factors of 10 from rounding."""
    unit, eye = unit_roundoff(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), 0)), jnp.eye(A.shape[0], dtype=A.dtype)

    def failed(state: tuple) -> jax.Array:
        return ~jnp.all(jnp.isfinite(state[0])) & (state[2] < JITTER_ATTEMPTS)

    def again(state: tuple) -> tuple:
        jitter = jnp.where(state[1] == 0, unit, 10 * state[1])
        return jnp.linalg.cholesky(A + jitter * eye), jitter, state[2] + 1

    return jax.lax.while_loop(failed, again, (jnp.linalg.cholesky(A), jnp.zeros((), A.dtype), 0))[0]
