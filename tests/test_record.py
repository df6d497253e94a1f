"""Benchmarks keep their figures by one helper; versions that are written twice agree."""

import csv
import datetime
import importlib.util
import re
from pathlib import Path

import pytest

from unlazy._version import VERSION

ROOT = Path(__file__).parents[1]
PARTS = (
    "record",
    "watch_jax",
    "watch_torch",
    "watch_settings",
    "scaling_cases",
    "scaling_models",
    "attribution_settings",
)
"""Modules that benchmarks import."""
BENCHMARKS = sorted(p for p in (ROOT / "benchmarks").glob("*.py") if p.stem not in PARTS)


@pytest.fixture
def record():
    spec = importlib.util.spec_from_file_location("record", ROOT / "benchmarks" / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lines(file):
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.reader(lines))


def test_a_recorded_figure_is_one_line(record, tmp_path):
    file = tmp_path / "record.csv"
    record.recorder("some/race.py", False, file)("left alone", 1.0, "s")
    assert not file.exists()
    note = record.recorder("some/race.py", True, file)
    note("one, with a comma", 1.23456, "CPU-s")
    note("two", 2, "ratio")
    head, one, two = _lines(file)
    assert head == list(record.COLUMNS)
    assert one[3:] == ["race", "one, with a comma", "1.235", "CPU-s"] and two[4:] == ["two", "2", "ratio"]


def test_stored_trials_can_be_read(record):
    head, *lines = _lines(record.FILE)
    assert head == list(record.COLUMNS) and lines
    for line in lines:
        date, commit, machine, benchmark, what, figure, unit = line
        datetime.date.fromisoformat(date)
        assert re.fullmatch(r"[0-9a-f]{7,}\+?|unknown", commit) and machine and what and unit
        assert float(figure) == float(figure)  # no NaN
        assert benchmark in {p.stem for p in BENCHMARKS}


@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda p: p.stem)
def test_every_benchmark_records(script):
    text = script.read_text(encoding="utf-8")
    assert "add_option(parser)" in text and "recorder(__file__" in text and "--record" in text


def test_the_citation_has_this_version():
    assert f"version: {VERSION}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
