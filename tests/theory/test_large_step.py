"""One large step: each closed form against sampling with its standard error, or against a known limit."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from unlazy.theory.feature_learning import large_step
from unlazy.theory.spectra import conditional_ridge, eigenvalues
from unlazy.theory.spectra.conditional_ridge import ConditionalFeatures, ridge_risk


def unit_rows(rng, width, d):
    W = rng.normal(size=(width, d))
    return W / np.linalg.norm(W, axis=1)[:, None]


def test_constant_parts_are_ridge_regression_of_g1(x64):
    """c_1, c_*, g_1 constant and no spike: features are Gaussian, and [G1] knows their risk from their covariance."""
    d, width, n, ridge, c1, rest, noise = 40, 70, 200, 11.0, 0.7, 0.3, 0.05
    rng = np.random.default_rng(0)
    values = np.linalg.eigvalsh((lambda W: W.T @ W)(rng.normal(size=(width, d)) / math.sqrt(d)))
    s = np.linspace(-8, 8, 401)
    weights = np.exp(-s * s / 2)
    flat, slope = np.ones_like(s), 0.8
    parts = ConditionalFeatures(
        weights / weights.sum(), 0 * s, 0 * s, c1 * flat, rest * flat, 0 * s, slope * flat, 0.1 * flat
    )
    found = ridge_risk(parts, values, np.ones(d), width=width, n=n, ridge=ridge, noise_variance=noise)
    lam = np.append(c1**2 * values + rest, rest)
    power = np.append(slope**2 * (1 - rest / lam[:-1]) / d, 0)  # averaged over v; what is left is noise of the label
    out = slope**2 - power.sum() + 0.1
    counts = np.append(np.ones(d), width - d)
    lam, counts, power = (jnp.asarray(v) for v in (lam, counts, power))
    expected = out + eigenvalues.learning_curve(
        lam, counts, power, jnp.asarray(float(n)), ridge, 0.0, float(noise + out)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    with pytest.raises(ValueError, match="ridge must be positive, got 0"):
        ridge_risk(parts, values, np.ones(d), width=width, n=n, ridge=0)


def test_conditional_moments_of_erf_and_sign():
    rng = np.random.default_rng(1)
    tau, r, cosine, draws = 1.3, 1.1, 0.9, 200_000
    parts = large_step.conditional_features(tau, r, cosine)
    s = np.linspace(-8, 8, 401)
    z = rng.normal(size=draws)
    for i in (180, 240):
        features, labels = erf(tau * s[i] + r * z), np.sign(cosine * s[i] + math.sqrt(1 - cosine**2) * z)
        for values, formula in (
            (features, parts.spike[i]), (features * z / r, parts.linear[i]),
            (features**2, parts.spike[i] ** 2 + (r * parts.linear[i]) ** 2 + parts.rest[i]),
            (labels, parts.mean[i]), (labels * z, parts.slope[i]),
            ((labels - parts.mean[i] - parts.slope[i] * z) ** 2, parts.left[i]),
        ):  # fmt: skip
            assert abs(values.mean() - formula) < 4 * values.std() / math.sqrt(draws)
    assert np.all(parts.left <= 1) and np.isclose(parts.weights @ s**2, 1, atol=1e-12)


def test_first_step_has_this_direction_and_size():
    """‖β‖, its cosine with u, r and τ over draws: means within 4 standard errors and a bias of order 1/d."""
    d, width, first, noise, step, draws = 64, 128, 512, 0.3, 2.0, 30
    found = []
    for i in range(draws):
        rng = np.random.default_rng(i)
        W, X, signs = unit_rows(rng, width, d), rng.normal(size=(first, d)), np.repeat([1, -1], width // 2)
        y = np.sign(X[:, 0]) + noise * rng.normal(size=first)
        beta = X.T @ y / first
        G = (2 / math.sqrt(math.pi) * np.exp(-((X @ W.T) ** 2)) * y[:, None]).T @ X / first
        moved = W + step * signs[:, None] * G
        tau = (step * G).mean(0) @ beta / np.linalg.norm(beta)
        rest = moved - tau * np.outer(signs, beta / np.linalg.norm(beta))
        top = np.linalg.svd(moved, compute_uv=False)[0]
        found.append(
            [np.linalg.norm(beta), beta[0] / np.linalg.norm(beta), tau, math.sqrt((rest**2).sum() / width), top]
        )
    mean, error = np.mean(found, 0), np.std(found, 0, ddof=1) / math.sqrt(draws)
    tau, r = large_step.spike_and_row_norm(step, d, first, noise)
    place, edge = large_step.spike_location(tau, r, d, width)
    expected = np.array([*large_step.gradient_direction(d, first, noise), tau, r, place])
    assert np.all(np.abs(mean - expected) < 4 * error + expected / d)
    assert place > 2 * edge and large_step.spike_location(0.01, r, d, width) == (edge, edge)


@pytest.mark.parametrize("width", [30, 90])
def test_marchenko_pastur_has_the_moments_of_the_law(width):
    """Σλ = w, Σλ² = w(1 + w/d), Σ 1/λ = d/(w/d - 1): of the law, with c = w/d > 1 for the last."""
    d = 60
    values, counts = large_step.marchenko_pastur(d, width)
    c = width / d
    # the rule is exact for these, but for 1/λ in the normalization, which converges geometrically
    np.testing.assert_allclose([counts.sum(), counts @ values], [d, width], rtol=1e-12)
    np.testing.assert_allclose(counts @ values**2, width * (1 + c), rtol=1e-12)
    if c > 1:
        np.testing.assert_allclose(counts[:-1] @ (1 / values[:-1]), d / (c - 1), rtol=1e-12)


def test_exact_risk_against_sampling(x64):
    rng = np.random.default_rng(2)
    W, head, u = rng.normal(size=(6, 4)), rng.normal(size=6), np.array([0.6, 0.8, 0.0, 0.0])
    X = rng.normal(size=(100_000, 4))
    errors = (erf(X @ W.T) @ head - np.sign(X @ u)) ** 2
    found = float(large_step.exact_risk(jnp.asarray(head), jnp.asarray(W), jnp.asarray(u)))
    assert abs(errors.mean() - found) < 4 * errors.std() / math.sqrt(len(X))


@pytest.mark.slow
@pytest.mark.parametrize("tau", [0.1, 1.3])
def test_risk_against_its_gaussian_model_sampled(tau):
    """The model of the docstring drawn as it stands, with p = s c_1: mean risk within 4 standard errors and 1/d."""
    d, width, n, ridge, noise, draws = 64, 128, 512, 64.0, 0.1, 24
    values, counts = large_step.marchenko_pastur(d, width)
    signs = np.repeat([1, -1], width // 2)

    def parts(s):
        full = large_step.conditional_features(tau, 1.0, 0.95)
        at = np.linspace(-8, 8, 401)
        return [np.interp(s, at, f) for f in (full.spike, full.linear, full.rest, full.mean, full.slope, full.left)]

    def draw(rng, W, rows):
        X = rng.normal(size=(rows, d))
        c0, c1, rest, mean, slope, left = parts(X[:, 0])
        features = (
            c0[:, None] * signs + c1[:, None] * (X @ W.T) + np.sqrt(rest)[:, None] * rng.normal(size=(rows, width))
        )
        return features, mean + slope * X[:, 1], left

    found = []
    for i in range(draws):
        rng = np.random.default_rng(i)
        W = rng.normal(size=(width, d)) / math.sqrt(d)
        F, y, left = draw(rng, W, n)
        y = y + np.sqrt(left + noise**2) * rng.normal(size=n)
        head = np.linalg.solve(F.T @ F + ridge * np.eye(width), F.T @ y)
        F, y, left = draw(rng, W, 3000)
        found.append(np.mean((F @ head - y) ** 2 + left))
    full = large_step.conditional_features(tau, 1.0, 0.95)
    full = full._replace(column=np.linspace(-8, 8, 401) * full.linear)
    expected = ridge_risk(full, values, counts, width=width, n=n, ridge=ridge, noise_variance=noise**2)
    assert abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / math.sqrt(draws) + expected / d


def test_largest_singular_value_of_a_spike(x64):
    """Sampled, within 4 standard errors and a bias of order 1/d; and continuous at the threshold θ = c^{1/4}."""
    d, width, r, draws = 240, 120, 1.3, 30
    for theta in (1.2, 2.0):
        tau = theta * r / math.sqrt(width)
        place, edge = large_step.spike_location(tau, r, d, width)
        rng, found = np.random.default_rng(0), []
        for _ in range(draws):
            W = r * rng.normal(size=(width, d)) / math.sqrt(d)
            W[:, 0] += tau
            found.append(math.sqrt(np.linalg.eigvalsh(W @ W.T)[-1]))
        assert abs(np.mean(found) - place) < 4 * np.std(found, ddof=1) / math.sqrt(draws) + place / d < place - edge
    threshold = r * 0.5**0.25 / math.sqrt(width)
    above, edge = large_step.spike_location(threshold * (1 + 1e-6), r, d, width)
    assert abs(above / edge - 1) < 1e-9  # the two meet with equal slopes


def test_column_is_the_derivative_of_the_mean_feature(x64):
    """A neuron with w·b = m reads τs + (1 + ε)(m s + rest), ε = -(2/3) τ m for erf; p(s) = d/dm of its mean at 0."""
    tau, r = 0.9, 1.2
    parts, s, step = large_step.conditional_features(tau, r, 0.8), np.linspace(-8, 8, 401), 1e-5

    def mean(m):
        more = 1 - 2 / 3 * tau * m
        return erf((tau * s + more * m * s) / np.sqrt(1 + 2 * (more**2 + r**2 - 1)))

    # central differences: 1e-16/1e-5 of rounding and 1e-10 of truncation
    np.testing.assert_allclose(parts.column, (mean(step) - mean(-step)) / (2 * step), atol=1e-8)


def test_noise_of_the_labels_enters_as_a_variance(x64):
    sizes = dict(d=40, width=60, first=400, ridge=8.0)
    tau, r = large_step.spike_and_row_norm(0.5, 40, 400, 0.7)
    values, counts = large_step.marchenko_pastur(40, 60)
    parts = large_step.conditional_features(tau, r, large_step.gradient_direction(40, 400, 0.7)[1])
    given = dict(width=60, n=300, ridge=8.0)
    wanted = ridge_risk(parts, r**2 * values, counts, noise_variance=0.49, **given)
    assert large_step.risk(0.5, second=300, noise=0.7, **sizes) == pytest.approx(wanted, rel=1e-12)
    clean = ridge_risk(parts, r**2 * values, counts, noise_variance=0.0, **given)
    assert ridge_risk(parts, r**2 * values, counts, **given) == clean < wanted


def test_fitted_means_add_their_share_to_the_size_of_the_head(x64):
    """c_0 and p alone, c_1 = 0: features ζ c_0(s) + W b p(s) + noise are regressed on the mean, exactly as sampled."""
    d, width, n, ridge, draws = 50, 100, 400, 20.0, 30
    s = np.linspace(-8, 8, 401)
    weights = np.exp(-s * s / 2) / np.exp(-s * s / 2).sum()
    spike, column, mean, flat = np.tanh(s), 1.5 * np.cos(s), np.sin(s) + 0.5 * np.cos(s), np.ones_like(s)
    parts = ConditionalFeatures(weights, spike, column, 0 * s, 0.2 * flat, mean, 0 * s, 0.05 * flat)
    values = np.full(d, width / d)
    expected = ridge_risk(parts, values, np.ones(d), width=width, n=n, ridge=ridge, noise_variance=0.1)
    found = []
    for i in range(draws):
        rng = np.random.default_rng(i)
        signs, direction = np.repeat([1, -1], width // 2), rng.normal(size=width)
        direction -= signs * (signs @ direction) / width
        direction *= math.sqrt(values[0]) / np.linalg.norm(direction)

        def draw(rows, signs=signs, direction=direction, rng=rng):
            t = rng.normal(size=rows)
            F = np.outer(np.tanh(t), signs) + np.outer(1.5 * np.cos(t), direction)
            return F + math.sqrt(0.2) * rng.normal(size=F.shape), np.sin(t) + 0.5 * np.cos(t)

        F, g = draw(n)
        head = np.linalg.solve(F.T @ F + ridge * np.eye(width), F.T @ (g + math.sqrt(0.15) * rng.normal(size=n)))
        F, g = draw(1000)
        found.append(np.mean((F @ head - g) ** 2) + 0.05)
    assert abs(np.mean(found) - expected) < 4 * np.std(found, ddof=1) / math.sqrt(draws) + expected / d


@pytest.mark.parametrize("ridge, n, off", [(1e-3, 90, 1e-10), (10.0, 90, 1e-10), (1e5, 100_000, 1e-13)])
def test_the_fixed_point_solves_its_equations(ridge, n, off):
    """V = c_1² tr Wᵀ A W + c_*² tr A, A = (ridge + n E c_*²/(1 + V) + n E c_1²/(1 + V) W Wᵀ)^{-1}, at any size of V."""
    parts, rng = large_step.conditional_features(0.9, 1.1, 0.8), np.random.default_rng(0)
    W = rng.normal(size=(70, 40)) / math.sqrt(40)
    V, (A, null) = conditional_ridge._resolvent(parts, np.linalg.eigvalsh(W.T @ W), np.ones(40), 70, n, ridge)
    share = n * parts.weights / (1 + V)
    whole = np.sum(share * parts.linear**2) * W @ W.T + (ridge + np.sum(share * parts.rest)) * np.eye(70)
    inverse = np.linalg.inv(whole)
    wanted = parts.linear**2 * np.trace(W.T @ inverse @ W) + parts.rest * np.trace(inverse)
    np.testing.assert_allclose(V, wanted, rtol=off)  # 1e-12 of the iteration, times its rate over one less its rate
    np.testing.assert_allclose(np.sort([*A, *[null] * 30]), np.linalg.eigvalsh(inverse), rtol=max(off, 1e-12))
