"""The Python snippets of each page run from top to bottom."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [
    "guides/from_neural_tangents", "guides/how_to_add_a_kernel", "guides/how_to_add_a_layer",
    "guides/how_to_add_a_solver", "guides/how_to_add_a_task", "guides/how_to_add_an_estimator",
    "guides/how_to_add_an_experiment", "guides/use_compare", "guides/use_the_feature_machine",
    "guides/use_solve", "guides/several_devices", "guides/check_your_machine", "guides/use_the_lab",
    "guides/use_images", "guides/watch_a_run", "guides/check_scaling", "guides/trust_a_network",
    "cookbook/student", "cookbook/practitioner", "cookbook/much_data", "cookbook/theorist",
]  # fmt: skip


NEEDED = {"guides/watch_a_run": "torch", "guides/check_scaling": "torch"}
"""Optional packages that the snippets of a page import."""


@pytest.mark.nightly_cases("guides/from_neural_tangents", "guides/use_images")
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_snippets_run(page):
    if page in NEEDED:
        pytest.importorskip(NEEDED[page])
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert snippets
    names: dict = {}
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), names)


def test_ten_recipes_for_every_kind_of_user():
    for page in ("student", "practitioner", "much_data", "theorist"):
        text = (DOCS / "cookbook" / f"{page}.md").read_text(encoding="utf-8")
        found = re.findall(r"^## (\d+)\. .*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
        assert found == [str(i) for i in range(1, 11)]
        assert text.count("```python") == 11  # what all of them need, and one each
