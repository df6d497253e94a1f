"""The rules of the verdict on synthetic records, and the corrected interval against a simulation."""

import math

import numpy as np
import pytest

from unlazy.comparison.data.table import make_table
from unlazy.comparison.study.candidates import CANDIDATES
from unlazy.comparison.study.study import Study
from unlazy.comparison.study.suspect_errors import _affordable
from unlazy.comparison.study.verdict import corrected_interval, decide_verdict
from unlazy.lab.experiment import Record, Records

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
                if CANDIDATES[name].family == "rich":
                    measures |= {
                        "eigenvalues": np.array([0.9, 0.06, 0.04]), "directions": np.eye(3),
                        "rise": np.array([0.5, 0.001 * rng.normal(), 0.2 + 0.01 * rng.normal()]),
                    }  # fmt: skip
                rows.append(Record({"candidate": name, "n": n, "split": s}, 0, measures))
    return Study(TABLE, NAMES, sizes, splits, Records(rows), 60.0)


def flat(**values):
    return {name: (lambda n, v=values[name]: v) for name in NAMES}


def test_feature_learning_pays_if_the_rich_model_is_significantly_better():
    found = decide_verdict(study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)))
    assert found.word == "pays" and found.picks == {"lazy": "gaussian", "rich": "feature_machine"}
    assert found.ratio.low < 5 < found.ratio.high and found.onset == 75


def test_feature_learning_does_not_pay_if_both_are_equal():
    found = decide_verdict(study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.5, boosting=0.2)))
    assert found.word == "does not pay" and found.onset is None


def test_undecided_if_splits_disagree():
    alike = flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2)
    assert decide_verdict(study(alike, wobble=0.4)).word == "undecided"


def test_noise_when_nothing_beats_the_constant():
    assert decide_verdict(study(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1))).word == "noise"


def test_onset_is_where_paying_begins():
    risks = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)
    risks["feature_machine"] = lambda n: 0.5 if n < 300 else 0.1
    assert decide_verdict(study(risks)).onset == 300


def test_the_choice_is_made_on_training_rows():
    """A model that is best on the test rows only is not chosen."""
    risks = flat(gaussian=0.5, laplace=0.1, feature_machine=0.3, boosting=0.2)
    inner = flat(gaussian=0.5, laplace=0.9, feature_machine=0.3, boosting=0.2)
    found = decide_verdict(study(risks, inner))
    assert found.picks["lazy"] == "gaussian" and found.word == "pays"


def test_corrected_interval():
    """Nadeau and Bengio's variance: (1/J + r/(1 - r)) s², Student's t with J - 1 degrees of freedom."""
    logs = np.array([0.1, 0.3, 0.2, 0.4])
    found = corrected_interval(logs, 0.25)
    reach = 3.182446305 * math.sqrt((1 / 4 + 1 / 3) * np.var(logs, ddof=1))  # t quantile from tables
    assert math.log(found.value) == pytest.approx(0.25, rel=1e-12)
    assert math.log(found.high) == pytest.approx(0.25 + reach, rel=1e-8)
    assert math.isnan(corrected_interval(logs[:1], 0.25).low)


def few(logs, smaller=None, spread=0.2, seed=0):
    """Two splits or more at 300 rows whose lazy over rich risks have these logarithms; five at 150, so far apart."""
    sizes, rng = ((300,), None) if smaller is None else ((150, 300), np.random.default_rng(seed))
    rows = []
    for n in sizes:
        for s, log in enumerate(logs if n == 300 else smaller + spread * rng.normal(size=5)):
            for name in NAMES:
                risk = 0.3 * math.exp(log) if CANDIDATES[name].family == "lazy" else 0.3
                measures = {"risk": risk, "inner": risk, "constant": 1.0, "work": 0.1, "tried": 1}
                rows.append(Record({"candidate": name, "n": n, "split": s}, 0, measures))
    return Study(TABLE, NAMES, sizes, len(logs), Records(rows), 60.0)


@pytest.mark.parametrize("log", [0.02, 0.5])
def test_two_splits_that_agree_are_not_significant(log):
    """By chance they differ by a thousandth, where splits of half the rows differ twofold; three may be sure."""
    assert decide_verdict(few([log, log + 0.001])).word == "undecided"
    assert math.isnan(decide_verdict(few([log, log + 0.001])).ratio.high)
    assert decide_verdict(few([log, log + 0.001], smaller=log, spread=0.8)).word == "undecided"
    sure = "does not pay" if log == 0.02 else "pays"
    assert decide_verdict(few([log, log + 0.001, log])).word == sure
    assert (
        decide_verdict(few([log, log + 0.001], smaller=log, spread=0.01)).word == sure
    )  # a spread that five splits have shown


def test_noise_needs_an_interval_that_excludes_a_useful_gain():
    """Splits from half to twice the error of a constant may hide a gain of a half."""
    nothing = flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1)
    found = decide_verdict(study(nothing, wobble=0.5))
    assert found.signal.low < 0.8 and found.word == "undecided" and not found.has_signal
    assert decide_verdict(study(nothing, wobble=0.05)).word == "noise"


def test_two_splits_never_give_the_verdict_noise():
    rows = [Record(r.params, 0, r.measures | {"risk": 0.97}) for r in few([0.0, 0.0]).records]
    found = decide_verdict(Study(TABLE, NAMES, (300,), 2, Records(rows), 60.0))
    assert found.word == "undecided" and not found.has_signal


@pytest.mark.slow
def test_intervals_from_two_splits_have_their_coverage():
    """400 studies of a gap whose true logarithm is log 1.3, split to split 0.1 apart, with nothing shared (so that the
    correction for shared rows is on the safe side): intervals of 95% hold it in at least 95% less two standard errors,
    and are narrow enough to say more than Student's of one degree of freedom, 8 times as wide as the spread."""
    rng, truth = np.random.default_rng(1), math.log(1.3)
    found = [
        decide_verdict(few(truth + 0.1 * rng.normal(size=2), smaller=truth, spread=0.1, seed=i)).ratio
        for i in range(400)
    ]
    inside = np.mean([math.log(r.low) <= truth <= math.log(r.high) for r in found])
    assert inside >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / 400)
    assert np.median([math.log(r.high / r.value) for r in found]) < 0.4


def test_few_rows_never_give_the_verdict_noise():
    nothing = flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1)
    found = decide_verdict(study(nothing, sizes=(30, 60, 120)))  # of 300 that could be trained on
    assert found.word == "undecided" and not found.has_signal


@pytest.mark.parametrize(
    "missed, auc, word", [((0.8, 0.4), 0.9, "pays"), ((0.95, 0.95), 0.8, "does not pay"), ((1.0, 1.0), 0.5, "noise")]
)
def test_rare_classes_are_scored_by_ranks(missed, auc, word):
    """Squared errors see nothing of 5% positives (all 0.99); average precision and the area under the curve do."""
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(400) % 20 == 0, "yes", "no")
    plain = study(flat(gaussian=0.99, laplace=0.995, feature_machine=0.99, boosting=1.1))
    rows = []
    for r in plain.records:
        lost = missed[r.params["candidate"] == "feature_machine"] * math.exp(0.02 * rng.normal())
        ranks = {"missed": lost, "auc": auc + 0.02 * rng.normal(), "precision": 1 - lost, "mistakes": 0.05}
        rows.append(Record(r.params, 0, r.measures | ranks))
    found = Study(make_table(TABLE.frame, labels), NAMES, plain.sizes, plain.splits, Records(rows), 60.0)
    assert found.rare and found.rarest == ("yes", 0.05) and decide_verdict(found).word == word


def test_the_quick_comparison_uses_the_largest_size_that_it_has_time_for():
    """Trials of 1, 2 and 4 seconds; after one of 4, two more fit into 13 seconds, or four in two workers."""
    rows = [
        Record({"candidate": "gaussian", "n": n, "split": s}, 0, {"work": 1.0}, n / 75.0)
        for n in (75, 150, 300)
        for s in range(6)
    ]
    mine, sizes = Records(rows), [75, 150, 300]
    assert _affordable(mine, sizes, 6.0, 1) == (300, 1) and _affordable(mine, sizes, 3.9, 1) == (150, 1)
    assert _affordable(mine, sizes, 60.0, 1) == (300, 6) and _affordable(mine, sizes, 0.1, 1) == (75, 1)
    assert _affordable(mine, sizes, 13.0, 1) == (300, 2) and _affordable(mine, sizes, 13.0, 2) == (300, 4)
