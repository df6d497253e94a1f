"""`solve` inside jit, grad and vmap: implicit derivatives against differences of NumPy solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.radial import Gaussian
from unlazy.solvers.solve import SolveOptions, solve

N = 16
ANGLES = 2 * np.pi * np.arange(N) / N
X = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
RNG = np.random.default_rng(0)
Y, Z = RNG.normal(size=N), RNG.normal(size=(4, 2))
AT = (0.8, 0.3, 0.1)


def value(bandwidth, ridge, shift, y=Y):
    points = jnp.asarray(X).at[0, 0].add(shift)
    return jnp.sum(jnp.sin(solve(Gaussian(bandwidth), points, y, ridge).predict(jnp.asarray(Z))))


def oracle(bandwidth, ridge, shift, y=Y):
    points = X.copy()
    points[0, 0] += shift

    def gram(A, B):
        return np.exp(-np.sum((A[:, None] - B[None]) ** 2, -1) / (2 * bandwidth**2))

    return np.sum(np.sin(gram(Z, points) @ np.linalg.solve(gram(points, points) + ridge * np.eye(N), y)))


@pytest.mark.slow
def test_derivatives_in_kernel_ridge_inputs_and_labels(x64):
    @jax.jit
    def everything(*at):
        gradient = jax.grad(value, argnums=(0, 1, 2, 3))(*at, jnp.asarray(Y))
        second = jax.jvp(jax.grad(value), at, (1.0, 0.0, 0.0))[1]
        return gradient, second

    gradient, second = everything(*AT)
    h = 1e-5  # h² of the third derivative and 1e-16·condition(20)/h: 1e-9
    for k, step in enumerate(np.eye(3) * h):
        up, down = oracle(*(np.array(AT) + step)), oracle(*(np.array(AT) - step))
        np.testing.assert_allclose(gradient[k], (up - down) / (2 * h), rtol=1e-7)
    bump = np.eye(N)[3] * h
    np.testing.assert_allclose(gradient[3][3], (oracle(*AT, Y + bump) - oracle(*AT, Y - bump)) / (2 * h), rtol=1e-7)
    h = 1e-4  # second differences: h² and 1e-15/h²
    middle = 2 * oracle(*AT)
    expected = (oracle(AT[0] + h, *AT[1:]) - middle + oracle(AT[0] - h, *AT[1:])) / h**2
    np.testing.assert_allclose(second, expected, rtol=1e-5)


def test_a_traced_solution_is_marked_and_rejects_what_needs_values(x64):
    def fitted(b, **keywords):
        return solve(Gaussian(b), X, Y, 0.1, **keywords)

    found = jax.jit(fitted)(0.8)
    assert found.stopped == "traced" and not found.converged and np.isnan(found.residual) and "traced" in found.notes[0]
    np.testing.assert_allclose(found.coefficients, fitted(0.8).coefficients, rtol=1e-10)  # condition below 1e3
    with pytest.raises(ValueError, match="only method='direct'"):
        jax.make_jaxpr(lambda b: fitted(b, method="eigenpro").coefficients)(0.8)
    with pytest.raises(ValueError, match="max_steps, progress cannot be used inside"):
        jax.make_jaxpr(lambda b: fitted(b, options=SolveOptions(max_steps=3), progress=True).coefficients)(0.8)
    with pytest.raises(ValueError, match="one row for each"):
        jax.make_jaxpr(lambda y: solve(Gaussian(1.0), X, y, 0.1).coefficients)(Y[:3])


def test_constants_inside_a_traced_program_are_solved_at_once(x64):
    found = jax.jit(lambda b: b * solve(Gaussian(0.8), X, Y, 0.1, method="preconditioned_cg").coefficients)(2.0)
    # ‖α - α°‖ ≤ ‖r‖/ridge, and ‖r‖ is within the tolerance of ‖y‖
    exact = solve(Gaussian(0.8), X, Y, 0.1).coefficients
    np.testing.assert_allclose(found, 2 * exact, atol=2 * 1e-3 * np.linalg.norm(Y) / 0.1)


def test_predictions_of_a_solution_have_derivatives_in_their_inputs():
    """The solution was found outside, in float64; x comes from a float32 program."""
    solution = solve(Gaussian(0.8), X, Y, 0.1)
    slope = jax.jit(jax.grad(lambda z: solution.predict(z[None])[0]))(jnp.asarray(Z[0], jnp.float32))
    expected = np.asarray(solution.gradient(Z[:1]))[0]
    # float32 entries and sums of 16 terms: 16·2^-24·Σ|α|
    np.testing.assert_allclose(slope, expected, atol=16 * 6e-8 * np.abs(np.asarray(solution.coefficients)).sum())
