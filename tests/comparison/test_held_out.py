"""Held-out predictions that trials keep: residuals, calibration, partial dependence of a known answer."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_verdict import TABLE, flat, study

from unlazy.comparison.data.table import make_table, split_rows
from unlazy.comparison.report.findings import Findings
from unlazy.comparison.report.held_out_figures import axis_number, direction_text, held_out_figure, partial_figure
from unlazy.comparison.report.paired_ratios import format_number
from unlazy.comparison.study.held_out import (
    HeldOutPredictions,
    bin_probabilities,
    calibration,
    held_out_predictions,
    held_out_residuals,
)
from unlazy.comparison.study.model import FinalModel
from unlazy.comparison.study.partial_dependence import partial_dependence
from unlazy.comparison.study.verdict import decide_verdict
from unlazy.estimators.preprocessing.table_encoder import TableEncoder
from unlazy.lab.experiment import Record, Records

PAYS = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)


def kept(found, predict):
    """The same study whose trials keep predictions of their test rows."""
    rows = []
    for r in found.records:
        test = split_rows(found.table, r.params["split"])[1]
        more = {"predicted": predict(found.table, test), "held_out": test}
        rows.append(Record(r.params, 0, r.measures | more))
    return replace(found, records=Records(rows))


def linear(table):
    """A cheap model of the table."""
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import Pipeline

    encoder = TableEncoder()
    X = encoder.fit_transform(table.frame, table.y)
    model = (LinearRegression if table.classes is None else LogisticRegression)().fit(X, table.y)
    return FinalModel(Pipeline([("columns", encoder), ("model", model)]), "linear", len(table), 0.0)


def test_residuals_are_of_test_rows():
    assert held_out_predictions(study(PAYS), "gaussian") is None and held_out_residuals(study(PAYS), "gaussian") == []
    found = kept(study(PAYS, splits=2), lambda table, rows: table.y[rows, None] - 0.5)
    parts = held_out_residuals(found, "gaussian")
    assert [len(part) for part in parts] == [100, 100]
    np.testing.assert_allclose(np.concatenate(parts), 0.5, rtol=1e-12)
    assert Findings(found, decide_verdict(found), None).held_out.rows[1].tolist() == split_rows(TABLE, 1)[1].tolist()


def test_calibration_counts_a_row_once():
    said = np.linspace(0.01, 0.99, 200)
    came = np.random.default_rng(0).random(200) < said
    found = bin_probabilities(said, came)
    assert found.rows.tolist() == [25] * 8
    np.testing.assert_allclose(found.predicted, said.reshape(8, 25).mean(1), rtol=1e-12)
    np.testing.assert_allclose(found.observed, came.reshape(8, 25).mean(1), rtol=1e-12)
    assert np.all((found.low <= found.observed) & (found.observed <= found.high))
    none = bin_probabilities(np.full(20, 0.1), np.zeros(20, bool))
    assert none.high[0] == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-6)  # Clopper and Pearson at zero of twenty
    P = np.stack([1 - said, said], 1)
    twice = HeldOutPredictions([P - 0.1, P[::-1] + 0.1], [came.astype(str), came.astype(str)[::-1]],
                    [np.arange(200), np.arange(200)[::-1]])  # fmt: skip
    again = calibration(twice, np.array(["False", "True"]))
    np.testing.assert_allclose(again.predicted, found.predicted, rtol=1e-9)
    np.testing.assert_array_equal(again.observed, found.observed)


def test_partial_dependence_of_a_linear_model_is_its_slope():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(3, 2, 120), "b": rng.normal(size=120), "c": rng.choice(["u", "v"], 120)})
    table = make_table(frame, 5 * frame["a"] - 2 * frame["b"] + 4.0 * (frame["c"] == "v"))
    final = linear(table)
    v = np.array([0.6, -0.8, 0.0, 0.0])
    a, c, along = partial_dependence(final, table, ["a", "c"], -v)
    assert a.name == "a" and len(a.values) == 15 and a.lines == ("y",)
    np.testing.assert_allclose(np.diff(a.means[:, 0]), 5 * np.diff(a.values), rtol=1e-8)
    assert set(c.values) == {"u", "v"}
    assert c.means[list(c.values).index("v"), 0] - c.means[list(c.values).index("u"), 0] == pytest.approx(4, rel=1e-8)
    # along b's component, made positive: standardized columns have slopes 5·sd(a) and -2·sd(b)
    slope = 5 * frame["a"].std(ddof=0) * -0.6 + -2 * frame["b"].std(ddof=0) * 0.8
    np.testing.assert_allclose(np.diff(along.means[:, 0]), slope * np.diff(along.values), rtol=1e-8)
    assert direction_text(along).startswith("0.80·b − 0.60·a")
    assert direction_text(along._replace(parts=(("b", 1.0), ("a", -0.001)))) == "1.00·b"
    assert partial_dependence(None, table, ["a"], v) == () and partial_dependence(final, table, [], v) == ()
    assert [p.name for p in partial_dependence(final, table, ["a"], np.ones(7))] == ["a"]  # of another encoding


@pytest.mark.parametrize(
    "value, text", [(62_500, "62,500"), (2020.0, "2020"), (0.0132, "0.0132"), (-1.5e6, "-1,500,000")]
)
def test_numbers_on_axes_have_no_exponents_and_years_no_commas(value, text):
    assert axis_number(value, 6) == text


@pytest.mark.slow
@pytest.mark.parametrize("classes", [0, 2, 3])
def test_figures_of_held_out_rows_have_captions(classes):
    """Points show names and values; no text leaves the figure."""
    from matplotlib import pyplot as plt

    from unlazy.core.pages.tooltips import figure_marks

    frame = TABLE.frame.assign(kind=np.where(TABLE.frame["x0"] > 0, "a", "b"))
    y = TABLE.y if not classes else np.array(["p", "q", "r"])[:classes][np.arange(400) % classes]
    table = make_table(frame, y)

    def predict(table, rows):
        if table.classes is None:
            return table.y[rows, None] + 1
        return np.where(table.y[rows, None] == table.classes, 0.6, 0.4 / (classes - 1))

    plain = study(PAYS, splits=2)
    rise = {"rise": np.array([0.5, 0.1, 0.0, 0.3]), "mistakes": 0.1, "mistaken": 0.2}
    rows = [
        Record(r.params, 0, r.measures | (rise if "rise" in r.measures else {"mistakes": 0.1, "mistaken": 0.2}))
        for r in plain.records
    ]
    found = kept(replace(plain, table=table, records=Records(rows)), predict)
    c = Findings(found, decide_verdict(found), linear(table))
    said = []
    for draw in (held_out_figure, partial_figure):
        figure = draw(c)
        figure.canvas.draw()
        said += [m[2:] for m in figure_marks(figure, 400)]
        box, size = figure.get_tightbbox(), figure.get_size_inches()  # of what is drawn, in inches; a dot is 1/110
        assert min(box.x0, box.y0) > -0.01 and box.x1 < size[0] + 0.01 and box.y1 < size[1] + 0.01
        plt.close(figure)
    values = {" ".join(mark) for mark in said}
    first = found.records.where(candidate=c.chosen, n=300)[0].measures["held_out"][0]
    if not classes:
        assert f" predicted {format_number(y[first] + 1, 4)} true {format_number(y[first], 4)}" in values
    else:
        assert any("predicted 0.60 observed 1.00" in v for v in values)
    assert any(name == ("y" if not classes else "q" if classes == 2 else "p") for name, *_ in said)
    assert any("kind a" in v for v in values) and any("x0 " in v for v in values)
