"""Every script in examples/ runs to the end and prints something."""

import re
import runpy
from pathlib import Path

import pytest

import unlazy

SCRIPTS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.nightly  # `make docs` runs them too, and stops at an error
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs(script, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_examples_exist():
    assert SCRIPTS


def test_the_gallery_visits_every_subpackage():
    names = re.findall(r"\bunlazy\.(\w+)|from unlazy import ([\w, ]+)", "\n".join(s.read_text() for s in SCRIPTS))
    used = {name for one, several in names for name in (one, *several.split(", "))}
    rooms = {unlazy._WHERE[name].partition(".")[0] if name in unlazy._WHERE else name for name in used}
    assert set(unlazy._SUBPACKAGES) <= rooms, sorted(set(unlazy._SUBPACKAGES) - rooms)
