"""Engines: the same records with any number of workers; one thread per worker; workers exit with their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lab_toys
import pytest

from unlazy import lab
from unlazy.core.errors import UnlazyError
from unlazy.lab.experiment import config
from unlazy.lab.runner.engines import Local, _Queue
from unlazy.lab.runner.run import _interruptible
from unlazy.lab.runner.sweep import plan


@pytest.fixture(scope="module")
def one_worker():
    return lab.run(lab_toys.means, engine="local", n_jobs=1, store=None, progress=False)


@pytest.mark.slow
def test_two_workers_give_the_records_of_one(one_worker):
    two = lab.run("lab_toys:means", engine="local", n_jobs=2, store=None, progress=False)
    assert len(two) == 48 and lab_toys.same(one_worker, two)


@pytest.mark.slow
def test_a_dask_cluster_gives_the_records_of_one_worker(one_worker):
    assert lab_toys.same(one_worker, lab.run("lab_toys:means", engine="dask", n_jobs=2, store=None, progress=False))


@pytest.mark.slow
def test_a_dask_scheduler_at_an_address(one_worker):
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        address = cluster.scheduler_address
        records = lab.run(lab_toys.means, engine="dask", address=address, store=None, progress=False)
    assert lab_toys.same(one_worker, records)


@pytest.mark.slow
def test_workers_are_processes_with_one_thread(tmp_path, monkeypatch):
    """Also for one job; and an experiment defined on the spot reaches them."""
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)  # of `make slow`

    def trial(params, key):
        names = [thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm")]
        pool = sum(name.startswith("tf_XLAEigen") for name in names)  # two of these can deadlock in batched LAPACK
        return lab_toys.plain_trial(params, key) | {"pool": pool}

    here = lab_toys.make("toy_here", trial, config({"n": [1]}, seeds=2, pause=0.0), vectorized=False)
    records = lab.run(here, engine="local", n_jobs=1, store=None, progress=False)
    assert records.measure("threads").tolist() == [1, 1]
    assert records.measure("pool").max() <= 1
    assert str(os.getpid()) not in (tmp_path / "log").read_text().split()


def test_a_worker_keeps_its_group_until_it_is_done():
    chunks = plan(lab_toys.means, lab_toys.means.quick.points(), 6, set())
    queue = _Queue(chunks)
    first, second = queue.take(""), queue.take("")
    assert first.group != second.group  # two idle workers: two groups
    for _ in range(3):  # a group has 2 points × 2 blocks
        queue.release(first.group)
        assert queue.take(first.group).group == first.group
    assert queue.take(first.group).group not in (first.group, second.group)


@pytest.mark.slow
def test_a_dead_worker_gives_a_one_line_error_and_loses_nothing(tmp_path):
    def trial(params, key):
        if params["n"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": 1.0}

    mortal = lab_toys.make("toy_mortal", trial, config({"n": [1, 2, 3]}, seeds=1), vectorized=False)
    with pytest.raises(UnlazyError, match="a worker process died"):
        lab.run(mortal, engine="local", n_jobs=1, store=tmp_path, progress=False)
    assert [r.params["n"] for r in lab.load(mortal, store=tmp_path)] == [1, 2]


@pytest.mark.slow
def test_abandoned_calls_are_stopped_and_the_engine_continues(tmp_path, capfd):
    """An endless call is stopped when the other is done: its process ends silently, and the next call runs."""
    mark = str(tmp_path / "pid")

    def endless():
        Path(mark + ".part").write_text(str(os.getpid()))
        os.rename(mark + ".part", mark)
        time.sleep(3600)

    def seen():
        while not os.path.exists(mark):
            time.sleep(0.01)
        return "seen"

    engine = Local(2)
    try:
        assert engine.attempt([endless, seen], [1], None) == [None, "seen"]
        with pytest.raises(ProcessLookupError):
            os.kill(int(Path(mark).read_text()), 0)
        assert engine.attempt([endless], [0], time.monotonic()) == [None]  # no time: not begun
        late = time.monotonic() + 0.05  # the last of those that must be is waited for, whatever the time
        assert engine.attempt([endless, lambda: time.sleep(0.5) or 2], [0], late, [0, 1]) == [None, 2]
        assert engine.attempt([lambda: 1, lambda: 2, lambda: 3], [0, 1, 2], None) == [1, 2, 3]
        chunks = plan(lab_toys.means, lab_toys.means.quick.points(), 6, set())
        engine.until = time.monotonic()
        assert list(engine.outcomes(chunks)) == []
        engine.until = time.monotonic() + 0.02  # submitted, and given up at once
        list(engine.outcomes(chunks))
    finally:
        engine.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine": "dusk"}, "no engine 'dusk'; did you mean 'dask'"),
        ({"n_jobs": 0}, "n_jobs must be a positive integer, got 0"),
        ({"address": "tcp://nowhere:1"}, "an address requires the dask engine"),
    ],
)
def test_invalid_engines_are_rejected(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        lab.run(lab_toys.plain, store=None, progress=False, **options)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _start_many(tmp_path, pause: str = "0.2") -> subprocess.Popen:
    """`unlazy run` on two workers, returned once it has finished its first trials."""
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    environment = os.environ | {"TOY_LOG": str(log), "PYTHONPATH": lab_toys.HERE}
    command = ["run", "lab_toys:many", "--set", f"pause={pause}", "--n-jobs", "2", "--store", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "unlazy.cli", *command], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not log.exists() or len(log.read_text().splitlines()) < 4:
        assert process.poll() is None
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_workers_exit_with_a_killed_parent(tmp_path):
    process = _start_many(tmp_path)
    workers = {int(pid) for pid in (tmp_path / "log").read_text().split()}
    process.kill()
    process.communicate()
    for _ in range(300):
        if all(map(_gone, workers)):
            break
        time.sleep(0.1)
    assert all(map(_gone, workers))
    assert len(lab.load(lab_toys.many, change={"pause": 0.2}, store=tmp_path)) >= 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_inside_a_finalizer_is_not_lost():
    class Finalised:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), _interruptible() as check:
        Finalised()  # Python prints what is raised here and continues
        check()


@pytest.mark.slow
def test_interrupt_says_how_to_resume(tmp_path):
    process = _start_many(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    stored = len(lab.load(lab_toys.many, change={"pause": 0.2}, store=tmp_path))
    assert last.startswith(f"unlazy: interrupted: {stored} of 400 trials of toy_many are stored in")
    assert last.endswith("run the same command again to resume")
