"""What is imported: no circle anywhere, and nothing heavy before it is used.

For circles, imports inside functions and for types alone are counted like the others.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from unlazy.estimators.feature_search.choices import KERNELS

ALLOWED = {frozenset({"unlazy.kernels.base", "unlazy.kernels.algebra"})}
"""Kernels add and multiply, and sums and products are kernels."""


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Groups of modules that reach each other (strongly connected components of more than one), by Tarjan (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in imports[module]:
            if other not in index:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            at = stack.index(module)
            group, stack[at:] = frozenset(stack[at:]), []
            if len(group) > 1:
                found.add(group)

    for module in imports:
        if module not in index:
            visit(module)
    return found


def test_an_import_cycle_is_found():
    line = {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a", "c"}}
    assert circles(line) == set()
    assert circles({**line, "c": {"a"}}) == {frozenset("abc")}
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"c", "a"}}) == {frozenset("ab"), frozenset("cd")}


def test_only_kernels_and_their_sums_import_each_other():
    graph = grimp.build_graph("unlazy", exclude_type_checking_imports=False, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 200 and "unlazy.kernels.algebra" in imports["unlazy.kernels.base"]  # a lazy import is seen
    assert circles(imports) == ALLOWED


def modules_after(code: str, first: str = "pass") -> set[str]:
    """Names of the modules that a fresh process imports in this code, beyond what it needs first."""
    code = f"import sys; {first}; needed = set(sys.modules); {code}; print(*set(sys.modules) - needed)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_unlazy_imports_no_numerical_library():
    assert not {"jax", "numpy", "sklearn"} & modules_after("import unlazy")


ESTIMATORS = (
    "FeatureMachineClassifier", "FeatureMachineRegressor", "GaussianProcess", "KernelClassifier", "KernelRegressor",
    "NetworkRegressor", "RandomFeatures", "TwoLayerRegressor", "solve",
)  # fmt: skip


def test_estimators_import_no_library_before_using_it():
    """All in one process; what JAX and scikit-learn import themselves (some releases pandas) does not count."""
    found = modules_after(f"from unlazy import {', '.join(ESTIMATORS)}", first="import jax, sklearn.base")
    heavy = ("pandas", "matplotlib", "optax", "sklearn.ensemble", "sklearn.preprocessing", "torch", "flax", "dask")
    assert not {module for module in found if module.startswith(heavy)}
    assert "unlazy.estimators.network" in found  # the fresh process imported something


@pytest.mark.slow
def test_feature_machines_import_no_layers():
    """Kernels of networks are built when they are asked for."""
    found = modules_after("from unlazy import FeatureMachineRegressor")
    assert not {module for module in found if module.startswith(("unlazy.layers", "unlazy.kernels.networks"))}
    assert {"nngp", "ntk"} <= set(KERNELS)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", [".installed", ".installed-dev", ".installed-docs"])
def test_installation_compiles_bytecode_after_the_packages(target):
    root = Path(__file__).resolve().parents[1]
    command = ["make", "--dry-run", "--always-make", f".venv/{target}"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.splitlines()
    (install,) = (i for i, line in enumerate(lines) if "install()" in line)
    assert "-m compileall" in lines[install + 1] and "site-packages src" in lines[install + 1]
