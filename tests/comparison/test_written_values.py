"""Numbers and dates in new rows are read as in training, whichever way a model predicts."""

import io
import warnings

import numpy as np
import pandas as pd
import pytest

import unlazy
from unlazy.comparison.data.reading import read_table
from unlazy.comparison.study.model import fit_table, predict_file, save_model
from unlazy.core.errors import UnlazyError
from unlazy.estimators.preprocessing.number_texts import NumberFormat, read_number

N = 60
RNG = np.random.default_rng(0)
AREA, PRICE = RNG.uniform(200, 2000, N).round(3), RNG.normal(size=N).round(3)
DAYS = pd.date_range("2019-11-20", periods=N, freq="9D")


def comma(values, unit=""):
    return [f"{v:.3f}{unit}".replace(".", ",") for v in values]


def write(path, frame, **options):
    frame.to_csv(path, index=False, **{"sep": ";", **options})
    return path


def fit(folder, **columns):
    """A model of the columns and a column of plain numbers, saved after reading them from a file."""
    table = pd.DataFrame({"x": RNG.normal(size=N), **columns, "price": PRICE})
    found = read_table(write(folder / "table.csv", table), "price")
    return save_model(fit_table(found, "linear"), folder / "model.unlazy")


def predictions(model, folder, **columns):
    """Predictions of new rows as `unlazy predict`, `unlazy.load` and `load_predictor` return them."""
    path = write(folder / "new.csv", pd.DataFrame({"x": 0.0, **columns}))
    found = [predict_file(model, path)["price"].to_numpy()]
    frame = pd.read_csv(path, sep=";")
    return [*found, unlazy.load(model).predict(frame), unlazy.load_predictor(model).predict(frame)]


@pytest.mark.parametrize(("style", "new"), [
    ("%d.%m.%Y", ["06.05.2020", "11.07.2020"]), ("%d/%m/%Y", ["06/05/2020", "11/07/2020"]),
    ("%m/%d/%Y", ["05/06/2020", "07/11/2020"]), ("%d.%m.%Y", ["2020-05-06", "11.07.2020"]),
])  # fmt: skip
def test_dates_keep_the_order_of_training(style, new, tmp_path):
    model = fit(tmp_path, when=DAYS.strftime(style))
    frame = pd.DataFrame({"x": 0.0, "when": pd.to_datetime(["2020-05-06", "2020-07-11"])})
    expected = unlazy.load(model).predict(frame)
    assert np.ptp(expected) > 0
    for found in predictions(model, tmp_path, when=new):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_dates_that_contradict_training_are_refused(tmp_path):
    model = fit(tmp_path, when=DAYS.strftime("%d/%m/%Y"))
    path = write(tmp_path / "new.csv", pd.DataFrame({"x": [0.0], "when": ["05/25/2020"]}))
    with pytest.raises(ValueError, match=r"held dates \(day first\) in training but holds '05/25/2020'"):
        predict_file(model, path)


def test_dates_of_models_without_formats():
    """Between dots the day is first; otherwise the order must be certain."""
    encoder = unlazy.estimators.TableEncoder().fit(pd.DataFrame({"when": DAYS}))
    truth = encoder.transform(pd.DataFrame({"when": pd.to_datetime(["2020-05-06"])}))
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"when": ["06.05.2020"]})), truth)
    np.testing.assert_array_equal(encoder.transform(pd.DataFrame({"when": ["2020-05-06"]})), truth)
    with pytest.raises(ValueError, match="'06/05/2020': is the day or the month first"):
        encoder.transform(pd.DataFrame({"when": ["06/05/2020"]}))


@pytest.mark.parametrize(("area", "new"), [
    (comma(AREA), ["920,905", "961"]), (comma(AREA), ["920,905", "961,000"]), (comma(AREA), ["920,905"] * 2),
    (comma(AREA, " m"), ["920,905 m", "961 m"]), (comma(AREA, " m"), ["920,905", "961 m"]),
    (comma(AREA), ["920,905", "-", "k.A.", "961"]),
])  # fmt: skip
def test_decimal_commas_stay_decimal_commas(area, new, tmp_path):
    model = fit(tmp_path, area=area)
    numbers = [920.905, np.nan, np.nan, 961.0][:: 1 if len(new) == 4 else 3]
    numbers = [920.905] * 2 if len(set(new)) == 1 else numbers
    expected = unlazy.load(model).predict(pd.DataFrame({"x": 0.0, "area": numbers}))
    for found in predictions(model, tmp_path, area=new):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_thousands_separators_stay_thousands_separators(tmp_path):
    model = fit(tmp_path, area=[f"{v:,.0f}" for v in AREA])
    expected = unlazy.load(model).predict(pd.DataFrame({"x": 0.0, "area": [1244.0]}))
    for found in predictions(model, tmp_path, area=["1,244"]):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_points_as_thousands_separators_are_not_read_as_decimal_points(tmp_path):
    area = [f"{v:,.2f}".replace(",", " ").replace(".", ",").replace(" ", ".") for v in AREA]
    model = fit(tmp_path, area=area)
    expected = unlazy.load(model).predict(pd.DataFrame({"x": 0.0, "area": [1244.0]}))
    path = write(tmp_path / "new.csv", pd.DataFrame({"x": [0.0], "area": ["1.244"]}))
    np.testing.assert_allclose(predict_file(model, path)["price"], expected, rtol=1e-6)


@pytest.mark.parametrize(("area", "new", "why"), [
    (comma(AREA), "920.905", r"\(decimal commas, no unit\) but holds '920.905'"),
    (comma(AREA, " m"), "920,905 ft", r"\(decimal commas, the unit m\) but holds '920,905 ft'; write it in the same"),
    (AREA, "920,905", r"\(no commas, no unit\) but holds '920,905'; is this a thousands sep"),
    (AREA, "920.905 k", r"\(no commas, no unit\) but holds '920.905 k'"),
    ([f"{v:,.0f}" for v in AREA], "12,5", r"\(commas as thousands separators, no unit\) but holds '12,5'"),
])  # fmt: skip
def test_numbers_that_contradict_training_are_refused(area, new, why, tmp_path):
    model = fit(tmp_path, area=area)
    path = write(tmp_path / "new.csv", pd.DataFrame({"x": [0.0], "area": [new]}))
    with pytest.raises(ValueError, match=why):
        predict_file(model, path)


@pytest.mark.parametrize(("text", "format", "expected"), [
    ("1.234,5", NumberFormat(commas="decimal"), 1234.5), ("12.5", NumberFormat(commas="decimal"), 12.5),
    ("1.234", NumberFormat(commas="decimal", points=True), 1234), ("12.5", NumberFormat(commas="decimal", points=True),
    np.nan), ("1,234.5", NumberFormat(commas="decimal"), np.nan), ("0,905", NumberFormat(), 0.905),
    ("12,5", NumberFormat(), 12.5), ("1,234,567", NumberFormat(), 1234567), ("1,234.5", NumberFormat(), 1234.5),
    ("1.234,5", NumberFormat(), 1234.5), ("$1,244", NumberFormat("$"), 1244), ("(12)", NumberFormat(), -12),
    ("1e3", NumberFormat(), 1000), ("1_000", NumberFormat(), np.nan), ("word", NumberFormat(), np.nan),
])  # fmt: skip
def test_one_number(text, format, expected):
    np.testing.assert_equal(read_number(text, format), expected)


def test_files_of_earlier_versions_are_read_as_before(tmp_path):
    model = fit(tmp_path, area=comma(AREA), when=DAYS.strftime("%d.%m.%Y"))
    pipeline = unlazy.load(model)
    del pipeline[0].formats_
    unlazy.save(pipeline, tmp_path / "old.unlazy")
    path = tmp_path / "table.csv"
    np.testing.assert_array_equal(predict_file(tmp_path / "old.unlazy", path), predict_file(model, path))


def odd_cells(values, *texts, every=9):
    """The values with a text in every ninth cell."""
    return [texts[i // every % len(texts)] if i % every == every - 1 else v for i, v in enumerate(values)]


@pytest.mark.parametrize("values", [comma(AREA), comma(AREA, " m²"), DAYS.strftime("%d.%m.%Y"), AREA])
def test_markers_of_missing_values_are_empty_cells(values, tmp_path):
    frame = pd.DataFrame({"x": odd_cells(values, "k.A.", "-", "–", "n/d"), "price": PRICE})
    found = read_table(write(tmp_path / "t.csv", frame), "price")
    assert "imputed" in " ".join(found.notes) and "x (6)" in " ".join(found.notes)
    assert found.frame["x"].isna().sum() == 6 and found.frame["x"].dtype.kind in "fM"


def test_markers_are_classes_elsewhere(tmp_path):
    frame = pd.DataFrame({"x": AREA, "sign": np.where(AREA > 900, "+", "-"), "y": np.where(PRICE > 0, "+", "-")})
    found = read_table(write(tmp_path / "t.csv", frame), "y")
    assert list(found.classes) == ["+", "-"] and len(found) == N and set(found.frame["sign"]) == {"+", "-"}


@pytest.mark.parametrize(("values", "text", "why"), [
    (comma(AREA, " m²"), "unbekannt", r"mixes numbers with text \(6 of 60 values, such as 'unbekannt'\)"),
    (comma(AREA), "auf Anfrage", "mixes numbers with text .*'auf Anfrage'.*leave those cells empty"),
    (comma(AREA, " kg"), "5 lb", "mixes numbers with text .*'5 lb'"),
])  # fmt: skip
def test_text_among_numbers_is_an_error(values, text, why, tmp_path):
    path = write(tmp_path / "t.csv", pd.DataFrame({"x": odd_cells(values, text), "price": PRICE}))
    with pytest.raises(UnlazyError, match=why):
        read_table(path, "price")
    if text != "5 lb":
        for task in (None, "regression"):
            with pytest.raises(UnlazyError, match=why):
                read_table(write(path, pd.DataFrame({"x": PRICE, "y": odd_cells(values, text)})), "y", task=task)


def test_text_among_dates_is_an_error(tmp_path):
    frame = pd.DataFrame({"when": odd_cells(DAYS.strftime("%d.%m.%Y"), "unbekannt", every=20), "price": PRICE})
    with pytest.raises(UnlazyError, match="3 values that are no dates, such as 'unbekannt'"):
        read_table(write(tmp_path / "t.csv", frame), "price")


def test_months_beyond_december_are_mistakes(tmp_path):
    when = [*DAYS.strftime("%d/%m/%Y")[:-1], "05/25/2020"]
    with pytest.raises(UnlazyError, match="1 values that are no dates, such as '05/25/2020'"):
        read_table(write(tmp_path / "t.csv", pd.DataFrame({"when": when, "price": PRICE})), "price")


def test_years_may_be_first_in_some_rows(tmp_path):
    when = [*DAYS.strftime("%d.%m.%Y")[:-1], "2020-03-04"]
    found = read_table(write(tmp_path / "t.csv", pd.DataFrame({"when": when, "price": PRICE})), "price")
    assert found.frame["when"].iloc[-1] == pd.Timestamp("2020-03-04")


def test_unknown_columns_are_mentioned_once_and_missing_ones_with_a_remedy(tmp_path):
    model = fit(tmp_path, area=AREA)
    path = write(tmp_path / "new.csv", pd.DataFrame({"x": [0.0], "area": [500.0], "other": [1]}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        predict_file(model, path)
    assert [str(w.message) for w in caught] == ["columns unknown to the model were ignored: other"]
    path = write(tmp_path / "new.csv", pd.DataFrame({"x": [0.0]}))
    with pytest.raises(ValueError, match="missing: area; add them, with empty cells if the values are unknown"):
        predict_file(model, path)


def test_damaged_archives(tmp_path):
    import zipfile

    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", "a,b\n" + "1,2\n" * 99)
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    locked = bytearray(whole.getvalue())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # the flag of encryption
        locked[locked.index(mark) + at] |= 1
    for name, data, why in (
        ("t.zip", b"PK\3\4garbage", "is damaged or incomplete; download or save it again"),
        ("t.zip", whole.getvalue()[:-30], "is damaged or incomplete"),
        ("t.xlsx", b"PK\3\4garbage", "is a damaged Excel file; save it again"),
        ("t.zip", empty.getvalue(), "holds no file"),
        ("t.zip", bytes(locked), r"password.*unzip it and pass the file inside"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnlazyError, match=why):
            read_table(tmp_path / name, "b")
