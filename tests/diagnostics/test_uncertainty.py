"""Error bars of trained networks: exact for linear ones, dense algebra for others, one sentence for wrong use."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from jax.flatten_util import ravel_pytree

from unlazy import TangentOptions, uncertainty
from unlazy.core.errors import UnlazyWarning
from unlazy.models import as_model
from unlazy.solvers.tangent import system

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(40, 3)), RNG.normal(size=(5, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=40)
PRIOR, NOISE = 0.7, 0.2
PRECISE = TangentOptions(dtype="float64")


def linear(w, X):
    return X @ w


def mlp(p, X):
    return jnp.tanh(X @ p["a"]) @ p["b"]


def parameters(outputs, seed=0):
    rng = np.random.default_rng(seed)
    return {"a": rng.normal(size=(3, 6)), "b": rng.normal(size=(6, outputs)) / 2}


@pytest.fixture(scope="module")
def weights():
    return np.linalg.solve(X.T @ X + PRIOR * NOISE * np.eye(3), X.T @ Y)


def test_linear_network_is_a_gaussian_process(weights):
    posterior = uncertainty((linear, weights), X, Y, prior_precision=PRIOR, noise_variance=NOISE, options=PRECISE)
    K = X @ X.T / PRIOR + NOISE * np.eye(40)
    cross = Z @ X.T / PRIOR
    covariance = Z @ Z.T / PRIOR - cross @ np.linalg.solve(K, cross.T)
    found = posterior.predict(Z)
    np.testing.assert_allclose(found.mean, cross @ np.linalg.solve(K, Y), rtol=1e-10)
    np.testing.assert_allclose(found.std, np.sqrt(np.diag(covariance)), rtol=1e-8)
    np.testing.assert_allclose(posterior.covariance(Z)[:, 0, :, 0], covariance, rtol=1e-8)
    assert posterior.gap < 1e-6  # nothing but rounding
    low, high = found.interval(0.5)
    np.testing.assert_allclose((high - low) / 2, 0.6744897501960817 * np.sqrt(found.std**2 + NOISE))


@pytest.mark.parametrize("method", ["primal", "dual", "iterative"])
def test_samples_have_the_covariance(weights, method):
    """Of 4,000 draws: a variance has the relative standard error √(2/4000) = .022; four of them."""
    options = TangentOptions(dtype="float64", method=method, tolerance=1e-8)
    posterior = uncertainty((linear, weights), X, Y, prior_precision=PRIOR, noise_variance=NOISE, options=options)
    draws = posterior.sample(Z, 4000)
    covariance = posterior.covariance(Z)[:, 0, :, 0]
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.09)
    np.testing.assert_allclose(draws.mean(0), posterior.predict(Z).mean, atol=4 * scale.max() / np.sqrt(4000))


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "binary_cross_entropy"])
def test_covariance_is_that_of_the_full_matrix(loss):
    """M from the generalized Gauss-Newton matrix that JAX forms, in float64."""
    outputs = 1 if loss == "binary_cross_entropy" else 3
    p = parameters(outputs)
    y = {"squared": RNG.normal(size=(40, 3)), "cross_entropy": RNG.integers(0, 3, 40)}.get(loss, RNG.integers(0, 2, 40))
    known = {"noise_variance": NOISE} if loss == "squared" else {}
    posterior = uncertainty((mlp, p), X, y, loss=loss, prior_precision=PRIOR, **known, options=PRECISE)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, p))
        J, JZ = (np.asarray(jax.jacrev(lambda t, at=at: mlp(unravel(t), at))(flat)) for at in (X, Z))
        f, fZ = (np.asarray(mlp(p, at)) for at in (X, Z))
    if loss == "squared":
        curvature = np.broadcast_to(np.eye(3) / NOISE, (40, 3, 3))
    elif loss == "cross_entropy":
        P = np.exp(f) / np.exp(f).sum(1, keepdims=True)
        curvature = P[:, :, None] * np.eye(3) - P[:, :, None] * P[:, None]
    else:
        P = 1 / (1 + np.exp(-f))
        curvature = (P * (1 - P))[:, :, None]
    H = np.einsum("ncp,ncd,ndq->pq", J, curvature, J) + PRIOR * np.eye(flat.size)
    expected = np.einsum("mcp,pq,kdq->mckd", JZ, np.linalg.inv(H), JZ)
    np.testing.assert_allclose(posterior.covariance(Z), expected, atol=1e-9 * np.abs(expected).max())
    found = posterior.predict(Z)
    own = np.einsum("mcmd->mcd", expected)
    if loss == "squared":
        np.testing.assert_allclose(found.std, np.sqrt(np.einsum("mcc->mc", own)), rtol=1e-7)
    elif loss == "cross_entropy":
        np.testing.assert_allclose(found.mean, np.exp(fZ) / np.exp(fZ).sum(1, keepdims=True), rtol=1e-7)
    else:
        np.testing.assert_allclose(found.mean, 1 / (1 + np.exp(-fZ[:, 0])), rtol=1e-7)


@pytest.mark.parametrize(("outputs", "loss"), [(3, "cross_entropy"), (1, "binary_cross_entropy")])
def test_standard_deviations_of_probabilities(outputs, loss):
    """Of a narrow posterior, by the derivative of the link; four standard errors of 512 draws are 13%."""
    network, y = (mlp, parameters(outputs)), RNG.integers(0, outputs, 40) if outputs > 1 else RNG.integers(0, 2, 40)
    posterior = uncertainty(network, X, y, loss=loss, prior_precision=1e4, options=PRECISE)
    own, found = np.einsum("mcmd->mcd", posterior.covariance(Z)), posterior.predict(Z)
    p = found.mean.reshape(5, -1)
    slope = p[:, :, None] * np.eye(outputs) - p[:, :, None] * p[:, None]
    expected = np.sqrt(np.einsum("mab,mbc,mac->ma", slope, own, slope))
    np.testing.assert_allclose(found.std.reshape(5, -1), expected, rtol=0.13)
    wide = uncertainty(network, X, y, loss=loss, prior_precision=1e-4, options=PRECISE).predict(100 * Z)
    assert np.all(wide.std <= 0.5)  # of numbers between 0 and 1


def test_batches_of_queries_make_no_difference():
    many = RNG.normal(size=(150, 3))
    posterior = uncertainty((mlp, parameters(3)), X, RNG.integers(0, 3, 40), options=PRECISE)
    found, alone = posterior.predict(many), posterior.predict(many[140:141])
    np.testing.assert_allclose(found.std[140:141], alone.std, rtol=1e-9)
    assert posterior.sample(many, 3).shape == (3, 150, 3)


def test_hyperparameters_have_the_largest_evidence():
    network, y = (mlp, parameters(1)), np.asarray(mlp(parameters(1), X))[:, 0] + 0.1 * RNG.normal(size=40)
    best = uncertainty(network, X, y, options=PRECISE)
    for factor in (0.8, 1.25):
        for prior, noise in ((factor, 1), (1, factor)):
            other = uncertainty(
                network, X, y, prior_precision=best.prior_precision * prior, noise_variance=best.noise_variance * noise,
                options=PRECISE,
            )  # fmt: skip
            assert other.log_evidence < best.log_evidence
    assert 0.5 < best.noise_variance / 0.01 < 2  # 40 numbers, 24 parameters


def test_calibration_on_held_out_rows():
    """Scales follow the held-out errors: these have 9 times the variance."""
    w = np.linalg.lstsq(X, Y, rcond=None)[0]
    posterior = uncertainty((linear, w), X, Y, options=PRECISE)
    before = posterior.noise_variance
    many = RNG.normal(size=(4000, 3))
    posterior.calibrate(many, many @ w + 3 * np.sqrt(before) * RNG.normal(size=4000))
    total = posterior.noise_variance + np.mean(posterior.predict(many).std ** 2)
    assert total / (9 * before) == pytest.approx(1, abs=0.1)  # 4 standard errors of a variance of 4,000 numbers


def test_temperature_never_makes_the_held_out_loss_worse():
    p = parameters(3)
    logits = np.asarray(mlp(p, X))
    sure = {**p, "b": 6 * p["b"]}  # six times too sure
    y = np.array([RNG.choice(3, p=np.exp(f) / np.exp(f).sum()) for f in logits])
    posterior = uncertainty((mlp, sure), X, y, held_out=(X, y), options=PRECISE)
    assert 2 < posterior.temperature < 20
    right = uncertainty((mlp, sure), X, logits.argmax(1), held_out=(X, logits.argmax(1)), options=PRECISE)
    assert right.temperature <= 1


def test_gaps():
    start = parameters(1, seed=1)
    posterior = uncertainty((mlp, parameters(1)), X, Y, reference=start, options=PRECISE)
    model = as_model((mlp, parameters(1)), dtype="float64")
    f0, f1, linear_part = model.change(model.stored(start), model.params, X)
    assert posterior.training_gap == pytest.approx(np.linalg.norm(f1 - f0 - linear_part) / np.linalg.norm(f1 - f0))
    assert 0 < posterior.gap < 2
    near = uncertainty((mlp, parameters(1)), X, Y, prior_precision=1e-3, noise_variance=1.0, options=PRECISE)
    near.stationarity = 0.1
    assert "linearization gap" in str(near)


def test_minimum_of_the_loss_or_not(weights):
    """A minimum with the prior has no gradient; one with a decay k times as large (k - 1)/(k + 1); interpolation 1."""
    known = {"prior_precision": PRIOR, "noise_variance": NOISE, "options": PRECISE}
    assert uncertainty((linear, weights), X, Y, **known).stationarity < 1e-9
    more = np.linalg.solve(X.T @ X + 3 * PRIOR * NOISE * np.eye(3), X.T @ Y)
    assert uncertainty((linear, more), X, Y, **known).stationarity == pytest.approx(0.5)
    exact = uncertainty((linear, weights), X, X @ weights, **known)
    assert exact.stationarity == pytest.approx(1)
    assert "pass held_out rows" in str(exact)
    exact.calibrate(X, Y)
    assert "Scales are fitted to held-out rows" in str(exact)


def test_last_layer_alone():
    options = TangentOptions(layers=("b",), dtype="float64")
    p = parameters(1)
    posterior = uncertainty((mlp, p), X, Y, prior_precision=PRIOR, noise_variance=NOISE, options=options)
    H, HZ = np.tanh(X @ p["a"]), np.tanh(Z @ p["a"])
    expected = np.sqrt(np.einsum("mp,pq,mq->m", HZ, np.linalg.inv(H.T @ H / NOISE + PRIOR * np.eye(6)), HZ))
    np.testing.assert_allclose(posterior.predict(Z).std, expected, rtol=1e-8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior_precision": 1.0}, "pass both prior_precision and noise_variance"),
        ({"prior_precision": -1.0, "noise_variance": 1.0}, "prior_precision must be positive"),
        ({"loss": "hinge"}, "unknown loss 'hinge'"),
        ({"y": Y[:7]}, "one entry per row"),
        ({"y": np.where(Y > 0, np.nan, Y)}, "NaN or infinity"),
        ({"X": X[:0], "y": Y[:0]}, "at least one row"),
        ({"held_out": X}, "held_out must be a tuple"),
        ({"network": (linear, np.full(3, np.nan))}, "outputs on X contain NaN"),
        ({"options": TangentOptions(layers=("head",))}, "no layer has the name 'head'"),
        ({"X": np.where(X > 2, np.nan, X) * np.nan}, "outputs on X contain NaN"),
        ({"held_out": (X * np.nan, Y)}, "contain NaN"),
        ({"held_out": (X[:0], Y[:0])}, "at least one row"),
        ({"reference": np.zeros(5)}, "reference needs parameters of the same structure"),
    ],
)
def test_wrong_use(weights, change, message):
    known = {"network": (linear, weights), "X": X, "y": Y} | change
    with pytest.raises(ValueError, match=message):
        uncertainty(known.pop("network"), known.pop("X"), known.pop("y"), **known)


def test_wrong_queries(weights):
    posterior = uncertainty((linear, weights), X, Y, options=PRECISE)
    for wrong, message in ((Z[0], "row per point"), (Z[:0], "at least one row"), (Z * np.nan, "contain NaN")):
        for use in (posterior.predict, posterior.sample, posterior.covariance):
            with pytest.raises(ValueError, match=message):
                use(wrong)


def test_data_frames_and_lists(weights):
    known = {"prior_precision": PRIOR, "noise_variance": NOISE, "options": PRECISE}
    expected = uncertainty((linear, weights), X, Y, **known).predict(Z).std
    frames = uncertainty((linear, weights), pd.DataFrame(X), pd.Series(Y), **known).predict(pd.DataFrame(Z)).std
    np.testing.assert_allclose(frames, expected, rtol=1e-10)
    lists = uncertainty((linear, weights), X.tolist(), Y.tolist(), **known).predict(Z.tolist()).std
    np.testing.assert_allclose(lists, expected, rtol=1e-10)


def test_rounding_is_never_silent():
    """A precision below the rounding of float32 warns, or has no factor; one above does neither."""
    network, known = (mlp, parameters(1)), {"noise_variance": 1e-3}
    for method, rows in (("dual", 10), ("primal", 40)):
        options = TangentOptions(method=method, dtype="float32")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                uncertainty(network, X[:rows], Y[:rows], prior_precision=1e-9, **known, options=options)
                said = [str(warning.message) for warning in seen]
            except ValueError as error:
                said = [str(error)]
        assert any("below the rounding" in message for message in said)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UnlazyWarning)
            uncertainty(network, X, Y, prior_precision=1e3, **known, options=options)
    singular = np.ones((4, 4))
    with pytest.raises(ValueError, match="below the rounding"):
        system._cholesky(singular, -1e-3)


def test_conjugate_gradients_that_do_not_converge_warn(monkeypatch):
    monkeypatch.setattr(system, "MAX_STEPS", 1)
    options = TangentOptions(method="iterative", tolerance=1e-12, dtype="float64")
    with pytest.warns(UnlazyWarning, match="relative residual"):
        uncertainty((mlp, parameters(1)), X, Y, prior_precision=1e-3, noise_variance=1e-3, options=options)


def test_wrong_options():
    for wrong in ({"method": "cg"}, {"tolerance": 2.0}, {"memory": 0}, {"layers": ()}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TangentOptions(**wrong)
