"""Inputs of kernels and products: all types give equal results, and values that are not finite are rejected."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pandas as pd
import pytest
from test_conformance import KERNELS, D

from unlazy.core import devices
from unlazy.kernels import gram_blocks
from unlazy.kernels.dot_product import ArcCosine, Linear, Polynomial
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.product_laplace import ProductLaplace
from unlazy.kernels.radial import Gaussian, Laplace, Matern, RationalQuadratic
from unlazy.products import agop, gradient, gram, matmul, product, rmatmul
from unlazy.products.engines import numpy_engine
from unlazy.products.engines.sharded import sharded_operator
from unlazy.products.fused import fused_product
from unlazy.theory.infinite_width.architecture import MLP

FAST = ["laplace", "matern32", "arccos0", "ntk", "product_laplace", "mixed_sum"]
TRACED = ["laplace", "arccos0", "ntk"]
"""The rest compile for seconds and are in the slow suite."""
NAMES = [pytest.param(k, marks=[] if k in FAST else pytest.mark.slow) for k in KERNELS]


def _inputs():
    return np.random.default_rng(0).normal(size=(12, D)).astype(np.float32)


def _broken():
    for value in (np.nan, np.inf, -np.inf):
        X = _inputs()
        X[3, 1] = value
        yield X, "NaN or infinity in 1 rows, first in row 3"
    yield 1e20 * _inputs(), "overflow.*rescale"


@pytest.mark.parametrize("name", NAMES)
def test_concrete_points_that_are_not_finite_are_rejected(name):
    kernel, good = KERNELS[name](), _inputs()
    for bad, sentence in _broken():
        # on a sphere, for constants and for kernels of absolute differences, no square is taken of large inputs
        free = "overflow" in sentence and name in ("on_sphere", "product_laplace", "constant", "custom")
        if "overflow" in sentence and name == "periodic":  # its angle is lost long before a square overflows
            sentence = "periods from 0.*subtract multiples of the period"
        for call, points in (
            (kernel.gram, (bad,)), (kernel.gram, (bad, good)), (kernel.gram, (good, bad)), (kernel.diag, (bad,)),
        ):  # fmt: skip
            if free:
                assert np.isfinite(np.asarray(call(*points))).all()
            else:
                with pytest.raises(ValueError, match=sentence):
                    call(*points)


@pytest.mark.slow_cases("ntk")
@pytest.mark.parametrize("name", [pytest.param(k, marks=[] if k in TRACED else pytest.mark.slow) for k in KERNELS])
def test_traced_points_that_are_not_finite_propagate(name):
    @jax.jit
    def traced(kernel, X, Z):
        return kernel.gram(X, Z), kernel.gram(X, Z, accurate=True), kernel.diag(X), kernel.gram(X).diagonal()

    kernel, good = KERNELS[name](), _inputs()
    right = traced(kernel, good, good)
    for bad, _ in list(_broken())[:2]:
        for result, expected in zip(traced(kernel, bad, good), right):
            result, expected = np.asarray(result), np.asarray(expected)
            assert not np.isfinite(result[3]).any()  # ⟨x,z⟩ itself is ±∞ there
            # the others are what they were: no row sees another's NaN, bar rounding in another program's order
            assert np.allclose(np.delete(result, 3, 0), np.delete(expected, 3, 0), rtol=0, atol=0)
        for result in traced(kernel, good, bad)[:2]:
            assert not np.isfinite(np.asarray(result)[:, 3]).any()


def _engines(kernel):
    V = np.ones(12, np.float32)
    return {
        "gram": lambda X, Z: gram(kernel, X, Z), "matmul": lambda X, Z: matmul(kernel, X, Z, V),
        "rmatmul": lambda X, Z: rmatmul(kernel, X, Z, V), "stored": lambda X, Z: product(kernel, X, Z, engine="stored"),
        "blocked": lambda X, Z: product(kernel, X, Z, engine="blocked").matmul(V),
        "fused": lambda X, Z: fused_product.prepare(kernel, X, Z),
        "sharded": lambda X, Z: sharded_operator(kernel, X, Z), "gradient": lambda X, Z: gradient(kernel, X, Z, V),
        "agop": lambda X, Z: agop(kernel, X, Z, V), "host": lambda X, Z: numpy_engine.squared_distances(X, Z),
        "host pairs": lambda X, Z: numpy_engine.inner_products(X, Z),
    }  # fmt: skip


def test_every_engine_has_the_same_entry_point():
    good = _inputs()
    for bad, sentence in _broken():
        for call in _engines(Laplace(1.5)).values():
            for pair in ((bad, good), (good, bad)):
                with pytest.raises(ValueError, match=sentence):
                    call(*pair)


def test_points_whose_squares_underflow_are_rejected():
    # |x|² of 1e-44 has two digits in float32, and Laplace(1e-22) would call all points the same
    X = 1e-22 * _inputs()
    for kernel in (Laplace(1e-22), ArcCosine(0)):
        with pytest.raises(ValueError, match=r"underflow.*rescale"):
            kernel.gram(X)
    assert np.array_equal(Laplace(1.0).gram(np.zeros((3, 2))), np.ones((3, 3)))


@pytest.mark.skipif(not devices.is_host(), reason="elsewhere points are looked at where they are")
def test_points_on_the_host_are_validated_without_compiling(monkeypatch):
    X = jnp.asarray(_inputs())
    for kernel in (Laplace(1.5), NTK(MLP(1)), Laplace(np.arange(1.0, D + 1))):
        seen, wanted = gram_blocks._host_summary(kernel, (X, 2 * X))[0], gram_blocks._summary(kernel, (X, 2 * X))[0]
        # sums of D squares, each rounded D + 2 times at most, in any order
        np.testing.assert_allclose(seen, wanted, rtol=2 * (D + 2) * 2.0**-24)
    for program in ("_summary", "_diagonal"):
        monkeypatch.setattr(gram_blocks, program, None)
    Laplace(1.5).validate(X, 2 * X)
    assert np.array_equal(Laplace(1.5).diag(X), np.ones(12, np.float32))


WHOLE = np.array([[1, 2], [0, 3], [2, 2], [1, 0]])
"""Numbers that every type of float holds exactly."""
FORMS = {
    "list": WHOLE.tolist(), "tuples": tuple(map(tuple, WHOLE)), "int64": WHOLE, "uint8": WHOLE.astype(np.uint8),
    "float64": WHOLE.astype(np.float64), "float16": WHOLE.astype(np.float16), "objects": WHOLE.astype(object),
    "bfloat16": jnp.asarray(WHOLE, jnp.bfloat16), "ml_dtypes": WHOLE.astype(ml_dtypes.bfloat16),
    "jax": jnp.asarray(WHOLE, jnp.float32), "jax int": jnp.asarray(WHOLE), "longdouble": WHOLE.astype(np.longdouble),
    "frame": pd.DataFrame({"a": WHOLE[:, 0], "b": WHOLE[:, 1].astype(np.float32)}),
    "nullable": pd.DataFrame(WHOLE, dtype="Int64"),
}  # fmt: skip


@pytest.mark.slow
def test_all_input_types_give_the_same_result():
    kernel, reference = Laplace(1.5), jnp.asarray(WHOLE, jnp.float32)
    weights = np.arange(4.0, dtype=np.float32)

    def entry_points(X, V):
        return (
            kernel.gram(X), kernel.gram(X, X), kernel.diag(X), gram(kernel, X), matmul(kernel, X, X, V),
            gradient(kernel, X, X, V), agop(kernel, X, X, V),
        )  # fmt: skip

    expected = entry_points(reference, weights)
    for name, X in FORMS.items():
        for V in (weights, list(weights)):
            for got, wanted in zip(entry_points(X, V), expected):
                assert got.dtype == jnp.float32 and np.array_equal(got, wanted), name


def test_short_floats_are_computed_in_float32():
    X = jnp.asarray(_inputs(), jnp.bfloat16)
    exact = np.asarray(X, np.float64)
    distance = np.sqrt(((exact[:, None] - exact[None]) ** 2).sum(-1))
    K = Laplace(1.5).gram(X)
    assert K.dtype == jnp.float32
    # ⟨x,z⟩ of D terms rounds by D units of |x||z| ≤ 20, so D² by 4·D·20 units and the distance (over 1) by half of it
    assert np.abs(np.asarray(K) - np.exp(-distance / 1.5)).max() <= 4 * D * 20 * 2.0**-24


REFUSED = {
    "one axis": (np.zeros(7), r"reshape\(-1, 1\).*7 points with one feature.*reshape\(1, -1\)"),
    "no axis": (np.float32(1.0), "two-dimensional"),
    "three axes": (np.zeros((4, 2, 2)), "two-dimensional.*reshape"),
    "no rows": (np.zeros((0, 2)), r"empty, shape \(0, 2\)"),
    "no inputs": (np.zeros((3, 0)), r"empty, shape \(3, 0\)"),
    "text": (np.array([["a", "b"]]), "got strings.*encode"),
    "a column of text": (pd.DataFrame({"x": [1.0, 2.0], "city": ["Bern", "Rom"]}), "'Bern' in column 'city'.*encode"),
    "missing": (pd.DataFrame({"x": pd.array([1, None], dtype="Int64"), "y": [1, 2]}), "(row 1|column 'x').*impute"),
    "dates": (np.array([["2020-01-01"]], dtype="datetime64[D]"), "got dates"),
    "complex": (np.ones((2, 2), complex), "got complex numbers"),
    "jax complex": (jnp.ones((2, 2), jnp.complex64), "real numbers, got complex64"),
    "ragged": ([[1.0, 2.0], [3.0]], "rows differ in length"),
    "other columns": (np.ones((4, 3)), "3 columns and .* has 2|2 columns and .* has 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_says_what_was_wrong(name):
    X, sentence = REFUSED[name]
    kernel, Z = Laplace(1.5), WHOLE
    calls = [lambda: kernel.gram(X, Z), lambda: kernel.gram(Z, X), lambda: matmul(kernel, X, Z, np.ones(4))]
    calls += [lambda: gradient(kernel, X, Z, np.ones(4)), lambda: gram(kernel, X, Z)]
    if name != "other columns":
        calls += [lambda: kernel.gram(X), lambda: kernel.diag(X), lambda: ProductLaplace(1.0).gram(X)]
    for call in calls:
        with pytest.raises(ValueError, match=sentence):
            call()


def test_sparse_inputs_raise():
    from scipy.sparse import csr_matrix

    with pytest.raises(ValueError, match=r"sparse.*toarray"):
        Laplace(1.5).gram(csr_matrix(WHOLE))


def test_columns_to_multiply_have_the_rows_of_the_kernel():
    for V in (np.ones(3), np.ones((4, 2, 2)), 1.0):
        with pytest.raises(ValueError, match="V needs 4 rows"):
            matmul(Laplace(1.5), WHOLE, WHOLE, V)


@pytest.mark.parametrize("bad", [-1.0, 0.0, float("nan"), np.float32(-1), np.array(np.nan), jnp.array(-1.0), "1"])
def test_parameters_are_positive_also_as_arrays(bad):
    for make in (
        Gaussian, Laplace, lambda h: Matern(h, 1.5), lambda h: RationalQuadratic(h, 1.0),
        lambda m: RationalQuadratic(1.0, m), ProductLaplace,
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"must be (a )?positive"):
            make(bad)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), np.float32(-1), jnp.array(-1.0), jnp.array(jnp.nan)])
def test_offsets_and_factors_are_not_negative_also_as_arrays(bad):
    for make in (Linear, lambda c: Polynomial(2, c), lambda c: c * Gaussian(1.0), lambda c: ProductLaplace(1.0) * c):
        with pytest.raises(ValueError, match="must be non-negative"):
            make(bad)


def test_bandwidths_of_every_input():
    with pytest.raises(ValueError, match=r"bandwidth must be positive, got .*0\.0"):
        ProductLaplace(jnp.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="3 bandwidths need 3 input columns, got 2"):
        Gaussian(jnp.ones(3)).gram(WHOLE)
    with pytest.raises(ValueError, match="a scalar or a vector"):
        Gaussian(jnp.ones((2, 2)))
    assert np.array_equal(ProductLaplace([1.0, 2.0]).gram(WHOLE), ProductLaplace(jnp.array([1.0, 2.0])).gram(WHOLE))
    # traced parameters cannot be looked at
    assert np.isfinite(jax.grad(lambda h: Gaussian(h).gram(WHOLE).sum())(1.0))


def test_the_wider_type_of_two_sides_is_kept(x64):
    K = NTK(MLP(1)).gram(WHOLE.astype(np.float32), WHOLE.astype(np.float64))
    assert K.dtype == jnp.float64


@pytest.mark.parametrize("smoothness", [0.0, 2.0, float("nan")])
def test_an_unsupported_smoothness_raises(smoothness):
    with pytest.raises(ValueError, match=r"smoothness must be 0\.5, 1\.5 or 2\.5, got"):
        Matern(1.0, smoothness)
