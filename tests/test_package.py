"""`import unlazy` is light, every listed name exists, a wrong one gets a suggestion."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import unlazy

HOME = Path(unlazy.__file__).parent


def test_every_listed_name_exists():
    for name in unlazy.__all__:
        assert getattr(unlazy, name) is not None
    with pytest.raises(AttributeError, match="did you mean 'Gaussian'"):
        _ = unlazy.Gausian


def test_import_brings_nothing_heavy():
    """In a fresh interpreter, since this one has imported everything."""
    code = "import sys, unlazy; unlazy.NTK; unlazy.lab; print(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "jax" in loaded
    assert not loaded & {"sklearn", "matplotlib", "pandas", "dask", "distributed"}


def test_static_and_lazy_exports_agree():
    lazily = {name: f"unlazy.{room}" for name, room in unlazy._WHERE.items()} | dict.fromkeys(
        unlazy._SUBPACKAGES, "unlazy"
    )
    block = next(
        node
        for node in ast.parse((HOME / "__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    read = {alias.asname: line.module for line in block.body for alias in line.names}
    assert read == lazily
    assert (HOME / "py.typed").exists()


USER = """
import unlazy
solution = unlazy.solve(unlazy.Gaussian(1.0), [[0.0], [1.0]], [0.0, 1.0], ridge=0.1)
reveal_type(solution)
reveal_type(solution.residual)
reveal_type(unlazy.FeatureMachineRegressor().predict)
unlazy.solve(unlazy.Gaussian(1.0), rigde=0.1)
unlazy.Gausian
"""


@pytest.mark.slow
def test_a_users_type_checker_sees_real_signatures(tmp_path):
    file = tmp_path / "user.py"
    file.write_text(USER)
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=silent", "--cache-dir", tmp_path, file]
    done = subprocess.run(command, env=os.environ | {"MYPYPATH": str(HOME.parent)}, capture_output=True, text=True)
    said = [line.split(": ", 1)[1] for line in done.stdout.splitlines() if line.startswith(str(file))]
    assert said[0] == 'note: Revealed type is "unlazy.solvers.solution.Solution"', done.stdout
    assert 'note: Revealed type is "float"' in said[1].replace("builtins.", "")
    assert said[2].startswith('note: Revealed type is "def (')
    assert any('"rigde" for "solve"' in line for line in said[3:]), done.stdout
    assert any('no attribute "Gausian"' in line for line in said[3:]), done.stdout
