"""Held-out predictions that trials keep: residuals, calibration, partial dependence of a known answer."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_verdict import TABLE, flat, study

from unlazy.comparison.findings import Findings
from unlazy.comparison.held_out import HeldOut, bins, calibration, held_out, residuals
from unlazy.comparison.held_out_figures import direction_text
from unlazy.comparison.model import Final
from unlazy.comparison.partial import partial
from unlazy.comparison.table import make_table, split
from unlazy.comparison.verdict import judge
from unlazy.core.experiment import Record, Records
from unlazy.estimators.table_encoder import TableEncoder

PAYS = flat(gaussian=0.5, laplace=0.6, feature_machine=0.1, boosting=0.2)


def kept(found, predict):
    """The same study whose trials keep predictions of their test rows."""
    rows = []
    for r in found.records:
        test = split(found.table, r.params["split"])[1]
        more = {"predicted": predict(found.table, test), "held_out": test}
        rows.append(Record(r.params, 0, r.measures | more))
    return replace(found, records=Records(rows))


def test_residuals_are_of_test_rows():
    assert held_out(study(PAYS), "gaussian") is None and residuals(study(PAYS), "gaussian") == []
    found = kept(study(PAYS, splits=2), lambda table, rows: table.y[rows, None] - 0.5)
    parts = residuals(found, "gaussian")
    assert [len(part) for part in parts] == [100, 100]
    np.testing.assert_allclose(np.concatenate(parts), 0.5, rtol=1e-12)
    assert Findings(found, judge(found), None).held_out.rows[1].tolist() == split(TABLE, 1)[1].tolist()


def test_calibration_counts_a_row_once():
    said = np.linspace(0.01, 0.99, 200)
    came = np.random.default_rng(0).random(200) < said
    found = bins(said, came)
    assert found.rows.tolist() == [25] * 8
    np.testing.assert_allclose(found.said, said.reshape(8, 25).mean(1), rtol=1e-12)
    np.testing.assert_allclose(found.came, came.reshape(8, 25).mean(1), rtol=1e-12)
    assert np.all((found.low <= found.came) & (found.came <= found.high))
    none = bins(np.full(20, 0.1), np.zeros(20, bool))
    assert none.high[0] == pytest.approx(1 - 0.025 ** (1 / 20), rel=1e-6)  # Clopper and Pearson at zero of twenty
    P = np.stack([1 - said, said], 1)
    twice = HeldOut([P - 0.1, P[::-1] + 0.1], [came.astype(str), came.astype(str)[::-1]],
                    [np.arange(200), np.arange(200)[::-1]])  # fmt: skip
    again = calibration(twice, np.array(["False", "True"]))
    np.testing.assert_allclose(again.said, found.said, rtol=1e-9)
    np.testing.assert_array_equal(again.came, found.came)


def test_partial_dependence_of_a_linear_model_is_its_slope():
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import Pipeline

    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(3, 2, 120), "b": rng.normal(size=120), "c": rng.choice(["u", "v"], 120)})
    table = make_table(frame, 5 * frame["a"] - 2 * frame["b"] + 4.0 * (frame["c"] == "v"))
    encoder = TableEncoder()
    X = encoder.fit_transform(table.frame, table.y)
    final = Final(Pipeline([("columns", encoder), ("model", LinearRegression().fit(X, table.y))]), "linear", 120, 0.0)
    v = np.array([0.6, -0.8, 0.0, 0.0])
    a, c, along = partial(final, table, ["a", "c"], -v)
    assert a.name == "a" and len(a.values) == 15 and a.lines == ("y",)
    np.testing.assert_allclose(np.diff(a.means[:, 0]), 5 * np.diff(a.values), rtol=1e-8)
    assert set(c.values) == {"u", "v"}
    assert c.means[list(c.values).index("v"), 0] - c.means[list(c.values).index("u"), 0] == pytest.approx(4, rel=1e-8)
    # along b's component, made positive: standardised columns have slopes 5·sd(a) and -2·sd(b)
    slope = 5 * frame["a"].std(ddof=0) * -0.6 + -2 * frame["b"].std(ddof=0) * 0.8
    np.testing.assert_allclose(np.diff(along.means[:, 0]), slope * np.diff(along.values), rtol=1e-8)
    assert direction_text(along).startswith("0.80·b − 0.60·a")
    assert partial(None, table, ["a"], v) == () and partial(final, table, [], v) == ()
    assert [p.name for p in partial(final, table, ["a"], np.ones(7))] == ["a"]  # of another encoding
