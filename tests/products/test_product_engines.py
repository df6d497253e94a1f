"""The engines' costs and the choice by them; the host's products against Gram matrices of the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.kernels.base import Kernel
from unlazy.kernels.dot_product import Linear, Polynomial
from unlazy.kernels.metric import Metric
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.periodic import Periodic
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import matmul, multiply, product
from unlazy.products.engines import numpy_engine
from unlazy.products.multiply import ENGINES, Job, cheapest
from unlazy.theory.infinite_width.architecture import MLP

N, M, D = 90, 40, 3


def rows(n, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=(n, D)).astype(dtype)


def costs(job):
    return {engine.name: engine.cost(job) for engine in ENGINES}


def test_the_cheapest_engine_multiplies(x64, monkeypatch):
    monkeypatch.setattr(multiply.devices, "is_host", lambda: True)
    one = [jax.local_devices()[0]]
    job = Job(Gaussian(1.0), jnp.asarray(rows(N)), jnp.asarray(rows(M, 1)), devices=one)
    assert cheapest(job).name == "numpy" and costs(job)["fused"] is None and costs(job)["sharded"] is None
    assert cheapest(job._replace(passes=2)).name == "stored"  # evaluated once and read twice
    assert cheapest(job._replace(passes=2, memory=8 * N * M - 1)).name == "blocked"  # K does not fit
    assert cheapest(job._replace(X=job.X.astype(jnp.float32))).name == "blocked"
    # two devices share the rows, whatever one alone would cost
    found = costs(job._replace(devices=2 * one, passes=100))
    assert [name for name, cost in found.items() if cost is not None] == ["sharded"]
    monkeypatch.setattr(multiply, "fused_available", lambda *_: True)
    assert cheapest(job._replace(passes=100)).name == "fused"
    # nothing to compile is worth less, the more entries there are
    monkeypatch.setattr(multiply, "fused_available", lambda *_: False)
    monkeypatch.setattr(multiply, "COMPILE_COST", (multiply.NUMPY_COST - 1) * N * M - 1)
    assert cheapest(job).name == "blocked"


def test_the_numpy_engine_needs_concrete_points_and_supported_kernels(x64, monkeypatch):
    monkeypatch.setattr(multiply.devices, "is_host", lambda: True)
    X = jnp.asarray(rows(N))
    able = [costs(Job(k, X))["numpy"] is not None for k in (ProductLaplace(), Gaussian(1.0) * ProductLaplace())]
    assert able == [True, False]
    asked = []

    def traced(X, bandwidth):
        asked.append(costs(Job(Gaussian(1.0), X))["numpy"])
        asked.append(costs(Job(Gaussian(bandwidth), rows(N)))["numpy"])
        return bandwidth

    jax.make_jaxpr(traced)(X, 1.0)
    assert asked == [None, None]
    monkeypatch.setattr(multiply.devices, "is_host", lambda: False)
    assert costs(Job(Gaussian(1.0), X))["numpy"] is None


KERNELS = {
    "laplace with a full metric": Metric(Laplace(1.0), jnp.asarray(rows(2, 5, np.float32))),
    "ntk": NTK(MLP(2, sigma_b=0.5)),
    "periodic": Periodic(2.0, 1.5),
    "sum of formulas": 2 * Gaussian(1.5) + Laplace(2.0),
    "l1": ProductLaplace(np.array([1.0, np.inf, 3.0])),
    "polynomial": Polynomial(3),
}


@pytest.mark.slow_cases("ntk", "periodic")
@pytest.mark.parametrize("name", KERNELS)
def test_products_on_the_host_are_those_of_the_gram_matrix(x64, monkeypatch, name):
    monkeypatch.setattr(numpy_engine, "COLUMNS", 17)
    kernel, X = KERNELS[name], rows(N)
    Z = np.concatenate([X[:20], rows(M - 20, 1)])
    K_hat = product(kernel, X, Z, engine="numpy", memory=8 * 6 * 17 * 25)  # blocks of 25 × 17, the last ones smaller
    K = np.asarray(kernel.gram(jnp.asarray(X), jnp.asarray(Z), accurate=True))
    V, U = rows(M, 2), rows(N, 3)[:, 0]
    # ‖x-z‖² is good to some roundings of |x|², and at coincident points exact: entries to √1e-15 in front of a kink at
    # distances that do not occur here, else to 1e-13 of the largest
    bound = 1e-12 * np.abs(K).max()
    assert K_hat.engine == "numpy" and K_hat.shape == (N, M) and K_hat.dtype == np.float64
    np.testing.assert_allclose(K_hat.matmul(V), K @ V, rtol=0, atol=bound * np.abs(V).sum(0).max())
    np.testing.assert_allclose(K_hat.rmatmul(U), K.T @ U, rtol=0, atol=bound * np.abs(U).sum())


def test_columns_may_be_traced(x64):
    """K known: its entries are constants of the program. K made inside: not the host's."""
    X, Z, V = jnp.asarray(rows(N)), jnp.asarray(rows(M, 1)), rows(M, 2)
    K = product(Gaussian(1.0), X, Z, engine="numpy")
    want = K.matmul(V)
    np.testing.assert_allclose(jax.jit(lambda V: K.matmul(V))(V), want, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(jax.jit(lambda V: matmul(Gaussian(1.0), X, Z, V))(V), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kernel", [Gaussian(1.0), Polynomial(9)], ids=["gaussian", "polynomial"])
@pytest.mark.parametrize("value, said", [(np.nan, "first in row 7"), (1e200, "overflow"), (1e-200, "underflow")])
def test_points_are_rejected_as_on_the_device(x64, kernel, value, said):
    X = np.full((N, D), value) if value < 1 else rows(N)
    X[7] = value
    for engine in ("numpy", "blocked"):
        with pytest.raises(ValueError, match=said):
            product(kernel, X, engine=engine)


def test_overflow_is_detected_at_the_largest_norm(x64):
    with pytest.raises(ValueError, match=r"k\(x, x\) overflows"):
        product(Polynomial(40), 1e5 * rows(N), engine="numpy")


def test_kernels_without_numpy_entries_are_named():
    class Plain(Kernel):
        def block(self, left, right):
            return jnp.ones((left.shape[0], right.shape[0]))

    with pytest.raises(ValueError, match="Plain has no entry formula that NumPy could evaluate"):
        product(Plain(), rows(N), engine="numpy")
    assert matmul(Plain(), rows(3), rows(2), np.ones(2)).shape == (3,)


def shapes(program):
    """Of all values in a program and in those inside it."""
    for equation in program.eqns:
        yield from (value.aval.shape for value in equation.outvars)
        for inner in equation.params.values():
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from shapes(inner)


OWN = {
    "linear": Linear(0.5),
    "polynomial of degree one": Polynomial(1, 2.0),
    "scaled": 3.0 * Linear(),
    "with a metric": Metric(Linear(1.0), jnp.asarray(rows(2, 5, np.float32))),
}


@pytest.mark.parametrize("name", OWN)
def test_a_kernel_with_its_own_product_never_forms_k(x64, name):
    kernel, X, Z, V, U = OWN[name], rows(N), rows(M, 1), rows(M, 2), rows(N, 3)
    K_hat = product(kernel, X, Z, passes=10)
    K = np.asarray(kernel.gram(jnp.asarray(X), jnp.asarray(Z)))
    # two sums of at most N + D terms, in another order: as many roundings of their absolute values
    np.testing.assert_allclose(K_hat.matmul(V), K @ V, rtol=0, atol=2.0**-46 * np.abs(K).max() * np.abs(V).sum())
    np.testing.assert_allclose(K_hat.rmatmul(U), K.T @ U, rtol=0, atol=2.0**-46 * np.abs(K).max() * np.abs(U).sum())
    assert K_hat.engine == "custom" and K_hat.shape == (N, M)

    def seen(engine):
        traced = jax.make_jaxpr(lambda X, Z, V: product(kernel, X, Z, engine=engine).matmul(V))(X, Z, V)
        return set(shapes(traced.jaxpr))

    assert not {(N, M), (M, N)} & seen(None)
    assert (N, M) in seen("blocked")


def test_only_kernels_with_their_own_product_use_it():
    assert not (Linear() * Gaussian(1.0)).has_product and not Polynomial(2).has_product
    with pytest.raises(ValueError, match="Gaussian has no custom product"):
        product(Gaussian(1.0), rows(N), engine="custom")
