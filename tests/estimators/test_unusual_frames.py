"""Frames that differ between training and prediction, copies of rows, weights, and dates of every kind."""

import datetime

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.estimators import TableEncoder
from unlazy.estimators.preprocessing.training_rows import group_copies

RNG = np.random.default_rng(0)
N = 60
DAYS = pd.date_range("2020-01-01", periods=N, freq="D")
DATES = {
    "periods": pd.Series(DAYS.to_period("M")),
    "objects with a zone": pd.Series(list(DAYS.tz_localize("UTC")), dtype=object),
    "a zone": pd.Series(DAYS.tz_localize("Europe/Berlin")),
    "a zone of dateutil": pd.Series(DAYS.tz_localize("dateutil/Europe/Berlin")),
    "datetime.date": pd.Series([day.date() for day in DAYS], dtype=object),
    "Arrow dates": pd.Series([day.date() for day in DAYS], dtype="object"),
}


def _dates(name):
    if name == "Arrow dates":
        pytest.importorskip("pyarrow")
        return DATES[name].astype("date32[pyarrow]")
    return DATES[name]


@pytest.mark.parametrize("name", DATES)
def test_dates_of_training_and_missing_ones_are_encoded(name):
    frame = pd.DataFrame({"when": _dates(name)})
    encoder = TableEncoder().fit(frame, np.arange(float(N)))
    table = encoder.transform(frame)
    if name != "periods":
        assert np.all(np.diff(table[:, 0]) > 0)
    for empty in (None, pd.NaT, np.nan):
        row = encoder.transform(pd.DataFrame({"when": [empty]}))
        assert np.abs(row[0, 0]) < np.abs(table[:, 0]).max()  # the median


def test_dates_beyond_nanoseconds_keep_their_order():
    frame = pd.DataFrame({"when": DAYS})
    encoder = TableEncoder().fit(frame, np.arange(float(N)))
    late = pd.DataFrame({"when": pd.Series([DAYS[0].to_pydatetime(), datetime.datetime(9999, 12, 31)], dtype=object)})
    first, last = encoder.transform(late)[:, 0]
    assert last > first + 1e4


def test_an_empty_cell_of_dates_in_a_numeric_column_is_missing():
    frame = pd.DataFrame({"x": RNG.normal(size=N)})
    encoder = TableEncoder().fit(frame, np.zeros(N))
    assert np.array_equal(encoder.transform(pd.DataFrame({"x": [pd.NaT]})), encoder.transform([[np.nan]]))


def test_columns_without_values_in_training_have_no_influence():
    X = RNG.normal(size=(N, 2))
    frame = pd.DataFrame(X, columns=list("ab")).assign(empty=np.nan, constant=3.0)
    model = unlazy.KernelRegressor().fit(frame, X[:, 0])
    assert np.array_equal(model.predict(frame), model.predict(frame.assign(empty=1e3, constant=-1e3)))


def test_one_row_with_text_is_fitted():
    model = unlazy.KernelRegressor().fit(pd.DataFrame({"c": ["a"], "x": [1.0]}), [2.0])
    assert model.predict(pd.DataFrame({"c": ["b"], "x": [5.0]})) == pytest.approx(2.0)


def _many_levels(n):
    return pd.DataFrame({"level": RNG.choice([f"c{i}" for i in range(20)], n), "x": RNG.normal(size=n)})


def test_copies_of_rows_change_no_encoding():
    """A row's mean target leaves out its copies: three copies have one encoding, free of their own label."""
    frame = _many_levels(100)
    noise = RNG.normal(size=100)
    copies = pd.concat([frame] * 3, ignore_index=True)
    table = TableEncoder().fit_transform(copies, np.tile(noise, 3))
    assert np.array_equal(table[:100], table[100:200]) and np.array_equal(table[:100], table[200:])
    correlation = np.corrcoef(table[:, 0], np.tile(noise, 3))[0, 1]
    assert correlation < 3 / np.sqrt(100)  # no signal, 100 independent rows; 0.5 with the row's own label


def test_equal_rows_of_categories_are_not_copies():
    level, city = RNG.choice(list("abcdef"), 200), RNG.choice(list("xy"), 200)
    distinct = np.arange(200)
    assert np.array_equal(group_copies([level.astype(object)]), distinct)
    assert np.array_equal(group_copies([level.astype(object), (city == "x").astype(float)]), distinct)
    rows = [np.tile(level, 2).astype(object), np.tile(RNG.normal(size=200), 2)]
    group = group_copies(rows)
    assert np.array_equal(group[:200], group[200:]) and len(np.unique(group)) == 200


def test_the_size_of_weights_does_not_matter():
    frame, effect = _many_levels(200), {f"c{i}": RNG.normal() for i in range(20)}
    y = frame.level.map(effect).to_numpy() + 0.1 * RNG.normal(size=200)
    tables = [TableEncoder().fit_transform(frame, y, np.full(200, w)) for w in (1.0, 1 / 200, 1e-6)]
    for table in tables[1:]:
        np.testing.assert_allclose(table, tables[0], rtol=1e-10, atol=1e-12)  # sums of 200 rounded numbers


def test_cells_of_lists_keep_their_type():
    rows = [[float(x), "ab"[i % 2], i % 3] for i, x in enumerate(RNG.normal(size=N))]
    frame = pd.DataFrame(rows, columns=["x", "c", "k"]).astype({"k": "category"})
    model = unlazy.KernelRegressor().fit(frame, frame.x)
    assert np.array_equal(model.predict(rows), model.predict(frame))
    assert np.array_equal(model.predict([[0.5, "a", 2.0]]), model.predict([[0.5, "a", 2]]))
    assert np.isfinite(model.predict([[np.nan, "a", 1]])).all()


def test_served_models_take_rows_as_dictionaries_and_arrow_tables(tmp_path):
    frame = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N)})
    text = frame.assign(c=np.where(np.arange(N) % 2, "u", "v"))
    for data in (frame, text):
        unlazy.KernelRegressor().fit(data, data.a).save(tmp_path / "m.unlazy")
        served = unlazy.load_predictor(tmp_path / "m.unlazy")
        expected = served.predict(data)
        assert served.predict(dict(data.iloc[0])) == pytest.approx(expected[:1], rel=1e-12)
        pyarrow = pytest.importorskip("pyarrow")
        assert np.array_equal(served.predict(pyarrow.Table.from_pandas(data)), expected)
