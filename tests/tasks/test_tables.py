"""Tables and image files: round trips, and errors for invalid files."""

import gzip
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from unlazy import tasks
from unlazy.core.errors import UnlazyError
from unlazy.tasks.images import read_idx

KEY = jax.random.key(19)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(50, 3)), RNG.normal(size=50)


@pytest.mark.slow
def test_a_table_draws_distinct_rows_with_their_labels():
    task = tasks.TableTask(X, Y)
    data = task.sample(KEY, 50)
    order = np.argsort(np.asarray(data.y))
    np.testing.assert_allclose(np.asarray(data.X)[order], X[np.argsort(Y)], rtol=1e-6)
    assert task.best_risk is None and task.duplicate_rows == 0
    first, rest = task.split(KEY, 20)
    assert (first.size, rest.size) == (20, 30)
    both = np.sort(np.concatenate([first.y, rest.y]))
    np.testing.assert_allclose(both, np.sort(Y), rtol=1e-6)


@pytest.mark.slow
def test_the_risk_of_a_table_is_exact_when_all_rows_are_used_and_honest_when_not():
    task = tasks.TableTask(X, Y)
    exact = float(np.mean((X[:, 0] - Y) ** 2))
    whole = task.population_risk(lambda X: X[:, 0], KEY)
    assert float(whole.mean) == pytest.approx(exact, rel=1e-5) and float(whole.error) == 0
    parts = jax.vmap(lambda k: task.population_risk(lambda X: X[:, 0], k, 25))(jax.random.split(KEY, 200))
    # Without replacement the spread over draws is the stated error: ratio of variances within 1 ± 4·√(2/200) ± 20%.
    ratio = float(jnp.var(parts.mean) / jnp.mean(parts.error**2))
    assert 0.4 < ratio < 1.6


def test_duplicates_are_counted():
    assert tasks.TableTask(np.vstack([X, X[:7]]), np.zeros(57)).duplicate_rows == 7


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: tasks.TableTask(X[:, 0], Y), "must have shape"),
        (lambda: tasks.TableTask(X, Y[:-1]), "each of the 50 rows"),
        (lambda: tasks.TableTask(np.where(X > 2, np.nan, X), Y), "missing or infinite"),
        (lambda: tasks.TableTask([["a", "b"]], [1]), "must be numbers"),
        (lambda: tasks.TableTask(np.zeros((0, 3)), []), "at least one"),
        (lambda: tasks.TableTask(X, Y).sample(KEY, 51), "has 50 rows, 51 distinct"),
        (lambda: tasks.TableTask(X, Y).split(KEY, 50), "must leave some"),
        (lambda: tasks.TableTask(X, Y).target(jnp.zeros((1, 3))), "only for its own rows"),
        (lambda: tasks.digits((0, 12)), "two or more different classes"),
        (lambda: tasks.digits((3,)), "two or more different classes"),
    ],
)
def test_misuse_raises(bad, says):
    with pytest.raises(ValueError, match=says):
        bad()


def idx_bytes(array, code):
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def mnist_like(tmp_path):
    pixels = RNG.integers(0, 256, size=(30, 4, 4), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 3
    (tmp_path / "images").write_bytes(gzip.compress(idx_bytes(pixels, 8)))
    (tmp_path / "labels").write_bytes(idx_bytes(labels, 8))
    np.savez(tmp_path / "both.npz", x_train=pixels, y_train=labels)
    return tmp_path, pixels, labels


def test_idx_and_npz_give_the_same_table(mnist_like):
    folder, pixels, labels = mnist_like
    two = tasks.idx_images(folder / "images", folder / "labels", classes=(0, 2))
    np.testing.assert_allclose(two.X, pixels.reshape(30, 16)[labels != 1] / 255, rtol=1e-6)
    np.testing.assert_array_equal(two.y, np.where(labels[labels != 1] == 2, 1.0, -1.0))
    every = tasks.npz_images(folder / "both.npz")
    assert every.y.shape == (30, 3)
    np.testing.assert_array_equal(np.argmax(every.y, 1), labels)


def test_idx_numbers_are_big_endian(tmp_path):
    values = np.array([[1.5, -2.0], [0.25, 1e10]])
    (tmp_path / "f").write_bytes(idx_bytes(values.astype(">f8"), 0x0E))
    np.testing.assert_array_equal(read_idx(tmp_path / "f"), values)


def test_invalid_files_give_a_one_line_error(mnist_like):
    folder, _, _ = mnist_like
    whole = (folder / "labels").read_bytes()
    (folder / "short").write_bytes(whole[:-3])
    (folder / "text").write_text("not images")
    (folder / "header").write_bytes(whole[:6])
    (folder / "cut.gz").write_bytes((folder / "images").read_bytes()[:40])
    for name, says in [("short", "damaged"), ("text", "not an idx"), ("header", "damaged"), ("none", "cannot read")]:
        with pytest.raises(UnlazyError, match=says):
            read_idx(folder / name)
    with pytest.raises(UnlazyError, match="cannot read"):
        read_idx(folder / "cut.gz")
    with pytest.raises(UnlazyError, match="not images and their labels"):
        tasks.idx_images(folder / "labels", folder / "images")
    with pytest.raises(UnlazyError, match="has no array 'x_test'"):
        tasks.npz_images(folder / "both.npz", images="x_test")
    with pytest.raises(UnlazyError, match="cannot read"):
        tasks.npz_images(folder / "text")


def test_digits_need_no_download():
    task = tasks.digits()
    assert (task.d, task.size, task.y.shape[1]) == (64, 1797, 10)
    assert float(task.X.min()) == 0 and float(task.X.max()) == 1
