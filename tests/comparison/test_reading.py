"""Reading of files, and a one-line error for every file that cannot be compared."""

import numpy as np
import pandas as pd
import pytest

from unlazy.comparison.data.reading import read_table
from unlazy.comparison.data.table import make_table
from unlazy.core.errors import UnlazyError

N = 60


def csv(path, text=None, frame=None, sep=","):
    path.write_text(text if text is not None else frame.to_csv(index=False, sep=sep))
    return path


def frame(n=N, **more):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"size": rng.normal(size=n), "age": rng.integers(1, 90, n), **more, "price": rng.normal(size=n)}
    )


def refused(source, *arguments, **options):
    """The error message: one line, with a remedy."""
    with pytest.raises((UnlazyError, ValueError)) as caught:
        read_table(source, *arguments, **options)
    text = str(caught.value)
    assert "\n" not in text and ("; " in text or "? " in text), text
    return text


@pytest.mark.parametrize("sep", [",", ";", "\t", "|"])
def test_every_delimiter_is_recognized(tmp_path, sep):
    data = frame(kind=np.where(np.arange(N) % 2, "a, b", "c"))
    table = read_table(csv(tmp_path / "t.csv", frame=data, sep=sep), "price")
    assert list(table.frame.columns) == ["size", "age", "kind"] and table.task == "regression"
    np.testing.assert_array_equal(table.frame["size"], data["size"])  # seventeen digits say a float64 exactly
    assert set(table.frame["kind"]) == {"a, b", "c"}


def test_decimal_commas_and_missing_values(tmp_path):
    rows = "\n".join(f"{i},5;{'?' if i % 7 == 0 else i};{i % 3}x" for i in range(N))
    table = read_table(csv(tmp_path / "t.csv", f"a;b;c\n{rows}\n"), "a", task="regression")
    np.testing.assert_array_equal(table.y, np.arange(N) + 0.5)
    assert np.isnan(table.frame["b"].to_numpy()[::7]).all() and any("b (9)" in note for note in table.notes)


@pytest.mark.parametrize(
    "texts, expected",
    [
        (["1,244", "961", "1,023,763"], [1244, 961, 1023763]),
        (["1,244", "961", "12"], [1244, 961, 12]),
        (["1,244.5", "3,001.25", "2,000"], [1244.5, 3001.25, 2000]),
        (["-1,244", "2.5", "7"], [-1244, 2.5, 7]),
        (["1,25", "3", "0,5"], [1.25, 3, 0.5]),
        (["1,244", "0,125", "2,001"], [1.244, 0.125, 2.001]),
    ],
)
def test_meaning_of_commas(texts, expected):
    """As an input and as the target; commas read as thousands separators are reported."""
    many, numbers = np.tile(texts, 20), np.tile(np.asarray(expected, float), 20)
    other = np.arange(60.0)
    table = make_table(pd.DataFrame({"a": many, "b": other}), other)
    np.testing.assert_array_equal(table.frame["a"], numbers)
    of_target = make_table(pd.DataFrame({"b": other}), pd.Series(many, name="y"), task="regression")
    np.testing.assert_array_equal(of_target.y, numbers)
    for notes in (table.notes, of_target.notes):
        assert any("thousands separators" in note for note in notes) == (np.abs(expected).max() >= 1000)


@pytest.mark.parametrize("texts", [["1,244", "3,001", "2,500"], ["1,244", "3", "2,500"], ["1,244", "1500", "2,500"]])
def test_an_ambiguous_comma_is_reported(texts):
    with pytest.raises(UnlazyError, match="a thousands separator or a decimal comma"):
        make_table(pd.DataFrame({"a": np.tile(texts, 20), "b": np.arange(60.0)}), np.arange(60.0))


def test_parquet_npz_and_toys(tmp_path):
    data = frame()
    data.to_parquet(tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", X=data[["size", "age"]].to_numpy(), y=data["price"].to_numpy(), other=np.zeros((3, 3)))
    by_parquet, by_npz = read_table(tmp_path / "t.parquet", "price"), read_table(tmp_path / "t.npz")
    np.testing.assert_array_equal(by_parquet.frame.to_numpy(), by_npz.frame.to_numpy())
    wine = read_table("wine")
    assert wine.task == "classification" and len(wine) == 178 and set(wine.y) == {"class_0", "class_1", "class_2"}


def test_numbers_as_categories_and_columns_left_out(tmp_path):
    path = csv(tmp_path / "t.csv", frame=frame(code=np.arange(N) % 3))
    table = read_table(path, "price", categorical=("code",), drop=("age",))
    assert list(table.frame.columns) == ["size", "code"] and set(table.frame["code"]) == {"0", "1", "2"}


def test_bad_files(tmp_path):
    assert "is empty" in refused(csv(tmp_path / "e.csv", ""))
    assert "only blank lines" in refused(csv(tmp_path / "b.csv", "\n\n"))
    assert "no rows" in refused(csv(tmp_path / "h.csv", "a,b\n"), "a")
    assert "not a table" in refused(
        csv(tmp_path / "p.csv", "Once upon a time.\nThere was, indeed, a text\nof three lines")
    )
    binary = tmp_path / "x.csv"
    binary.write_bytes(bytes(range(256)))
    assert "not a text file" in refused(binary)
    ragged = csv(tmp_path / "r.csv", "a,b\n" + "1,2\n" * 30 + "1,2,3\n")
    assert "as many fields as the header" in refused(ragged, "a")
    (tmp_path / "x.npz").write_bytes(b"not a zip")
    assert "not an npz file" in refused(tmp_path / "x.npz")
    (tmp_path / "x.parquet").write_bytes(b"not parquet")
    assert "not a Parquet table" in refused(tmp_path / "x.parquet", "a")


def test_bad_names(tmp_path):
    path = csv(tmp_path / "t.csv", frame=frame())
    assert "did you mean 'price'" in refused(path, "prise")
    assert "--target" in refused(path) and "size, age, price" in refused(path)
    assert "semicolon" in refused(csv(tmp_path / "s.csv", frame=frame(), sep=";"), "price", delimiter=",")
    assert "2 columns named 'a'" in refused(csv(tmp_path / "d.csv", "a,a,b\n" + "1,2,3\n" * 50), "b")
    assert "header row" in refused(csv(tmp_path / "n.csv", "1,2,3\n" * 50), "b")
    with pytest.raises(UnlazyError, match=r"no file nothing\.csv"):
        read_table("nothing.csv")
    with pytest.raises(UnlazyError, match="folder"):
        read_table(tmp_path)
    with pytest.raises(UnlazyError, match="2 columns are named 'a'"):
        make_table(pd.DataFrame(np.zeros((N, 2)), columns=["a", "a"]), np.arange(N))


def test_bad_columns(tmp_path):
    def with_column(values, target="price", **options):
        return refused(csv(tmp_path / "t.csv", frame=frame(c=values)), target, **options)

    assert "mixes numbers with text" in with_column(["1", "2", "n/k"] * (N // 3))
    assert "infinite" in with_column(["inf"] + ["1"] * (N - 1))
    many = pd.DataFrame({"c": [f"c{i % 10_000}" for i in range(20_000)], "y": np.arange(20_000.0)})
    with pytest.raises(UnlazyError, match=r"no input column is left.*identifiers"):
        make_table(many[["c"]], many["y"])
