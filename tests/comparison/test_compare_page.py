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
from unlazy.comparison.report.page import _caption, _inputs, _rules, write_page
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


def test_captions_and_rules_follow_the_splits():
    """One split has no intervals and does not show which inputs matter; windows of time are not random."""
    risks = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)
    many, one = (study(risks, splits=splits, sizes=(75, 300)[splits == 1 :]) for splits in (6, 1))
    many = replace(many, candidates=(*many.candidates, "linear", "network"))
    c, d = (Findings(found, decide_verdict(found), None) for found in (many, one))
    assert "95% intervals" in _caption(c, "models") and "deviation over splits." in _caption(c, "curves")
    assert "95% intervals" not in _caption(d, "models") and "bars" not in _caption(d, "curves")
    assert {row["significant"] for row in _inputs(c)} == {"yes", "no"}
    assert {row["significant"] for row in _inputs(d)} == {"unknown"}
    assert "4 of 6 models are tried on 75 rows first." in _rules(c)[1] and "All models are tried" in _rules(d)[1]
    assert "The 6 random splits use 25% of the rows for testing; the training sizes 75, 300 are nested." in _rules(c)[2]
    assert "The random split uses 25% of the rows for testing; the training size is 300." in _rules(d)[2]
    timed = replace(c, study=replace(many, table=replace(many.table, time=np.arange(400.0))))
    assert "The 6 test windows have 15% of the rows each, and training rows are earlier; the" in _rules(timed)[2]


def test_the_band_is_one_of_residuals(monkeypatch):
    """Prediction intervals vary with the row, the band does not."""
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    c = Findings(found, decide_verdict(found), None)
    assert _caption(c, "held_out") == "True against predicted y on test rows."
    monkeypatch.setattr(Findings, "radius", lambda self, level: 3.0162)
    text = _caption(c, "held_out")
    assert "Nine of ten residuals lie within ±3.016 (the band)." in text and "vary with the row" in text


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
