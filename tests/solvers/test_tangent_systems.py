"""Losses to second order, M = (AᵀA + τ)⁻¹ by all methods, and evidence, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from unlazy.models import as_model
from unlazy.models.tangents import tangent_map
from unlazy.solvers.tangent import evidence
from unlazy.solvers.tangent.evidence import gaussian_evidence, laplace_evidence, spectral_measure
from unlazy.solvers.tangent.likelihood import LOSSES, infer_loss, quadratic
from unlazy.solvers.tangent.rows import WeightedJacobian
from unlazy.solvers.tangent.system import tangent_system

RNG = np.random.default_rng(0)
X, Z = RNG.normal(size=(30, 3)), RNG.normal(size=(4, 3))
LABELS = RNG.integers(0, 3, 30)
TAU = 0.3


def loss_of_one(f, y, name):
    """The losses as their definitions say."""
    if name == "cross_entropy":
        return jax.nn.logsumexp(f) - f[y]
    if name == "binary_cross_entropy":
        return jnp.sum(-y * jax.nn.log_sigmoid(f) - (1 - y) * jax.nn.log_sigmoid(-f))
    return jnp.sum((f - y) ** 2) / 2 if name == "squared" else jnp.mean((f - y) ** 2)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_to_second_order(name):
    f = RNG.normal(size=(5, 3))
    y = LABELS[:5] if name == "cross_entropy" else RNG.integers(0, 2, (5, 3)) + 0.0
    found = quadratic(f, y, name)
    with jax.enable_x64(True):
        of_one = lambda a, b: loss_of_one(a, b, name)  # noqa: E731
        value, gradient, hessian = (
            np.asarray(jax.vmap(g)(jnp.asarray(f), jnp.asarray(y)))
            for g in (of_one, jax.grad(of_one), jax.hessian(of_one))
        )
    np.testing.assert_allclose(found.losses, value, rtol=1e-12)
    np.testing.assert_allclose(np.einsum("nab,ndb->nad", found.root, found.root), hessian, atol=1e-14)
    np.testing.assert_allclose(np.einsum("nab,nb->na", found.root, found.coordinates), -gradient, atol=1e-14)


@pytest.mark.parametrize(
    ("targets", "loss", "message"),
    [
        (np.zeros(4), None, "one entry per row"),
        (np.array([0, 1, 5]), None, "class labels must be 0 to 1"),
        (np.zeros((3, 5)), None, "must have the shape"),
        (np.array([0.0, np.nan, 1.0]), None, "NaN"),
        (np.zeros(3), "hinge", "unknown loss 'hinge'"),
        (np.zeros(3), "cross_entropy", "needs one class label"),
        (np.full((3, 2), 2.0), "binary_cross_entropy", "binary labels must be 0 or 1"),
        (np.array(["a", "b", "c"]), None, "must hold numbers"),
    ],
)
def test_wrong_targets(targets, loss, message):
    with pytest.raises(ValueError, match=message):
        infer_loss(np.zeros((3, 2)), targets, loss)


def test_targets_that_could_be_classes_or_numbers():
    with pytest.raises(ValueError, match="binary_cross_entropy"):
        infer_loss(np.zeros((3, 1)), np.array([0, 1, 1]), None)
    assert infer_loss(np.zeros((3, 1)), np.array([0.5, 1, 1]), None) == "mse"
    assert infer_loss(np.zeros((3, 2)), np.array([0, 1, 1]), None) == "cross_entropy"


@pytest.fixture(scope="module")
def tangents():
    """Of an MLP with 27 parameters."""
    w = {"a": RNG.normal(size=(3, 4)), "b": RNG.normal(size=(4, 3)), "c": RNG.normal(size=3)}
    return tangent_map(as_model((lambda p, X: jnp.tanh(X @ p["a"]) @ p["b"] + p["c"], w), dtype="float64"))


@pytest.fixture(scope="module")
def root(tangents):
    return quadratic(tangents.outputs(X), LABELS, "cross_entropy").root


@pytest.fixture(scope="module")
def dense(tangents, root):
    """A and the rows of the queries."""
    A = tangents.to_host(tangents.rows(X, np.swapaxes(root, 1, 2)))
    return A, tangents.to_host(tangents.rows(Z, np.broadcast_to(np.eye(3), (4, 3, 3))))


@pytest.mark.parametrize("memory", [2**31, 2**12], ids=["kept", "computed again"])
@pytest.mark.parametrize("method", ["primal", "dual", "iterative"])
def test_methods_agree_with_dense_algebra(tangents, root, dense, method, memory):
    """Conjugate gradients to a residual of 1e-12, others to rounding times the condition number of about 1e3."""
    A, T = dense
    M = np.linalg.inv(A.T @ A + TAU * np.eye(tangents.size))
    system = tangent_system(WeightedJacobian(tangents, X, root, memory), method, tolerance=1e-12)
    D = tangents.to_device(T)
    for found, expected in (
        (system.weights(D, TAU), T @ M @ A.T),
        (system.covariance(D, TAU), T @ M @ T.T),
        (tangents.to_host(system.inverse(D, TAU)), T @ M),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-10 * np.abs(expected).max())
    v = RNG.normal(size=(2, system.order))
    G = A.T @ A if method == "primal" else A @ A.T
    np.testing.assert_allclose(system.product(v), v @ G, atol=1e-11 * np.abs(v @ G).max())


def test_conjugate_gradients_say_how_accurate_they_are(tangents, root, dense):
    A, T = dense
    system = tangent_system(WeightedJacobian(tangents, X, root, 2**31), "iterative", tolerance=1e-2)
    weights = system.weights(tangents.to_device(T), 1e-3)
    B = T @ A.T
    residual = np.linalg.norm(weights @ (A @ A.T + 1e-3 * np.eye(90)) - B, axis=1) / np.linalg.norm(B, axis=1)
    assert residual.max() <= 1e-2 * (1 + 1e-6)
    assert system.residual == pytest.approx(residual.max(), rel=1e-3)


def test_method_for_every_size(tangents, root):
    data = WeightedJacobian(tangents, X, root, 2**31)
    assert type(tangent_system(data)).__name__ == "PrimalSystem"
    few = WeightedJacobian(tangents, X[:5], root[:5], 2**31)
    assert type(tangent_system(few)).__name__ == "DualSystem"


def test_evidence_of_a_linear_model_is_exact():
    """log N(y; 0, X Xᵀ/prior + noise) at the posterior mean of the weights."""
    y, prior, noise = X @ [1.0, -2.0, 0.5] + 0.3 * RNG.normal(size=30), 0.7, 0.2
    w = np.linalg.solve(X.T @ X + prior * noise * np.eye(3), X.T @ y)
    tangents = tangent_map(as_model((lambda w, X: X @ w, w), dtype="float64"))
    for method in ("primal", "dual"):
        measure = spectral_measure(tangent_system(WeightedJacobian(tangents, X, np.ones((30, 1, 1)), 2**31), method))
        found = gaussian_evidence(measure, float(np.sum((y - X @ w) ** 2)), 30, float(w @ w), prior * noise, noise)
        expected = multivariate_normal(np.zeros(30), X @ X.T / prior + noise * np.eye(30)).logpdf(y)
        assert found.log_evidence == pytest.approx(expected, rel=1e-10)
        best = gaussian_evidence(measure, float(np.sum((y - X @ w) ** 2)), 30, float(w @ w))
        for factor in (0.9, 1.1):  # a maximum over the precision, and over the noise
            for other in ((best.tau * factor, None), (best.tau, best.noise * factor)):
                nearby = gaussian_evidence(measure, float(np.sum((y - X @ w) ** 2)), 30, float(w @ w), *other)
                assert nearby.log_evidence < best.log_evidence


def test_evidence_of_classification(tangents, root, dense):
    A, _ = dense
    measure = spectral_measure(tangent_system(WeightedJacobian(tangents, X, root, 2**31)))
    found = laplace_evidence(measure, 3.0, 2.0, TAU).log_evidence
    logdet = np.linalg.slogdet(np.eye(tangents.size) + A.T @ A / TAU)[1]
    assert found == pytest.approx(-3 - TAU - logdet / 2, rel=1e-10)


def test_lanczos_quadrature_within_its_error(tangents, root, monkeypatch):
    """Four standard errors: a chance of 1 in 16,000."""
    system = tangent_system(WeightedJacobian(tangents, X, root, 2**31), "dual")
    exact = spectral_measure(system)
    monkeypatch.setattr(evidence, "MAX_EXACT", 1)
    sampled = spectral_measure(system)
    for tau in (1e-3, 1.0):
        value, error = sampled.trace_log(tau)
        assert 0 < error < 0.2 * value
        assert abs(value - exact.trace_log(tau)[0]) < 4 * error
