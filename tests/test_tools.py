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


@pytest.mark.parametrize(
    "annotation", ["Any", "typing.Any", "dict[str, Any]", "'list[Any] | None'", "Callable[[int], Any]"]
)
def test_a_planted_any_is_counted(tool, tmp_path, capsys, annotation):
    check = tool("check_types")
    plain = "".join(f"def f{i}(x: int) -> float: ...\n" for i in range(19))
    private = f"def _g(x: {annotation}): ...\nclass _C:\n    def h(self, x: {annotation}): ...\n"
    (tmp_path / "fine.py").write_text(plain + private)
    assert check.main([str(tmp_path)]) == 0
    (tmp_path / "planted.py").write_text(f"class D:\n    def h(self, x: int) -> {annotation}: ...\n")
    assert check.main([str(tmp_path)]) == 0  # 1 of 20 is the limit, 5%
    (tmp_path / "more.py").write_text(f"def h(*, x: {annotation}): ...\n")
    assert check.main([str(tmp_path)]) == 1
    assert "planted.D.h (return)" in capsys.readouterr().out


def test_mutants_change_one_expression_each(tool, tmp_path, monkeypatch):
    score = tool("mutation_score")
    source = '''"""1 + 1"""
def f(x: "2 + 2", y=3):
    if x < 0:
        raise ValueError(5 + 6)
    return 0.5 * jnp.sin(x) - g(x, y)  # 7
'''
    (tmp_path / "one.py").write_text(source)
    monkeypatch.setattr(score, "ROOT", tmp_path)
    every = [score.mutate(source, node, new) for node, found, *_ in score.sites(source) for _, new in found]
    changed = {text.splitlines()[4].strip() for text in every} - {source.splitlines()[4].strip()}
    expected = {
        "0.5 * jnp.cos(x) - g(x, y)", "0.5 * jnp.sin(x) - g(y, x)", "(0.5 / jnp.sin(x)) - g(x, y)",
        "jnp.sin(x) - g(x, y)", "(0.5 * jnp.sin(x))", "g(x, y)", "(0.5 * jnp.sin(x) + g(x, y))",
        "0.55 * jnp.sin(x) - g(x, y)",
    }  # fmt: skip
    assert changed == {f"return {text}  # 7" for text in expected}
    assert all('"""1 + 1"""\ndef f(x: "2 + 2"' in text and "raise ValueError(5 + 6)" in text for text in every)
    drawn = score.draw([tmp_path], 4, 0, [])
    assert drawn == score.draw([tmp_path], 4, 0, []) and len({m["text"] for m in drawn}) == 4
    (tmp_path / "one.py").write_text(f"# moved\n{source}")
    moved = [m | {"line": m["line"] + 1, "lines": tuple(n + 1 for n in m["lines"])} for m in drawn]
    assert score.again(drawn) == [m | {"text": f"# moved\n{m['text']}"} for m in moved]
    (tmp_path / "one.py").write_text("")
    assert score.again(drawn) == []


def test_a_mutant_runs_the_tests_that_execute_its_line(tool):
    score = tool("mutation_score")

    def test(lines, seconds=1.0, passed=True):
        return {"lines": {"src/a.py": lines}, "seconds": seconds, "passed": passed}

    tests = {
        "t/test_b.py::other": test([4]),
        "t/test_b.py::runs": test([3], 3.0),
        "t/test_b.py::fails": test([3], 1.0, False),
        "t/test_a.py::own": test([3], 5.0),
        "t/test_c.py::elsewhere": test([9]),
    }
    mutant = {"file": "src/a.py", "lines": (2, 3), "inside": True, "uses": []}
    assert score.choose(mutant, tests, 20.0) == ["t/test_a.py::own", "t/test_b.py::runs", "t/test_b.py::other"]
    assert score.choose(mutant, tests, 6.0) == ["t/test_a.py::own", "t/test_b.py::other"]
    assert score.choose(mutant | {"lines": (20, 20)}, tests, 20.0) == []
    constant = mutant | {"lines": (1, 1), "inside": False}
    assert score.choose(constant | {"uses": [9]}, tests, 20.0) == ["t/test_c.py::elsewhere"]
    assert len(score.choose(constant | {"uses": [30]}, tests, 20.0)) == 4  # read elsewhere: all tests of the module
