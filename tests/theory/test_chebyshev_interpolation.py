"""Interpolation in the logarithm of the standard deviation, of functions known in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations.chebyshev_interpolation import interpolate


def rational(s, xp=jnp):
    """Analytic in log s up to a distance π/2: 1 + s² vanishes at s = ±i."""
    return xp.stack([s / (1 + s * s), 1 / (1 + s)], 1), xp.stack([1 + s * s, 2 + s], 1)


def wave(s, xp=jnp):
    """Too fast for the nodes."""
    return xp.stack([xp.sin(50 * s)], 1), xp.stack([1 + xp.cos(50 * s) ** 2], 1)


@functools.partial(jax.jit, static_argnums=0)
def at(of, roots):
    return interpolate(of, roots)


@pytest.mark.parametrize("of", [rational, wave])
def test_interpolated_or_evaluated_both_are_the_function(of, x64):
    """4 units are allowed in the last coefficients, which sum up; the relative size is that of the first square."""
    rng = np.random.default_rng(0)
    for spread in (*rng.uniform(1.5, 7.9, 25), 30.0, 1.0):  # many ends: rounding may move one outside of [-1, 1]
        low = rng.uniform(0.1, 2)
        roots = low * spread ** np.append(rng.uniform(0, 1, 198), [0, 1])
        columns, squares = at(of, jnp.asarray(roots))
        wanted = of(roots, np)
        assert np.abs((columns - wanted[0]) / np.sqrt(wanted[1][:, :1])).max() < 64 * 2.0**-52
        assert np.abs(squares / wanted[1] - 1).max() < 64 * 2.0**-52


def test_many_points_outside_the_range_and_few_inside(x64):
    for n in (5, 1500):  # evaluated directly; in batches
        roots = np.geomspace(0.01, 50, n)
        for found, wanted in zip(at(rational, jnp.asarray(roots)), rational(roots, np)):
            np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_derivatives_are_those_of_the_function(x64):
    roots = jnp.linspace(1.0, 3.0, 150)
    found, wanted = (jax.jvp(f, (roots,), (jnp.ones(150),))[1] for f in (functools.partial(at, rational), rational))
    for a, b in zip(found, wanted):
        np.testing.assert_allclose(a, b, rtol=1e-13)
