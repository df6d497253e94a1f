"""Inputs read by blocks from files give the same solution as the array; memory stays within the budget."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from unlazy.core.arrays import precision
from unlazy.kernels.radial import Gaussian
from unlazy.solvers import sources
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.methods import nystrom_cg, nystrom_factors
from unlazy.solvers.methods.nystrom_cg import NystromCG
from unlazy.solvers.problem import make_problem
from unlazy.solvers.solve import SolveOptions, solve
from unlazy.solvers.sources import Source, as_source, parquet

N, D = 500, 4


class ZarrLike:
    """Only a shape and row slices, as Zarr and HDF5 give them."""

    def __init__(self, array):
        self.array, self.shape, self.largest = array, array.shape, 0

    def __getitem__(self, rows):
        part = self.array[rows]
        self.largest = max(self.largest, part.shape[0])
        return part


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D)).astype(np.float32)
    return X, np.sin(X[:, 0]).astype(np.float64)


def forms(tmp_path):
    import pandas as pd

    X, _ = data()
    np.save(tmp_path / "X.npy", X)
    pd.DataFrame(X, columns=list("abcd")).to_parquet(tmp_path / "X.parquet", row_group_size=130)
    return {
        "npy": tmp_path / "X.npy",
        "npy as text": str(tmp_path / "X.npy"),
        "memmap": np.load(tmp_path / "X.npy", mmap_mode="r"),
        "parquet": tmp_path / "X.parquet",
        "parquet columns": parquet(tmp_path / "X.parquet", list("abcd")),
        "zarr-like": ZarrLike(X),
    }


def test_every_form_reads_the_same_rows(tmp_path):
    X, _ = data()
    index = np.array([0, 3, 129, 130, 499])
    for name, form in forms(tmp_path).items():
        source = as_source(form)
        assert (source.n, source.d) == X.shape, name
        assert source.array is None, name
        assert np.array_equal(source.rows(100, 300), X[100:300]), name
        assert np.array_equal(source.take(index), X[index]), name
        assert np.array_equal(np.concatenate([b for _, b in source.blocks(77)]), X), name
    assert as_source(X).array is not None


@pytest.mark.parametrize("form", ["C", "F", ">f4", "f2", "i4"])
def test_a_file_in_any_layout_and_type_reads_the_same_rows(form, tmp_path):
    X = np.round(100 * data()[0])  # integers, which all of these types represent
    np.save(tmp_path / "X.npy", np.asarray(X, order=form) if form in "CF" else X.astype(form))
    source = as_source(tmp_path / "X.npy")
    index = np.array([0, 3, 499])
    assert np.array_equal(source.rows(100, 300), X[100:300]) and np.array_equal(source.take(index), X[index])


def test_few_rows_are_picked_out_of_a_file_one_by_one_and_once(tmp_path, monkeypatch):
    X, _ = data()
    X[321, 1] = np.nan  # a row that nobody asks for
    np.save(tmp_path / "X.npy", X)
    monkeypatch.setattr(sources, "SEEK_BYTES", 1)
    source = as_source(tmp_path / "X.npy")
    index = np.array([0, 320, 322, 499])
    taken = source.take(index)
    assert np.array_equal(taken, X[index])
    monkeypatch.setattr(sources.NpyRows, "_read", None)
    assert source.take(index.copy()) is taken
    monkeypatch.undo()
    monkeypatch.setattr(sources, "SEEK_BYTES", 1)
    with pytest.raises(ValueError, match="first in row 321"):
        source.take(np.array([5, 321]))


def test_a_truncated_file_is_named(tmp_path):
    X, _ = data()
    np.save(tmp_path / "X.npy", X)
    source = as_source(tmp_path / "X.npy")
    with (tmp_path / "X.npy").open("r+b") as file:
        file.truncate(X.nbytes // 2)
    with pytest.raises(ValueError, match="ends before its last row"):
        source.rows(0, N)


def blocks_of(rows, monkeypatch):
    """Blocks of at most so many rows, wherever they are multiplied."""
    for limit in ("HOST_BLOCK_BYTES", "BLOCK_BYTES"):
        monkeypatch.setattr(nystrom_cg, limit, rows * D * 8)


class Impatient(ZarrLike):
    """Rows whose next block must be asked for while the one before is in use: `used` says which was multiplied."""

    def __init__(self, array):
        super().__init__(array)
        self.asked, self.used = [], []

    def __getitem__(self, rows):
        self.asked.append(rows.start)
        return super().__getitem__(rows)


def test_the_next_block_is_read_while_one_is_multiplied(monkeypatch):
    X, y = data()
    X64 = X.astype(np.float64)
    blocks_of(60, monkeypatch)
    source, Z = Impatient(X), X64[:40]
    with precision("float64"):
        problem = replace(make_problem(Gaussian(2.0), source, y, 0.1, 4 * N * D * 8 - 1), dtype=np.dtype("float64"))
        passes = nystrom_cg.DataPasses(problem, jnp.asarray(Z), problem.memory)
        assert passes.engine == "by blocks from the source" and passes.rows == 50  # 10 equal blocks
        seen = []

        def part(K, rows):
            following = rows.stop if rows.stop < N else None
            deadline = time.monotonic() + 60
            while following is not None and following not in source.asked and time.monotonic() < deadline:
                time.sleep(0.001)  # the reader needs nothing from us
            seen.append((following is None or following in source.asked, len(source.asked) - len(seen)))
            return K.rmatmul(jnp.asarray(y[rows, None]))

        total = passes._sum(part, 1)
        v = np.random.default_rng(1).normal(size=(40, 1))
        normal, right = passes.normal(v), passes.right_hand_side()
    assert all(early for early, _ in seen) and len(seen) == 10
    assert max(alive for _, alive in seen) <= 2  # this one and the next: no more
    K = np.exp(-((X64[:, None] - Z[None]) ** 2).sum(-1) / (2 * 2.0**2))
    # float64 sums of 500 terms, entries off by a few roundings of D = ‖x‖² + ‖z‖² - 2⟨x,z⟩ < 2^6: k moves by D·2^-53·4
    off = N * 2.0**-53 * 4 * 2**6
    assert np.all(np.abs(total - K.T @ y[:, None]) <= off * (K.T @ np.abs(y[:, None])))
    assert np.array_equal(total, right)
    assert np.all(np.abs(normal - K.T @ (K @ v)) <= 2 * off * (K.T @ (K @ np.abs(v))))


@pytest.mark.slow
def test_an_interrupted_run_from_a_file_resumes_and_leaves_no_thread(tmp_path, monkeypatch):
    X, y = data()
    np.save(tmp_path / "X.npy", X)
    blocks_of(50, monkeypatch)
    checkpoint = Checkpoint(tmp_path / "run", every=0)
    budget = 4 * N * D * 8 - 1 + nystrom_factors.LIVE_MATRICES * 60 * 60 * 8
    keywords = {"method": NystromCG(centers=60), "tolerance": 1e-6}
    keywords["options"] = SolveOptions(precision="float64", memory=budget, checkpoint=checkpoint)

    def broken(p):
        if p.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(Gaussian(2.0), tmp_path / "X.npy", y, 0.1, progress=broken, **keywords)
    steps = []
    again = solve(Gaussian(2.0), tmp_path / "X.npy", y, 0.1, progress=lambda p: steps.append(p.step), **keywords)
    assert steps[0] == 3 and again.converged and "by blocks" in again.notes[-1]
    whole = solve(Gaussian(2.0), X, y, 0.1, **keywords | {"options": SolveOptions(precision="float64")})
    a, b = np.asarray(whole.predict(X)), np.asarray(again.predict(X))
    assert np.linalg.norm(a - b) <= 2.01e-6 * np.linalg.norm(y)
    assert not [t for t in threading.enumerate() if t.name.startswith("prefetch")]


@pytest.mark.slow
def test_a_solution_from_blocks_is_that_of_the_array(tmp_path, monkeypatch):
    X, y = data()
    # blocks of 16 rows, and inputs that count as too large for memory
    blocks_of(16, monkeypatch)
    monkeypatch.setattr(sources, "READ_BYTES", 50 * D * 8)
    source = ZarrLike(X)
    keywords = {"method": NystromCG(centers=60), "tolerance": 1e-6}
    whole = solve(Gaussian(2.0), X, y, 0.1, options=SolveOptions(precision="float64"), **keywords)
    budget = (
        4 * N * D * 8 - 1 + nystrom_factors.LIVE_MATRICES * 60 * 60 * 8
    )  # a quarter of what is left does not hold X
    blocks = solve(Gaussian(2.0), source, y, 0.1, options=SolveOptions(precision="float64", memory=budget), **keywords)
    assert "by blocks" in blocks.notes[-1] and blocks.converged
    assert source.largest == 50
    a, b = np.asarray(whole.predict(X)), np.asarray(blocks.predict(X))
    assert np.linalg.norm(a - b) <= 2.01e-6 * np.linalg.norm(y)


def test_small_files_are_read_whole_by_other_methods(tmp_path):
    _, y = data()
    solution = solve(Gaussian(2.0), forms(tmp_path)["npy"], y, 0.1)
    assert solution.method == "direct" and solution.converged


def test_problems_with_files_are_named(tmp_path):
    X, y = data()
    (tmp_path / "X.txt").write_text("1 2 3")
    with pytest.raises(ValueError, match=r"\.npy or \.parquet"):
        as_source(tmp_path / "X.txt")
    with pytest.raises(ValueError, match="no such file"):
        as_source(tmp_path / "missing.npy")
    bad = X.copy()
    bad[321, 1] = np.nan
    with pytest.raises(ValueError, match="first in row 321"):
        solve(Gaussian(2.0), ZarrLike(bad), y, 0.1, method=NystromCG(centers=50), options=SolveOptions(memory=100_000))
    with pytest.raises(ValueError, match="nystrom_cg"):
        solve(
            Gaussian(2.0),
            ZarrLike(X),
            y,
            0.1,
            method="richardson",
            options=SolveOptions(memory=2 * X.nbytes - 1, precision="float32"),
        )
    assert isinstance(as_source(X.tolist()), Source)


PEAK = """
import sys
import numpy as np
from unlazy.kernels.radial import Gaussian
from unlazy.solvers.solve import SolveOptions
from unlazy.solvers.solve import solve
method, n, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
X = rng.normal(size=(n, 8)).astype(np.float32)
y = np.sin(X[:, 0])
def run(X, y, memory):
    return solve(Gaussian(3.0), X, y, 1.0, method=method,
                 options=SolveOptions(memory=memory, max_steps=4, precision="float32"))
# a small run first, so that compilers and libraries are counted in the base
import warnings; warnings.simplefilter("ignore")
run(X[:1700], y[:1700], "1GiB")
def peak():  # ru_maxrss would begin with the peak of the process that started this one
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
base = peak()
s = run(X, y, budget)
print(base, peak(), s.bytes, s.notes)
"""
SLACK = 48 * 2**20
"""What is not counted: LAPACK's and XLA's buffers, compiled programs, copies of vectors and of X."""


@pytest.mark.nightly_cases("askotch-12000-134217728")
@pytest.mark.slow_cases("nystrom_cg-60000-134217728")
@pytest.mark.parametrize(
    "method, n, budget",
    [
        pytest.param("direct", 6000, 6000**2 * 4 + 2**20, marks=pytest.mark.slow),
        pytest.param("preconditioned_cg", 6000, 256 * 2**20, marks=pytest.mark.slow),
        pytest.param("preconditioned_cg", 12_000, 128 * 2**20, marks=pytest.mark.slow),  # K would take 576 MB
        pytest.param("askotch", 12_000, 128 * 2**20, marks=pytest.mark.slow),
        ("nystrom_cg", 60_000, 128 * 2**20),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read as Linux tells it")
def test_peak_memory_stays_within_the_budget(method, n, budget):
    # glibc keeps large blocks after they are freed, unless the size from which it maps them is fixed
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [sys.executable, "-c", PEAK, method, str(n), str(budget)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    base, peak, planned = map(int, done.stdout.split()[:3])
    assert planned <= budget
    assert peak - base <= budget + SLACK, f"{(peak - base) / 2**20:.0f} MiB of {budget / 2**20:.0f}: {done.stdout}"
