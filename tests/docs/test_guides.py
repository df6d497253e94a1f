"""Every Python snippet of the guides that promise it runs, in the order of the page."""

import re
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["from_neural_tangents", "how_to_add_a_layer"])
def test_snippets_run(guide):
    page = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert snippets
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet, guide, "exec"), names)
