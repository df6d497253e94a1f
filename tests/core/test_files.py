"""Atomic writes: after any failure the file is the old one or the new one."""

import os
import stat

import numpy as np
import pytest

from unlazy.core.files import atomic_write


def test_a_failure_keeps_the_old_file(tmp_path):
    path = tmp_path / "kept.txt"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as aside:
        aside.write_text("half of it")
        raise KeyboardInterrupt
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError), atomic_write(tmp_path / "no folder" / "file") as aside:
        aside.write_text("nowhere")


def test_new_files_have_the_usual_permissions(tmp_path):
    """Same permissions as a file that is simply opened; the suffix is kept, which np.savez would otherwise add."""
    plain, path = tmp_path / "plain", tmp_path / "table.npz"
    plain.write_text("")
    with atomic_write(path) as aside:
        assert not path.exists() and aside.parent == tmp_path
        np.savez(aside, x=np.arange(3))
    assert {p.name for p in tmp_path.iterdir()} == {"plain", "table.npz"}
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    with np.load(path) as file:
        np.testing.assert_array_equal(file["x"], np.arange(3))


def test_links_are_followed_and_devices_stay(tmp_path):
    there, link = tmp_path / "there.txt", tmp_path / "link.txt"
    there.write_text("old")
    link.symlink_to(there)
    with atomic_write(link) as aside:
        aside.write_text("new")
    assert link.is_symlink() and there.read_text() == "new"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with atomic_write(pipe) as aside:
        assert aside == pipe
