"""benchmarks/compare_stores.py: trials matched by parameters and seed, the largest difference, claims on both sides."""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from unlazy.lab.runner.store import Store
from unlazy.lab.runner.sweep import Environment, Outcome, Trial

ROOT = Path(__file__).parents[1]
HERE = Environment("0", "0", "3", "cpu", "")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "tests" / "lab")
    spec = importlib.util.spec_from_file_location("compare_stores", ROOT / "benchmarks" / "compare_stores.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_differences_are_relative_to_the_largest_entry(script):
    assert script.difference([1.0, 100.0], [2.0, 100.0]) == 0.01
    assert script.difference([np.nan, 1], [np.nan, 1]) == script.difference("a", "a") == script.difference(0, 0.0) == 0
    for a, b in (([np.nan, 1], [1, 1]), ([1], [1, 1]), ("a", "b"), ([np.inf], [-np.inf])):
        assert script.difference(a, b) == math.inf


def test_differences_are_found(script, tmp_path, monkeypatch, capsys):
    import lab_toys

    for name, off in (("before", 0.0), ("after", 0.5)):
        with Store(tmp_path / name) as store:
            for n in (1, 2):
                extra = {"old" if name == "before" else "new": np.ones(2)}
                measured = [Trial(s, {"value": 1.0 + off * (n == 2 and s == 3), **extra}, 0.1) for s in range(4)]
                store.add(lab_toys.plain, Outcome({"n": n, "pause": 0.0}, tuple(measured), HERE, 0, ""))
    monkeypatch.setattr(sys, "argv", ["x", str(tmp_path / "before"), str(tmp_path / "after"), "--rename", "old=new"])
    script.main()
    line, where, held, last = capsys.readouterr().out.splitlines()[1:]
    assert line.split() == ["lab_toys:toy_plain", "8", "0", "16", "15", "0.33"]
    assert where.startswith("    0.33 value: [1.] → [1.5], seed 3 of") and '"n":2' in where
    assert held == "lab_toys:toy_plain: 1 claims, 1 hold, 1 equal to the bit"
    assert last == "0 claims changed their verdict"
