"""The summary of synthetic records: verdict, confidence and advice follow from the numbers."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from test_verdict import NAMES, flat, study

from unlazy.comparison.data.leakage import Suspect
from unlazy.comparison.data.table import make_table, split_rows
from unlazy.comparison.report.figures import (
    MAX_TICK_LABELS,
    _around_one,
    curve_models,
    curves_figure,
    models_figure,
    ticks,
)
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.page import _share
from unlazy.comparison.report.paired_ratios import format_number, ratio_table
from unlazy.comparison.report.prose import headline, sentences, what_would_decide
from unlazy.comparison.report.summary import summarize
from unlazy.comparison.study.more_rows import MoreRowsLaw
from unlazy.comparison.study.study import _study_notes
from unlazy.comparison.study.suspect_errors import SuspectErrors
from unlazy.comparison.study.verdict import decide_verdict, splits_may_decide
from unlazy.lab.experiment import Failure, Record, Records
from unlazy.measures.scaling_fit import Interval

PAYS = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)


def found(risks, law=None, suspects=(), **options):
    made = study(risks, **options)
    return Findings(made, decide_verdict(made), None, law, suspects)


def test_a_clear_verdict_recommends_a_model():
    law = MoreRowsLaw("gaussian", 400, 0.5, Interval(0.4, 0.35, 0.41), 300)
    top = summarize(found(PAYS, law))
    assert top.title == "Feature learning pays off on this table." and top.confidence.startswith("High (95%)")
    agreement = "6 of 6 splits favor feature learning. Trained on 300 rows and tested on 100 others, 6 times"
    assert agreement in top.confidence
    actions = dict(top.actions)
    assert list(actions) == ["Model", "Inputs", "More rows"]
    assert "Use the feature machine" in actions["Model"]
    assert "compared with 1 for always predicting the mean" in actions["Model"]
    assert actions["Inputs"] == "x0, x2 matter significantly (2 of 3 inputs); the other one may or may not help."
    # 0.4, 0.41 and 0.35 of 0.5 are left
    assert "Doubling the rows (400 more)" in actions["More rows"] and "by 20% [18%, 30%]" in actions["More rows"]
    assert actions["More rows"].endswith("30%]: worth it.")
    far = dict(summarize(found(PAYS, law._replace(calibrated=False))).actions)["More rows"]
    assert far.endswith("(extrapolated from 300 rows; the interval is not checked that far): worth it.")
    little = dict(summarize(found(PAYS, law._replace(twice=Interval(0.49, 0.45, 0.52)))).actions)["More rows"]
    assert "would change the squared error" in little and "by −2% [−10%, +4%]: hardly worth it." in little
    wide = dict(summarize(found(PAYS, law._replace(twice=Interval(0.4, 0.1, 0.6)))).actions)["More rows"]
    assert wide.endswith("by −20% [−80%, +20%]: it is open whether that is worth it.")
    text = "\n".join(sentences(found(PAYS, law._replace(calibrated=False))))
    assert "it starts from 300 rows, and its interval is not checked that far" in text


def test_other_verdicts_state_their_confidence():
    no = summarize(found(flat(gaussian=0.5, laplace=0.6, feature_machine=0.5, boosting=0.2)))
    assert "does not pay" in no.title
    assert "High (95%). Feature learning would reduce the squared error by at most" in no.confidence
    assert "Significantly better: gradient boosting." in dict(no.actions)["Model"]
    open_ = summarize(found(flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2), wobble=0.4))
    assert open_.title.startswith("Undecided") and open_.confidence.startswith("Low")
    assert dict(open_.actions)["To decide"] == "A larger --budget would use more rows or splits."
    once = summarize(found(PAYS, splits=1))
    assert (
        once.title.startswith("Undecided") and "a single split does not show how much splits differ" in once.confidence
    )
    noise = summarize(found(flat(gaussian=1.0, laplace=1.01, feature_machine=1.02, boosting=1.1)))
    assert "nothing to learn" in noise.title and "None is worth using" in dict(noise.actions)["Model"]


def test_untried_models_and_limited_rows_are_noted():
    """With test windows of 15% that start up to 22.5% before the end, 250 of 400 rows are earlier than all of them."""
    made = study(PAYS)
    timed = replace(made.table, time=np.arange(400.0))
    few = made.records.where(candidate="gaussian")
    untried, rows = _study_notes(timed, NAMES, [125], [125, 250], 6, 60.0, few)
    assert untried == (
        "the budget allowed trials of 1 of 4 models; not tried: Laplace kernel, feature machine, gradient boosting"
    )
    assert "limited training to 125 of 250 rows" in rows
    failed = Records(few, [Failure({"candidate": name}, 0, "") for name in NAMES[1:]])
    assert "not tried" not in " ".join(_study_notes(timed, NAMES, [250], [250], 6, 60.0, failed))


@pytest.mark.parametrize("largest, text", [(False, "more rows or splits"), (True, "only more rows")])
def test_more_splits_are_proposed_only_where_they_may_decide(largest, text):
    """Nine splits that differ much: a tenth narrows their interval little."""
    wide = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2), splits=9, wobble=0.4)
    wide = replace(wide, largest=largest)
    c = Findings(wide, decide_verdict(wide), None)
    assert c.verdict.word == "undecided" and text in what_would_decide(c)
    assert not splits_may_decide(wide, c.verdict)


def test_splits_that_would_narrow_the_interval_enough_are_proposed():
    """Three splits of a ratio of 1.01 that reaches 1.3: reaches of t(0.975, 2)·√(1/3 + 1/3) and
    t(0.975, 9)·√(1/10 + 1/3) are 3.51 and 1.49 standard deviations, and the smallest likely one is √(2/5.991) of that
    of three splits (t and χ² from tables)."""
    made = replace(study(PAYS, splits=3), largest=True)
    reach = math.log(1.3 / 1.01)
    ratio = Interval(1.01, 1.01 * math.exp(-reach), 1.3)
    verdict = replace(decide_verdict(made), word="undecided", ratio=ratio)
    assert splits_may_decide(made, verdict)
    assert what_would_decide(Findings(made, verdict, None)) == "a larger --budget would run more splits"
    narrower = 1.49 / 3.51 * math.sqrt(2 / 5.991)
    most = 1.01 * math.exp(math.log(1.25 / 1.01) / narrower)  # what ten splits narrow to 1.25
    for high, expected in ((0.99 * most, True), (1.01 * most, False)):
        one = replace(verdict, ratio=Interval(1.01, 1.01**2 / high, high))
        assert splits_may_decide(made, one) == expected
    none = replace(verdict, has_signal=False, signal=Interval(1.0, 0.75, 1 / 0.75))
    assert splits_may_decide(made, none)  # 0.93 to 1.07: no useful gain
    assert not splits_may_decide(made, replace(none, signal=Interval(1.0, 0.36, 1 / 0.36)))  # 0.78 to 1.28


@pytest.mark.parametrize(
    "options", [{"splits": 1}, {"splits": 2, "sizes": (300,)}, {"wobble": 0.4}, {"sizes": (30, 60)}]
)
def test_without_a_decision_no_model_is_recommended(options):
    """What was measured, and what would decide; the model is named as the saved one, not as advice."""
    close = flat(gaussian=0.5, laplace=0.6, feature_machine=0.45, boosting=0.2)
    c = found(flat(**dict.fromkeys(close, 0.99)) if options == {"sizes": (30, 60)} else close, **options)
    top, text = summarize(c), "\n".join([headline(c), *sentences(c)])
    assert c.verdict.word == "undecided"
    told = " ".join([top.title, top.answer, top.confidence, *(text for _, text in top.actions)])
    assert "Use the" not in told + text and "keep them all" not in dict(top.actions)["Model"]
    if c.verdict.has_signal:
        known = (
            r"So far the feature machine \(learned features\) has an RMSE of 0\.\d+, and the Gaussian kernel \(fixed"
        )
        assert re.match(known, top.answer)
    else:
        assert "no model predicts 'y' significantly better than always predicting the mean" in top.answer
    assert "--budget" in dict(top.actions)["To decide"]
    stuck = replace(c, study=replace(c.study, can_improve=False))
    assert dict(summarize(stuck).actions)["To decide"].endswith("only more rows would help.")


def test_suspects_are_left_out_and_their_effect_is_told():
    errors = SuspectErrors("Gaussian kernel", 300, 2, 0.0132, 62_500.0)
    c = found(PAYS, suspects=(Suspect("copy", "leak", 1.0), Suspect("id", "identifier", math.nan)))
    topic, text = summarize(replace(c, suspect_errors=errors)).actions[0]
    assert topic == "Left out" and "'copy' alone explains 99.99% of 'y', so it is a likely leak" in text
    assert "'id' looks like a row number or an identifier" in text and "No model uses them" in text
    assert (
        "the Gaussian kernel trained on 300 rows has an RMSE of 62,500 without them and an RMSE of 0.0132 with them."
        in text
    )
    assert "use them with --keep-suspects" in text and "--drop" not in text
    assert "no time to measure the error with them" in summarize(c).actions[0][1]
    kept = replace(c, suspect_errors=errors, suspects_kept=True)
    topic, text = summarize(kept).actions[0]
    assert topic == "Check first" and "The models use them, as requested (--keep-suspects)." in text
    assert "No model uses" not in text and "62,500 without them" in text
    few = summarize(replace(kept, study=replace(kept.study, splits=1)))
    assert "keep them all" not in " ".join(text for _, text in few.actions)


def test_all_inputs_are_suspicious():
    c = found(PAYS, suspects=tuple(Suspect(f"x{j}", "identifier", math.nan) for j in range(3)))
    text = summarize(replace(c, suspects_kept=True)).actions[0][1]
    assert text.endswith("All inputs are suspicious, so they are kept: nothing else is left to predict from.")
    others = tuple(Suspect(f"id{j}", "identifier", math.nan) for j in range(3))  # as many as inputs are left
    assert "No model uses them" in summarize(replace(c, suspects=others)).actions[0][1]


def classes(counts, metric=None, **measures):
    """The study PAYS with a target of classes with these numbers of rows, and measures by model (or one for all)."""
    made = study(PAYS)
    labels = np.random.default_rng(0).permutation(np.repeat([f"c{k:02d}" for k in range(len(counts))], counts))
    rows = []
    for r in made.records:
        mine = {key: v[r.params["candidate"]] if isinstance(v, dict) else v for key, v in measures.items()}
        rows.append(Record(r.params, 0, r.measures | mine))
    made = replace(made, table=make_table(made.table.frame, labels), records=Records(rows), asked_metric=metric)
    return Findings(made, decide_verdict(made), None)


def test_many_balanced_classes_are_judged_by_mistakes():
    """34.4% and 33.9% of mistakes are no difference, whatever the ranks of one class, or the probabilities, say."""
    wrong = {"gaussian": 0.344, "laplace": 0.35, "feature_machine": 0.339, "boosting": 0.4}
    c = classes([20] * 19 + [10, 10], mistakes=wrong, mistaken={k: v / 0.95 for k, v in wrong.items()}, missed=0.5,
                auc=0.8, precision=0.5)  # fmt: skip
    assert c.study.metric.name == "accuracy" and not c.study.rare and c.verdict.word == "does not pay"
    text = "\n".join([headline(c), *sentences(c), *(text for _, text in summarize(c).actions)])
    assert "the share of mistakes of the selected rich model" in text and "average precision" not in text
    assert "misclassifies 33.9% of the test rows, which is 35.7% [35.7%, 35.7%] of the mistakes of always" in text
    assert c.constant_error == pytest.approx(0.95, abs=0.02)  # of 100 test rows, five in each class up to rounding
    constant = f"compared with {100 * c.constant_error:.1f}% for always predicting the most frequent"
    assert "1.01 [1.01, 1.01] times" in text and constant in text


def test_probabilities_show_a_signal_that_mistakes_do_not():
    """Risks of 0.1 to 0.6, and all mistakes those of the most frequent class: there is something to learn."""
    c = classes([300, 70, 30], mistakes=0.25, mistaken=1.0)
    assert c.verdict.has_signal and c.verdict.word == "does not pay"
    blind = replace(
        c.study, records=Records([Record(r.params, 0, r.measures | {"risk": 1.0}) for r in c.study.records])
    )
    assert decide_verdict(blind).word == "noise"


@pytest.mark.parametrize(
    "counts, metric",
    [([200, 200], "brier"), ([370, 30], "average_precision"), ([300, 70, 30], "accuracy"), ([340, 30, 30], "log_loss")],
)
def test_the_metric_fits_the_classes(counts, metric):
    both = {
        "mistakes": 0.1,
        "mistaken": 0.5,
        "missed": 0.5,
        "auc": 0.8,
        "precision": 0.5,
        "log_loss": 0.3,
        "surprise": 0.4,
    }
    c = classes(counts, **both)
    assert c.study.metric.name == metric and c.study.rare == (metric == "average_precision")
    for name, risk in (("accuracy", 0.5), ("average_precision", 0.5), ("log_loss", 0.4)):
        other = classes(counts, name, **both)
        assert other.study.metric.name == name and other.models["risk"].iloc[0] == pytest.approx(risk, rel=1e-12)
    assert "of the test rows; its log loss is 40% [40%, 40%] of that of always" in " ".join(sentences(other))
    with pytest.raises(
        ValueError, match=r"^the metric rmse does not fit the target 'y', which holds classes; choose br"
    ):
        classes(counts, "rmse", **both)


def test_few_splits_give_no_confidence():
    """Two splits at one size: no interval, so no model is equal and no input significant; the headline says why."""
    c = found(PAYS, splits=2, sizes=(300,))
    top = summarize(c)
    assert "two splits are too few" in top.confidence and c.as_good == ("feature_machine",)
    assert "only 2 splits finished in time with 300 training rows" in headline(c)
    once = found(PAYS, splits=1)
    assert once.as_good == ("feature_machine",) and once.character == "unknown"  # one direction: not "neither"
    alike = found(flat(gaussian=0.5, laplace=0.6, feature_machine=0.5, boosting=0.5), splits=1)
    assert alike.character == "unknown"  # nor "smooth"
    assert _share(0.86, -math.inf, math.inf) == "86%" and _share(0.86, -3.0, 5.0) == "86% (splits differ)"
    assert "no interval" in _study_notes(once.study.table, NAMES, [300], [300], 1, 60.0, once.study.records)[0]
    expected = "There are too few splits to say which of the 3 inputs matter; keep them all."
    assert dict(summarize(once).actions)["Inputs"] == expected


def test_a_target_of_few_directions_is_not_called_neither():
    """The feature machine and an anisotropic kernel are equally good, isotropic kernels worse."""
    made = study(flat(gaussian=0.5, laplace=0.6, feature_machine=0.2, boosting=0.2))
    rows = [
        Record(r.params | {"candidate": "product_laplace"}, 0, r.measures)
        for r in made.records.where(candidate="feature_machine")
    ]
    both = replace(made, candidates=(*made.candidates, "product_laplace"), records=Records([*made.records, *rows]))
    c = Findings(both, decide_verdict(both), None)
    assert c.verdict.word == "does not pay" and c.structure.count == 1 and c.character == "low-dimensional"


def test_a_rare_class_is_reported_by_its_precision():
    made = study(PAYS)
    ranks = {"missed": 0.6, "auc": 0.9, "precision": 0.43, "mistakes": 0.05}
    rows = [Record(r.params, 0, r.measures | ranks) for r in made.records]
    rare = make_table(made.table.frame, np.where(np.arange(400) % 20 == 0, "yes", "no"))
    c = replace(made, table=rare, records=Records(rows))
    text = dict(summarize(Findings(c, decide_verdict(c), None)).actions)["Model"]
    assert "average precision of 0.43 for 'yes', compared with 0.05 for a random order" in text
    assert "misclassified" not in text


def rare_study(unknown=(), splits=6):
    """The study PAYS with 5% positives, whose ranks are unknown in some splits."""
    made, rows = study(PAYS, splits=splits), []
    for r in made.records:
        ranks = {"missed": r.measures["risk"], "auc": 0.9, "precision": 1 - r.measures["risk"], "mistakes": 0.05}
        if r.params["split"] in unknown:
            ranks |= dict.fromkeys(("missed", "auc", "precision"), math.nan)
        rows.append(Record(r.params, 0, r.measures | ranks))
    rare = make_table(made.table.frame, np.where(np.arange(400) % 20 == 0, "yes", "no"))
    return replace(made, table=rare, records=Records(rows))


def test_splits_without_the_rare_class_are_left_out():
    """The same answer as from the other splits alone, and a note."""
    made = rare_study({1, 4})
    rest = [r for r in made.records if r.params["split"] not in (1, 4)]
    place = {s: i for i, s in enumerate((0, 2, 3, 5))}
    rest = [Record(r.params | {"split": place[r.params["split"]]}, 0, r.measures) for r in rest]
    alone = replace(made, splits=4, records=Records(rest))
    c, d = (Findings(one, decide_verdict(one), None) for one in (made, alone))
    assert c.verdict == d.verdict and c.verdict.word == "pays"
    columns = ["name", "risk", "low", "high", "precision", "auc"]
    assert c.models[columns].to_dict() == d.models[columns].to_dict() and c.expected == d.expected
    assert c.paired_ratios == d.paired_ratios and c.curves["gaussian"].risks.shape == (3, 4)
    (note,) = c.notes
    assert note.startswith("2 of 6 test sets have no row of the class 'yes' and are left out") and not d.notes


@pytest.mark.parametrize("unknown", [(0, 1, 2, 3, 4), range(6)])
def test_few_test_sets_with_the_rare_class_decide_nothing(unknown):
    made = rare_study(unknown)
    c = Findings(made, decide_verdict(made), None)
    top = summarize(c)
    text = "\n".join([headline(c), *sentences(c), top.answer, top.confidence, *(text for _, text in top.actions)])
    assert c.verdict.word == "undecided" and "nan" not in text
    assert f"only {6 - len(unknown)} of " in text


def test_errors_of_a_constant_are_those_on_the_test_rows():
    """Groups without the smaller class on the test side: always predicting the other one makes no mistake there."""
    made = study(PAYS, splits=2)
    table = make_table(made.table.frame, np.where(np.arange(400) % 4 == 0, "yes", "no"))
    rows = [Record(r.params, 0, r.measures | {"mistakes": 0.0}) for r in made.records]
    c = replace(made, table=table, records=Records(rows))
    found = Findings(c, decide_verdict(c), None)
    wrong = [np.mean(table.y[split_rows(table, s)[1]] == "yes") for s in range(2)]
    assert found.constant_error == pytest.approx(np.mean(wrong), rel=1e-12)
    late = replace(table, time=np.argsort(np.argsort(table.y == "no", kind="stable")).astype(float))
    c = Findings(replace(c, table=late), found.verdict, None)
    assert c.constant_error == 0.0  # the last rows are all "no"
    assert "0.0% misclassified, compared with 0.0% for always" in dict(summarize(c).actions)["Model"]


def test_gaps_are_paired_for_candidates_of_the_first_trials_too():
    made = study(PAYS)

    def kept(r):
        return r.params["candidate"] != "laplace" or (r.params["n"] == 75 and r.params["split"] < 2)

    early = replace(made, records=Records(filter(kept, made.records)))
    table = ratio_table(early, "feature_machine").set_index("name")
    assert list(table.index)[-1] == "laplace" and not table.loc["laplace", "finalist"]
    risk = {(r.params["candidate"], r.params["n"], r.params["split"]): r.measures["risk"] for r in made.records}
    few = np.mean([np.log(risk["laplace", 75, s] / risk["feature_machine", 75, s]) for s in range(2)])
    assert table.loc["laplace", ["n", "splits"]].tolist() == [75, 2]
    assert math.log(table.loc["laplace", "ratio"]) == pytest.approx(few, rel=1e-12)
    logs = np.log([risk["boosting", 300, s] / risk["feature_machine", 300, s] for s in range(6)])
    half = 2.570581836 * np.sqrt((1 / 6 + 1 / 3) * logs.var(ddof=1))  # t quantile from tables, a quarter tested on
    assert math.log(table.loc["boosting", "high"]) == pytest.approx(logs.mean() + half, rel=1e-8)
    assert table.loc["feature_machine", ["ratio", "low", "high"]].tolist() == [1, 1, 1]


@pytest.mark.parametrize("low, high", [(0.97, 1.03), (0.5, 3.4), (1e-4, 2.0), (0.031, 0.035), (0.2, 900), (0.15, 1.06)])
def test_ticks_are_few_and_distinct(low, high):
    for values in (ticks(low, high), _around_one(min(low, 0.97), max(high, 1.03))):
        said = [f"{v:.3g}" for v in values]
        assert 2 <= len(values) <= 9 or values == [1.0]
        assert len(set(said)) == len(said) and values == sorted(values)
    assert all(low <= v <= high for v in ticks(low, high))
    assert all(np.diff(np.log(ticks(low, high))) >= np.log(high / low) / MAX_TICK_LABELS - 1e-12)  # no name on another


@pytest.mark.parametrize(
    "value, text",
    [(62_543.0, "62,500"), (1234.5, "1,230"), (0.5, "0.5"), (0.0, "0"), (9.996, "10"), (-0.01234, "-0.0123"),
     (1e-5, "0.00001"), (1.23e-9, "1.23e-09"), (math.nan, "unknown")],
)  # fmt: skip
def test_numbers_are_written_without_exponents(value, text):
    assert format_number(value) == text


@pytest.mark.slow
def test_figures_show_names_and_values_without_clipping():
    from matplotlib import pyplot as plt

    from unlazy.core.pages.tooltips import figure_marks

    c = found(PAYS)
    for draw, count in ((models_figure, 4), (curves_figure, None)):
        figure = draw(c)
        figure.canvas.draw()
        said = [m[2:] for m in figure_marks(figure)]
        (axes,) = figure.axes
        for artist in (axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()):
            box = artist.get_window_extent()
            assert box.width == 0 or (box.x0 >= -1 and box.x1 <= figure.bbox.width + 1), artist
        plt.close(figure)
        if count:
            assert len(said) == count and said[0][0].startswith("feature machine, 1.00") and said[0][1:] == ("", "")
    assert ("feature machine", "300 rows") in [s[:2] for s in said]
    assert curve_models(c) == ["feature_machine", "gaussian", "boosting"]
    alone = study(PAYS, sizes=(300,))
    single = Findings(alone, decide_verdict(alone), None)
    assert curve_models(single) == []
    figure = curves_figure(single)
    assert [t.get_text()[:22] for t in figure.axes[0].texts] == ["only one training size"] and not figure.axes[0].lines
    plt.close(figure)
