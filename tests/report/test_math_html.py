"""Formulas in plain text are typeset, tags are links, and every tag has a formula."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

from unlazy.core.pages import math_html
from unlazy.lab.runner.catalog import all_experiments

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "text, shown",
    [
        ("sample_complexity is mean_field", "sample_complexity is mean_field"),
        ("K_p → K as p^-1/2", "<i>K</i><sub><i>p</i></sub> → <i>K</i> as <i>p</i><sup>-1/2</sup>"),
        ("a < b & 2ησ_min²", "a &lt; <i>b</i> &amp; 2ησ<sub>min</sub>²"),
        ("odds ∝ t^2.1, then d^2.", "odds ∝ <i>t</i><sup>2.1</sup>, then <i>d</i><sup>2</sup>."),
        ("He_3 at n ≳ d²", "He<sub>3</sub> at <i>n</i> ≳ <i>d</i>²"),
        ("see [K3, K5], [Z9]", 'see [<a href="#K3">K3</a>, <a href="#K5">K5</a>], [Z9]'),
        ("the network's |cosine|", "the network&#x27;s |cosine|"),
    ],
)
def test_plain_text_is_typeset(text, shown):
    assert math_html.typeset(text) == shown


def test_every_mentioned_tag_has_a_formula():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {t for text in texts for group in math_html.TAG.findall(text) for t in math_html.expand_tags(group)}
    named |= {tag for e in all_experiments() for tag in e.tags}
    assert named <= {*math_html.tags()} and all("<math" in tag.formula for tag in math_html.tags().values())


def test_the_written_formulas_are_those_of_the_source():
    pytest.importorskip("latex2mathml")
    spec = importlib.util.spec_from_file_location("typeset", ROOT / "docs" / "typeset.py")
    typeset = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(typeset)
    kept = json.loads((ROOT / "src/unlazy/core/pages/tags.json").read_text(encoding="utf-8"))
    shown = [re.sub(r"\\s+", " ", json.dumps(part, sort_keys=True)) for part in (kept, typeset.typeset_tags())]
    assert shown[0] == shown[1], "run python docs/typeset.py"
