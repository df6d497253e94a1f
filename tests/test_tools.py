"""The checks of the lint step fail where they should."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def tool(monkeypatch):
    def load(name):
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    monkeypatch.setattr(sys, "path", [str(TOOLS), *sys.path])
    return load


@pytest.mark.parametrize("planted", ["# this runs on a card", "def admit_points(): ...", '"""The Front Door."""'])
def test_a_planted_retired_word_is_found(tool, tmp_path, capsys, planted):
    file = tmp_path / "planted.py"
    file.write_text(f"x = 1\n{planted}\n")
    assert tool("check_glossary").main([str(file)]) == 1
    assert ":2: " in capsys.readouterr().out


def test_words_that_only_contain_a_retired_one_pass(tool, tmp_path):
    file = tmp_path / "fine.py"
    file.write_text("mushrooms = discard(endeared, doorstep)  # Cardano\n")
    assert tool("check_glossary").main([str(file)]) == 0


def test_only_names_of_tests_are_read(tool, tmp_path):
    folder = tmp_path / "tests"
    folder.mkdir()
    file = folder / "test_x.py"
    file.write_text('def test_centers():\n    assert "centre"\n')
    assert tool("check_glossary").main([str(file)]) == 0
    file.write_text("def test_centre(): ...\n")
    assert tool("check_glossary").main([str(file)]) == 1


def test_the_glossary_has_words_to_retire(tool):
    check = tool("check_glossary")
    words = check.retired_words(check.GLOSSARY.read_text(encoding="utf-8"))
    assert {"room", "card", "manners", "learnt"} <= set(words) and len(words) == len(set(words))


def test_a_docstring_without_sections_is_found(tool):
    pytest.importorskip("numpydoc")
    check = tool("check_docstrings")

    def nothing(x):
        return x

    sys.modules[__name__].bare = nothing
    nothing.__module__, nothing.__qualname__ = __name__, "bare"
    assert any("GL08" in line for line in check.problems("bare", nothing))
