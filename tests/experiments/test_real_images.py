"""real_images: files of both kinds, claims that can fail, the quick sweep."""

import struct

import numpy as np
import pytest

from unlazy.core.errors import UnlazyError
from unlazy.lab import run
from unlazy.lab.experiment import Record, Records
from unlazy.lab.experiments import real_images as ri
from unlazy.lab.runner.settings import resolve_config


def made_up(after=0.95, p=0.001, lazy=0.1):
    rows = []
    for sigma, value in ((ri.SMALL, after), (ri.LARGE, lazy)):
        rows.append(Record({"sigma": sigma, "file": None}, 0, {
            "before": 0.09, "after": value, "p_value": p, "accuracy": 0.99, "points": np.ones((2, 8, 2)),
        }))  # fmt: skip
    return Records(rows)


def test_images_from_npz_and_from_a_folder_of_idx(tmp_path):
    pixels = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)
    labels = np.array([0, 1, 2, 0, 1, 5], np.uint8)
    for names in (("x_train", "y_train"), ("X_train", "y_train")):
        path = tmp_path / f"{names[0]}.npz"
        np.savez(path, **dict(zip(names, (pixels, labels))))
        found = ri.images(str(path))
        assert found.X.shape == (4, 4)
        np.testing.assert_array_equal(found.y, [-1, 1, -1, 1])
    folder = tmp_path / "idx"
    folder.mkdir()
    with pytest.raises(UnlazyError, match="no train"):
        ri.images(str(folder))
    for name, array in (("train-images-idx3-ubyte", pixels), ("train-labels-idx1-ubyte", labels)):
        header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (folder / name).write_bytes(header + array.tobytes())
    np.testing.assert_array_equal(ri.images(str(folder)).y, [-1, 1, -1, 1])


def test_the_file_parameter_can_be_changed():
    assert resolve_config(ri.experiment, change={"file": ["some/where.npz"]}).points()[0]["file"] == "some/where.npz"


def test_claims_hold_and_fail():
    assert {c.verdict for c in ri.claims(made_up())} == {"holds"}
    failed = [c.statement for c in ri.claims(made_up(0.5, 0.2, 0.7)) if c.verdict == "does not hold"]
    assert len(failed) == 3
    assert len(ri.figure(made_up()).axes) == 4


def test_quick_holds():
    records = run(ri.experiment, engine="inline", store=None, progress=False)
    assert {c.verdict for c in ri.claims(records)} == {"holds"}
