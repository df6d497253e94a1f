"""Error estimates of duals against closed forms, and their invariances."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations import dual_errors, duals
from unlazy.theory.activations.functions import activation
from unlazy.theory.infinite_width.architecture import MLP

KINKED = activation(lambda x: jnp.maximum(x, 0))  # undeclared: not recognized as ReLU
JUMPS = activation(lambda x: x + (x > 0.3))


def test_errors_are_relative_to_the_function():
    for phi, derivative in ((KINKED, False), (KINKED, True), (JUMPS, True)):
        larger = activation(functools.partial(lambda f, x: 64.0 * f(x), phi.function))
        one, other = (dual_errors.dual_error(f, np.array([0.4, 1.0, 3.0]), derivative) for f in (phi, larger))
        assert np.all(one > 0)
        np.testing.assert_allclose(other, one, rtol=1e-12)  # a power of two rounds nothing


def test_a_jump_shows_in_its_derivative():
    """φ' of φ = x + J[x > κ] lacks the jump: √(k+1) c_{k+1}/s - c'_k = J f(κ/s) h_k(κ/s)/s, k < 32.

    The panels see the jump to a share of the node distance, 1/16 of a panel of 1/8: some percent of c_k.
    """
    root, level = 1.0, 0.3
    h = [1.0, level]
    for k in range(1, 31):
        h.append((level * h[-1] - math.sqrt(k) * h[-2]) / math.sqrt(k + 1))
    off = np.linalg.norm(np.exp(-level * level / 2) / math.sqrt(2 * math.pi) * np.array(h))
    beyond = 0.5 * math.erfc(level / math.sqrt(2))
    mean = math.exp(-level * level / 2) / math.sqrt(2 * math.pi)  # E x [x > κ]
    size = 1 + math.sqrt(1 + beyond + 2 * mean)
    slopes = dual_errors._values(JUMPS, True, np.array([root]))[0]
    np.testing.assert_allclose(dual_errors._mismatch(JUMPS, np.array([root]), slopes), 2 * off / size, rtol=0.05)


def test_networks_take_the_worst_layer():
    """Σ of max(x, 0) is known: E φ² = q/2. Squares are rounded to powers of 2^{1/4}; 4 and 1/2 are such."""
    for squares in ([4.0], [0.5, 4.0]):
        q, seen = 1.5**2 * np.array(squares) + 0.3**2, []
        for sigma_w, sigma_b in ((1.2, 0.1), (0.7, 0.2)):
            seen += [dual_errors.dual_error(KINKED, np.sqrt(q), derivative) for derivative in (False, True)]
            q = 0.5**2 * q + sigma_w**2 * q / 2 + sigma_b**2
        network = MLP(2, KINKED, (1.5, 1.2, 0.7), (0.3, 0.1, 0.2), residual=0.5)
        # q of the second layer by quadrature across the undeclared kink: the error of E φ² is part of the estimate
        np.testing.assert_allclose(dual_errors.network_error(network, np.array(squares)), np.max(seen), rtol=0.05)
    shifted = activation(lambda x: jnp.maximum(x - 0.3, 0))  # its error depends on the variance, here 0.49 · 4
    alone = [dual_errors.dual_error(shifted, np.array([1.4]), derivative) for derivative in (False, True)]
    found = dual_errors.network_error(MLP(1, shifted, (0.7, 1.0)), np.array([4.0]))
    np.testing.assert_allclose(found, np.max(alone), rtol=1e-12)
    assert dual_errors.network_error(MLP(2, "erf"), np.ones(1)) == 0


def test_rounding_of_close_points_that_a_fast_wave_amplifies():
    """E sin ωa sin ωb = e^{-s} sinh(s(1 - u)), s = ω²q: from u = 0 to 8 units it loses 1 - e^{-8 s unit} at large s."""
    unit = 2.0**-24
    for omega, square in ((20.0, 1.0), (3.0, 30.0)):
        network = MLP(1, activation("sin", omega), 1.0, 0.0)
        found = dual_errors.rounding_error(network, square, unit, tangent=True)
        np.testing.assert_allclose(found, -math.expm1(-8 * omega**2 * square * unit), rtol=1e-6)
        assert dual_errors.rounding_error(network, square, unit, tangent=False) <= found
    assert dual_errors.rounding_error(MLP(1, activation("sin", 2.0), 1.0, 0.0), 1.0, unit) == 0  # below 10³ units
    assert dual_errors.rounding_error(MLP(1, "relu"), 1e6, unit) == 0


@pytest.mark.parametrize("name, value, slope", [
    ("erf", True, True), ("relu", True, True), ("step", True, True), ("jax.nn.hard_tanh", True, True),
    ("tanh", False, False), ("jax.nn.silu", False, False), ("jax.nn.hard_silu", False, True),
])  # fmt: skip
def test_activations_with_a_closed_form(name, value, slope):
    phi = activation(name)
    assert (duals.has_closed_form(phi), duals.has_closed_form(phi, True)) == (value, slope)


def test_duals_of_waves_at_any_frequency_and_of_points(x64):
    q12, q11, q22 = (np.array(q) for q in ([1e-9, 0.05, -0.1, 0.4], [0.3, 0.5, 0.2, 0.6], [0.2, 0.4, 0.5, 0.5]))
    for phi, omega in ((activation("sin", 2.5), 2.5), (activation(jnp.sin), 1.0), (activation(jnp.cos), 1.0)):
        w2 = omega**2
        outer = np.exp(-w2 * (q11 + q22) / 2)
        waves = outer * np.sinh(w2 * q12), outer * np.cosh(w2 * q12)
        value, slope = waves if phi.function is not jnp.cos else waves[::-1]
        given = [jnp.asarray(q) for q in (q12, q11, q22)]
        np.testing.assert_allclose(duals.dual(*given, phi), value, rtol=1e-14)
        np.testing.assert_allclose(duals.dual_derivative(*given, phi), w2 * slope, rtol=1e-14)
        own, none = duals.diagonal_dual(phi, given[1], derivative=False)
        np.testing.assert_allclose(own, duals.dual(*(given[1],) * 3, phi), rtol=1e-15)
        assert not np.any(none)
    for phi in (activation("identity"), activation(jax.nn.identity), activation(jnp.positive)):
        np.testing.assert_allclose(duals.dual(*given, phi), q12, rtol=1e-12, atol=1e-15)
