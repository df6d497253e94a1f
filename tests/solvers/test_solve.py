"""The front door: its choice and what it says, bad inputs, mending, early stopping, progress, life after a kill."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from unlazy.core.errors import UnlazyWarning
from unlazy.kernels.radial import Gaussian, Laplace
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.method_selection import METHODS, EigenPro, NystromCG
from unlazy.solvers.solve import SolveOptions, solve

N, D = 120, 5
KERNEL = Gaussian(2.0)


def data(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def broken(row, value):
    X, y = data()
    X[row, 2] = value
    return X, y


BAD = {
    "NaN in X": (*broken(7, np.nan), r"NaN or infinity in 1 rows, first in row 7.*impute"),
    "infinity in X": (*broken(3, np.inf), r"first in row 3"),
    "NaN in y": (data()[0], np.where(np.arange(N) == 5, np.nan, data()[1]), r"y has NaN.*row 5"),
    "no rows": (np.zeros((0, D)), np.zeros(0), r"empty, shape \(0, 5\)"),
    "no columns": (np.zeros((N, 0)), data()[1], r"empty, shape \(120, 0\)"),
    "one axis": (data()[1], data()[1], r"X\.reshape\(-1, 1\)"),
    "three axes": (np.zeros((4, 2, 2)), np.zeros(4), "two-dimensional"),
    "y too short": (data()[0], data()[1][:-1], r"one row for each of the 120 rows"),
    "y of three axes": (data()[0], np.zeros((N, 2, 2)), "one or two axes"),
    "strings": (np.full((N, D), "a"), data()[1], "real numbers"),
    "strings as labels": (data()[0], np.array(["cat", "dog"] * (N // 2)), "y must contain real numbers"),
    "complex": (data()[0] * 1j, data()[1], "real numbers"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_named_with_a_remedy(case):
    X, y, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        solve(KERNEL, X, y, 0.1)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"ridge": -1.0}, "zero or more, got -1.0"),
        ({"ridge": float("nan")}, "zero or more"),
        ({"method": "direkt"}, "did you mean 'direct'"),
        ({"tolerance": 0.0}, "between 0 and 1"),
        ({"options": SolveOptions(validation=(np.zeros((3, 2)), np.zeros(3)))}, "5 columns"),
        ({"options": SolveOptions(memory="1kB"), "method": "direct"}, "memory budget"),
    ],
)
def test_misuse_raises(keywords, message):
    X, y = data()
    with pytest.raises(ValueError, match=message):
        solve(KERNEL, X, y, **({"ridge": 0.1} | keywords))


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"max_steps": 0}, "max_steps must be a positive integer, got 0"),
        ({"precision": "float16"}, "'float32' or 'float64', got 'float16'"),
    ],
)
def test_misuse_of_options_raises(keywords, message):
    with pytest.raises(ValueError, match=message):
        SolveOptions(**keywords)


@pytest.mark.slow_cases("direct", "eigenpro", "askotch")
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m == "richardson" else []) for m in METHODS]
)
def test_one_point_duplicates_constants_and_a_zero_ridge_are_solved(method):
    y1 = solve(KERNEL, np.ones((1, 3)), np.array([2.0]), 1.0, method=method)
    assert y1.converged and float(y1.predict(np.ones((1, 3)))[0]) == pytest.approx(1.0, abs=2e-3)
    X, _ = data()
    X[:, 1] = 7.0  # a constant column
    X = np.concatenate([X[:40]] * 2)  # every point twice
    y = np.sin(X[:, 0])
    with_ridge = solve(KERNEL, X, y, 0.1, method=method)
    assert with_ridge.converged
    # a zero ridge on a singular K: jitter, in the notes; with consistent labels the fit interpolates
    if method == "richardson":
        # of first order: the smallest of 40 eigenvalues is out of its reach, and it reports that
        with pytest.warns(UnlazyWarning, match="max_steps"):
            zero = solve(KERNEL, X, y, 0.0, method=method, tolerance=1e-4, options=SolveOptions(max_steps=2000))
        assert not zero.converged and any("jitter" in note for note in zero.notes)
        return
    zero = solve(Laplace(2.0), X, y, 0.0, method=method, tolerance=1e-4)
    assert zero.converged
    assert any("jitter" in note for note in zero.notes) and zero.ridge > 0
    assert np.max(np.abs(np.asarray(zero.predict(X)) - y)) < 1e-2


def test_small_problems_are_solved_directly_in_float64():
    X, y = data()
    solution = solve(KERNEL, X, y, 0.1)
    assert solution.method == "direct" and "one factorization" in solution.why
    assert solution.coefficients.dtype == np.float64 and solution.residual < 1e-12
    assert "chosen because" in str(solution)


def test_the_choice_follows_size_and_memory(monkeypatch):
    from unlazy.solvers import method_selection
    from unlazy.solvers.problem import make_problem

    monkeypatch.setattr(method_selection, "FLOAT64_DIRECT_MAX_N", 100)
    X, y = data()

    def chosen(memory="1GiB", backend="cpu"):
        monkeypatch.setattr("jax.default_backend", lambda: backend)
        return method_selection.choose_method(make_problem(KERNEL, X, y, 0.1, memory), None)

    assert chosen()[0] == "preconditioned_cg" and "K fits" in chosen()[1]
    # a small budget does not change the problem: K is computed again, or the error says what would suffice
    assert chosen(memory=4 * N * N)[0] == "askotch" and "in every pass" in chosen(memory=4 * N * N)[1]
    with pytest.raises(ValueError, match=r"takes 0\.02\d* MiB: allow that with memory="):
        chosen(memory=10_000)
    monkeypatch.setattr(method_selection, "CPU_RECOMPUTE_MAX_N", 100)
    assert chosen(memory=4 * N * N)[0] == "nystrom_cg" and "too many points" in chosen(memory=4 * N * N)[1]
    assert chosen(memory=4 * N * N, backend="gpu")[0] == "askotch"  # a pass over K costs little there
    monkeypatch.setattr(method_selection, "FLOAT64_DIRECT_MAX_N", N)
    assert chosen()[0] == "direct"


def test_early_stopping_keeps_the_best_coefficients():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    y = np.sin(X[:, 0]) + 2.0 * rng.normal(size=100)  # mostly noise: fitting it hurts
    held_out = rng.normal(size=(500, 2))
    truth = np.sin(held_out[:, 0])
    errors = []
    # Richardson with hardly any ridge fits the signal first and the noise later
    stopped = solve(
        KERNEL,
        X,
        y,
        1e-6,
        method="richardson",
        tolerance=1e-8,
        options=SolveOptions(max_steps=3000, validation=(held_out, truth)),
        progress=lambda p: errors.append(p.validation_error),
    )
    assert stopped.stopped == "validation" and not stopped.converged
    assert stopped.steps < 3000 and len(errors) == stopped.steps
    now = float(np.mean((np.asarray(stopped.predict(held_out)) - truth) ** 2))
    # improvements under a thousandth do not count as such, so the best kept is within that of the smallest seen
    assert now == pytest.approx(min(errors), rel=2e-3)
    full = solve(KERNEL, X, y, 1e-6, method="direct", tolerance=1e-6)
    assert now < 0.5 * float(np.mean((np.asarray(full.predict(held_out)) - truth) ** 2))


@pytest.mark.slow
def test_progress_estimates_the_time_left():
    X, y = data()
    seen = []
    solve(KERNEL, X, y, 0.1, method="richardson", tolerance=1e-4, progress=seen.append)
    assert [p.step for p in seen] == list(range(1, len(seen) + 1))
    assert all(p.seconds_left >= 0 for p in seen)
    assert seen[-1].residual <= 1e-4 and seen[-1].seconds_left == 0


@pytest.mark.slow_cases("nystrom_cg", "eigenpro", "askotch")
@pytest.mark.parametrize(
    "method",
    ["preconditioned_cg", "nystrom_cg", "askotch", "eigenpro", pytest.param("richardson", marks=pytest.mark.slow)],
)
def test_an_interrupted_run_resumes(method, tmp_path):
    X, y = data()
    keywords, kept = {"method": method, "tolerance": 1e-7}, Checkpoint(tmp_path / "run.safetensors", every=0)
    if method == "nystrom_cg":  # the bound on its jitter takes up to 2e-7 of the error, whatever the steps
        keywords = {"method": NystromCG(centers=30), "tolerance": 1e-6}
    if method == "eigenpro":
        keywords["method"] = EigenPro(rank=20)
    whole = solve(KERNEL, X, y, 0.5, **keywords)
    keywords["options"] = SolveOptions(checkpoint=kept)
    cut = max(1, whole.steps // 2)
    with pytest.warns(UnlazyWarning):
        solve(KERNEL, X, y, 0.5, **keywords | {"options": SolveOptions(checkpoint=kept, max_steps=cut)})
    steps = []
    continued = solve(KERNEL, X, y, 0.5, progress=lambda p: steps.append(p.step), **keywords)
    assert steps[0] == cut + 1 and continued.converged
    # EigenPro's batches are drawn afresh; the others take the same steps as if never cut
    if method != "eigenpro":
        assert abs(continued.steps - whole.steps) <= 1
    a, b = np.asarray(continued.predict(X)), np.asarray(whole.predict(X))
    # both are within the tolerance of the solution
    assert np.linalg.norm(a - b) <= 2.01 * keywords["tolerance"] * np.linalg.norm(y)
    with pytest.raises(ValueError, match="another problem"):
        solve(KERNEL, X, y, 0.25, **keywords)


KILLED = """
import os, sys
import numpy as np
from unlazy.kernels.radial import Gaussian
from unlazy.solvers.checkpoint import Checkpoint
from unlazy.solvers.solve import SolveOptions
from unlazy.solvers.solve import solve
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)); y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=120)
def kill(p):
    if p.step == 40:
        os._exit(9)
solve(Gaussian(2.0), X, y, 0.5, method="richardson", tolerance=1e-6, progress=kill,
      options=SolveOptions(checkpoint=Checkpoint(sys.argv[1], every=0)))
"""


@pytest.mark.slow
def test_a_killed_process_loses_at_most_one_step(tmp_path):
    path = tmp_path / "run.safetensors"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], capture_output=True, timeout=300)
    assert done.returncode == 9, done.stderr.decode()
    X, y = data()
    steps = []
    solution = solve(
        KERNEL,
        X,
        y,
        0.5,
        method="richardson",
        tolerance=1e-6,
        options=SolveOptions(checkpoint=path),
        progress=lambda p: steps.append(p.step),
    )
    assert steps[0] == 40 and solution.converged  # killed in step 40, before it was kept


def test_a_file_that_is_not_a_checkpoint_is_rejected(tmp_path):
    path = Path(tmp_path / "notes.txt")
    path.write_text("hello")
    with pytest.raises(ValueError, match="not a solver checkpoint"):
        solve(KERNEL, *data(), 0.5, method="richardson", options=SolveOptions(checkpoint=path))
