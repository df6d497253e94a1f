"""A killed comparison resumes; dask workers give the same records."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from unlazy import lab
from unlazy.comparison.data.table import make_table
from unlazy.comparison.study import study
from unlazy.comparison.study.study import run_study
from unlazy.lab.runner.engines import opened_engine

pytestmark = pytest.mark.slow
FEW = ("linear", "gaussian", "feature_machine")


def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    return make_table(X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=300))


def records(path):
    """What the store holds: (parameters, seed) → measures and time."""
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            return {row[:2]: row[2:] for row in db.execute("SELECT params, seed, measures, finished FROM trial")}
    except sqlite3.Error:
        return {}


@pytest.mark.nightly
def test_a_killed_comparison_resumes(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from test_comparison_kill import FEW, lab, run_study, study, table\n"
        "if __name__ == '__main__':\n"
        "    study.MAX_SPLITS = 3\n"
        "    run_study(table(), budget=3600, store=sys.argv[1], candidates=FEW, engine=lab.open_engine('local', 1))\n"
    )
    script = tmp_path / "run.py"
    script.write_text(code)
    here = os.path.dirname(__file__)
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), here], stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            if len(records(tmp_path / "trials.sqlite")) >= 3:
                break
            time.sleep(0.1)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    stored = records(tmp_path / "trials.sqlite")
    assert len(stored) >= 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MAX_SPLITS", 3)
        with opened_engine("local", 1) as engine:
            found = run_study(table(), budget=3600, store=tmp_path, candidates=FEW, engine=engine)
    assert found.splits == 3 and len(found.records) == len(FEW) * len(found.sizes) * 3
    after = records(tmp_path / "trials.sqlite")
    assert {key: after[key] for key in stored} == stored  # time stamps too: nothing was run again


@pytest.mark.nightly
def test_dask_workers_give_the_same(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "MAX_SPLITS", 3)
        options = {"candidates": FEW, "budget": 3600}
        local = run_study(table(), store=tmp_path / "local", engine=lab.open_engine("inline"), **options)
        with opened_engine("dask", 1) as engine:
            dask = run_study(table(), store=tmp_path / "dask", engine=engine, **options)
    for n in set(local.sizes) & set(dask.sizes):
        for name in ("linear", "gaussian"):
            a, b = (s.records.where(n=n, candidate=name).measure("risk")[:3] for s in (local, dask))
            np.testing.assert_allclose(a, b, rtol=1e-9)
