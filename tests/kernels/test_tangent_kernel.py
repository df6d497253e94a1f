"""The tangent kernel of any function as a kernel: against NumPy, products without a Jacobian, solvers, modules."""

import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.networks.tangent import TangentKernel
from unlazy.networks import tangent_kernel
from unlazy.products import matmul
from unlazy.solvers.method_selection import PreconditionedCG
from unlazy.solvers.path import decompose
from unlazy.solvers.solve import solve
from unlazy.theory.finite_width import empirical_ntk as theory_jacobian

N, M, D, W = 7, 5, 3, 4
RNG = np.random.default_rng(0)
X, Z, V = RNG.normal(size=(N, D)), RNG.normal(size=(M, D)), RNG.normal(size=(M, 2))
PARAMS = {"W": RNG.normal(size=(D, W)), "a": RNG.normal(size=(W, 2))}


def two_outputs(params, X):
    return jnp.tanh(X @ params["W"]) @ params["a"]


def jacobian(X):
    """∂f_c/∂(W, a) of every point, by hand."""
    H = np.tanh(X @ PARAMS["W"])
    first = np.einsum("nd,nw,wc->ncdw", X, 1 - H**2, PARAMS["a"]).reshape(len(X), 2, -1)
    head = np.einsum("nw,ce->ncwe", H, np.eye(2)).reshape(len(X), 2, -1)
    return np.concatenate([first, head], -1)


@pytest.mark.parametrize("batch", [3, pytest.param(1024, marks=pytest.mark.slow)])
def test_gram_and_products_are_those_of_the_jacobian(batch, x64):
    """Sums of 2·20 products of at most five factors: some hundred roundings."""
    kernel = TangentKernel(two_outputs, PARAMS, batch=batch)
    K = np.einsum("ncp,mcp->nm", jacobian(X), jacobian(Z))
    np.testing.assert_allclose(matmul(kernel, X, Z, V), K @ V, rtol=0, atol=1e-13 * np.abs(K).sum(1).max())
    if batch == 3:
        np.testing.assert_allclose(kernel.gram(X, Z), K, rtol=0, atol=1e-13 * np.abs(K).max())


@pytest.mark.slow
def test_mean_and_rates(x64):
    own = np.einsum("ncp,mcp->nm", jacobian(X), jacobian(Z))
    head = np.einsum("ncp,mcp->nm", jacobian(X)[..., D * W :], jacobian(Z)[..., D * W :])
    kernel = TangentKernel(two_outputs, PARAMS, outputs="mean", rates={"W": 1.0, "a": 3.0})
    np.testing.assert_allclose(kernel.gram(X, Z), (own + 2 * head) / 2, rtol=1e-11)
    np.testing.assert_allclose(matmul(kernel, X, Z, V), (own + 2 * head) @ V / 2, rtol=1e-11)


@pytest.mark.slow
def test_an_equinox_module_is_a_kernel_like_any_other(x64):
    """Functions among the leaves are part of the program. Direct and matrix-free solvers find the same coefficients."""
    model = eqx.nn.MLP(D, "scalar", 8, 2, activation=jnp.tanh, key=jax.random.key(0))
    kernel = TangentKernel(lambda model, X: jax.vmap(model)(X), model)
    y = RNG.normal(size=N)
    exact = solve(kernel, X, y, ridge=0.1)
    by_products = solve(kernel, X, y, ridge=0.1, method=PreconditionedCG(), tolerance=1e-10)
    assert by_products.converged
    # both solve K + 0.1 of condition under λ_max/0.1
    np.testing.assert_allclose(by_products.predict(Z), exact.predict(Z), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(decompose(kernel, X).ridge_path(y, [0.1]).predict(Z)[0], exact.predict(Z), rtol=1e-8)
    assert np.linalg.eigvalsh((kernel + kernel).gram(X))[0] > -1e-12


def test_functions_without_parameters_are_rejected():
    with pytest.raises(ValueError, match="nothing to differentiate"):
        TangentKernel(lambda p, X: X, {"a": 1})
    with pytest.raises(ValueError, match="unknown outputs 'ful'"):
        TangentKernel(two_outputs, PARAMS, outputs="ful")


def test_only_parameters_of_flax_variables_are_differentiated(x64):
    """Running averages are data of f: the kernel of the variables is that of f with the averages inside."""
    stats = {"mean": jnp.asarray(RNG.normal(size=D))}

    def apply(variables, X):
        return two_outputs(variables["params"], X - variables["batch_stats"]["mean"])

    kernel = TangentKernel(apply, {"params": PARAMS, "batch_stats": stats})
    plain = TangentKernel(lambda params, X: two_outputs(params, X - stats["mean"]), PARAMS)
    np.testing.assert_allclose(kernel.gram(X, Z), plain.gram(X, Z), rtol=1e-14)
    np.testing.assert_allclose(matmul(kernel, X, Z, V), matmul(plain, X, Z, V), rtol=1e-14)


def test_functions_that_couple_points_are_rejected():
    for f in (lambda p, X: two_outputs(p, X) - two_outputs(p, X).mean(0), lambda p, X: two_outputs(p, X - X.mean(0))):
        for call in (TangentKernel(f, PARAMS).gram, lambda X, f=f: tangent_kernel(f, PARAMS, X)):
            for points in (X, X[:1]):
                with pytest.raises(ValueError, match="depends on the other points"):
                    call(points)
        with pytest.raises(ValueError, match="depends on the other points"):
            matmul(TangentKernel(f, PARAMS), X, X, np.ones(N))
    centered = TangentKernel(lambda p, X: two_outputs(p, X) - two_outputs(PARAMS, X), PARAMS)  # 0 at the start
    assert np.all(np.asarray(centered.diag(X)) > 0) and np.all(np.isfinite(centered.gram(X)))


def test_parameters_of_few_bits_are_promoted():
    """The kernel at the rounded parameters, in float32: sums of 20 products, 1e-5 is 100 roundings."""
    half = {name: jnp.asarray(leaf, jnp.bfloat16) for name, leaf in PARAMS.items()}
    wide = {name: leaf.astype(jnp.float32) for name, leaf in half.items()}
    K = np.asarray(TangentKernel(two_outputs, wide).gram(X))
    found = TangentKernel(two_outputs, half).gram(X)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, K, rtol=0, atol=1e-5 * np.abs(K).max())
    with pytest.warns(UserWarning, match="f returns bfloat16"):
        TangentKernel(lambda p, X: two_outputs(p, X).astype(jnp.bfloat16), half).gram(X)


@pytest.mark.parametrize(
    ("f", "params", "rates", "message"),
    [
        (two_outputs, {"W": PARAMS["W"] * 1j, "a": PARAMS["a"]}, 1.0, "must be real"),
        (lambda p, X: jnp.sum(two_outputs(p, X)), PARAMS, 1.0, r"one row per point: \(1, …\) for one point, got \(\)"),
        (two_outputs, PARAMS, -1.0, "rates must be positive"),
        (two_outputs, PARAMS, {"W": 1.0, "a": np.nan}, "rates must be positive"),
    ],
)
def test_misuse_has_a_message(f, params, rates, message):
    with pytest.raises(ValueError, match=message):
        TangentKernel(f, params, rates=rates).gram(X)
    with pytest.raises(ValueError, match=message):
        matmul(TangentKernel(f, params, rates=rates), X, X, np.ones(N))
    with pytest.raises(ValueError, match=message):
        tangent_kernel(f, params, X, rates=rates)


@pytest.mark.slow
def test_diagonal_equals_that_of_the_gram_for_any_block_size(x64, monkeypatch):
    """Sums of the same 20 squares, and seven points by twos leave one over."""
    for kernel in (TangentKernel(two_outputs, PARAMS), TangentKernel(two_outputs, PARAMS, outputs="mean", rates=2.0)):
        whole = np.diag(kernel.gram(X))
        np.testing.assert_allclose(kernel.diag(X), whole, rtol=1e-14)
        monkeypatch.setattr(theory_jacobian, "MAX_JACOBIAN_BYTES", 2 * 3 * 8 * (D * W + 2 * W))
        jax.clear_caches()
        np.testing.assert_allclose(kernel.diag(X), whole, rtol=1e-14)


MATRIX_FREE = """
import jax, jax.numpy as jnp, numpy as np
import unlazy
def peak():
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
def f(params, X):
    return jnp.tanh(X @ params["W"]) @ params["a"]
d, width, n = 32, 4000, 1000
rng = np.random.default_rng(0)
params = {"W": rng.normal(size=(d, width)) / np.sqrt(d), "a": rng.normal(size=width) / np.sqrt(width)}
params = {name: leaf.astype(np.float32) for name, leaf in params.items()}
X = rng.normal(size=(n, d)).astype(np.float32)
y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
kernel, method = unlazy.TangentKernel(f, params, batch=128), unlazy.PreconditionedCG()
options = unlazy.SolveOptions(memory="256MiB")
unlazy.solve(kernel, X[:40], y[:40], ridge=10.0, method=method, options=options)  # compilers and libraries
base = peak()
found = unlazy.solve(kernel, X, y, ridge=10.0, method=method, options=options)
rise = peak() - base
X, W, a = (np.asarray(v, np.float64) for v in (X, params["W"], params["a"]))
H = np.tanh(X @ W)
K = H @ H.T + (X @ X.T) * (((1 - H**2) * a**2) @ (1 - H**2).T)
fitted = K @ np.linalg.solve(K + 10.0 * np.eye(n), y)
alpha = np.asarray(found.coefficients, np.float64)
print(rise, found.residual, np.linalg.norm(K @ alpha - fitted), np.linalg.norm(K, 2) * np.linalg.norm(alpha),
      np.linalg.norm(y))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.nightly
def test_regression_without_the_kernel_needs_little_memory_and_is_that_of_the_dense_kernel(monkeypatch):
    """132,000 parameters, 1,000 points: the Jacobian takes 528 MB, of which the diagonal may hold 2^28 B at once.

    Of (K̂ + ρ)α = y + r in float32 the fitted values are off by ‖r‖ and by the rounding of K̂α: a product of float32 sums
    132,000 terms in blocks, hundreds of roundings at most.
    """
    monkeypatch.setenv("UNLAZY_MEMORY", "256MiB")
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)  # programs as users run them
    done = subprocess.run([sys.executable, "-c", MATRIX_FREE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rise, residual, off, size, scale = map(float, done.stdout.split())
    assert rise < (256 + 64) * 2**20
    assert off < residual * scale + 256 * 2.0**-24 * size
    assert off < 0.01 * scale
