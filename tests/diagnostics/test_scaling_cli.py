"""`unlazy scaling`: a function of the user, the verdict, files and exit statuses."""

import json

import pytest
from typer.testing import CliRunner

from unlazy.cli import app

FACTORY = """
import equinox as eqx, numpy as np, optax

def make(width, key):
    return eqx.nn.MLP(3, 1, width, 1, key=key)

def wrong():
    X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    return make, (X, X[:, :1]), optax.adam(0.01)

def nothing():
    return 3
"""


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "factory.py").write_text(FACTORY)


def scaling(*arguments):
    return CliRunner().invoke(app, ["scaling", *arguments])


def test_verdict_files_and_exit_status(tmp_path):
    sizes = "--widths", "16,64", "--seeds", "1"
    found = scaling("factory.py:wrong", *sizes, "--out", "page.html", "--json", "check.json")
    assert found.exit_code == 1 and "layers.1.weight: multiply its learning rate by (n/16)^-" in found.stdout
    assert "Page: page.html" in found.stdout and (tmp_path / "page.html").exists()
    saved = json.loads((tmp_path / "check.json").read_text())
    assert saved["widths"] == [16, 64] and saved["ok"] is False


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("factory.py:nothing", "must return (make, data, optimizer), got int"),
        ("factory.py:make", "must be a function without arguments"),
        ("factory.py:nobody", "has no function 'nobody'"),
        ("nofile.py:wrong", "there is no file nofile.py"),
        ("no_such_module:wrong", "there is no module no_such_module"),
        ("factory", "name a function as MODULE:FUNCTION"),
    ],
)
def test_a_wrong_target_gets_one_sentence(target, message):
    found = scaling(target)
    assert found.exit_code != 0 and message in " ".join(found.stderr.split())


def test_wrong_widths():
    found = scaling("factory.py:wrong", "--widths", "16,many")
    assert found.exit_code != 0 and "--widths must be integers separated by commas" in found.stderr
