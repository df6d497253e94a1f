"""What made-up records say beyond the verdict, in tables and in words."""

import math

import pytest
from test_verdict import TABLE, flat, study

from unlazy.comparison import words
from unlazy.comparison.compare import Comparison
from unlazy.comparison.findings import Findings, expected_risk, models_table
from unlazy.comparison.verdict import judge


def test_tables_and_words():
    found = study({**flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2),
                   "feature_machine": lambda n: 2 / math.sqrt(n)})  # fmt: skip
    c = Comparison(found, judge(found), None)
    assert list(c.models["name"])[:2] == ["feature_machine", "boosting"]
    assert list(c.inputs["input"]) == ["x0", "x2", "x1"] and list(c.inputs["matters"]) == [True, True, False]
    # wobble 0.02 and a common factor of deviation 0.05 over 6 splits: a size's mean logarithm has standard error 0.022,
    # the slope between the first and the last size, a factor of four apart, √2·0.022/ln 4
    law, error = c.curves["feature_machine"].law(), math.sqrt(0.02**2 + 0.05**2) / math.sqrt(6)
    first, middle, last = law([75, 150, 300])
    assert math.log(middle / (2 / math.sqrt(150))) == pytest.approx(0, abs=4 * error)
    assert math.log(first / last) / math.log(4) == pytest.approx(0.5, abs=4 * math.sqrt(2) * error / math.log(4))
    twice, back = c.curves["feature_machine"].extrapolated(600), c.curves["feature_machine"].backtest()
    assert twice.low < twice.value < twice.high and twice.value == pytest.approx(2 / math.sqrt(600), rel=0.15)
    assert back[0] == pytest.approx(back[1], rel=0.15)
    assert c.structure.count == 1 and c.character == "low-dimensional"
    text = str(c)
    for part in ("Feature learning pays", "1 direction carries", "x0, x2", "Use the feature machine", "Twice the rows"):
        assert part in text
    assert words.headline(c) == text.splitlines()[0]
    with pytest.raises(ValueError, match="fit=True"):
        c.predict(TABLE.frame)


def test_expected_risk_is_not_the_minimum_over_test_rows():
    """Ten equal models: the smallest mean risk is below the common one, the leave-one-split-out choice is not."""
    found = study(flat(gaussian=0.5, laplace=0.5, feature_machine=0.5, boosting=0.5), wobble=0.2, splits=10)
    best = float(models_table(found)["risk"].min())
    assert best < expected_risk(found).value


def test_words_of_noise_recommend_nothing():
    found = study(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1))
    text = str(Comparison(found, judge(found), None))
    assert "say nothing measurable" in text and "Use the" not in text


def test_rendering_reads_a_plain_value():
    """Words need nothing but the findings: no comparison, which is what they are bound to."""
    found = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2))
    plain, c = Findings(found, judge(found), None), Comparison(found, judge(found), None)
    assert words.headline(plain) == words.headline(c) and words.sentences(plain) == words.sentences(c)
