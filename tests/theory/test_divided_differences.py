"""theory.numerics.divided_differences against mpmath: every pair of eigenvalues, also where they meet, vanish or flip
signs."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from unlazy.theory.numerics.divided_differences import DESCENT, FLOW, RIDGE

LAM = [0.0, 1e-20, 1e-7, 1e-4, 1e-4 * (1 + 1e-6), 0.02, 0.3, 0.3 * (1 + 1e-5), 0.999, 1.0, 1.7, 1.9]


def exact(c, lam):
    """(f(λ) - f(μ))/(λ - μ) with 120 digits; equal ones are set 1e-40 apart."""
    out = np.zeros((len(lam), len(lam)))
    for i, x in enumerate(lam):
        for j, z in enumerate(lam):
            x, z = mpmath.mpf(x), mpmath.mpf(z)
            z = z + mpmath.mpf(10) ** -40 if x == z else z
            out[i, j] = float((c(x) - c(z)) / (x - z))
    return out


def coefficient(r):
    def c(x):
        return (1 - r(x)) / x if x else mpmath.diff(lambda v: -r(v), 0)

    return c


def cases(dtype):
    """(rule, parameters, exact r); parameters as this type holds them."""
    for t in (0.1, 5.0, 1e4):
        time = mpmath.mpf(float(dtype(t)))
        yield FLOW, (t,), lambda x, time=time: mpmath.exp(-x * time)
    for s in (1.0, 2.0, 7.0, 1001.0):
        yield DESCENT, (1.0, s), lambda x, s=s: (1 - x) ** int(s)
    for rho in (1e-3, 2.0):
        ridge = mpmath.mpf(float(dtype(rho)))
        yield RIDGE, (rho,), lambda x, ridge=ridge: ridge / (x + ridge)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_no_cancellation(dtype):
    """Each is a product, or a sum of two that loses at most 16 roundings, times e^{-λt} or (1 - x)^s, which lose as
    many roundings as their exponent: 40 leave 1e-17. One step is the exception: c is constant and c[λ, μ] = 0 is the
    difference of two numbers of the size of c(μ)/λ ≤ 4, each through log1p, expm1 (one unit each where good) and a
    division (half a unit): 2·2.5·4 = 20 units."""
    unit = float(np.finfo(dtype).eps)
    lam = np.asarray(LAM, dtype)
    with jax.enable_x64(dtype == np.float64), mpmath.workdps(120):
        for rule, parameters, r in cases(dtype):
            given = [jnp.asarray(p, dtype) for p in parameters]
            for difference, f in ((rule.coefficient_difference, coefficient(r)), (rule.residual_difference, r)):
                got = np.asarray(jax.jit(difference)(lam, *given), float)
                expected = exact(f, [float(v) for v in lam])
                few = 20 * unit if parameters[-1] in (1.0, 2.0) and rule is DESCENT else 0.0
                np.testing.assert_allclose(got, expected, rtol=100 * unit, atol=few + 1e-30, err_msg=str(parameters))


def test_pseudo_inverse_and_its_null_space():
    """Without ridge c = 1/λ and r = 0, but c = 0 and r = 1 at λ = 0: differences by their definition."""
    lam = np.array([0.0, 0.0, 0.5, 2.0])
    c, r = np.array([0.0, 0.0, 2.0, 0.5]), np.array([1.0, 1.0, 0.0, 0.0])
    gap = np.subtract.outer(lam, lam)
    for difference, f, slope in ((RIDGE.coefficient_difference, c, -(c**2)), (RIDGE.residual_difference, r, 0 * r)):
        with np.errstate(invalid="ignore"):
            wanted = np.where(gap == 0, np.diag(slope), np.subtract.outer(f, f) / gap)
        np.testing.assert_allclose(difference(jnp.asarray(lam, jnp.float32), 0.0), wanted, rtol=1e-6)
