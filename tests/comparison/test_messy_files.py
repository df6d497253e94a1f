"""Files as people have them: each one is read, fitted and predicted, or refused in words that name every problem."""

import gzip
import io
import zipfile

import numpy as np
import pandas as pd
import pytest

from unlazy.comparison.data.reading import read_table
from unlazy.comparison.study.model import fit_table, predict_file, save_model
from unlazy.core.errors import UnlazyError

N = 80
RNG = np.random.default_rng(0)
SIZE, AGE, NOISE = RNG.uniform(1, 9, N).round(2), RNG.integers(1, 90, N), RNG.normal(size=N)
PRICE = (1000 * SIZE + 10 * AGE).round(2)
"""The target: linear in both inputs, so that a file that is read right is fitted to rounding."""


def table(**columns):
    """The inputs and the target; keyword arguments replace columns or add some before the target."""
    return pd.DataFrame({"size": SIZE, "age": AGE, **columns, "price": columns.get("price", PRICE)})


def csv_bytes(frame, encoding="utf-8", **options):
    return frame.to_csv(index=False, **options).encode(encoding)


def zipped(data, *names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in names:
            archive.writestr(name, data)
    return out.getvalue()


def excel(frame):
    out = io.BytesIO()
    frame.to_excel(out, index=False)
    return out.getvalue()


def comma(values, digits=2):
    """Numbers with decimal commas."""
    return [f"{v:.{digits}f}".replace(".", ",") for v in values]


def european(values):
    return [f"{v:,.2f}".replace(",", " ").replace(".", ",").replace(" ", ".") for v in values]


DAYS = pd.date_range("2019-11-20", periods=N, freq="3D")
FILES = {
    "decimal commas between semicolons.csv": csv_bytes(
        table(size=comma(SIZE), noise=comma(NOISE), price=comma(PRICE)), sep=";"
    ),
    "latin-1 text.csv": csv_bytes(table(town=np.where(AGE % 2, "Köln", "Orléans")), "latin-1"),
    "utf-16.csv": csv_bytes(table(town=np.where(AGE % 2, "Köln", "Orléans")), "utf-16"),
    "utf-16 without a mark.csv": csv_bytes(table(), "utf-16-le"),
    "byte order mark.csv": csv_bytes(table(), "utf-8-sig"),
    "compressed.csv.gz": gzip.compress(csv_bytes(table())),
    "archive.zip": zipped(csv_bytes(table()), "inner.csv"),
    "sheet.xlsx": excel(table(when=DAYS)),
    "wrong suffix.csv": gzip.compress(csv_bytes(table(), sep="\t")),
    "dollars.csv": csv_bytes(table(price=[f"${v:,.2f}" for v in PRICE], fee=[f"${v:,.0f}" for v in 1000 + AGE])),
    "euros behind.csv": csv_bytes(table(price=[f"{v} €" for v in european(PRICE)]), sep=";"),
    "percent.csv": csv_bytes(table(size=[f"{v:.2f}%" for v in SIZE])),
    "accounting.csv": csv_bytes(table(noise=[f"({-v:.3f})" if v < 0 else f"{v:.3f}" for v in NOISE])),
    "units.csv": csv_bytes(table(size=[f"{v:.2f} sq ft" for v in SIZE], price=[f"{v:.2f}k" for v in PRICE])),
    "spaces as separators.csv": csv_bytes(table(price=[f"{v:,.2f}".replace(",", " ") for v in PRICE])),
    "iso dates.csv": csv_bytes(table(when=DAYS.strftime("%Y-%m-%d"))),
    "german dates.csv": csv_bytes(table(when=DAYS.strftime("%d.%m.%Y"))),
    "dates with time and zone.csv": csv_bytes(table(when=DAYS.strftime("%Y-%m-%dT%H:%M:%S+02:00"))),
    "free text.csv": csv_bytes(table(comment=[f"visited the house number {i}, liked it" for i in range(N)])),
    "hashes.csv": csv_bytes(table(key=[f"{i * 7919 % 65536:04x}" for i in range(N)])),
    "names with digits.csv": csv_bytes(table(layout=np.array(["studio", "1 bed", "2 beds"])[AGE % 3])),
    "missing.csv": csv_bytes(table(noise=np.where(np.arange(N) % 5, NOISE, np.nan))),
    "booleans and spaces.csv": csv_bytes(table(garden=np.where(AGE % 2, " yes", "no "), sold=AGE % 3 == 0)),
}


def write(folder, name):
    path = folder / name
    path.write_bytes(FILES[name])
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_messy_file_is_fitted_and_predicted(name, tmp_path):
    """Every input counts as what it is: a linear model explains the target up to a ridge, from the file itself."""
    path = write(tmp_path, name)
    found = read_table(path, "price")
    assert found.task == "regression" and len(found) == N
    np.testing.assert_allclose(found.y, PRICE, rtol=1e-12)
    np.testing.assert_allclose(found.frame["size"], SIZE, rtol=1e-12)
    saved = save_model(fit_table(found, "linear"), tmp_path / "model.unlazy")
    predicted = predict_file(saved, path)["price"].to_numpy()
    assert np.corrcoef(predicted, PRICE)[0, 1] > 0.999


def test_what_was_read_is_said(tmp_path):
    notes = {name: " ".join(read_table(write(tmp_path, name), "price").notes) for name in FILES}
    assert "the unit of the target 'price' is $" in notes["dollars.csv"] and "fee ($)" in notes["dollars.csv"]
    assert "size (%)" in notes["percent.csv"] and "size (sq ft)" in notes["units.csv"]
    assert f"left out comment ({N} distinct texts): free text or an identifier" in notes["free text.csv"]


@pytest.mark.parametrize("name", ["iso dates.csv", "german dates.csv", "dates with time and zone.csv", "sheet.xlsx"])
def test_dates_are_dates(name, tmp_path):
    when = read_table(write(tmp_path, name), "price").frame["when"]
    np.testing.assert_array_equal(when.to_numpy("datetime64[D]"), DAYS.to_numpy("datetime64[D]"))


def refused(tmp_path, data, target="price", name="t.csv"):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnlazyError) as caught:
        read_table(tmp_path / name, target)
    return str(caught.value)


def test_all_problems_of_a_file_are_listed(tmp_path):
    bad = table(size=np.where(np.arange(N) % 9, SIZE.astype(str), "n/k"), noise=[np.inf, *NOISE[1:]])
    bad["when"] = "03/04/2020"
    bad.loc[::2, "when"] = "05/06/2021"
    bad["price"] = np.where(np.arange(N) % 7, PRICE.astype(str), "unknown")
    text = refused(tmp_path, csv_bytes(bad))
    assert "4 problems" in text
    for part in (
        "1. column 'price' mixes",
        "2. column 'size' mixes",
        "3. column 'noise' has infinite",
        "4. column 'when'",
    ):
        assert part in text
    assert "is the day or the month first" in text


def test_files_that_are_no_tables(tmp_path):
    only = csv_bytes(pd.DataFrame({"price": PRICE}))
    assert "has only the target 'price'" in refused(tmp_path, only)
    two = zipped(only, "a.csv", "b.csv")
    assert "holds 2 files (a.csv, b.csv)" in refused(tmp_path, two, name="t.zip")
    assert "damaged compressed file" in refused(tmp_path, gzip.compress(only)[:-9], name="t.csv.gz")
    assert "old format (.xls)" in refused(tmp_path, b"\xd0\xcf\x11\xe0" + bytes(99), name="t.xls")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["$1,244", "$3,001"], [1244, 3001]),
        (["1.234,50", "12,00"], [1234.5, 12]),
        (["1.234.567", "2.000"], [1234567, 2000]),
        (["1 234", "12 345 678"], [1234, 12345678]),
        (["(1,234.50)", "7.25"], [-1234.5, 7.25]),
        (["USD 5", "USD 12.5"], [5, 12.5]),
        (["-5 kg", "0"], [-5, 0]),
        (["−5", "3"], [-5, 3]),
    ],
)
def test_numbers_as_people_write_them(texts, expected):
    from unlazy.comparison.data.number_formats import parse_numbers

    np.testing.assert_array_equal(parse_numbers(pd.Series(texts, name="a"))[0], expected)


@pytest.mark.parametrize(
    "texts",
    [["5 kg", "5 lb"], ["12%", "0.12"], ["$5", "€5"], ["1st", "2nd"], ["10-20", "20-30"], ["A1", "A2"], ["1,2,3", "4"]],
)
def test_what_is_no_number_stays_text(texts):
    """Different units, ranges and codes are never turned into numbers."""
    from unlazy.comparison.data.number_formats import parse_numbers

    assert not parse_numbers(pd.Series(texts, name="a"))[0].notna().all()
