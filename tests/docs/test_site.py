"""The documentation follows the code: every experiment is on the page of one talk, and every tag is found."""

import importlib.util
import re
from pathlib import Path

from unlazy.lab.runner.catalog import all_experiments

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_experiment_is_on_the_page_of_its_talk():
    pages = [page.read_text(encoding="utf-8") for page in (DOCS / "talks").glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"{experiment} (\w+)", page)]
    assert sorted(shown) == sorted(experiment.name for experiment in all_experiments())


def test_the_index_of_formulas_finds_where_a_tag_is_computed():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "_ext" / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    found = reference.formulas()
    assert any(module == "unlazy.theory.infinite_width.fully_connected" for module, _, _ in found["K8"])
    assert any(module == "unlazy.training.one_step.algorithm" for module, _, _ in found["D4"])
    assert reference._expanded("K4, K5") == ["K4", "K5"]
    assert reference._expanded("P1–P3") == ["P1", "P2", "P3"]
    last = {"K": 12, "D": 11, "L": 9, "P": 7}
    missing = {f"{letter}{i}" for letter in last for i in range(1, last[letter] + 1)} - set(found)
    assert not missing, f"no docstring names {sorted(missing)}"
