"""Every example of the reference runs by itself and prints what its docstring shows."""

import ast
import builtins
import doctest
import importlib
import inspect
import pkgutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import unlazy

SOURCE = Path(unlazy.__file__).parent
SKIPPED = ("unlazy.cli", "unlazy.lab.experiments")
"""Subpackages without examples."""
OPTIONAL = {
    "autogluon": ("unlazy.estimators.autogluon",),
    "torch": (
        "unlazy.models.torch_",
        "unlazy.diagnostics.rescaling.torch_module",
        "unlazy.diagnostics.callbacks",
        "unlazy.diagnostics.scaling.networks.torch_",
    ),
    "flax": ("unlazy.diagnostics.rescaling.nnx_module",),
    "lightning": ("unlazy.diagnostics.callbacks.lightning",),
    "transformers": ("unlazy.diagnostics.callbacks.transformers",),
}
"""Modules that import optional packages."""
MISSING = tuple(m for package, modules in OPTIONAL.items() if find_spec(package) is None for m in modules)


def examples():
    found = []
    for info in pkgutil.walk_packages(unlazy.__path__, "unlazy."):
        if not info.name.startswith(SKIPPED + MISSING) and not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            found += [t for t in doctest.DocTestFinder(exclude_empty=True).find(module) if t.examples]
    return {t.name: t for t in found}


class _OutputIfShown(doctest.OutputChecker):
    """Compares output only where the example shows some."""

    def check_output(self, want, got, optionflags):
        return want == "" or super().check_output(want, got, optionflags)


def undefined_names(docstring):
    """Names that the examples of a docstring use without importing or assigning them."""
    defined, missing = set(dir(builtins)), set()
    for example in doctest.DocTestParser().get_examples(docstring):
        nodes = list(ast.walk(ast.parse(example.source)))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                defined.add(node.id)
        missing |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - defined
    return missing


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples_define_their_names(path):
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, documented)]
    found = {getattr(node, "name", "module"): undefined_names(ast.get_docstring(node) or "") for node in nodes}
    assert {name: missing for name, missing in found.items() if missing} == {}


@pytest.mark.slow
def test_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # one of them saves a file
    problems = []
    for name, test in examples().items():
        test.globs = {"__name__": "__main__"}  # an example imports what it needs
        runner = doctest.DocTestRunner(_OutputIfShown(), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        if runner.run(test, out=problems.append).failed:
            problems.append(name)
    assert not problems, "".join(problems)


@pytest.mark.slow
def test_top_level_names_have_docstrings():
    bare = [n for n in unlazy.__all__ if not (getattr(unlazy, n).__doc__ or "").strip() and n != "__version__"]
    assert bare == []


def test_top_level_functions_have_examples():
    callable_ = [n for n in unlazy.__all__ if callable(getattr(unlazy, n))]
    assert [n for n in callable_ if ">>>" not in inspect.getdoc(getattr(unlazy, n))] == []
