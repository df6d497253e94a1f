"""solvers.path against NumPy solves, and on the inputs that break a naive one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.base import Kernel
from unlazy.solvers.path import decompose

N, M, D = 12, 6, 3


class Radial(Kernel):
    """exp(-|x - z|^power / scale) from differences: rough for power 1, smooth for 2."""

    power: float = 1.0
    scale: float = 1.0

    def gram(self, X: Float[Array, "n d"], Z: Float[Array, "m d"] | None = None) -> Float[Array, "n m"]:
        Z = X if Z is None else Z
        squares = jnp.sum(jnp.square(X[:, None] - Z[None]), -1)
        return jnp.exp(-(squares ** (self.power / 2)) / self.scale)

    def diag(self, X: Float[Array, "n d"]) -> Float[Array, " n"]:
        return jnp.diagonal(self.gram(X))


def sample(dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    arrays = rng.standard_normal((N, D)), rng.standard_normal((N, 2)), rng.standard_normal((M, D))
    return [jnp.asarray(a, dtype) for a in arrays]


def test_ridge_path_flow_and_descent_predict_what_numpy_solves(x64):
    X, y, Z = sample()
    spectrum = decompose(Radial(), X)
    assert spectrum.notes == ()
    K, K_zx = np.asarray(Radial().gram(X)), np.asarray(Radial().gram(Z, X))
    path = spectrum.ridge_path(y, [0.0, 0.1, 5.0])
    predicted = path.predict(Z)
    for k, ridge in enumerate((0.0, 0.1, 5.0)):
        alpha = np.linalg.solve(K + ridge * np.eye(N), y)
        np.testing.assert_allclose(predicted[k], K_zx @ alpha, atol=1e-12)  # condition of K about 30
        np.testing.assert_allclose(path.fitted[k], K @ alpha, atol=1e-12)
    forever = spectrum.flow(y, jnp.inf)
    np.testing.assert_allclose(forever.predict(Z), predicted[0], atol=1e-12)
    step = 0.9 * spectrum.largest_step_size
    np.testing.assert_allclose(spectrum.descent(y, step, jnp.inf).predict(Z), predicted[0], atol=1e-12)
    # blocks of one row give the same numbers: two sums of N products in any order, each entry of K good to 8 units
    size = np.max(np.abs(K_zx) @ np.abs(path.coefficients))
    np.testing.assert_allclose(path.predict(Z, memory=1), predicted, rtol=0, atol=2 * (N + 8) * 2.0**-53 * size)
    # one output without an axis of its own
    np.testing.assert_allclose(spectrum.ridge_path(y[:, 0], 0.1).predict(Z), predicted[1, :, 0], atol=1e-13)


def test_flow_from_a_nonzero_start(x64):
    X, y, Z = sample()
    spectrum = decompose(Radial(), X)
    f0, f0_z = jnp.sin(X[:, :2]), jnp.sin(Z[:, :2])
    path = spectrum.flow(y, [0.0, 2.0], f0=f0)
    np.testing.assert_allclose(path.fitted[0], f0)
    np.testing.assert_allclose(path.predict(Z, f0=f0_z)[0], f0_z)
    with pytest.raises(ValueError, match=r"predict\(Z, f0="):
        path.predict(Z)
    shifted = spectrum.flow(y - f0, 2.0).predict(Z) + f0_z
    np.testing.assert_allclose(path.predict(Z, f0=f0_z)[1], shifted, atol=1e-13)
    with pytest.raises(ValueError, match="f0 must have the values"):
        spectrum.flow(y, 1.0, f0=f0[:, :1])


@pytest.mark.slow_cases("float32")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_duplicates_and_singular_kernels_are_noted_and_stay_finite(dtype):
    with jax.enable_x64(dtype == np.float64):
        X, y, Z = sample(dtype)
        X = X.at[1].set(X[0]).at[3].set(X[2])
        with pytest.warns(UnlazyWarning, match="2 of 12 eigenvalues"):
            spectrum = decompose(Radial(), X)
        assert "singular" in spectrum.notes[0]
        assert int(spectrum.null.sum()) == 2
        everything = [
            spectrum.flow(y, [1.0, 1e9, np.inf]).predict(Z), spectrum.ridge_path(y, [0.0, 1e-30, 1.0]).predict(Z),
            spectrum.leave_one_out(y, [0.0, 1.0]), spectrum.gcv(y, [0.0, 1.0]),
        ]  # fmt: skip
        assert all(np.all(np.isfinite(e)) for e in everything)
        # the limit is the minimum-norm fit: at a duplicated point the mean of the two labels
        fitted = spectrum.flow(y, np.inf).fitted
        tolerance = 1e3 * np.finfo(dtype).eps  # condition of the rest below 100, n = 12
        np.testing.assert_allclose(fitted[0], (y[0] + y[1]) / 2, atol=tolerance)
        # left out in turn, each of the twins is predicted by the other
        np.testing.assert_allclose(spectrum.leave_one_out(y, 0.0)[0], y[0] - y[1], rtol=2e-2)


@pytest.mark.slow
def test_a_kernel_that_is_not_positive_in_float32_raises():
    X, y, Z = sample(np.float32)

    class Indefinite(Radial):
        def gram(self, X, Z=None):
            K = super().gram(X, Z)
            return K - 0.9 if Z is None else K

    with pytest.warns(UnlazyWarning, match="not positive"):
        spectrum = decompose(Indefinite(), X)
    assert np.all(np.isfinite(spectrum.flow(y, jnp.inf).predict(Z)))


def test_misuse_raises_with_the_value_and_the_remedy(x64):
    X, y, _ = sample()
    spectrum = decompose(Radial(), X)
    with pytest.raises(ValueError, match=r"diverges.*largest_step_size"):
        spectrum.descent(y, 1.01 * float(spectrum.largest_step_size), 10)
    with pytest.raises(ValueError, match=r"ridges must be zero or more, got -1\.0"):
        spectrum.ridge_path(y, [-1.0, 1.0])
    with pytest.raises(ValueError, match=r"n = 12 points need.*UNLAZY_MEMORY"):
        decompose(Radial(), X, memory=1000)
    with pytest.raises(ValueError, match="not finite"):
        decompose(Radial(), X.at[0, 0].set(jnp.nan))


@pytest.mark.slow
def test_padded_and_vectorized_runs_trace_once_and_agree(x64):
    X, y, Z = sample()
    traces = []

    @jax.jit
    @jax.vmap
    def risk(n):
        traces.append(n)
        spectrum = decompose(Radial(), X, weights=(jnp.arange(N) < n).astype(X.dtype))
        loo = spectrum.leave_one_out(y, jnp.array([0.1]))
        return spectrum.ridge_path(y, jnp.array([0.1, 1.0])).predict(Z), loo, spectrum.gcv(y, jnp.array([0.1]))

    counts = [9, 12]
    predictions, loo, gcv = risk(jnp.array(counts))
    assert len(traces) == 1
    for k, n in enumerate(counts):
        alone = decompose(Radial(), X[:n])
        np.testing.assert_allclose(predictions[k], alone.ridge_path(y[:n], [0.1, 1.0]).predict(Z), atol=1e-12)
        np.testing.assert_allclose(loo[k][:, :n], alone.leave_one_out(y[:n], [0.1]), atol=1e-12)
        np.testing.assert_allclose(gcv[k], alone.gcv(y[:n], [0.1]), rtol=1e-11)
