"""A sweep that is killed with SIGKILL at random times and resumed gives the same records as an undisturbed run."""

import multiprocessing
import random
import sqlite3
import time
from pathlib import Path

import lab_toys
import pytest

from unlazy import lab
from unlazy.lab.runner.store import FILE

KILLS = 20


def _lines(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def _stored(store: Path) -> int:
    """Opens the file as any program would, checks it whole, counts."""
    if not (store / FILE).exists():
        return 0
    with sqlite3.connect(store / FILE) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'trial'").fetchone()[0]
        return db.execute("SELECT count(*) FROM trial WHERE status = 'done'").fetchone()[0] if tables else 0


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setenv("TOY_LOG", str(log))
    monkeypatch.setenv("TOY_LIMIT", "18")  # 20 lives of 18 trials are fewer than 400, however slow this test is to kill
    monkeypatch.setenv("PYTHONPATH", lab_toys.HERE)
    context = multiprocessing.get_context("forkserver")  # its server has imported JAX but not started it
    context.set_forkserver_preload(["unlazy.lab.runner.worker", "unlazy.lab.runner.run", "lab_toys"])
    moments = random.Random(0)
    stored = killed = 0
    while killed < KILLS:
        before = _lines(log)
        process = context.Process(target=lab_toys.run_many, args=(tmp_path,))
        process.start()
        while killed % 4 and _lines(log) == before and process.is_alive():  # one in four dies while starting up
            time.sleep(0.002)
        process.join(moments.uniform(0.0, 0.12))
        assert process.is_alive()
        process.kill()
        process.join()
        killed += 1
        now = _stored(tmp_path)
        assert now >= stored + (_lines(log) - before) - 1  # at most the one trial in flight is lost
        stored = now
    assert 0 < stored < lab_toys.many.quick.size

    monkeypatch.delenv("TOY_LIMIT")
    resumed = lab.run(lab_toys.many, store=tmp_path, engine="inline", progress=False)
    assert _lines(log) <= lab_toys.many.quick.size + KILLS  # nothing stored was run again
    monkeypatch.delenv("TOY_LOG")
    undisturbed = lab.run(lab_toys.many, store=None, engine="inline", progress=False)
    assert len(undisturbed) == lab_toys.many.quick.size == 400
    assert lab_toys.same(resumed, undisturbed)
