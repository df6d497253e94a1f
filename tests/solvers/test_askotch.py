"""Blocks in fresh sweeps: the solution of NumPy's float64 factorization, whatever the product, the block, the momentum
and the rank; a run resumes in the middle of a pass; memory stays within the budget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core import devices
from unlazy.kernels.networks.infinite_width import NTK
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.products import product
from unlazy.products.engines.base import take_rows
from unlazy.products.engines.blocked import prepare_sides
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.methods import askotch
from unlazy.solvers.methods.askotch import Askotch
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.solvers.sources import Source
from unlazy.theory.infinite_width.architecture import MLP

N, D, RIDGE = 150, 4, 0.05
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
Y = np.column_stack([np.sin(X[:, 0]), 20 * X[:, 1] * X[:, 2]]) + 0.1 * RNG.normal(size=(N, 2))


def gram(A, B, bandwidth, power):
    squares = np.sum((A[:, None] - B) ** 2, 2)
    return np.exp(-squares / (2 * bandwidth**2)) if power == 2 else np.exp(-np.sqrt(squares) / bandwidth)


def residual(K, alpha, ridge=RIDGE):
    r = Y - K @ np.asarray(alpha, float) - ridge * np.asarray(alpha, float)
    return np.max(np.linalg.norm(r, axis=0) / np.linalg.norm(Y, axis=0))


LAPLACE = gram(X, X, 2.0, 1)


@pytest.mark.parametrize(
    "method", [Askotch(block=40), Askotch(block=40, rank=15), Askotch(block=40, momentum=0.2), Askotch(block=N)]
)
def test_the_residual_is_the_true_one(method):
    solution = solve(Laplace(2.0), X, Y, RIDGE, method=method, tolerance=1e-6)
    assert solution.converged and solution.stopped == "tolerance"
    # n roundings of float64 in a sum of numbers of order ‖α‖ ≤ ‖y‖/ridge
    assert solution.residual == pytest.approx(residual(LAPLACE, solution.coefficients), abs=N / RIDGE * 2.0**-52)
    if method.block == N:  # one block is the whole system: a factorization, and one step
        assert solution.steps == 1 and solution.residual < 1e-10


@pytest.mark.slow
def test_blocked_and_stored_products_agree():
    """The blocks are the same, so both take the same steps; K is not stored where it does not fit."""
    wide, narrow = (
        solve(
            Laplace(2.0),
            X,
            Y,
            RIDGE,
            method=Askotch(block=40),
            tolerance=1e-6,
            options=SolveOptions(precision="float64", memory=memory),
        )
        for memory in ("1GiB", "130KiB")
    )
    assert "K stored" in wide.notes[-1] and "K blocked" in narrow.notes[-1]
    assert wide.steps == narrow.steps and wide.bytes > narrow.bytes
    np.testing.assert_allclose(wide.coefficients, narrow.coefficients, rtol=0, atol=1e-9 * np.abs(Y).max() / RIDGE)


def test_momentum_is_measured_where_sweeps_are_slow():
    """A smooth kernel and a small ridge: condition 10^6. Momentum comes by itself, and takes fewer passes than none."""
    ridge = 1e-3
    K = gram(X, X, 2.0, 2)
    found = {
        name: solve(
            Gaussian(2.0),
            X,
            Y,
            ridge,
            method=Askotch(15, momentum=share),
            tolerance=1e-4,
            options=SolveOptions(max_steps=3000),
        )
        for name, share in (("measured", None), ("none", 1.0))
    }
    for solution in found.values():
        assert solution.converged and residual(K, solution.coefficients, ridge) <= 1.01e-4
    assert found["measured"].steps < 0.8 * found["none"].steps
    assert "μν = 1" not in found["measured"].notes[-1] and "μν = 1" in found["none"].notes[-1]


def test_float32_is_refined_until_it_is_accurate_enough():
    """Tolerances near float32's rounding take several true residuals: δ is computed again from each of them."""
    solution = solve(
        Laplace(2.0), X, Y, RIDGE, method=Askotch(block=40), tolerance=2e-5, options=SolveOptions(precision="float32")
    )
    assert solution.converged and solution.coefficients.dtype == jnp.float32
    exact = np.linalg.solve(LAPLACE + RIDGE * np.eye(N), Y)
    error = np.linalg.norm(np.asarray(solution.predict(X), float) - LAPLACE @ exact, axis=0)
    assert np.all(error <= 2e-5 * np.linalg.norm(Y, axis=0))


def test_an_ntk_whose_diagonal_is_not_one():
    kernel = NTK(MLP(2, sigma_b=0.3))
    with jax.enable_x64(True):
        K = np.asarray(kernel.gram(jnp.asarray(5 * X), accurate=True))
    assert np.mean(np.diagonal(K)) > 10
    solution = solve(kernel, 5 * X, Y, 1.0, method=Askotch(block=50), tolerance=1e-5)
    assert solution.converged and residual(K, solution.coefficients, 1.0) <= 1.01e-5


def test_a_run_resumes_in_the_middle_of_a_pass(tmp_path, monkeypatch):
    """Killed between two blocks it ends with the bits of a run that was not."""
    monkeypatch.setattr(askotch, "HOST_CHECK_ENTRIES", {True: 1, False: 1})
    method = Askotch(block=40)
    whole = solve(Laplace(2.0), X, Y, RIDGE, method=method, tolerance=1e-5)
    kept, calls = Checkpoint(tmp_path / "run", every=0), []

    def killed(*arguments):
        calls.append(1)
        if len(calls) == 7:  # the third block of the second pass
            raise KeyboardInterrupt
        return plain(*arguments)

    plain = askotch._sweep
    monkeypatch.setattr(askotch, "_sweep", killed)
    with pytest.raises(KeyboardInterrupt):
        solve(Laplace(2.0), X, Y, RIDGE, method=method, tolerance=1e-5, options=SolveOptions(checkpoint=kept))
    assert list(kept.load()["where"][:2]) == [1, 2]
    monkeypatch.setattr(askotch, "_sweep", plain)
    steps = []
    keywords = {"options": SolveOptions(checkpoint=kept), "progress": lambda p: steps.append(p.step)}
    again = solve(Laplace(2.0), X, Y, RIDGE, method=method, tolerance=1e-5, **keywords)
    assert steps[0] == 2 and again.steps == whole.steps
    assert np.array_equal(again.coefficients, whole.coefficients)


def test_blocks_are_chosen_by_size_and_memory():
    n = 10**6
    source = Source(np.broadcast_to(0.0, (n, D)), n, D)
    roomy, tight = (
        askotch.Problem(Laplace(2.0), source, np.zeros((n, 1)), 1.0, np.dtype("float32"), memory)
        for memory in (2**34, 2**26)
    )
    by = {how: Askotch().block_size(roomy, how) for how in askotch.BLOCK_SIZE_FACTORS}
    assert by["stored"] < by["fused"] < by["blocked"]
    for how, b in by.items():
        blocks = -(-n // b)
        assert 0.9 * askotch.BLOCK_SIZE_FACTORS[how] * n < b * b <= askotch.BLOCK_SIZE_FACTORS[how] * n
        assert blocks * b - n < blocks  # the last block overlaps by less than one row for each of them
    assert askotch.LIVE_MATRICES * 4 * Askotch().block_size(tight, "blocked") ** 2 <= 2**24


@pytest.mark.parametrize("engine", ["stored", "blocked"])
def test_rows_taken_inside_a_program_are_those_of_the_gram_matrix(engine, x64):
    K = product(Laplace(2.0), jnp.asarray(X), engine=engine)
    rows, columns, V = jnp.asarray([7, 3, 90]), jnp.arange(20, 60), RNG.normal(size=(N, 2))
    some = jax.jit(lambda K, rows, V: K.select_rows(rows).matmul(V))(K, rows, V)
    np.testing.assert_allclose(some, LAPLACE[np.asarray(rows)] @ V, rtol=0, atol=N * 2.0**-48)
    part = jax.jit(lambda K, rows, columns, V: K.select_rows(rows, columns).matmul(V))(K, rows, columns, V[20:60])
    np.testing.assert_allclose(part, LAPLACE[np.ix_(rows, columns)] @ V[20:60], rtol=0, atol=N * 2.0**-48)
    side, _ = prepare_sides(Laplace(2.0), jnp.asarray(X))
    assert jax.tree.structure(side) == jax.tree.structure(prepare_sides(Laplace(2.0), jnp.asarray(X[:3]))[0])


def test_rows_taken_of_fused_sides_are_those_of_the_gram_matrix():
    """The program of a GPU, interpreted where there is none: of the side that was prepared once a block takes rows."""
    fused = pytest.importorskip("unlazy.products.fused.fused_product")
    left, right = fused.prepare(Laplace(2.0), jnp.asarray(X, jnp.float32), jnp.asarray(X, jnp.float32))
    rows, V = jnp.asarray([7, 3, 90]), RNG.normal(size=(N, 1)).astype(np.float32)
    some = fused.apply(take_rows(left, rows), right, jnp.asarray(V), interpret=devices.is_host())
    # what the product itself promises: 1e-5 of Σ|K||V|
    bound = 1e-5 * LAPLACE[np.asarray(rows)] @ np.abs(V)
    assert np.all(np.abs(np.asarray(some) - LAPLACE[np.asarray(rows)] @ V) <= bound)
