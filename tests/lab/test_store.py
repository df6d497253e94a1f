"""The store: exact round trips, no overwriting, error messages for damaged files and folders."""

import math
import os
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import lab_toys
import numpy as np
import pytest

from unlazy import lab
from unlazy.core.errors import UnlazyError
from unlazy.lab.experiment import config
from unlazy.lab.runner.serialization import canonical_json, normalize_measures, pack, unpack
from unlazy.lab.runner.store import FILE, SCHEMA, Store
from unlazy.lab.runner.sweep import Environment, Outcome, Trial

POINT = {"n": 1, "pause": 0.0}


def outcome(*trials: Trial) -> Outcome:
    return Outcome(POINT, trials, Environment("0", "0", "3", "cpu", "abc"), 1, "group")


def stored(store: Store):
    return store.records(lab_toys.plain, [POINT], 10)


@pytest.fixture
def filled(tmp_path) -> Path:
    with Store(tmp_path) as store:
        store.add(lab_toys.plain, outcome(Trial(0, {"value": 0.1}, 1.0), Trial(1, {"value": 0.2}, 1.0)))
    return tmp_path


@pytest.mark.parametrize("number", [0.1, -0.0, 5e-324, 1.7976931348623157e308, math.pi, math.inf, -math.inf, math.nan])
def test_numbers_round_trip_bit_for_bit(number):
    assert np.float64(unpack(*pack(normalize_measures({"x": number})))["x"]).tobytes() == np.float64(number).tobytes()


@pytest.mark.parametrize("kind", ["float32", "float64", "int32", "int64", "uint8", "bool"])
def test_arrays_keep_their_type(kind):
    array = np.arange(12).reshape(3, 4).astype(kind)[:, ::2]  # not contiguous
    back = unpack(*pack(normalize_measures({"a": array, "empty": array[:0]})))
    assert back["a"].dtype == array.dtype and back["empty"].shape == (0, 2)
    np.testing.assert_array_equal(back["a"], array)


def test_canonical_json_is_unique():
    assert canonical_json({"b": np.float64(0.1), "a": (1, 2)}) == canonical_json({"a": [np.int32(1), 2], "b": 0.1})
    assert canonical_json({"a": 1}) != canonical_json({"a": 1.0})
    with pytest.raises(ValueError, match="must be numbers, strings, or lists"):
        canonical_json({"a": object()})


def test_a_finished_trial_is_never_overwritten(tmp_path):
    with Store(tmp_path) as store:
        store.add(lab_toys.plain, outcome(Trial(0, {"value": 1.0}, 1.0), Trial(1, None, math.nan, "Traceback")))
        store.add(lab_toys.plain, outcome(Trial(0, {"value": 2.0}, 1.0), Trial(1, {"value": 3.0}, 1.0)))
        store.add(lab_toys.plain, outcome(Trial(1, None, math.nan, "Traceback")))
        assert stored(store).measure("value").tolist() == [1.0, 3.0] and not stored(store).failed
        assert [e.git_commit for e in store.environments(lab_toys.plain)] == ["abc"]


def test_the_file_carries_versions_device_and_commit(tmp_path):
    lab.run(lab_toys.plain, seeds=1, store=tmp_path, engine="inline", progress=False)
    with Store(tmp_path) as store:
        (place,) = store.environments(lab_toys.plain)
    import jax

    import unlazy

    assert (place.unlazy, place.jax) == (unlazy.__version__, jax.__version__)
    assert place.device.startswith(jax.devices()[0].platform)


def test_two_processes_may_open_the_store(filled):
    with Store(filled) as one, Store(filled) as two:
        one.add(lab_toys.plain, outcome(Trial(2, {"value": 0.3}, 1.0)))
        two.add(lab_toys.plain, outcome(Trial(2, {"value": 0.4}, 1.0), Trial(3, {"value": 0.5}, 1.0)))
        assert stored(one).measure("value").tolist() == [0.1, 0.2, 0.3, 0.5]


def test_a_newer_store_is_not_modified(filled):
    with sqlite3.connect(filled / FILE) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = (filled / FILE).read_bytes()
    with pytest.raises(UnlazyError, match=f"written by a newer version of unlazy \\(format {SCHEMA + 1}"):
        Store(filled)
    assert (filled / FILE).read_bytes() == before


def test_unrelated_files_are_not_modified(tmp_path):
    (tmp_path / FILE).write_bytes(b"certainly not a database" * 100)
    with pytest.raises(UnlazyError, match="not a database"):
        Store(tmp_path)
    assert (tmp_path / FILE).read_bytes() == b"certainly not a database" * 100
    (tmp_path / FILE).unlink()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("CREATE TABLE somebody (x)")
    db.close()
    with pytest.raises(UnlazyError, match="is not an unlazy store"):
        Store(tmp_path)


def test_a_damaged_file_gives_a_one_line_error(filled):
    content = bytearray((filled / FILE).read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    (filled / FILE).write_bytes(content)
    with pytest.raises(UnlazyError, match=r"cannot read the store .*malformed"), Store(filled) as store:
        stored(store)


def test_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnlazyError, match=r"cannot open the store .*Not a directory"):
        Store(tmp_path / "file" / "results")
    with pytest.raises(UnlazyError, match=r"cannot open the store .*exists"):
        Store(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UnlazyError, match="cannot open the store"):
        Store(tmp_path)


def test_a_read_only_file_is_unchanged(filled):
    with Store(filled) as store:
        store._db.execute("PRAGMA query_only = ON")  # what a read-only disk answers, also to root
        with pytest.raises(UnlazyError, match=r"cannot write to the store .*readonly.*stored trials are safe"):
            store.add(lab_toys.plain, outcome(Trial(2, {"value": 0.3}, 1.0)))
        assert stored(store).measure("value").tolist() == [0.1, 0.2]


def test_a_full_disk_keeps_the_old_file(filled):
    big = np.random.default_rng(0).normal(size=100_000)
    with Store(filled) as store:
        store._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(UnlazyError, match=r"cannot write to the store .*full.*stored trials are safe"):
            store.add(lab_toys.plain, outcome(Trial(2, {"value": 0.3}, 1.0), Trial(3, {"value": 0.4, "a": big}, 1.0)))
        assert stored(store).measure("value").tolist() == [0.1, 0.2]  # the chunk is stored whole or not at all
    with Store(filled) as store:
        store.add(lab_toys.plain, outcome(Trial(2, {"value": 0.3}, 1.0)))
        assert len(stored(store)) == 3


def test_reading_a_missing_store(tmp_path):
    with pytest.raises(UnlazyError, match="nothing is stored"):
        lab.load(lab_toys.plain, store=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def sealed():
    """A folder, and a function that makes it and what lies in it read-only, also for root."""
    folder = Path(tempfile.mkdtemp())
    user = os.geteuid()

    def seal():
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        if user == 0:
            os.seteuid(65534)  # to root nothing is read-only

    yield folder, seal
    if user == 0:
        os.seteuid(0)
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions")
@pytest.mark.parametrize("log", [False, True])
def test_a_store_in_a_read_only_folder_is_read(sealed, log):
    """Also with trials that are still in SQLite's log, as a killed writer leaves them."""
    folder, seal = sealed
    with Store(folder) as store:
        store.add(lab_toys.plain, outcome(Trial(0, {"value": 1.0}, 0.1)))
        kept = {p.name: p.read_bytes() for p in folder.iterdir()}
    if log:
        for name, content in kept.items():
            if not name.endswith("-shm"):
                (folder / name).write_bytes(content)
        assert (folder / f"{FILE}-wal").stat().st_size > 0
    seal()
    with Store(folder, create=False) as store:
        assert len(stored(store)) == 1
        assert store.identities() == ["lab_toys:toy_plain"]
    with pytest.raises(UnlazyError, match=r"cannot (open|write to) the store"), Store(folder) as store:
        store.add(lab_toys.plain, outcome(Trial(1, {"value": 1.0}, 0.1)))


def test_a_name_outside_the_folder_is_rejected():
    for name in ("../../evil", "a/b", "", ".hidden", "C:\\evil", "two words", "x" * 101, "new\nline"):
        with pytest.raises(ValueError, match="is used for file names"):
            replace(lab_toys.plain, name=name)


def test_a_parameter_named_seed_is_rejected():
    with pytest.raises(ValueError, match="cannot be named 'seed'"):
        replace(lab_toys.plain, quick=config({"seed": [1]}, seeds=1))
