"""compare, fit and predict from the command line: files in, answer, page and model out; one-line errors."""

import io

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from unlazy.cli import app
from unlazy.comparison.study import model, study
from unlazy.comparison.study.model import predict_file


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study, "MAX_SPLITS", 3)
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90), "c": rng.choice(["u", "v"], 90)})
    frame["price"] = frame["a"] ** 2 + 0.1 * rng.normal(size=90)
    frame["kind"] = np.where(frame["price"] > 0.5, "dear", "cheap")
    frame.to_csv("t.csv", index=False)


def unlazy(*arguments: str):
    return CliRunner().invoke(app, arguments)


def sentence(*arguments: str) -> str:
    """The one line on standard error of a command that could not run."""
    result = unlazy(*arguments)
    assert result.exit_code == 2 and result.stdout == "", result.output
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("unlazy: ")
    return line


@pytest.mark.slow
def test_compare_then_predict(tmp_path):
    few = ("--model", "gaussian", "--model", "feature_machine", "--engine", "inline", "--budget", "1h")
    result = unlazy("compare", "t.csv", "--target", "price", "--out", "found", *few)
    assert result.exit_code == 0, result.output
    plain, technical = result.stdout.split("In technical terms: ")  # the summary comes first
    assert "eature learning pays off" in plain or "eature learning does not pay off" in plain
    assert "Confidence: " in plain and "risk" not in plain
    assert ("Model: Use the" in plain) != ("Undecided" in plain)
    assert "Feature learning" in technical or "Undecided" in technical
    assert "- Left out: 'kind' alone explains" in plain and "without it and an RMSE of" in plain  # made from the price
    assert "kind" not in (tmp_path / "found/compare.html").read_text().split("<h2>Inputs</h2>")[1].split("<h2>Tech")[0]
    assert (tmp_path / "found/figures/models.png").exists()
    pd.read_csv("t.csv")[["c", "b", "a"]].to_csv("new.csv", index=False)
    found = unlazy("predict", "found/model.unlazy", "new.csv")
    assert found.exit_code == 0 and found.stdout.splitlines()[0] == "price" and len(found.stdout.splitlines()) == 91
    pd.read_csv("t.csv")[["b", "c"]].to_csv("less.csv", index=False)
    assert "missing: a" in sentence("predict", "found/model.unlazy", "less.csv")
    pd.read_csv("t.csv").to_csv("more.csv", index=False)
    more = unlazy("predict", "found/model.unlazy", "more.csv", "--out", "out.csv")
    assert more.exit_code == 0 and "note: columns unknown to the model were ignored: kind" in more.stderr
    np.testing.assert_allclose(pd.read_csv("out.csv")["price"], np.array(found.stdout.split()[1:], float), rtol=1e-12)


def test_prediction_rows_are_read_like_the_table(tmp_path):
    """Commas between thousands in both: the same numbers, the same predictions; what may be either is asked about."""
    v = np.arange(300, 12_300, 200)
    plain, grouped = tmp_path / "plain.csv", tmp_path / "grouped.csv"
    for path, text in ((plain, "{}"), (grouped, "{:,}")):
        path.write_text("a;b;y\n" + "".join(f"{text.format(x)};{x % 7};{x / 1000}\n" for x in v))
    predicted = []
    for path in (plain, grouped):
        file = tmp_path / f"{path.stem}.unlazy"
        done = unlazy("fit", str(path), "--target", "y", "--model", "linear", "--out", str(file))
        assert done.exit_code == 0, done.output
        predicted.append(predict_file(file, path)["y"].to_numpy())
        np.testing.assert_array_equal(predict_file(file, plain)["y"], predicted[0])
    np.testing.assert_array_equal(*predicted)
    done = unlazy("predict", str(file), str(plain), "--interval", "0.9")
    assert done.stdout.splitlines()[0] == "y,y low,y high", done.output
    low, middle, high = pd.read_csv(io.StringIO(done.stdout))[["y low", "y", "y high"]].to_numpy().T
    assert np.all((low < middle) & (middle < high)) and np.mean((low <= v / 1000) & (v / 1000 <= high)) >= 0.9
    assert "needs at least 999 held-out rows" in sentence("predict", str(file), str(plain), "--interval", "0.999")
    grouped.write_text('a;b\n"1,300";1\n"2,300";2\n')
    with pytest.raises(ValueError, match="decimal comma"):
        predict_file(tmp_path / "plain.unlazy", grouped)


def test_fit_and_predict_classes():
    options = ("--target", "kind", "--drop", "price", "--model", "laplace", "--out", "m.unlazy")
    result = unlazy("fit", "t.csv", *options)
    assert result.exit_code == 0 and "Laplace kernel fitted to 90 rows" in result.stdout
    found = unlazy("predict", "m.unlazy", "t.csv")
    assert found.stdout.splitlines()[0] == "kind,probability cheap,probability dear"
    assert "predicts classes" in sentence("predict", "m.unlazy", "t.csv", "--interval", "0.9")


def test_notes_of_a_fit_name_leaks_and_no_options_that_it_lacks(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "patient": np.repeat(np.arange(30), 3), "day": np.arange(90)})
    frame["y"] = frame["a"] + 0.5 * rng.normal(size=90)
    frame.assign(copy=2 * frame["y"] + 1).to_csv("leak.csv", index=False)
    result = unlazy("fit", "leak.csv", "--target", "y", "--model", "linear", "--out", "new/m.unlazy")
    assert result.exit_code == 0 and (tmp_path / "new/m.unlazy").exists()
    assert "--group" not in result.stderr and "--time" not in result.stderr
    assert "'copy' alone explains 99.99% of 'y', so it is a likely leak; the model uses it, and --drop copy leaves" in (
        result.stderr
    )
    again = unlazy("fit", "leak.csv", "--target", "y", "--model", "linear", "--drop", "copy", "--out", "m.unlazy")
    assert again.exit_code == 0 and "likely leak" not in again.stderr


def test_the_file_of_a_fit_is_checked_before_the_fit(tmp_path, monkeypatch):
    def fail(*arguments, **more):
        raise AssertionError("fitted")

    monkeypatch.setattr(model, "fit_table", fail)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    fit = ("fit", "t.csv", "--target", "price", "--model", "linear", "--out")
    assert "cannot create the folder file" in sentence(*fit, "file/m.unlazy")
    assert "folder is a folder; name a file with --out" in sentence(*fit, "folder")


def test_a_fit_proposes_only_models_that_can_be_saved():
    line = sentence("fit", "t.csv", "--target", "price", "--model", "rf")
    assert "unknown model 'rf'; choose one of" in line and "linear" in line
    assert "boosting" not in line and "forest" not in line and "logistic" not in line


def test_impossible_requests_give_a_one_line_error(tmp_path):
    assert "pass one table: a CSV, Excel, Parquet" in sentence("compare")
    assert "did you mean 'price'" in sentence("compare", "t.csv", "--target", "pric")
    assert "budget must look like" in sentence("compare", "t.csv", "--target", "price", "--budget", "soon")
    assert "unknown metric 'acuracy'; did you mean" in sentence(
        "compare", "t.csv", "--target", "kind", "--metric", "acuracy"
    )
    assert "no such option" in unlazy("compare", "t.csv", "--store", "x").output.lower()
    assert "needs at least one rich model" in sentence("compare", "t.csv", "--target", "price", "--model", "linear")
    assert "unknown model 'lasso'" in sentence("fit", "t.csv", "--target", "price", "--model", "lasso")
    assert "cannot be saved" in sentence("fit", "t.csv", "--target", "price", "--model", "forest")
    assert "cannot read nothing.unlazy" in sentence("predict", "nothing.unlazy", "t.csv")
    (tmp_path / "bad.unlazy").write_text("no model")
    assert "not a file that unlazy saved" in sentence("predict", "bad.unlazy", "t.csv")
    assert "no file nothing.csv" in sentence("compare", "nothing.csv", "--target", "price")
