"""Findings of synthetic records besides the verdict, as tables and as text."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from test_verdict import TABLE, flat, study

from unlazy.comparison.compare import Comparison
from unlazy.comparison.data.leakage import Suspect
from unlazy.comparison.report import figures, prose
from unlazy.comparison.report.findings import Findings, expected_risk, models_table
from unlazy.comparison.study.suspect_errors import SuspectErrors
from unlazy.comparison.study.verdict import decide_verdict
from unlazy.lab.experiment import Record, Records


def test_tables_and_text():
    found = study({**flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2),
                   "feature_machine": lambda n: 2 / math.sqrt(n)})  # fmt: skip
    c = Comparison(found, decide_verdict(found), None)
    assert list(c.models["name"])[:2] == ["feature_machine", "boosting"]
    assert list(c.inputs["input"]) == ["x0", "x2", "x1"] and list(c.inputs["matters"]) == [True, True, False]
    # wobble 0.02 and a common factor of deviation 0.05 over 6 splits: a size's mean logarithm has standard error 0.022,
    # the slope between the first and the last size, a factor of four apart, √2·0.022/ln 4
    law, error = c.curves["feature_machine"].law(), math.sqrt(0.02**2 + 0.05**2) / math.sqrt(6)
    first, middle, last = law([75, 150, 300])
    assert math.log(middle / (2 / math.sqrt(150))) == pytest.approx(0, abs=4 * error)
    assert math.log(first / last) / math.log(4) == pytest.approx(0.5, abs=4 * math.sqrt(2) * error / math.log(4))
    twice, back = c.curves["feature_machine"].extrapolate(600), c.curves["feature_machine"].backtest()
    assert twice.low < twice.value < twice.high and twice.value == pytest.approx(2 / math.sqrt(600), rel=0.15)
    assert back[0] == pytest.approx(back[1], rel=0.15)
    assert c.structure.count == 1 and c.character == "low-dimensional"
    text = str(c)
    for part in ("Feature learning pays", "1 direction accounts for 90%", "x0, x2", "Use the feature machine",
                 "Doubling the largest training size"):  # fmt: skip
        assert part in text
    assert prose.headline(c) == text.splitlines()[0]
    with pytest.raises(ValueError, match="fit=True"):
        c.predict(TABLE.frame)


def test_expected_risk_is_not_the_minimum_over_test_rows():
    """Ten equal models: the smallest mean risk is below the common one, the leave-one-split-out choice is not."""
    found = study(flat(gaussian=0.5, laplace=0.5, feature_machine=0.5, boosting=0.5), wobble=0.2, splits=10)
    best = float(models_table(found)["risk"].min())
    assert best < expected_risk(found).value


def test_text_for_noise_recommends_nothing():
    found = study(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1))
    text = str(Comparison(found, decide_verdict(found), None))
    assert "No measurable signal" in text and "Use the" not in text


def test_text_needs_only_the_findings():
    """Text is computed from the findings alone, without a comparison."""
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    plain, c = Findings(found, decide_verdict(found), None), Comparison(found, decide_verdict(found), None)
    assert prose.headline(plain) == prose.headline(c) and prose.sentences(plain) == prose.sentences(c)


def test_text_agrees_with_the_numbers():
    """No share rounded to all, no ratio of a spread that says nothing, one model, and a budget only where it helps."""
    wild = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2), wobble=1.5)
    text = str(Comparison(replace(wild, can_improve=False), decide_verdict(wild), None))
    assert "splits differ more than" in text and "only more rows would help" in text and "--budget" not in text
    c = Comparison(wild, decide_verdict(wild), None)
    assert "--budget" in str(c) and "(splits disagree)" in prose.interval_text(c.models.iloc[0])
    worse = study(flat(gaussian=0.01, laplace=0.01, feature_machine=0.5, boosting=0.2), wobble=1.2)
    assert decide_verdict(worse).word == "does not pay"
    assert re.search(
        r"does not pay: .* has at most \d+\.\d+ times the risk", str(Comparison(worse, decide_verdict(worse), None))
    )
    exact = study(flat(gaussian=2e-4, laplace=3e-4, feature_machine=1e-4, boosting=2e-3))
    c = Comparison(exact, decide_verdict(exact), None)
    assert "100%" not in str(c) and re.search(r"leaves 0\.0\d+% \[", str(c)) and c.chosen == "feature_machine"
    assert c.as_good == ("feature_machine",) and c.better == ()
    equal = study(flat(gaussian=0.5, laplace=0.5, feature_machine=0.5, boosting=0.3))
    c = Comparison(equal, decide_verdict(equal), None)
    assert set(c.as_good) == {"gaussian", "laplace", "feature_machine"} and c.better == ("boosting",)
    assert "Significantly better: gradient boosting." in str(c)


def test_suspects_are_named_even_if_there_is_no_signal():
    found = study(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1))
    leak = (Suspect("copy", "leak", 1.0), Suspect("id", "identifier", math.nan))
    errors = SuspectErrors("Gaussian kernel", 300, 2, 0.01, 1.2)
    text = str(Comparison(found, decide_verdict(found), None, None, leak, False, errors))
    assert "'copy' alone explains 99.99% of 'y', so it is a likely leak; 'id' looks like" in text
    assert "an RMSE of 1.2 without them and an RMSE of 0.01 with them" in text and "No measurable signal" in text


def test_an_input_that_always_matters_is_significant():
    """Rises of 0.5 to 3 in two splits: the interval of so few reaches below zero, the sign does not change."""
    plain = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2), splits=2)
    rises = {0: np.array([0.5, 0.001, -0.002]), 1: np.array([3.0, -0.001, 0.003])}
    rows = [
        Record(r.params, 0, r.measures | ({"rise": rises[r.params["split"]]} if "rise" in r.measures else {}))
        for r in plain.records
    ]
    c = Comparison(replace(plain, records=Records(rows)), decide_verdict(plain), None)
    assert list(c.inputs["matters"]) == [True, False, False] and c.inputs["input"][0] == "x0"


def test_long_labels_stay_inside_figures(monkeypatch):
    name = "share of mistakes"
    monkeypatch.setattr(
        figures, "error_label", lambda c: f"{name}, relative to always predicting the most frequent class"
    )
    monkeypatch.setattr(figures, "_error_name", lambda c: name)
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2))
    c = Findings(found, decide_verdict(found), None)
    for draw in (figures.curves_figure, figures.models_figure):
        figure = draw(c)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        assert max(map(len, axes.get_xlabel().split("\n"))) <= 32  # beside long names of models
        for text in (axes._left_title, *axes.get_yticklabels()):
            box = text.get_window_extent()
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
