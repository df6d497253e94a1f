"""The index of experiments says what their files say."""

import sys
from dataclasses import replace
from pathlib import Path

import lab_toys
import pytest

from unlazy.lab import all_experiments
from unlazy.lab.experiments import INDEX, describe, index_text, read_index

TOOL = "tools/write_experiment_index.py"


def test_the_index_agrees_with_the_files():
    """Compared as text: a changed word, value, order or file shows."""
    stale = INDEX.read_text(encoding="utf-8") != index_text(all_experiments())
    assert not stale, f"{INDEX} differs from the experiments; rewrite it: python {TOOL}"
    assert (Path(__file__).resolve().parents[2] / TOOL).exists()


def test_the_index_is_read_as_it_was_written():
    read = read_index()
    assert len(read) > 40
    assert read == [describe(e) for e in all_experiments()]


def test_a_description_has_points_seeds_and_values():
    described = describe(replace(lab_toys.means, protocol="one\n  two"))
    assert described.protocol == "one two" and described.quick.seeds == 6 and described.quick.points == 8
    assert {"n = 5, 7, 9, 16", "scale = 2.0"} <= set(described.quick.parameters)


@pytest.mark.parametrize("change", ["added", "removed"])
def test_an_index_of_other_files_is_not_used(monkeypatch, tmp_path, change):
    kept = all_experiments()
    own = [*kept, lab_toys.plain] if change == "removed" else kept[1:]
    monkeypatch.setattr(sys.modules["unlazy.lab.experiments"], "INDEX", tmp_path / "index.json")
    (tmp_path / "index.json").write_text(index_text(own), encoding="utf-8")
    assert read_index() == []
