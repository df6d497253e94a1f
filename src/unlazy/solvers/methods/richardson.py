"""Richardson iteration α ← α - η((K + ρI)α - y): one pass over K per step [A2].

This is gradient descent in function space: after s steps the error along an eigenvector of K has shrunk by the factor
(1 - η(λ + ρ))^s, so large eigenvalues are fitted first [K3]. η = 1/(λ_max + ρ), with λ_max by power iteration.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from unlazy.products import KernelOperator
from unlazy.solvers.callbacks import SolverCallback
from unlazy.solvers.methods.base import Method, positive_or_none
from unlazy.solvers.problem import FittedCoefficients, Problem


class Richardson(Method):
    """Gradient descent in function space [A2, K3].

    Parameters
    ----------
    step_size : float, optional
        Step size η; 1/(λ_max + ridge) by default.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy import Gaussian, Richardson, solve
    >>> X = np.random.default_rng(0).normal(size=(60, 3))
    >>> solve(Gaussian(1.0), X, np.sin(X[:, 0]), ridge=0.1, method=Richardson()).predict(X[:5]).shape
    (5,)
    """

    name = "richardson"
    default_max_steps = 100_000
    step_size: float | None = eqx.field(default=None, static=True, converter=positive_or_none("step_size"))

    def solve(self, problem: Problem, callback: SolverCallback) -> FittedCoefficients:
        """Compute α; about log(1/tolerance)·(λ_max + ρ)/(λ_min + ρ) steps are needed."""
        problem = problem.with_resolvable_ridge()
        X = problem.X()
        K = problem.product(X, problem.memory)
        eta = self.step_size
        if eta is None:
            eta = 1 / (largest_eigenvalue(K, problem.rng()) + problem.ridge)
        saved = callback.resume()
        alpha, step = (np.zeros_like(problem.y), 0) if saved is None else (saved["x"], int(saved["step"].item()))
        residual = problem.residual(K, alpha)
        first = problem.relative_residual(residual)
        stopped = "tolerance" if first <= callback.tolerance else None
        while stopped is None:
            alpha = alpha + eta * residual
            residual = problem.residual(K, alpha)
            step += 1
            now = problem.relative_residual(residual)
            if now > 1e3 * max(first, 1.0):
                raise ValueError(
                    f"Richardson iteration diverges with step_size {eta:.3g}: use a value below 2/(λ_max + ridge), "
                    "or omit it"
                )
            saved = {"x": alpha, "step": np.array(step)}
            stopped = callback.after_step(step, now, saved["x"].view, saved.copy)
        notes = (*problem.notes, f"K {K.engine}, step size {eta:.3g}")
        return FittedCoefficients(
            alpha,
            problem.relative_residual(residual),
            step,
            stopped,
            K.bytes,
            notes,
            ridge=problem.ridge,
            residual_vector=residual,
        )


def largest_eigenvalue(K: KernelOperator, rng: np.random.Generator, steps: int = 30) -> float:
    """λ_max of K by power iteration, with a margin of 2%.

    For a random start the error after s steps is about log(n)/(2s) of λ_max even without a spectral gap; kernels have
    a gap at the top, and after 30 steps the error is below the margin.
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
