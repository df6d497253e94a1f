"""`solve` inside jit, grad, jvp and vmap: one Cholesky factorization, differentiated implicitly.

    (K + ρI)α = y   ⇒   (K + ρI)dα = dy - (dK + dρ I)α,

so derivatives in the kernel's parameters, X, y and the ridge, of any order, cost one more substitution each.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve

from unlazy.core.arrays import count, float_type, labels
from unlazy.core.linalg import dot
from unlazy.core.memory import memory_budget
from unlazy.core.precision import rounding
from unlazy.core.results import Evidence, Words
from unlazy.kernels.base import Kernel
from unlazy.solvers.solution import PROBLEM, Solution

ATTEMPTS = 8
COPIES = 3
"""n × n matrices alive at once: K, its factor and a workspace."""


def solve(
    kernel: Kernel, X: Any, y: Any, ridge: Any, method: str | None, memory: int | str | None, others: Mapping[str, Any]
) -> Solution:
    """The direct solution in the precision of the inputs; `others` are keywords that need values to look at."""
    if method not in (None, "direct"):
        raise ValueError(f"inside jit, grad or vmap only method='direct' works, got {method!r}: call solve outside")
    refused = [name for name, value in others.items() if value is not None]
    if refused:
        raise ValueError(f"{', '.join(refused)} cannot be used inside jit, grad or vmap: leave out, or solve outside")
    X, _ = kernel.read(X)
    n, dtype = count(X), float_type(X)
    y = labels(y, n, dtype=dtype)
    if y.ndim > 2:
        raise ValueError(f"y must have one or two axes, got shape {y.shape}")
    need = COPIES * n * n * dtype.itemsize
    if need > memory_budget(memory):
        raise ValueError(
            f"inside jit, grad or vmap n = {n} points take {need / 2**30:.3g} GiB, and the memory budget is "
            f"{memory_budget(memory) / 2**30:.3g} GiB: use fewer points or allow more with memory='…GiB'"
        )
    A = kernel.gram(X) + jnp.asarray(ridge, dtype) * jnp.eye(n, dtype=dtype)
    alpha = coefficients(A, y)
    words = Words(
        PROBLEM, "direct", "it runs inside jit, grad or vmap", "traced",
        (f"traced: one factorization in {dtype.name}, whose error was not looked at",),
    )  # fmt: skip
    return Solution(kernel, X, alpha, Evidence(ridge=ridge, bytes=need, words=words))


def coefficients(A: jax.Array, y: jax.Array) -> jax.Array:
    """α of Aα = y for A = K + ρI at hand, positive but for rounding; a stack of systems by `jax.vmap`."""
    L = _factor(jax.lax.stop_gradient(A))
    return jax.lax.custom_linear_solve(lambda v: dot(A, v), y, lambda _, b: cho_solve((L, True), b), symmetric=True)


def _factor(A: jax.Array) -> jax.Array:
    """The Cholesky factor of A plus the least jitter that lets it succeed, growing by tens from rounding."""
    unit, eye = rounding(A.dtype) * jnp.max(jnp.sum(jnp.abs(A), 0)), jnp.eye(A.shape[0], dtype=A.dtype)

    def failed(state: tuple) -> jax.Array:
        return ~jnp.all(jnp.isfinite(state[0])) & (state[2] < ATTEMPTS)

    def again(state: tuple) -> tuple:
        jitter = jnp.where(state[1] == 0, unit, 10 * state[1])
        return jnp.linalg.cholesky(A + jitter * eye), jitter, state[2] + 1

    return jax.lax.while_loop(failed, again, (jnp.linalg.cholesky(A), jnp.zeros((), A.dtype), 0))[0]
