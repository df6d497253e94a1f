"""`import unlazy` is light, every listed name exists, a wrong one gets a suggestion."""

import subprocess
import sys

import pytest

import unlazy


def test_every_listed_name_is_there():
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
