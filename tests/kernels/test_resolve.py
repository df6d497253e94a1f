"""A name, a kernel or an invalid value: one function resolves it for all callers."""

import re
from pathlib import Path

import pytest

import unlazy
from unlazy.kernels.base import resolve_kernel
from unlazy.kernels.radial import Gaussian


def test_kernels_names_and_invalid_values():
    kernel = Gaussian(1.0)
    assert resolve_kernel(kernel) is kernel and resolve_kernel(kernel, "a name") is kernel
    assert resolve_kernel("laplace", "a name") is None
    with pytest.raises(ValueError, match=r"must be a kernel of unlazy, for example Laplace\(1.0\); got 'laplace'"):
        resolve_kernel("laplace")
    with pytest.raises(ValueError, match=r"kernel must be a name or a kernel of unlazy.*got 3"):
        resolve_kernel(3, "a name")


def test_kernel_parameters_are_resolved_in_one_module():
    root = Path(unlazy.__file__).parent
    asked = re.compile(r"isinstance\((self\.)?kernel, [^)]*\b(Kernel|str)\b")
    files = [path for path in root.rglob("*.py") if path.parent.name != "kernels"]
    assert len(files) > 100 and [str(path) for path in files if asked.search(path.read_text())] == []
