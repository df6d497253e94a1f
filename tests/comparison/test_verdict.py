"""The rules of the verdict on made-up records, and the corrected interval against a simulation of its own."""

import math

import numpy as np
import pytest

from unlazy.comparison import findings, words
from unlazy.comparison.compare import Comparison
from unlazy.comparison.contestants import CONTESTANTS
from unlazy.comparison.study import Study
from unlazy.comparison.table import make_table
from unlazy.comparison.verdict import corrected, judge
from unlazy.core.experiment import Record, Records

NAMES = ("gaussian", "laplace", "feature_machine", "boosting")
TABLE = make_table(np.random.default_rng(0).normal(size=(400, 3)), np.random.default_rng(1).normal(size=400))


def study(risks, inner=None, sizes=(75, 150, 300), splits=6, wobble=0.02):
    """Records whose risks are risks[name] at the largest size, falling like n^(-1/2) of their distance to... n "
    "itself."""
    rng = np.random.default_rng(0)
    rows = []
    for n in sizes:
        for s in range(splits):
            common = math.exp(0.05 * rng.normal())
            for name in NAMES:
                risk = risks[name](n) * common * math.exp(wobble * rng.normal())
                measures = {
                    "risk": risk, "inner": (inner or risks)[name](n) * common, "constant": 1.0, "work": 0.1, "tried": 1,
                }  # fmt: skip
                if CONTESTANTS[name].family == "rich":
                    measures |= {
                        "eigenvalues": np.array([0.9, 0.06, 0.04]), "directions": np.eye(3),
                        "rise": np.array([0.5, 0.001 * rng.normal(), 0.2 + 0.01 * rng.normal()]),
                    }  # fmt: skip
                rows.append(Record({"contestant": name, "n": n, "split": s}, 0, measures))
    return Study(TABLE, NAMES, sizes, splits, Records(rows), 60.0)


def flat(**values):
    return {name: (lambda n, v=values[name]: v) for name in NAMES}


def test_pays_when_the_rich_model_is_surely_better():
    found = judge(study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)))
    assert found.word == "pays" and found.picks == {"lazy": "gaussian", "rich": "feature_machine"}
    assert found.ratio.low < 5 < found.ratio.high and found.onset == 75


def test_does_not_pay_when_both_are_alike():
    found = judge(study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.5, boosting=0.2)))
    assert found.word == "does not pay" and found.onset is None


def test_undecided_when_splits_disagree():
    alike = flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2)
    assert judge(study(alike, wobble=0.4)).word == "undecided"


def test_noise_when_nothing_beats_the_constant():
    found = study(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1))
    assert judge(found).word == "noise"
    text = str(Comparison(found, judge(found), None))
    assert "say nothing measurable" in text and "Use the" not in text


def test_onset_is_where_paying_begins():
    risks = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)
    risks["feature_machine"] = lambda n: 0.5 if n < 300 else 0.1
    assert judge(study(risks)).onset == 300


def test_the_choice_is_made_on_training_rows():
    """A model that is best on the test rows only is not chosen."""
    risks = flat(gaussian=0.5, laplace=0.1, feature_machine=0.3, boosting=0.2)
    inner = flat(gaussian=0.5, laplace=0.9, feature_machine=0.3, boosting=0.2)
    found = judge(study(risks, inner))
    assert found.picks["lazy"] == "gaussian" and found.word == "pays"


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
    best = float(findings.models_table(found)["risk"].min())
    assert best < findings.expected_risk(found).value


def test_corrected_interval():
    """Nadeau and Bengio's variance: (1/J + r/(1 - r)) s², Student's t with J - 1 degrees of freedom."""
    logs = np.array([0.1, 0.3, 0.2, 0.4])
    found = corrected(logs, 0.25)
    reach = 3.182446305 * math.sqrt((1 / 4 + 1 / 3) * np.var(logs, ddof=1))  # t quantile from tables
    assert math.log(found.value) == pytest.approx(0.25, rel=1e-12)
    assert math.log(found.high) == pytest.approx(0.25 + reach, rel=1e-8)
    assert math.isnan(corrected(logs[:1], 0.25).low)
