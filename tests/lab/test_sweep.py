"""Sweeps: a seed gives the same results in any run; a grid compiles once."""

import jax
import lab_toys
import numpy as np
import pytest

from unlazy import lab
from unlazy.core.errors import UnlazyWarning
from unlazy.lab.experiment import config
from unlazy.lab.runner.sweep import plan
from unlazy.lab.runner.worker import trial_key


def run(experiment, **options):
    return lab.run(experiment, **({"engine": "inline", "store": None, "progress": False} | options))


@pytest.fixture(scope="module")
def reference():
    return run(lab_toys.means)


def test_records_are_in_the_order_of_the_grid(reference):
    asked = [(p, s) for p in lab_toys.means.quick.points() for s in range(6)]
    assert [(r.params, r.seed) for r in reference] == asked


def test_a_grid_compiles_once_per_method_and_padded_size():
    lab_toys.traces.clear()
    run(lab_toys.means, change={"n": [5, 6, 7, 8, 9, 12, 16], "scale": [1.0, 2.0, 3.0]})
    # 7 n × 3 scales × 2 methods × 2 blocks of seeds = 84 calls, 2 padded sizes × 2 methods = 4 functions
    assert sorted(lab_toys.traces) == [("absolute", 8), ("absolute", 16), ("mean", 8), ("mean", 16)]


def test_points_share_their_randomness(reference):
    """The key is a function of the seed alone: at one padded size every point sees the same draws."""
    for r in reference.where(n=7):
        twin = reference.where(n=5, method=r.params["method"])[r.seed]
        np.testing.assert_array_equal(r.measures["first"], twin.measures["first"])
    firsts = reference.where(n=5, method="mean").measure("first")
    assert len(np.unique(firsts[:, 0])) == 6


def test_padded_mean_is_the_mean_of_the_first_n(reference):
    """NumPy on the same draws; a sum of 16 numbers of size one rounds by less than 16 units, 4e-15."""
    with jax.enable_x64(True):
        draws = np.array([jax.random.normal(trial_key(lab_toys.means, s), (16,)) for s in range(6)])
    found = reference.where(n=9, method="mean").measure("value")
    np.testing.assert_allclose(found, 2.0 * draws[:, :9].mean(axis=1), rtol=0, atol=4e-15)


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_seeds(tmp_path, reference):
    for seeds in (1, 5, 6):
        records = run(lab_toys.means, seeds=seeds, store=tmp_path)
        assert len(records) == 8 * seeds
    assert lab_toys.same(records, reference)


def test_stored_trials_are_not_run_again(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("TOY_LOG", str(log))
    first = run(lab_toys.plain, seeds=2, store=tmp_path)
    run(lab_toys.plain, seeds=4, store=tmp_path)
    assert len(log.read_text().splitlines()) == 3 * 4
    assert lab_toys.same(run(lab_toys.plain, seeds=2, store=tmp_path), first)
    assert len(log.read_text().splitlines()) == 3 * 4


def test_a_failed_trial_is_recorded_and_retried(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "1")
    with pytest.warns(UnlazyWarning, match="4 trials of toy_plain failed .*RuntimeError: this one fails"):
        records = run(lab_toys.plain, store=tmp_path)
    assert records.values("n") == [1, 3] and len(records) == 8
    assert {(f.params["n"], f.seed) for f in records.failed} == {(2, s) for s in range(4)}
    assert "plain_trial" in records.failed[0].traceback
    monkeypatch.delenv("TOY_FAILS")
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    mended = run(lab_toys.plain, store=tmp_path)
    assert lab_toys.same(mended, run(lab_toys.plain)) and not mended.failed
    assert len((tmp_path / "log").read_text().splitlines()) == 4 + 12


def test_a_vectorized_chunk_that_raises_fails_all_its_trials():
    with pytest.warns(UnlazyWarning, match="never works"):
        records = run(lab_toys.broken)
    assert len(records) == 0 and [f.seed for f in records.failed] == [0, 1, 2]


def test_a_new_version_ignores_old_records(tmp_path):
    from dataclasses import replace

    run(lab_toys.plain, store=tmp_path)
    assert len(plan(replace(lab_toys.plain, version=2), [{"n": 1, "pause": 0.0}], 1, set())) == 1
    with lab.Store(tmp_path) as store:
        assert store.finished(replace(lab_toys.plain, version=2)) == set()
        assert len(store.finished(lab_toys.plain)) == 12


def test_a_user_defined_config():
    own = config({"n": [4, 5]}, seeds=1, pause=0.0)
    assert [r.params["n"] for r in run(lab_toys.plain, config=own)] == [4, 5]


def test_measures_that_cannot_be_stored_fail_the_trial():
    from dataclasses import replace

    odd = replace(lab_toys.plain, trial=lambda params, key: {"z": 1j})
    with pytest.warns(UnlazyWarning, match="measure 'z' must be real numbers"):
        assert not len(run(odd, seeds=1))
    with pytest.warns(UnlazyWarning, match="must return a dict"):
        assert not len(run(replace(lab_toys.plain, trial=lambda params, key: [1.0]), seeds=1))


@pytest.mark.parametrize("name", ["n", "pause", "seed", "seconds"])
@pytest.mark.parametrize("vectorized", [False, True])
def test_a_measure_cannot_have_the_name_of_another_column(name, vectorized):
    from dataclasses import replace

    odd = replace(lab_toys.plain, trial=lambda params, key: {name: 1.0}, vectorized=vectorized)
    with pytest.warns(UnlazyWarning, match=f"the measure '{name}' has the name of a (parameter|column)"):
        assert not len(run(odd, seeds=1))
