"""Parts of kernels that whole Gram matrices hardly show: tiles, budgets, diagonals, weights, one kernel per point."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles_networks import Function, tangent_kernel
from unlazy import Constant, Gaussian, Laplace, Linear, Matern, Polynomial, RationalQuadratic, with_metric
from unlazy.core.devices import memory_budget
from unlazy.kernels import OnSphere, gram_blocks, polynomial_on_sphere
from unlazy.kernels.networks import flips, infinite_width, layered
from unlazy.kernels.networks.adaptive import AdaptiveKernel
from unlazy.kernels.networks.flips import with_flips
from unlazy.kernels.networks.infinite_width import NNGP, NTK, standard_parametrization
from unlazy.kernels.networks.layered import graph_parts
from unlazy.kernels.networks.two_layer import infinite_two_layer
from unlazy.kernels.periodic import SpectralMixture
from unlazy.kernels.row_weights import Weighted
from unlazy.layers import Conv, Dense, GlobalAvgPool, serial
from unlazy.layers.protocol.covariance import PointCovariances
from unlazy.theory.dynamics import spectral_filters
from unlazy.theory.finite_width import empirical_ntk
from unlazy.theory.infinite_width.architecture import MLP
from unlazy.theory.numerics import divided_differences, matrix_functions
from unlazy.theory.numerics.matrix_functions import MatrixFunction, Spectrum

RNG = np.random.default_rng(0)
RELU = Function(lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0, (0.0,))


def test_constants_on_either_side(x64):
    X = jnp.asarray(RNG.normal(size=(4, 2)))
    for sum_ in (Constant(2.0) + Linear(0.0), Linear(0.0) + Constant(2.0), Constant(2.0) * Linear(1.0)):
        wanted = 2 * (X @ X.T + 1) if sum_.formula.operation != "add" else X @ X.T + 2
        np.testing.assert_allclose(sum_.gram(X), wanted, rtol=1e-14)


def test_tiles_of_symmetric_matrices_cover_one_triangle():
    assert gram_blocks.symmetric_tiles(10, 4) == [(0, 4), (0, 6), (4, 6), (0, 0), (4, 4), (6, 6)]
    for n, side in ((9, 3), (100, 7), (5, 5)):
        written = np.zeros((n, n), int)
        for s, t in gram_blocks.symmetric_tiles(n, side):
            assert s <= t
            written[s : s + side, t : t + side] += 1
        assert np.all(written[np.triu_indices(n)] > 0)


def test_rows_at_once_fit_the_budget(monkeypatch):
    monkeypatch.setenv("UNLAZY_MEMORY", "10MB")
    monkeypatch.setattr(Gaussian, "values_per_pair", lambda self, X, accurate=False: 7)
    X, row_bytes = np.zeros((1000, 3), np.float32), 1000 * 4 * 7
    rows = gram_blocks._rows_at_once(Gaussian(1.0), X, 1000, False)
    assert rows * row_bytes <= memory_budget() < (rows + 1) * row_bytes
    assert gram_blocks._rows_at_once(Gaussian(1.0), X[:100], 100, False) is None


def test_points_that_numpy_reads_in_place():
    single, double = np.zeros((2, 2), np.float32), np.zeros((2, 2))
    assert gram_blocks._on_host((single, single))
    assert not gram_blocks._on_host((single, double)) and not gram_blocks._on_host((double, single))


@pytest.mark.slow_cases("True")
@pytest.mark.parametrize("on_host", [True, False])
def test_diagonal_of_means_over_flips(on_host, monkeypatch):
    kernel = NNGP(serial(Conv(3), "relu", GlobalAvgPool(), Dense()))
    X = RNG.normal(size=(3 + on_host, 3, 3, 1))  # another number: compiled programs do not know the device
    monkeypatch.setattr(flips.devices, "is_host", lambda: on_host)
    both = np.asarray(kernel.gram(np.concatenate([X, X[:, :, ::-1]])))
    n = len(X)
    wanted = [np.mean(both[np.ix_([i, n + i], [i, n + i])]) for i in range(n)]
    np.testing.assert_allclose(with_flips(kernel).diag(X), wanted, rtol=64 * 2.0**-24)


@pytest.mark.slow
def test_near_pairs_of_blocks_from_terms_of_points(monkeypatch):
    """Twins at a distance of 1e-5, whose inner products have lost it: the same values as by whole entries."""
    network = MLP(1, "relu", 1.2, 0.3)
    X = RNG.normal(size=(3, 4)).astype(np.float32)
    Z = X * np.float32(1 + 1e-5)
    kernel = NTK(network)
    plain = kernel.block(*kernel.sides(jnp.asarray(X), jnp.asarray(Z)))
    monkeypatch.setattr(infinite_width, "MANY_PAIRS", 0)
    sides = kernel.sides(jnp.asarray(X), jnp.asarray(Z))
    assert sides[0].rows is not None
    # numbers of order 1 and some tens of roundings
    np.testing.assert_allclose(kernel.block(*sides), plain, rtol=64 * 2.0**-24)


def test_weights_of_the_standard_parametrization(x64):
    """α_l = fan-in/(width σ_w²) for weights and 1/(width σ_b²) for biases [L1]."""
    sigma_w, sigma_b, d, width = (1.2, 0.8), (0.5, 0.3), 4, 10
    x, z = RNG.normal(size=(2, d))
    found = standard_parametrization(MLP(1, "relu", sigma_w, sigma_b), d, width)(x, z)
    weights = [d / (width * sigma_w[0] ** 2), width / (width * sigma_w[1] ** 2)]
    biases = [1 / (width * s**2) for s in sigma_b]
    products = [x @ z / d, x @ x / d, z @ z / d]
    # panels of the oracle are exact to 1e-12
    np.testing.assert_allclose(found, tangent_kernel(RELU, products, sigma_w, sigma_b, 0.0, weights, biases)[1], 1e-11)


def test_graphs_have_nodes_and_edges():
    nodes, graphs = jnp.zeros((4, 3, 2)), jnp.zeros((4, 3, 3), bool)
    found = graph_parts((nodes, graphs))
    assert found[0].shape == (4, 3, 2) and found[1].shape == (4, 3, 3) and found[1].dtype == nodes.dtype
    for wrong in (
        (nodes[..., None], graphs),
        (nodes[:, :, 0], graphs),
        (nodes, graphs[:, :2]),
        (nodes, graphs[:3]),
        (nodes,),
        (nodes, graphs[0]),
    ):
        with pytest.raises(ValueError, match="needs pairs"):
            graph_parts(wrong)


def test_mixtures_keep_points_at_zero():
    mixture = SpectralMixture([1.0], [[0.3, 0.1]], [[0.2, 0.2]])
    X = jnp.asarray([[0.0, 0.0], [1.0, -2.0], [1e30, 0.0]], jnp.float32)
    found = np.asarray(mixture.prepare(X))
    np.testing.assert_array_equal(found[:2], X[:2])
    assert np.isnan(found[2]).all()  # its squared distances overflow


@pytest.mark.slow
def test_polynomials_on_spheres(x64):
    kernel = Polynomial(3, 0.5)
    fast = polynomial_on_sphere(kernel, inputs=2, radius=1.5)
    angle = np.linspace(0, 2 * np.pi, 40)
    X = 1.5 * np.stack([np.cos(angle), np.sin(angle)], 1)
    wanted = (X @ X.T + 0.5) ** 3
    np.testing.assert_allclose(fast.gram(jnp.asarray(X)), wanted, rtol=0, atol=6e-8 * wanted[0, 0])
    np.testing.assert_allclose(
        OnSphere(kernel, 1.5).gram(jnp.asarray(3 * X)), wanted, rtol=0, atol=1e-12 * wanted[0, 0]
    )


@pytest.mark.slow_cases("trace", "full")
@pytest.mark.parametrize("outputs", ["full", "trace", "diagonal"])
def test_jacobians_with_themselves(outputs):
    """17 points: the lower half is copied from the upper one, with both outputs exchanged."""
    W, X = jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32), jnp.asarray(RNG.normal(size=(17, 3)), jnp.float32)

    def apply(W, X):
        return jnp.tanh(X @ W) * jnp.array([1.0, 2.0]) + jnp.sum(X @ W, 1, keepdims=True) ** 2

    (alone,), (pairs,) = (empirical_ntk.jacobian_kernels(apply, W, X, Z, 1.0, outputs) for Z in (None, X))
    np.testing.assert_allclose(alone, pairs, rtol=0, atol=32 * 2.0**-24 * float(jnp.max(jnp.abs(pairs))))


@pytest.mark.slow
def test_functions_of_matrices_drop_null_directions_and_know_their_derivatives(x64):
    lam, U = jnp.asarray([0.0, 1e-18, 0.5, 2.0]), jnp.asarray(np.linalg.qr(RNG.normal(size=(4, 4)))[0])
    ridge = jnp.asarray([1e-30])
    c = spectral_filters.drop_null_directions(1 / (lam + ridge[:, None]), lam, 1e-16)
    np.testing.assert_allclose(c, [[0, 0, 2.0, 0.5]], rtol=1e-15)
    function = MatrixFunction(divided_differences.RIDGE, Spectrum(lam, U), (ridge,), jnp.asarray(1e-16))
    W = jnp.asarray(RNG.normal(size=(4, 2)))
    np.testing.assert_allclose(matrix_functions.apply_filter(function, W), c[..., None] * W, rtol=1e-15)
    large = function._replace(parameters=(jnp.asarray([0.5]),), floor=jnp.asarray(1e-3))  # a ridge keeps all directions
    np.testing.assert_allclose(matrix_functions.apply_filter(large, W)[0], W / (lam + 0.5)[:, None], rtol=1e-15)
    K, dK = U * lam @ U.T, RNG.normal(size=(4, 4))
    dK = jnp.asarray(dK + dK.T)
    first = jax.jvp(lambda v: matrix_functions.eigenvalues(Spectrum(v, U)), (lam,), (jnp.ones(4),))[1]
    np.testing.assert_allclose(first, lam > 0, rtol=0)
    # of simple eigenvalues, by finite differences of order 1e-6 and 1e-10 of rounding
    full = jax.jvp(
        lambda K: matrix_functions.eigenvalues(matrix_functions.spectrum_of(K)[0]), (K + jnp.eye(4),), (dK,)
    )[1]
    ends = [np.linalg.eigvalsh(np.asarray(K + np.eye(4) + sign * 1e-6 * dK)) for sign in (1, -1)]
    np.testing.assert_allclose(full[2:], ((ends[0] - ends[1]) / 2e-6)[2:], atol=1e-6)


@pytest.mark.parametrize("form", ["coefficient", "learned", "variance_reduction"])
def test_derivatives_of_functions_of_a_matrix(form, x64):
    """c(K), Kc(K) and c(2 - Kc)(K) of ridge in closed form, along a direction, by central differences.

    Steps of 1e-5 of numbers of order one: 1e-10 of truncation and 1e-11 of rounding.
    """
    A, D = RNG.normal(size=(2, 4, 4))
    K, D, ridge, v = A @ A.T + np.eye(4), D + D.T, 0.7, RNG.normal(size=(4, 1))

    def known(K):
        c = np.linalg.inv(K + ridge * np.eye(4))
        return {"coefficient": c, "learned": K @ c, "variance_reduction": c @ (2 * np.eye(4) - K @ c)}[form]

    wanted = (known(K + 1e-5 * D) - known(K - 1e-5 * D)) / 2e-5

    def both(K):
        spectrum, _ = matrix_functions.spectrum_of(K)
        function = MatrixFunction(divided_differences.RIDGE, spectrum, (jnp.asarray(ridge),), form=form)
        U = spectrum.eigenvectors
        return U @ matrix_functions.apply_filter(function, U.T @ v), matrix_functions.filter_diagonal(U, function)

    (value, diagonal), (change, of_diagonal) = jax.jvp(both, (jnp.asarray(K),), (jnp.asarray(D),))
    np.testing.assert_allclose(value, known(K) @ v, rtol=1e-11)
    np.testing.assert_allclose(diagonal, np.diag(known(K)), rtol=1e-11)
    np.testing.assert_allclose(change, wanted @ v, atol=1e-8)
    np.testing.assert_allclose(of_diagonal, np.diag(wanted), atol=1e-8)


@pytest.mark.slow
def test_weights_of_rows_multiply_entries(x64):
    """√w √v k(x, z), by both evaluations and on the diagonal; points with a column of roots, or pairs."""
    X, root = RNG.normal(size=(5, 2)), RNG.uniform(0.5, 2, 5)
    K = root[:, None] * np.exp(-0.5 * np.sum((X[:, None] - X) ** 2, -1)) * root
    X, roots = jnp.asarray(X), jnp.asarray(root)
    rows = jnp.column_stack([X, roots])
    for kernel, points in ((Weighted(Gaussian(1.0)), rows), (Weighted(Gaussian(1.0), pairs=True), (X, roots))):
        left, right = kernel.sides(points, points)
        for block in (kernel.block, kernel.accurate_block):
            np.testing.assert_allclose(block(left, right), K, rtol=1e-13)
        np.testing.assert_allclose(kernel.diag(points), root**2, rtol=1e-14)
        alone = kernel.prepare(points)
        np.testing.assert_allclose(kernel.block(alone, alone), K, rtol=1e-13)
        assert kernel.values_per_pair(points) == Gaussian(1.0).values_per_pair(X)


def test_numbers_per_pair_grow_with_what_a_block_holds():
    """A mean over flips has four blocks, a sum those of its terms; draws of weights add the features of a point."""
    X, images = jnp.zeros((3, 2)), jnp.zeros((2, 4, 4, 1))
    network = NNGP(serial(Conv(3), "relu", GlobalAvgPool(), Dense()))
    assert with_flips(network).values_per_pair(images) == 4 * network.values_per_pair(images)
    draws = AdaptiveKernel(MLP(1, "relu", 1.0, 0.0), jnp.ones((50, 2)))
    fewer = AdaptiveKernel(MLP(1, "relu", 1.0, 0.0), jnp.ones((20, 2)))
    assert draws.values_per_pair(X) - fewer.values_per_pair(X) == 30
    assert (Gaussian(1.0) + Linear(1.0)).values_per_pair(X) >= Gaussian(1.0).values_per_pair(X)


def test_squared_norms_keep_a_factor_of_sixteen_below_overflow():
    """Centering may double a norm and ‖x-z‖² adds four products: beyond a sixteenth of the largest float it is NaN."""
    limit = float(np.finfo(np.float32).max) / 16
    found = np.asarray(gram_blocks.squares(jnp.asarray(np.sqrt([[0.99 * limit], [1.01 * limit]]), jnp.float32)))
    assert np.isfinite(found[0]) and np.isnan(found[1])
    for ratio, fails in ((0.99, False), (1.01, True)):
        for where in (jnp.asarray, np.asarray):
            X = where(np.full((2, 1), np.sqrt(ratio * limit), np.float32))
            if fails:
                with pytest.raises(ValueError, match="squared norms overflow"):
                    Gaussian(1e15).gram(X)
            else:
                Gaussian(1e15).gram(X)


def test_points_of_a_kernel_of_inner_products(x64):
    X = jnp.asarray(RNG.normal(size=(4, 2)))
    side = Polynomial(2, 1.0).prepare(X)
    np.testing.assert_allclose(side.points, X)
    np.testing.assert_allclose(side.squares, np.sum(np.asarray(X) ** 2, 1))
    assert len(set(np.asarray(side.keys).tolist())) == 4


@pytest.mark.parametrize("callers, level", [
    (["unlazy.a"], 2), (["unlazy.a", "unlazy.b"], 3), (["unlazy.a", "equinox._module", "unlazy.b"], 4),
    (["unlazy.a", "jaxtyping._decorator", "jaxtyping._decorator"], 4),  # around a method
    (["unlazy.a", "user", "equinox._module"], 2), (["unlazy.a", "other"], 2), (["unlazy.a", "other", "unlazy.b"], 4),
])  # fmt: skip
def test_warnings_name_the_caller_of_the_package(callers, level):
    """Stack level of the first frame beyond this package and the wrappers around it; innermost callers first."""
    call = inspect.unwrap(infinite_width._caller_stack_level)  # without the wrapper that checks types in tests
    for name in callers:
        scope = {"__name__": name, "inner": call}
        exec("def call(): return inner()", scope)
        call = scope["call"]
    assert call() == level


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("n", [1, 4])
def test_functions_of_whole_batches_of_any_size_are_refused(n, size):
    X, W = jnp.asarray(RNG.normal(size=(n, 3)), jnp.float32), jnp.ones((3, 2))

    def alone(W, X):
        return size * (X @ W)

    def together(W, X):  # off by a hundredth of its size, or a quarter of that beside one half as large
        return size * (X @ W + 1e-2 * jnp.mean(X @ W, 0))

    empirical_ntk.validate_function(alone, W, X)
    with pytest.raises(ValueError, match="depends on the other points"):
        empirical_ntk.validate_function(together, W, X)


def test_both_layers_of_the_wide_limit_count_once_by_default(x64):
    """ReLU, q = |x|²/d: E φ(a)² = q/2 of the head and q E φ'² = q/2 of the first layer; at right angles √(qq')/2π."""
    X = jnp.asarray([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    K = infinite_two_layer().gram(X)
    across = 6 / 3 / (2 * np.pi)  # of the first layer ⟨x,z⟩ E φ'φ' = 0
    np.testing.assert_allclose(K, [[4 / 3, across], [across, 9 / 3]], rtol=1e-13)
    split = infinite_two_layer(first=2.0, head=0.0).gram(X)
    np.testing.assert_allclose(split, np.diag([4 / 3, 9 / 3]), rtol=1e-13, atol=1e-15)


def test_terms_of_points_include_slopes_only_for_tangent_kernels(monkeypatch):
    asked = []
    monkeypatch.setattr(infinite_width, "MANY_PAIRS", 0)
    monkeypatch.setattr(
        infinite_width.per_point_ntk, "per_point_terms", lambda squares, network, tangent: asked.append(tangent)
    )
    X = jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32)
    for kernel, wanted in ((NTK(MLP(1, "tanh")), [True]), (NNGP(MLP(1, "tanh")), [False])):
        asked.clear()
        assert kernel.sides(X, X)[0].rows is None and asked == wanted * 2


@pytest.mark.slow
def test_blocks_by_tiles_of_any_shape():
    x, z = np.arange(1.0, 6.0), np.arange(1.0, 8.0)
    seen = []

    def pairs(left, right):
        seen.append((left.size, right.size))
        return left[:, None] * right, left[:, None] - right

    for rows, columns in ((2, 7), (5, 3), (2, 3), (9, 9)):
        seen.clear()
        found = layered.evaluate_by_tiles(pairs, jnp.asarray(x), jnp.asarray(z), rows, columns)
        np.testing.assert_array_equal(found[0], np.outer(x, z))
        np.testing.assert_array_equal(found[1], x[:, None] - z)
        assert (min(rows, 5), min(columns, 7)) in seen  # and whole ones, for their shapes


def test_tiles_fill_the_budget(monkeypatch):
    """As many pairs as fit: whole rows if possible; the cache on a host, an eighth of the memory elsewhere."""
    monkeypatch.setattr(layered, "TILE_BYTES", 1200)
    for (n, m), wanted in (((10, 5), (2, 5)), ((10, 30), (1, 12)), ((2, 2), (2, 2)), ((1, 50), (1, 12))):
        assert layered.tile_shape(n, m, 100) == wanted
    assert layered.tile_shape(3, 3, 10**6) == (1, 1)
    monkeypatch.setenv("UNLAZY_MEMORY", "8MB")
    monkeypatch.setattr(layered.devices, "is_host", lambda: False)
    pairs = memory_budget() // 8 // 1000
    assert layered.tile_shape(10**6, 10, 1000) == (pairs // 10, 10)
    assert layered.point_batch(1000) == pairs


def test_a_plan_of_a_gpu_decides_how_many_images_run_at_once(monkeypatch):
    """Whatever program evaluates the pairs, left and right keep their places and equal points their own entries."""
    asked = []

    class Plan:
        def images(self, n, m, tangent):
            asked.append((n, m, tangent))
            return 1, 2

    class Programs:
        @staticmethod
        def plan_for(network, inputs, tangent):
            return Plan()

        @staticmethod
        def entries(plan, tangent, interpret, network, left, right):
            assert not interpret
            shape = len(left.inputs), len(right.inputs)
            first, second = left.inputs[:, 0, 0, 0], right.inputs[:, 0, 0, 0]
            return jnp.broadcast_to(first[:, None] - 10 * second, shape), None

    kernel = NNGP(serial(Conv(1), "relu", GlobalAvgPool(), Dense()))
    X, Z = (jnp.asarray(RNG.normal(size=(n, 1, 1, 1)), jnp.float32) for n in (2, 3))
    left, right = (
        layered.PreparedInputs(PointCovariances(P, {}, jnp.full(len(P), 0.5), None), jnp.asarray(keys, jnp.uint32))
        for P, keys in ((X, [7, 1]), (Z, [2, 7, 3]))
    )
    monkeypatch.setattr(layered.devices, "is_host", lambda: False)
    monkeypatch.setattr(layered, "_gpu_programs", lambda: Programs)
    found = np.asarray(kernel.block(left, right))
    wanted = np.asarray(X).ravel()[:, None] - 10 * np.asarray(Z).ravel()
    wanted[0, 1] = 0.5
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert asked == [(2, 3, False)]


@pytest.mark.parametrize("operation", ["add", "multiply"])
def test_combinations_pass_distances_and_products_on(operation, x64):
    """Of ‖x-z‖², 1 - cos θ, ⟨x,x⟩ and ⟨z,z⟩, and of ⟨x,z⟩ with both squares: each part gets all of them in order."""
    x, z = RNG.normal(size=(2, 3))
    xz, xx, zz = (jnp.asarray([v]) for v in (x @ z, x @ x, z @ z))
    distance, gap = xx + zz - 2 * xz, 1 - xz / jnp.sqrt(xx * zz)
    gaussian, linear = np.exp(-0.5 * np.sum((x - z) ** 2)), x @ z + 2.0
    first, second = Gaussian(1.0), Linear(2.0)
    for one, two in ((first, second), (second, first)):
        kernel = (one + two if operation == "add" else one * two).formula
        wanted = gaussian + linear if operation == "add" else gaussian * linear
        np.testing.assert_allclose(kernel.entry(xz, xx, zz), [wanted], rtol=1e-13)
        np.testing.assert_allclose(kernel.entry_distance(distance, gap, xx, zz), [wanted], rtol=1e-13)


def test_summaries_of_points_on_a_host_and_on_a_device():
    """Smallest and largest squared norm, largest coordinate, and k(x, x) at both norms; NaN beyond a sixteenth."""
    kernel = Polynomial(2, 1.0)
    X, Z = np.array([[3.0, -4.0], [0.5, 0.0]], np.float32), np.array([[-6.0, 0.0], [1.0, 1.0]], np.float32)
    for summary in (gram_blocks._host_summary, gram_blocks._summary):
        given = (X, Z) if summary is gram_blocks._host_summary else (jnp.asarray(X), jnp.asarray(Z))
        found, values = summary(kernel, given)
        np.testing.assert_allclose(found, [0.25, 36, 6], rtol=1e-6)
        np.testing.assert_allclose(values, [1.25**2, 37.0**2], rtol=1e-6)
        huge = tuple(1e19 * A for A in given)
        assert np.isnan(summary(kernel, huge)[0][1])


@pytest.mark.slow
def test_jacobians_of_a_linear_function_with_and_without_rates(x64):
    """f = X w: rows X times the root of the rate, which is one unless another is given."""
    X, V = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 2))
    w, points = jnp.zeros(3), jnp.asarray(X)
    for rates, given in ((1.0, {}), (4.0, {"rates": 4.0})):
        (rows,) = empirical_ntk.jacobian_rows(lambda w, X: X @ w, w, points, **given)
        np.testing.assert_allclose(rows[:, 0], np.sqrt(rates) * X, rtol=1e-14)
        squares = empirical_ntk.squared_gradients(lambda w, X: X @ w, w, points, **given)
        np.testing.assert_allclose(squares, rates * np.sum(X * X, 1), rtol=1e-14)
        product = empirical_ntk.batched_product(
            lambda w, X: X @ w, w, points, points[:4], jnp.asarray(V[:4]), batch=3, **given
        )
        np.testing.assert_allclose(product, rates * X @ X[:4].T @ V[:4], rtol=1e-13)
        found = empirical_ntk.tangent_product(lambda w, X: X @ w, w, points, jnp.asarray(V[:, 0]), **given)
        np.testing.assert_allclose(found, rates * X @ X.T @ V[:, 0], rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_close_points_keep_their_digits_at_any_norm(scale, x64):
    """Points 1e-7 of their size apart: from ⟨x,z⟩ alone ‖x-z‖² is off by a percent, which the root halves."""
    X = RNG.normal(size=(3, 4)) * scale
    Z = X + 1e-7 * scale * RNG.normal(size=(3, 4))
    apart = np.linalg.norm(X - Z, axis=1)
    found = np.diagonal(Laplace(1e-7 * scale).gram(jnp.asarray(X), jnp.asarray(Z)))
    # 2^-53 of X and of Z, over their distance
    np.testing.assert_allclose(found, np.exp(-apart / (1e-7 * scale)), rtol=1e-7)


def test_radial_kernels_by_their_definitions():
    r = np.array([0.0, 0.3, 1.0, 4.0])
    s = r / 1.7
    wanted = {
        Gaussian(1.7): np.exp(-(s**2) / 2), Laplace(1.7): np.exp(-s), Matern(1.7, 0.5): np.exp(-s),
        Matern(1.7, 1.5): (1 + np.sqrt(3) * s) * np.exp(-np.sqrt(3) * s),
        Matern(1.7, 2.5): (1 + np.sqrt(5) * s + 5 / 3 * s**2) * np.exp(-np.sqrt(5) * s),
        RationalQuadratic(1.7, 0.8): (1 + s**2 / 1.6) ** -0.8,
    }  # fmt: skip
    for kernel, values in wanted.items():
        np.testing.assert_allclose(kernel.of_distance(r**2), values, rtol=1e-12, err_msg=type(kernel).__name__)


def test_kernels_of_two_single_points(x64):
    x, z = RNG.normal(size=(2, 3))
    value = np.exp(-0.5 * np.sum((x - z) ** 2))
    np.testing.assert_allclose(Gaussian(1.0)(x, z), value, rtol=1e-13)
    np.testing.assert_allclose(Gaussian(1.0)(x[0], z[0]), np.exp(-0.5 * (x[0] - z[0]) ** 2), rtol=1e-13)
    pairs = Weighted(Gaussian(1.0), pairs=True)
    np.testing.assert_allclose(pairs((x, 2.0), (z, 0.5)), value, rtol=1e-13)
    with pytest.raises(ValueError, match="two single points, got arrays with 2 and 1 axes"):
        Gaussian(1.0)(np.stack([x, z]), z)


def test_metrics_count_their_symmetric_part(x64):
    M, skew = np.diag([2.0, 0.5]), np.array([[0.0, 0.3], [-0.3, 0.0]])
    X = RNG.normal(size=(3, 2))
    plain, turned = (np.asarray(with_metric(Gaussian(1.0), A).gram(X)) for A in (M, M + skew))
    difference = X[:, None] - X
    np.testing.assert_allclose(plain, np.exp(-0.5 * np.einsum("ijk,kl,ijl->ij", difference, M, difference)), rtol=1e-13)
    np.testing.assert_allclose(turned, plain, rtol=1e-13)


def test_default_weights_keep_the_variance_of_relu_networks(x64):
    """σ_w² = 2 and E φ² = q/2: every layer has the variance of the first, 2|x|²/d."""
    X = RNG.normal(size=(4, 3))
    np.testing.assert_allclose(NNGP(MLP(3, "relu")).diag(X), 2 * np.mean(X * X, 1), rtol=1e-13)
