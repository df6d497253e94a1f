"""The page contains all findings, and names that look like HTML are escaped."""

import re
from dataclasses import replace
from html import unescape

import numpy as np
import pandas as pd
import pytest
from test_verdict import flat, study

from unlazy.comparison.data.table import make_table
from unlazy.comparison.report import prose
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.page import write_page
from unlazy.comparison.report.summary import summarize
from unlazy.comparison.study.verdict import decide_verdict


@pytest.mark.slow
def test_the_page_is_complete(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 3)), columns=["<b>a", "b & c", "it's"])
    table = replace(make_table(frame, pd.Series(rng.normal(size=400), name="<i>price")), source="<u>my.csv")
    records = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    found = replace(records, table=table, notes=("a <note>",))
    c = Findings(found, decide_verdict(found), None)
    html = write_page(c, tmp_path, "2031-02-03").read_text()
    text = unescape(re.sub(r"<[^>]*>", "\n", html))
    for part in (prose.headline(c), *prose.sentences(c), *c.inputs["input"], *c.models["model"], "a <note>.",
                 "Methods and rules",
                 "<u>my.csv · 400 rows", "2031-02-03"):  # fmt: skip
        assert part in text, part
    for part in (summarize(c).title, summarize(c).confidence, *(text for _, text in summarize(c).actions)):
        assert part in text.split("\nModels\n")[0], part  # at the top
    assert "<b>a" not in html and "<i>price" not in html and "<note>" not in html and "<u>my" not in html
    assert html.count("data:image/png;base64") == 3 and html.count("<tr>") == 2 + len(c.models) + 3
    clean = write_page(Findings(records, decide_verdict(records), None), tmp_path).read_text()
    assert "No corrections, dropped rows or budget limits." in clean
    top = found.sizes[-1]
    one = replace(found, sizes=(top,), records=found.records.where(n=top))
    html = write_page(Findings(one, decide_verdict(one), None), tmp_path).read_text()
    assert html.count("data:image/png;base64") == 2  # no learning curve from one size


@pytest.mark.slow
def test_names_without_a_font_are_printed_beside_the_figures(tmp_path, recwarn):
    odd = "\U00050000"  # no font has it, whatever is installed
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(400, 3)), columns=[f"a{odd}", "$b", f"c{odd}"])
    records = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    found = replace(records, table=make_table(frame, pd.Series(frame["$b"], name=odd)))
    html = write_page(Findings(found, decide_verdict(found), None), tmp_path).read_text()
    # by importance, as in the figure: the first and the last input matter, the second does not
    assert f"In the figures: [1] a{odd}, [2] c{odd}, [3] {odd}." in html
    assert not [w for w in recwarn if "missing from font" in str(w.message)]
