"""Tables as numbers: learned from the fitted rows only, matched by name, saved without pickle."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import unlazy
from unlazy.core.errors import UnlazyWarning
from unlazy.estimators import FeatureMachineRegressor, KernelRegressor, TableEncoder, save


def frame(n=80):
    rng = np.random.default_rng(0)
    many = np.array([f"town{i}" for i in rng.integers(0, 20, n)], dtype=object)
    few = np.array(["red", "blue", None], dtype=object)[rng.integers(0, 3, n)]
    x = rng.normal(3.0, 2.0, n)
    x[::9] = np.nan
    return pd.DataFrame({"x": x, "flag": rng.integers(0, 2, n).astype(float), "color": few, "town": many})


Y = np.random.default_rng(1).normal(size=80)


def test_each_kind_of_column():
    X = frame()
    encoder = TableEncoder()
    A = encoder.fit_transform(X, Y)
    expected = ["x", "x missing", "flag", "color = (missing)", "color = blue", "color = red", "town (mean target)"]
    assert encoder.names_ == expected and list(encoder.source_) == [0, 0, 1, 2, 2, 2, 3]
    filled = X["x"].fillna(X["x"].median())
    # sample deviation (ddof 0) and mean by pandas: an independent sum, so rounding of 80 terms
    np.testing.assert_allclose(A[:, 0], (filled - filled.mean()) / filled.std(ddof=0), atol=1e-12)
    assert A[:, 2].max() - A[:, 2].min() == pytest.approx(1.0)


def test_category_encoding_does_not_leak_the_label_of_a_row():
    """Changing one label changes the encoding of other rows, not of its own."""
    X = frame()[["town"]]
    changed = Y.copy()
    changed[5] += 100
    raw = []
    for labels in (Y, changed):
        encoder = TableEncoder()
        raw.append(encoder.fit_transform(X, labels)[:, 0] * encoder.scale_ + encoder.offset_)
    assert raw[0][5] == pytest.approx(raw[1][5], rel=1e-12)
    same = (X["town"] == X["town"][5]).to_numpy() & (np.arange(80) != 5)
    assert np.any(np.abs(raw[1][same] - raw[0][same]) > 1)


def test_means_are_shrunk_toward_the_overall_mean():
    X = pd.DataFrame({"c": np.array([f"c{i % 13}" for i in range(78)], dtype=object)})
    encoder = TableEncoder(smoothing=4.0).fit(X, Y[:78])
    members = Y[:78][np.arange(78) % 13 == 3]
    expected = (members.sum() + 4 * Y[:78].mean()) / (len(members) + 4)
    assert encoder.means_["c"][encoder.categories_["c"].index("c3"), 0] == pytest.approx(expected, rel=1e-12)


def test_columns_by_name_and_unknown_values(tmp_path):
    X = frame()
    encoder = TableEncoder(target="y").fit(X, Y)
    A = encoder.transform(X)
    np.testing.assert_array_equal(encoder.transform(X[["town", "flag", "x", "color"]]), A)
    np.testing.assert_array_equal(encoder.transform(X.assign(y=1.0)), A)
    with pytest.warns(UnlazyWarning, match="were ignored: extra, more"):
        np.testing.assert_array_equal(encoder.transform(X.assign(extra=1, more="a")), A)
    with pytest.raises(ValueError, match="missing: x, town"):
        encoder.transform(X[["flag", "color"]])
    with pytest.raises(ValueError, match="column 'x' was numeric in training but holds 'tall'"):
        encoder.transform(X.assign(x="tall"))
    with pytest.raises(ValueError, match="holds infinity"):
        encoder.transform(X.assign(x=np.inf))
    new = encoder.transform(X.iloc[:1].assign(town="Atlantis", color="pink", flag=np.nan))
    raw = new * encoder.scale_ + encoder.offset_
    assert raw[0, 6] == pytest.approx(Y.mean(), rel=1e-9)
    np.testing.assert_allclose(raw[0, 3:6], 0, atol=1e-12)


def test_classes_are_averaged_one_by_one():
    labels = np.array(["a", "b", "c"])[np.arange(80) % 3]
    assert TableEncoder().fit_transform(frame(), labels).shape == (80, 6 + 2)


def test_saved_and_loaded_in_a_pipeline(tmp_path):
    X = frame()
    model = make_pipeline(TableEncoder(target="price"), KernelRegressor("laplace", ridge=0.1)).fit(X, Y)
    save(model, tmp_path / "m.unlazy")
    again = unlazy.load(tmp_path / "m.unlazy")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again[0].target == "price"


def test_weights_count_rows():
    """A row of weight k is that row k times: medians, means of categories and deviations alike, to rounding."""
    X, rng = frame(), np.random.default_rng(3)
    y, counts = rng.normal(size=len(X)), rng.integers(1, 4, len(X))
    again = X.loc[X.index.repeat(counts)], np.repeat(y, counts)
    weighted, repeated = TableEncoder(few=25).fit(X, y, sample_weight=counts), TableEncoder(few=25).fit(*again)
    np.testing.assert_allclose(weighted.transform(X), repeated.transform(X), rtol=1e-12, atol=1e-12)
    assert not np.allclose(weighted.transform(X)[:, :2], TableEncoder(few=25).fit(X, y).transform(X)[:, :2])
    weighted, repeated = TableEncoder(few=2).fit(X, y, sample_weight=counts), TableEncoder(few=2).fit(*again)
    np.testing.assert_allclose(weighted.means_["town"], repeated.means_["town"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(weighted.prior_, repeated.prior_, rtol=1e-12)


@parametrize_with_checks([TableEncoder()])
def test_scikit_learn_check(estimator, check):
    check(estimator)


def test_names_and_containers_of_the_output():
    X = frame()
    encoder = TableEncoder().set_output(transform="pandas").fit(X, Y)
    found = encoder.transform(X[["town", "flag", "x", "color"]])
    assert list(found.columns) == list(encoder.get_feature_names_out()) == encoder.names_
    np.testing.assert_array_equal(found.to_numpy(), TableEncoder().fit(X, Y).transform(X))
    both = ColumnTransformer([("table", TableEncoder(), ["x", "color"]), ("scaled", StandardScaler(), ["flag"])])
    found = both.set_output(transform="pandas").fit_transform(X, Y)
    assert list(found.columns)[:2] == ["table__x", "table__x missing"] and found.shape == (80, 6)
    numbers = make_pipeline(StandardScaler(), TableEncoder()).fit(X[["flag"]])
    assert list(numbers.get_feature_names_out()) == ["flag"]


def test_arrays_have_columns_by_number():
    X = np.array([[1.0, np.nan, 3.0], [2.0, 5.0, 4.0]] * 8)
    encoder = TableEncoder().fit(X)
    assert encoder.names_ == ["x0", "x1", "x1 missing", "x2"]
    assert list(encoder.get_feature_names_out(["a", "b", "c"])) == ["a", "b", "b missing", "c"]
    words = np.array([["a", 1.5], ["b", 2.5]] * 8, dtype=object)
    assert TableEncoder().fit(words).names_ == ["x0 = a", "x0 = b", "x1"]
    with pytest.raises(ValueError, match="X has 2 features, but TableEncoder is expecting 3"):
        encoder.transform(X[:, :2])


def test_counts_with_many_values_are_numbers():
    """A target of 200 different counts is averaged, not split into 200 classes."""
    X = pd.DataFrame({"c": [f"c{i % 20}" for i in range(200)]})
    assert TableEncoder().fit_transform(X, np.arange(200)).shape == (200, 1)


def rides(n=300):
    """Prices that depend on the distance alone, and three rides without a borough that cost 70."""
    rng = np.random.default_rng(0)
    borough = rng.choice(["Bronx", "Queens", "Manhattan", "Brooklyn"], n, p=[0.1, 0.2, 0.5, 0.2]).astype(object)
    X = pd.DataFrame({"distance": rng.lognormal(1, 0.7, n), "tip": rng.normal(size=n), "borough": borough})
    y = 3 + 3 * X["distance"].to_numpy() + 0.7 * rng.normal(size=n)
    X.loc[:2, "borough"], y[:3] = None, 70.0
    return X, y


@pytest.mark.parametrize(
    "model",
    [KernelRegressor("laplace"), FeatureMachineRegressor("product_laplace", updates=0)],
    ids=["ridge", "machine"],
)
def test_a_rare_missing_category_predicts_what_models_without_it_predict(model):
    """With an indicator of the three rides, a ride of 0.7 without a borough costs 16."""
    X, y = rides()
    new = pd.DataFrame({"distance": [0.7, 1.0, 2.0, 3.0], "tip": 0.0, "borough": None}).astype({"borough": object})
    found = make_pipeline(TableEncoder(), model).fit(X, y)
    at_missing = found.predict(new)
    known = [found.predict(new.assign(borough=name)) for name in ("Bronx", "Queens", "Manhattan", "Brooklyn")]
    without = make_pipeline(TableEncoder(), model).fit(X[["distance", "tip"]], y).predict(new[["distance", "tip"]])
    noise = 0.7  # of the prices
    assert (at_missing > np.min([*known, without], 0) - noise).all()
    assert (at_missing < np.max([*known, without], 0) + noise).all()


def test_few_missing_numbers_are_filled_without_a_mark():
    X, y = rides()
    X = X[["distance", "tip"]].assign(when=pd.date_range("2024-01-01", periods=len(X), freq="h"))
    gone = X.assign(tip=X["tip"].where(X.index >= 3), when=X["when"].where(X.index >= 3))
    encoder = TableEncoder().fit(gone, y)
    assert encoder.names_ == ["distance", "tip", "when days", "when weekday", "when hour"]
    filled = gone[["tip"]].fillna(gone["tip"].median())
    np.testing.assert_array_equal(TableEncoder().fit_transform(gone[["tip"]]), TableEncoder().fit_transform(filled))


def test_rare_categories_share_an_indicator_if_they_have_enough_rows():
    words = ["a"] * 40 + ["b"] * 20 + ["c"] * 5 + ["d"] * 4
    X, y = pd.DataFrame({"w": words}), np.arange(69.0)
    encoder = TableEncoder().fit(X, y)
    assert encoder.names_ == ["w = a", "w = b", "w = (rare)"]
    raw = encoder.transform(pd.DataFrame({"w": ["b", "c", "d", "new", None]})) * encoder.scale_ + encoder.offset_
    np.testing.assert_allclose(raw, [[0, 1, 0], *[[0, 0, 1]] * 4], atol=1e-12)
    alone = TableEncoder()
    A = alone.fit_transform(X[:-4], y[:-4]) * alone.scale_ + alone.offset_
    assert alone.names_ == ["w = a", "w = b"]
    np.testing.assert_allclose(A[60:], [[1, 0]] * 5, atol=1e-12)  # in training as the most frequent one
    raw = alone.transform(X[60:]) * alone.scale_ + alone.offset_
    np.testing.assert_allclose(raw, 0, atol=1e-12)  # between the known ones
    single = TableEncoder().fit(X[:43].assign(w=["a"] * 40 + ["c"] * 3), y[:43])  # its absence would be a mark
    np.testing.assert_array_equal(single.transform(pd.DataFrame({"w": ["a", "c", "new"]})), np.zeros((3, 1)))


def test_all_categories_rare():
    X = pd.DataFrame({"w": np.repeat([f"w{k}" for k in range(6)], 4)})
    assert TableEncoder().fit(X, np.arange(24.0)).kinds_["w"] == "means"  # shrunk toward the overall mean
    assert len(TableEncoder().fit(X).names_) == 6  # without a target each one has an indicator
