"""One-pass SGD followed through what the network reads: against the same steps on whole vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.training.descent import online_network as on

RNG = np.random.default_rng(0)
N, K, D, B, STEP = 3, 2, 14, 8, 0.7


def target(bits):
    return bits[:, 0] + 0.5 * bits[:, 0] * bits[:, 1]


def test_readouts_move_with_the_vectors(x64):
    u, V, b = RNG.normal(size=(N, K)), RNG.normal(size=(N, D - K)), RNG.normal(size=N)
    a = np.array([1.0, -1.0, 0.5])
    bits, g = RNG.choice([-1.0, 1.0], (B, K)), RNG.normal(size=(B, D - K))
    L = np.linalg.cholesky(V @ V.T)
    Q = np.linalg.solve(L, V)
    h = bits @ u.T + g @ V.T + b
    off = np.maximum(h, 0) @ a / N - target(bits)
    C = STEP / B * (off[:, None] * a * (h > 0)).T
    q = g @ Q.T
    F = np.linalg.cholesky(C @ C.T)
    batch = on.Batch(*map(jnp.asarray, (bits, q, np.linalg.solve(F, C @ (g - q @ Q)))))
    found = jax.jit(lambda *s: on.update_neurons(on.OnlineNeurons(*s), batch, target, STEP))(
        *map(jnp.asarray, (u, L, b, a))
    )
    after = V - C @ g
    # two factorizations of 3 × 3 matrices, the first of condition c, each off by some 2·3²·u·c
    off_by = 100 * np.finfo(float).eps * np.linalg.cond(C @ C.T) * np.abs(after @ after.T).max()
    np.testing.assert_allclose(found.beside @ found.beside.T, after @ after.T, rtol=0, atol=off_by)
    assert off_by < 1e-9 and np.abs(after @ after.T - V @ V.T).max() > 0.1
    np.testing.assert_allclose(found.relevant, u - C @ bits, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.biases, b - C.sum(1), rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.heads, a - STEP / B * off @ np.maximum(h, 0), rtol=0, atol=1e-13)


@pytest.mark.slow
def test_bartletts_factor_has_the_moments_of_wishart(x64):
    n, freedom, draws = 3, 20, 4000
    A = np.asarray(jax.vmap(lambda key: on.bartlett(key, n, freedom))(jax.random.split(jax.random.key(0), draws)))
    S = A @ A.transpose(0, 2, 1)
    spread = np.sqrt(freedom * (1 + np.eye(n)))  # Var S_ij = ν(1 + δ_ij)
    assert np.all(np.abs(S.mean(0) - freedom * np.eye(n)) < 4.5 * spread / np.sqrt(draws) + 1e-3)
    # fourth moments of a χ² with ν degrees: relative error of the variance √((2 + 12/ν)/draws)
    assert np.all(np.abs(S.std(0) / spread - 1) < 4.5 * np.sqrt((2 + 12 / freedom) / draws) / 2 + 1e-3)


@pytest.mark.slow
def test_coefficients_are_expectations(x64):
    neurons = on.OnlineNeurons(*map(jnp.asarray, (RNG.normal(size=(N, K)), np.tril(RNG.normal(size=(N, N))),
                                            RNG.normal(size=N), RNG.normal(size=N))))  # fmt: skip
    z = np.linspace(-9, 9, 20_001)
    weight = np.exp(-(z**2) / 2)
    spread = np.linalg.norm(np.asarray(neurons.beside), axis=1)
    found = np.asarray(on.fourier(neurons, ((0,), (0, 1), ())))
    expected = np.zeros(3)
    for bits in np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], float):
        h = (np.asarray(neurons.relevant) @ bits + np.asarray(neurons.biases))[:, None] + spread[:, None] * z
        f = np.asarray(neurons.heads) @ (np.maximum(h, 0) @ weight / weight.sum()) / N
        expected += f * np.array([bits[0], bits[0] * bits[1], 1.0]) / 4
    # the trapezium is off by h²/8 at a kink, h = 9e-4, times slopes of order one
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_first_passages(x64):
    """y = x_1 is learned, and what is not asked for within `most` samples is infinite."""
    start = on.start(jax.random.key(0), 4, 1, 32)

    def until(most, step=0.5, d=32):
        return on.samples_until(start, lambda bits: bits[:, 0], ((0,), ()), jnp.array([0.5, 1e9]),
                                step_size=step, batch_size=16, most=most, d=d, key=jax.random.key(1))  # fmt: skip

    found = np.asarray(jax.jit(until)(1600))
    assert found[0] % 16 == 0 and 16 < found[0] < 1600 and np.isinf(found[1])
    assert np.isinf(np.asarray(until(16))).all()
    assert np.isnan(np.asarray(until(1600, step=1e200))).all()
    with pytest.raises(ValueError, match="at least 9 inputs, got d=8; use fewer neurons"):
        until(16, d=8)
