"""Error estimates of duals against closed forms, and their invariances."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.theory.activations import dual_errors, duals
from unlazy.theory.activations.functions import ActivationFunction, activation
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


def test_variances_of_deeper_layers(monkeypatch):
    """q' = s²q + σ_w² E φ(√q z)² + σ_b² with E max(√q z - κ, 0)² in closed form, h = κ/√q: q(1 + h²)Q(h) - qh f(h)."""
    level, asked = 0.3, []
    shifted = activation(lambda x: jnp.maximum(x - level, 0))
    monkeypatch.setattr(dual_errors, "dual_error", lambda phi, root, derivative: asked.append(root**2) or 0 * root)
    network = MLP(2, shifted, (1.5, 1.2, 0.7), (0.9, 0.4, 0.2), residual=0.5)
    assert dual_errors.network_error(network, np.array([4.0]), tangent=False) == 0
    first = 1.5**2 * 4 + 0.9**2
    h = level / math.sqrt(first)
    mean = (1 + h * h) * math.erfc(h / math.sqrt(2)) / 2 - h * math.exp(-h * h / 2) / math.sqrt(2 * math.pi)
    # panels of at most 1/8 around the undeclared kink at h: a change of slope over nodes 1/16 of that apart
    np.testing.assert_allclose(np.ravel(asked), [first, 0.25 * first + 1.44 * first * mean + 0.16], rtol=1e-4)


def test_omitted_terms_of_a_kink_and_a_bend():
    """φ = e^{-max(x, 0)}: a ramp of slope -1 and a smooth part that bends, so that all its coefficients are known.

    b_k = E [x > 0] e^{-sx} h_k(x) by parts: b_0 = e^{s²/2} Q(s), √k b_k = f(0) h_{k-1}(0) - s b_{k-1}.
    """
    phi = ActivationFunction("bend", lambda x: jnp.exp(-jnp.maximum(x, 0)), kinks=(0.0,))
    first, last, density = dual_errors.TERMS, dual_errors.MAX_TERMS, 1 / math.sqrt(2 * math.pi)
    for s in (0.7, 1.6):
        h, b = [1.0, 0.0], [math.exp(s * s / 2) * math.erfc(s / math.sqrt(2)) / 2]
        for k in range(1, 4096):
            h.append(-math.sqrt(k / (k + 1)) * h[k - 1])
            b.append((density * h[k - 1] - s * b[-1]) / math.sqrt(k))
        k, h, b = np.arange(first, 4096), np.array(h), np.array(b)
        kinks = -s * density * h[k - 2] / np.sqrt(k * (k - 1.0))
        smooth = b[k] - density * h[k - 1] / np.sqrt(k) - kinks
        own, mixed, seen = smooth**2, np.abs(smooth * kinks), k < last
        square = 0.5 + math.exp(2 * s * s) * math.erfc(s * math.sqrt(2)) / 2
        wanted = dual_errors.JUMP_TAIL_FACTOR * own[seen].sum() + 2 * dual_errors.MIXED_TAIL_FACTOR * mixed[seen].sum()
        found = float(dual_errors.dual_error(phi, np.array([s]))[0])
        np.testing.assert_allclose(found, wanted / square, rtol=1e-6)
        assert found > np.sum(own + 2 * mixed) / square


def test_tail_factors_are_those_of_the_slowest_decay():
    """Σ_{k≥K} k^{-a} / Σ_{K≤k<2K} k^{-a} → 1/(1 - 2^{1-a}) for a = 3/2 and 5/2, and less than a tenth more."""
    for factor, decay in ((dual_errors.JUMP_TAIL_FACTOR, 1.5), (dual_errors.MIXED_TAIL_FACTOR, 2.5)):
        k = np.arange(dual_errors.TERMS, 200_000.0)
        beyond = 200_000.0 ** (1 - decay) / (decay - 1)
        wanted = (np.sum(k**-decay) + beyond) / np.sum(k[k < dual_errors.MAX_TERMS] ** -decay)
        assert wanted < factor < 1.05 * wanted


def test_the_second_rule_splits_every_panel_and_keeps_kinks_at_edges():
    """Both rules integrate [x > κ] x² exactly: a panel of smooth functions to rounding, on edges that meet the kink."""
    level, root = 0.3, np.array([0.5, 2.0])
    (x, w), (fine, weights) = (dual_errors._rule((level,), root, halved) for halved in (False, True))
    h = level / root
    wanted = [math.erfc(v / math.sqrt(2)) / 2 + v * math.exp(-v * v / 2) / math.sqrt(2 * math.pi) for v in h]
    for at, weight in ((x, w), (fine, weights)):
        np.testing.assert_allclose(np.sum(weight * at**2 * (at > h[:, None]), 1), wanted, rtol=1e-13)
    nodes = dual_errors.NODES_PER_PANEL
    x, fine = (dual_errors._rule((), root, halved)[0][0] for halved in (False, True))
    for panel in x.reshape(-1, nodes):  # twice as many, but for those beyond the outermost of the coarse ones
        assert 1.7 * nodes < np.sum((fine > panel[0]) & (fine < panel[-1])) <= 2 * nodes


def test_undeclared_kinks_show_in_the_change_between_both_rules():
    """E max(x s - κ, 0)² in closed form: what is stated covers the error of both rules; smooth functions have none."""
    level, root = 0.3, np.array([0.5, 1.0, 2.0])
    for size in (1e-3, 1.0, 1e3):
        shifted = activation(functools.partial(lambda size, x: size * jnp.maximum(x - level, 0), size))
        h = level / root
        tail = np.array([math.erfc(v / math.sqrt(2)) / 2 for v in h])
        exact = (size * root) ** 2 * ((1 + h * h) * tail - h * np.exp(-h * h / 2) / math.sqrt(2 * math.pi))
        coarse, fine = dual_errors._quadrature(shifted, False, root)
        c, square, moved = dual_errors._values(shifted, False, root)
        np.testing.assert_array_equal(square, fine[1])
        for _, found in (coarse, fine):
            assert np.all(np.abs(found / exact - 1) <= moved)
        apart = np.sqrt(np.sum((coarse[0] - fine[0])[:, : dual_errors.TERMS] ** 2, 1) / fine[1])
        np.testing.assert_allclose(moved, 2 * (2 * apart + np.abs(1 - coarse[1] / fine[1])), atol=1e-14)
        assert np.all(moved > 1e-9) and np.all(moved < 1e-2)
        np.testing.assert_allclose(
            c[:, 0], size * root * (np.exp(-h * h / 2) / math.sqrt(2 * math.pi) - h * tail), rtol=1e-3
        )
    assert not np.any(dual_errors._values(activation("tanh"), False, root)[2])


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
