"""Mehler series against trapezoidal sums in two dimensions, and what decides their length."""

import jax.numpy as jnp
import numpy as np

from unlazy.theory.activations import mehler
from unlazy.theory.activations.functions import activation

Q1, Q2 = np.array([0.3, 1.7, 4.0, 2.0]), np.array([1.2, 0.4, 4.0, 3.0])
RHO = np.array([0.4, -0.8, 0.97, -0.3])
SOFTPLUS = activation("softplus")


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


BOTH = (lambda x: np.logaddexp(0, x), sigmoid)
"""Softplus and its derivative: even and odd coefficients are both of order one."""
X = np.arange(-95, 96) / 10
W = 0.1 * np.exp(-X * X / 2) / np.sqrt(2 * np.pi)
"""Trapezoidal rule for E f(√q x): poles at ±iπ/√q, q ≤ 4, leave an error of exp(-2π · (π/2)/0.1) = 1e-43."""


def trapezoid(f, q1, q2, rho):
    b = np.sqrt(q2) * (rho * X[:, None] + np.sqrt(1 - rho**2) * X)
    return np.einsum("i,j,i,ij->", W, W, f(np.sqrt(q1) * X), f(b))


def test_value_and_derivative_of_pairs_and_points(x64):
    """128 terms and some hundred nodes round to about 1e-14."""
    wanted = [[trapezoid(f, *at) for at in zip(Q1, Q2, RHO)] for f in BOTH]
    squares = [[W @ f(np.sqrt(q) * X) ** 2 for q in Q1] for f in BOTH]
    (own, left), (_, right) = (mehler.per_point_terms(SOFTPLUS, jnp.asarray(q), True) for q in (Q1, Q2))
    q12 = jnp.asarray(RHO * np.sqrt(Q1 * Q2))
    np.testing.assert_allclose(mehler.dual_from_terms(q12, left, right), wanted, rtol=1e-13)
    np.testing.assert_allclose(own, squares[0], rtol=1e-13)
    np.testing.assert_allclose(mehler.diagonal_dual(SOFTPLUS, jnp.asarray(Q1), True), squares, rtol=1e-13)
    for (value, none), known in (
        (mehler.dual_from_terms(q12, left._replace(slope=None), right), wanted[0]),
        (mehler.diagonal_dual(SOFTPLUS, jnp.asarray(Q1), False), squares[0]),
    ):
        assert not np.any(none)
        np.testing.assert_allclose(value, known, rtol=1e-13)


def test_correlations_that_rounding_moved_outside_count_as_the_ends(x64):
    _, terms = mehler.per_point_terms(SOFTPLUS, jnp.asarray(Q1), True)
    for end in (-1, 1):
        inside, beyond = (mehler.dual_from_terms(jnp.asarray(end * c * Q1), terms, terms) for c in (1.0, 1.001))
        np.testing.assert_allclose(beyond, inside, rtol=1e-15)


def test_a_series_ends_where_the_omitted_terms_are_below_rounding(x64):
    """Tails by their definition, and the smallest number of chunks whose Cauchy-Schwarz bound is below rounding."""
    _, left = mehler.per_point_terms(SOFTPLUS, jnp.asarray(Q1), True)
    for series in (left.value, left.slope):
        square = np.sum(np.asarray(series.even) ** 2 + np.asarray(series.odd) ** 2, 1) + np.asarray(series.rest) ** 2
        for p, c in enumerate((series.even, series.odd)):
            for k in range(mehler.CHUNKS):
                mass = np.sum(np.asarray(c)[:, mehler.CHUNK * k :] ** 2, 1) / square
                np.testing.assert_allclose(series.tails[:, p, k], mass, rtol=1e-12, atol=1e-300)
    tails = np.asarray(left.value.tails)
    for rho in (0.05, 0.6, 0.999):
        chunks = mehler._chunks(jnp.asarray([rho / 2, -rho]), left.value.tails[:1], left.value.tails[1:])
        for p in (0, 1):
            mass = np.sqrt(tails[:1, p].max(0) * tails[1:, p].max(0))
            bound = mass * rho ** (2 * mehler.CHUNK * np.arange(mehler.CHUNKS) + p)
            assert chunks[p] == np.sum(bound > mehler.TRUNCATION_UNITS * 2.0**-52)
