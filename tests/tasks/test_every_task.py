"""What every task promises, over all tasks: adding a task is one line in CASES.

Facts are held against sampling within 4 standard errors, |z| > 4 having probability 6e-5 for a Gaussian mean. About
1,000 such comparisons are made below (most of them entries of H), so a correct library would have had about a 1 in
16 chance to fail somewhere with keys drawn afresh; the keys are fixed, so the outcome is fixed too, and a wrong
fact of size 5 standard errors or more is caught. Sums are done in float64 NumPy: rounding is far below the errors.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import tasks
from unlazy.core.arrays import precision
from unlazy.tasks.gaussian import GaussianTask
from unlazy.theory.activations import hermite
from unlazy.theory.activations.functions import activation

N = 40_000
KEY = jax.random.key(20)


def table():
    rows = np.random.default_rng(0).normal(size=(60_000, 6))
    return tasks.TableTask(rows, rows[:, 0] ** 2 + 1)


CASES = {
    "single_index": lambda k: tasks.single_index(6, {0: 0.3, 1: 0.5, 3: 1.0}, key=k, noise=0.5),
    "single_index_function": lambda k: tasks.single_index(6, jnp.tanh, key=k),
    "multi_index": lambda k: tasks.multi_index(6, 3, [0.4, 0.0, 1.0], key=k, noise=0.1),
    "multi_index_relu": lambda k: tasks.multi_index(6, 2, activation("relu"), key=k),
    "index_model": lambda k: tasks.index_model(6, {(1, 0): 0.5, (1, 1): -1.0, (2, 1): 0.7}, key=k),
    "quadratic_plus_3": lambda k: tasks.quadratic_plus(6, 3, key=k),
    "quadratic_plus_4": lambda k: tasks.quadratic_plus(6, 4, 2, key=k),
    "cubic_sign": lambda k: tasks.cubic_sign(6, key=k),
    "band_sign": lambda k: tasks.band_sign(6, key=k, noise=0.2),
    "rank_polynomial": lambda k: tasks.rank_polynomial(6, (1, 2, 3), key=k, orthogonal=False),
    "quadratic": lambda k: tasks.quadratic(6, 2, key=k, noise=0.1),
    "hermite_polynomial": lambda k: tasks.hermite_polynomial(6, 4, key=k),
    "teacher_relu": lambda k: tasks.teacher(6, 3, "relu", key=k, orthogonal=False, heads=jnp.array([1.0, -1.0, 0.5])),
    "teacher_truncated": lambda k: tasks.teacher(6, 2, "truncated_relu", key=k),
    "teacher_wide": lambda k: tasks.teacher(6, 8, "erf", key=k, orthogonal=False),
    "patterns": lambda k: tasks.pattern_task(12, 8, 3, key=k),
    "patterns_unstructured": lambda k: tasks.pattern_task(12, 8, 4, structured=False, background=0.25, key=k),
    "patterns_majority": lambda k: tasks.pattern_task(12, 8, 5, positive=(3, 4, 5), uniform_part=0.25, key=k),
    "parity": lambda k: tasks.parity(6, 3, noise=0.3),
    "staircase": lambda k: tasks.staircase(6, 3),
    "heaviside": lambda k: tasks.heaviside(noise=0.1),
    "smooth": lambda k: tasks.smooth(1.5),
    "piecewise": lambda k: tasks.piecewise((-0.5, 0.2), (0.0, 2.0, -1.0)),
    "manifold": lambda k: tasks.manifold(6, 2, key=k, noise=0.1),
    "circle": lambda k: tasks.Circle(noise=0.1),
    "circle_bias": lambda k: tasks.Circle({0: (0.5, 0.0), 2: (1.0, -1.0)}, bias=0.5),
    "table": lambda k: table(),
    "digits": lambda k: tasks.digits((0, 1)),
}
KNOWS_TARGET = [name for name in CASES if name not in ("table", "digits")]
GAUSSIAN = [
    name for name in CASES
    if name.startswith(("single", "multi", "index", "quadratic", "cubic", "band", "rank", "hermite", "teacher"))
]  # fmt: skip
JUMPS = ("cubic_sign", "band_sign", "patterns", "patterns_unstructured", "patterns_majority")
REPRESENTATIVES = ("single_index", "teacher_relu", "patterns", "parity", "circle", "table")


def some(names):
    """A few tasks in the fast suite, all of them in the slow one: every task compiles its own programs."""
    return [pytest.param(n, marks=[] if n in REPRESENTATIVES else pytest.mark.slow) for n in names]


both_precisions = pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])


@functools.cache
def case(name, dtype="float32"):
    """A task and one large sample of it (inputs, labels, noiseless answers), drawn once for all tests."""
    with precision(dtype):
        task = CASES[name](KEY)
        n = min(N, getattr(task, "size", 2 * N) // 2)
        data = task.sample(KEY, n)  # not jitted: tasks of one shape then share their compiled primitives
        answers = data.y if isinstance(task, tasks.TableTask) else task.target(data.X)
        return task, data, answers


def in_numpy(name, dtype="float32"):
    """The task, its inputs and its noiseless answers in float64 NumPy."""
    task, data, answers = case(name, dtype)
    return task, np.asarray(data.X, float), np.asarray(answers, float)


def assert_mean(samples, expected, slack=0.0):
    """Means over the first axis within 4 standard errors of what is expected; `slack` is a bound on rounding."""
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    worst = np.max((np.abs(samples.mean(0) - expected) - slack) / np.where(error > 0, error, 1e-12))
    assert worst <= 4, f"{worst:.1f} standard errors"


@pytest.mark.slow
def test_gaussian_tasks_are_listed():
    assert [name for name in CASES if isinstance(case(name)[0], GaussianTask)] == GAUSSIAN


@pytest.mark.slow_cases(
    "circle-float32",
    "digits-float32",
    "multi_index-float32",
    "patterns-float32",
    "single_index-float32",
    "table-float32",
    "teacher_relu-float32",
)
@both_precisions
@pytest.mark.parametrize("name", some(CASES))
def test_samples_are_reproducible_nested_and_of_the_right_kind(name, dtype):
    with precision(dtype):
        task, large, _ = case(name, dtype)
        first, again, other = task.sample(KEY, 16), task.sample(KEY, 16), task.sample(jax.random.key(1), 16)
        assert first.X.dtype == first.y.dtype == jnp.dtype(dtype)
        assert first.X.shape == (16, task.d)
        np.testing.assert_array_equal(again.X, first.X)
        np.testing.assert_array_equal(again.y, first.y)
        assert not np.array_equal(other.X, first.X)
        # The large sample begins with the small one, up to the rounding of differently ordered sums of d terms.
        tolerance = 64 * float(jnp.finfo(dtype).eps) * (1 + np.max(np.abs(first.X)) ** getattr(task, "degree", 1))
        np.testing.assert_allclose(large.X[:16], first.X, rtol=0, atol=tolerance)
        np.testing.assert_allclose(large.y[:16], first.y, rtol=0, atol=tolerance)
        rows = np.unique(np.asarray(large.X[:200]), axis=0)
        assert len(rows) > 30 or name in ("parity", "staircase")  # independent rows; a cube has only 64 points


@pytest.mark.slow_cases("patterns-float32")
@both_precisions
@pytest.mark.parametrize("name", some(KNOWS_TARGET))
def test_labels_are_the_target_plus_noise(name, dtype):
    task, data, answers = case(name, dtype)
    residual = np.asarray(data.y, float) - np.asarray(answers, float)
    # y = f* + noise is rounded once and the difference is exact in float64.
    allowed = float(jnp.finfo(dtype).eps) * (1 + np.max(np.abs(data.y)))
    assert np.max(np.abs(np.abs(residual) - task.noise)) <= allowed
    assert task.best_risk == pytest.approx(task.noise**2)
    if task.noise:
        assert_mean(np.sign(residual), 0.0)


@pytest.mark.slow_cases("patterns-float32", "table-float32")
@both_precisions
@pytest.mark.parametrize("name", some(CASES))
def test_second_moment_agrees_with_sampling(name, dtype):
    task, _, y = in_numpy(name, dtype)
    with precision(dtype):
        known = task.second_moment
    if known is None:
        pytest.skip("does not know its second moment")
    assert_mean((y**2).reshape(len(y), -1).sum(1), float(known), slack=1e-5)


@both_precisions
@pytest.mark.parametrize("name", some(GAUSSIAN))
def test_hessian_agrees_with_steins_identity(name, dtype):
    """H = E ∇²f* = E f*(x)(xxᵀ - I), which needs no derivative of f*; κ follows from H and S*."""
    task, X, y = in_numpy(name, dtype)
    with precision(dtype):
        H, U, kappa = np.asarray(task.hessian, float), np.asarray(task.subspace, float), float(task.kappa)
    assert_mean(y[:, None, None] * (X[:, :, None] * X[:, None, :] - np.eye(task.d)), H, slack=1e-6)
    smallest = np.min(np.abs(np.linalg.eigvalsh(U @ H @ U.T)))
    expected = 1 / (smallest * math.sqrt(len(U))) if smallest > 1e-4 else math.inf
    # float32 entries of H, of size ≤ 2 here, move its eigenvalues by 1e-6, so κ by 1e-6·κ√r relatively.
    assert kappa == pytest.approx(expected, rel=1e-5 * max(1.0, 1 / smallest if smallest > 1e-4 else 1))


@pytest.mark.parametrize("name", some(GAUSSIAN))
def test_hermite_coefficients_agree_with_sampling(name):
    task, X, y = in_numpy(name)
    known = task.hermite_coefficients
    if known is None:
        pytest.skip("not written in an orthonormal basis")
    basis = hermite.basis(X @ np.asarray(task.subspace, float).T, 4)
    r = basis.shape[1]
    expected = {tuple(k * (i == j) for i in range(r)): 0.0 for j in range(r) for k in range(5)}  # zeros count too
    expected |= {alpha: c for alpha, c in known.items() if sum(alpha) <= 4}
    products = np.stack([y * np.prod([basis[:, i, k] for i, k in enumerate(a)], 0) for a in expected], 1)
    assert_mean(products, np.array(list(expected.values())), slack=1e-6)
    assert task.information_exponent == min(sum(a) for a, c in known.items() if c and any(a))


@pytest.mark.slow_cases("patterns-float32", "single_index-float32", "circle-float32")
@both_precisions
@pytest.mark.parametrize("name", some(KNOWS_TARGET))
def test_the_subspace_is_all_that_matters(name, dtype):
    """f* does not change when x moves orthogonally to S*, and does when it moves along any direction of S*."""
    with precision(dtype):
        task, data, answers = case(name, dtype)
        if task.subspace is None:
            pytest.skip("declares no subspace")
        eps, U = float(jnp.finfo(dtype).eps), np.asarray(task.subspace, float)
        np.testing.assert_allclose(U @ U.T, np.eye(len(U)), atol=20 * eps)
        X, before = data.X[:256], np.asarray(answers[:256], float)
        move = np.random.default_rng(1).normal(size=X.shape)
        across = X + jnp.asarray(move - move @ U.T @ U, X.dtype)
        along = [X + 0.5 * jnp.asarray(u, X.dtype) for u in U]
        after = np.asarray(jax.vmap(task.target)(jnp.stack([across, *along])), float)
        # Coordinates along S* are sums of d products, wrong by d·eps·|x|; a polynomial of degree p multiplies a
        # relative error by p (and by the spread of its coefficients: 8), on values up to max|f*|.
        size = np.max(np.linalg.norm(np.asarray(across, float), axis=1)) * (1 + np.abs(before).max())
        bound = 8 * task.d * getattr(task, "degree", 1) * eps * size
        # Where f* jumps, a point may lie within rounding of the jump.
        assert np.mean(np.abs(after[0] - before) > bound) <= (0.01 if name in JUMPS else 0)
        assert np.all(np.max(np.abs(after[1:] - before), 1) > 100 * bound)


@pytest.mark.slow_cases("table", "patterns", "single_index", "teacher_relu")
@pytest.mark.parametrize("name", some(CASES))
def test_population_risk_has_an_honest_error(name):
    """Of the zero predictor: the second moment. Of a linear one: what ten times as many plain samples say."""
    task, X, y = in_numpy(name)

    def risk(key, slope, share):
        answer = task.target if name in KNOWS_TARGET else lambda X: jnp.zeros(X.shape[0])
        return task.population_risk(lambda X: X @ slope + share * answer(X), key)

    # 16 copies of a grid: Student's t with 15 degrees of freedom stays within 5 with probability 0.9998.
    zero = risk(KEY, jnp.zeros(task.d), 0.0)
    if task.second_moment is not None:
        moment = float(task.second_moment)
        assert abs(float(zero.mean) - moment) <= 5 * float(zero.error) + 2e-5 * moment  # float32 sums
    slope = np.linspace(-0.5, 0.5, task.d) if task.d > 1 else np.array([0.5])
    linear, plain = risk(jax.random.key(5), jnp.asarray(slope, jnp.float32), 0.0), (X @ slope - y) ** 2
    both = math.hypot(float(linear.error), plain.std() / math.sqrt(len(plain)))
    assert abs(float(linear.mean) - plain.mean()) <= 5 * both + 1e-5
    if name in KNOWS_TARGET:
        exact = risk(KEY, jnp.zeros(task.d), 1.0)
        assert float(exact.mean) <= 1e-10 and float(exact.error) <= 1e-10


@pytest.mark.slow_cases("patterns", "single_index", "circle", "table")
@pytest.mark.parametrize("name", some(CASES))
def test_everything_can_be_traced(name):
    """Sampling with a traced n, the target and the risk work under jit and vmap (traced here, compiled below)."""
    task, _, _ = case(name)
    jax.eval_shape(jax.vmap(lambda k, n: task.sample_padded(k, n, 64), (0, None)), jax.random.split(KEY, 2), 5)
    outputs = task.sample(KEY, 1).y.shape[1:]
    jax.eval_shape(lambda k: task.population_risk(lambda X: jnp.zeros((X.shape[0], *outputs)), k), KEY)


@pytest.mark.slow_cases("circle", "patterns", "single_index")
@pytest.mark.parametrize("name", ["single_index", "patterns", "parity", "circle", "table"])
def test_a_traced_n_over_padded_rows_is_the_sample_of_size_n(name):
    task, large, _ = case(name)

    @jax.jit
    def mean_label(key, n):
        data = task.sample_padded(key, n, 64)
        return jnp.sum(data.weights * data.y.T) / n

    for n in (1, 30):  # one compilation for both
        expected = float(jnp.sum(large.y[:n]) / n)
        size = float(jnp.max(jnp.abs(large.y[:n])))
        # float32 sums of 30 terms
        assert float(mean_label(KEY, jnp.asarray(n))) == pytest.approx(expected, abs=1e-5 * (1 + size))
    assert mean_label._cache_size() == 1


@pytest.mark.parametrize("n", [0, -3, True])
@pytest.mark.parametrize("name", some(CASES))
def test_invalid_sizes_are_rejected(name, n):
    task, _, _ = case(name)
    for ask in (task.sample, task.inputs, lambda key, m: task.population_risk(lambda X: X[:, 0], key, m)):
        with pytest.raises(ValueError, match="must be a positive integer, got"):
            ask(KEY, n)
