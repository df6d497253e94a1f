"""The check of the documentation build finds dead links, and only those."""

import importlib.util
from pathlib import Path

import pytest


def test_dead_links_are_found(tmp_path):
    pytest.importorskip("sphinx.errors")
    path = Path(__file__).resolve().parents[2] / "docs" / "_ext" / "dead_links.py"
    spec = importlib.util.spec_from_file_location("dead_links", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#there">x</a><a href="#here">x</a><img src="no.png">')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html#gone">x</a><a href="https://example.org/#y">x</a>')
    assert sorted(module.dead(tmp_path)) == ["a.html → no.png", "b.html → a.html#gone"]
