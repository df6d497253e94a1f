"""Richardson's iteration α ← α - η((K + ρI)α - y): one pass over K per step [A2].

It is gradient descent in function space: after s steps the error along an eigenvector of K is (1 - η(λ + ρ))^s of what
it was, so large eigenvalues are fitted first [K3]. η = 1/(λ_max + ρ), λ_max by power iteration.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from unlazy.products import Product
from unlazy.solvers.callbacks import Watch
from unlazy.solvers.methods.base import Method, positive
from unlazy.solvers.problem import Fit, Problem


class Richardson(Method):
    """Gradient descent in function space; `step_size` η, 1/(λ_max + ρ) unless given.

    >>> solve(kernel, X, y, ridge=0.1, method=Richardson()).predict(Z).shape
    (5,)
    """

    name = "richardson"
    most_steps = 100_000
    step_size: float | None = eqx.field(default=None, static=True, converter=positive("step_size"))

    def solve(self, problem: Problem, watch: Watch) -> Fit:
        """α after as many steps as the tolerance takes: about log(1/tolerance)·(λ_max + ρ)/(λ_min + ρ)."""
        problem = problem.mended()
        X = problem.X()
        K = problem.product(X, problem.memory)
        eta = self.step_size
        if eta is None:
            eta = 1 / (largest_eigenvalue(K, problem.rng()) + problem.ridge)
        kept = watch.resume()
        alpha, step = (np.zeros_like(problem.y), 0) if kept is None else (kept["x"], int(kept["step"].item()))
        residual = problem.residual(K, alpha)
        first = problem.relative(residual)
        stopped = "tolerance" if first <= watch.tolerance else None
        while stopped is None:
            alpha = alpha + eta * residual
            residual = problem.residual(K, alpha)
            step += 1
            now = problem.relative(residual)
            if now > 1e3 * max(first, 1.0):
                raise ValueError(
                    f"Richardson's iteration diverges with step_size {eta:.3g}: take one below 2/(λ_max + ridge), "
                    "or leave it to be chosen"
                )
            kept = {"x": alpha, "step": np.array(step)}
            stopped = watch.after(step, now, kept["x"].view, kept.copy)
        notes = (*problem.notes, f"K {K.how}, step size {eta:.3g}")
        return Fit(alpha, problem.relative(residual), step, stopped, K.bytes, notes, ridge=problem.ridge, left=residual)


def largest_eigenvalue(K: Product, rng: np.random.Generator, steps: int = 30) -> float:
    """λ_max of K by power iteration, 2% on the safe side.

    For a start drawn at random the error after s steps is about log(n)/(2s) of λ_max even without a gap; kernels have
    a gap at the top, and 30 steps leave less than the margin.
    """
    v = rng.normal(size=(K.shape[0], 1))
    value = 0.0
    for _ in range(steps):
        w = np.asarray(K.matmul(jnp.asarray(v / np.linalg.norm(v), K.dtype)), np.float64)
        before, value = value, float(np.linalg.norm(w))
        if value == 0:
            return 1.0
        if abs(value - before) < 1e-3 * value:
            break
        v = w
    return 1.02 * value
