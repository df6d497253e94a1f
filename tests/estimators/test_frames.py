"""Data frames as they come: text, categories, booleans, dates and missing values, matched by name and saved."""

import importlib.util
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from estimator_roster import HEAVY, NAMES, make, output, target

import unlazy
from unlazy.core.errors import UnlazyWarning
from unlazy.estimators import FeatureMachineRegressor, KernelClassifier, KernelRegressor, RandomFeatures, TableEncoder

N = 40


def frame(n=N, seed=0):
    """One column of every kind."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "size": np.where(np.arange(n) % 4 == 0, np.nan, rng.normal(3, 2, n)),
        "color": rng.choice(["red", "blue", "green"], n),
        "grade": pd.Categorical(rng.permutation(np.arange(n) % 3 + 1)),
        "new": rng.random(n) > 0.5,
        "rooms": pd.array(np.where(np.arange(n) % 5 == 1, None, rng.integers(1, 6, n)), dtype="Int64"),
        "garden": pd.array(np.where(np.arange(n) % 5 == 2, None, rng.random(n) > 0.5), dtype="boolean"),
        "sold": pd.date_range("2023-11-01", periods=n, freq="53h"),
        "listed": pd.date_range("2023-11-01", periods=n, freq="D", tz="Europe/Berlin"),
        "waited": pd.to_timedelta(rng.integers(1, 90, n), unit="D"),
    })  # fmt: skip
    table.loc[3, "sold"] = pd.NaT
    return table


F = frame()
Y = np.asarray(F["grade"].astype(int)) + 0.1 * F["size"].fillna(3).to_numpy()
LIGHT = {name: {} for name in NAMES} | {
    name: {"kernel": "product_laplace", "updates": 0} for name in NAMES if name.startswith("FeatureMachine")
}


def small(name):
    return make(name, **LIGHT[name])


@pytest.mark.slow_cases("GaussianProcess")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in NAMES])
def test_every_estimator_takes_every_kind_of_column(name, tmp_path):
    model = small(name).fit(F, target(name, Y))
    found = output(model, F)
    assert np.isfinite(found).all() and len(found) == N
    assert model.n_features_in_ == 9 and list(model.feature_names_in_) == list(F.columns)
    np.testing.assert_array_equal(output(model, F[F.columns[::-1]]), found)
    np.testing.assert_array_equal(output(model, pa.Table.from_pandas(F)), found)
    with pytest.warns(UnlazyWarning, match="unknown to the model were ignored: extra"):
        np.testing.assert_array_equal(output(model, F.assign(extra="?")), found)
    with pytest.raises(ValueError, match="columns that the model was fitted to are missing: color, sold"):
        output(model, F.drop(columns=["sold", "color"]))
    if hasattr(model, "feature_importances_"):
        assert model.feature_importances_.shape == (9,)
        assert model.feature_importances_.sum() == pytest.approx(1)
    model.save(tmp_path / "m.unlazy")
    np.testing.assert_array_equal(output(unlazy.load(tmp_path / "m.unlazy"), F), found)


def test_numbers_have_no_encoder_and_keep_their_bits():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 3)).round(2), rng.normal(size=20)
    plain = KernelRegressor().fit(X, y)
    numbers = pd.DataFrame(X, columns=["a", "b", "c"])
    for table in (numbers, numbers.astype("Float64"), numbers.astype(object), pa.Table.from_pandas(numbers)):
        model = KernelRegressor().fit(table, y)
        assert not hasattr(model, "encoder_")
        np.testing.assert_array_equal(model.predict(table), plain.predict(X))
        assert list(model.feature_names_in_) == ["a", "b", "c"]
    flags = numbers.assign(b=numbers["b"] > 0)
    model = KernelRegressor().fit(flags, y)
    assert not hasattr(model, "encoder_")
    np.testing.assert_array_equal(model.predict(flags), KernelRegressor().fit(flags.astype(float), y).predict(flags))


def test_the_kind_of_a_column_is_its_type_and_not_its_values():
    encoder = KernelRegressor().fit(F, Y).encoder_
    dates = {"sold": ["days", "month", "weekday", "hour"], "listed": ["days", "month", "weekday"]}
    expected = [
        "size", "size missing", "color = blue", "color = green", "color = red", "grade = 1", "grade = 2", "grade = 3",
        "new", "rooms", "rooms missing", "garden", "garden missing",
        *(f"{name} {part}" for name, parts in dates.items() for part in parts), "waited",
    ]  # fmt: skip
    assert [name for name in encoder.names_ if not name.endswith("year")] == expected
    raw = encoder.transform(F) * encoder.scale_ + encoder.offset_
    column = dict(zip(encoder.names_, raw.T))
    sold, known = F["sold"], F["sold"].notna().to_numpy()
    for part, oracle in (
        ("month", sold.dt.month),
        ("weekday", sold.map(lambda t: t.weekday())),
        ("hour", sold.dt.hour),
    ):
        np.testing.assert_allclose(column[f"sold {part}"][known], oracle[known], atol=1e-9)  # rounding of the scale
    days = (sold - sold.min()) / pd.Timedelta("1D")
    np.testing.assert_allclose(column["sold days"][known], days[known], atol=1e-9)
    np.testing.assert_allclose(column["waited"], F["waited"].dt.days, atol=1e-9)
    np.testing.assert_allclose(column["listed month"], F["listed"].dt.month, atol=1e-9)
    np.testing.assert_allclose(column["grade = 2"], F["grade"] == 2, atol=1e-12)


def test_predictions_of_category_codes_ignore_their_order():
    """Levels that are renamed keep their effect; as numbers they would not."""
    names = {1: 3, 2: 1, 3: 2}
    table, renamed = F[["grade", "size"]], F[["grade", "size"]].assign(grade=F["grade"].map(names).astype("category"))
    settings = {"kernel": "product_laplace", "updates": 0}
    found = FeatureMachineRegressor(**settings).fit(table, Y).predict(table)
    again = FeatureMachineRegressor(**settings).fit(renamed, Y).predict(renamed)
    np.testing.assert_allclose(again, found, rtol=1e-6)  # another order of columns and rows: rounding times condition


def test_asked_categories_and_names_of_codes():
    table = F[["color", "rooms"]].assign(floor=np.arange(N) % 4)
    model = FeatureMachineRegressor("product_laplace", updates=0, categorical=["floor"]).fit(table, Y)
    assert [name for name in model.encoder_.names_ if "floor" in name] == [f"floor = {k}" for k in range(4)]
    assert model.coding_ == "numbers" and model.feature_importances_.shape == (3,)
    with pytest.raises(ValueError, match="'flor', which is not a column"):
        FeatureMachineRegressor(categorical=["flor"]).fit(table, Y)


def test_new_values_at_prediction_time():
    model = KernelRegressor().fit(F, Y)
    new = F.iloc[:4].assign(color="pink", new=True, rooms=2.0, sold="2024-02-29 13:00", grade=[1, 2, 3, 7])
    assert np.isfinite(model.predict(new)).all()
    utc = F.assign(listed=F["listed"].dt.tz_convert("UTC"))
    np.testing.assert_array_equal(model.predict(utc), model.predict(F))
    with pytest.raises(ValueError, match="'listed' had the time zone Europe/Berlin in training but has none now"):
        model.predict(F.assign(listed=F["listed"].dt.tz_localize(None)))
    with pytest.raises(ValueError, match="'sold' held dates in training but holds 'soon'"):
        model.predict(F.assign(sold="soon"))
    with pytest.raises(ValueError, match="'size' was numeric in training but holds '2020-01-01"):
        model.predict(F.assign(size=pd.Timestamp("2020-01-01")))
    with pytest.raises(ValueError, match="'size' holds infinity"):
        KernelRegressor().fit(F.assign(size=np.inf), Y)
    with pytest.raises(TypeError, match="column 'size' of X"):
        KernelRegressor().fit(F.assign(size=[{"a": 1}] * N), Y)
    with pytest.raises(ValueError, match="2 columns are named 'new'"):
        KernelRegressor().fit(F.rename(columns={"rooms": "new"}), Y)


def test_rows_of_weight_zero_and_refits_leave_nothing_behind():
    keep = np.arange(N) % 7 != 0
    table = F[["size", "color"]].assign(color=np.where(keep, F["color"], "odd"))
    weighted = KernelRegressor("gaussian").fit(table, Y, keep.astype(float))
    alone = KernelRegressor("gaussian").fit(table[keep], Y[keep])
    assert weighted.encoder_.names_ == alone.encoder_.names_
    np.testing.assert_allclose(weighted.predict(table[keep]), alone.predict(table[keep]), rtol=1e-9)  # equal rows
    refit = weighted.fit(np.arange(2.0 * N).reshape(N, 2), Y)
    assert not hasattr(refit, "encoder_") and not hasattr(refit, "feature_names_in_")


def test_classes_several_outputs_and_high_cardinality():
    rng = np.random.default_rng(2)
    town = rng.integers(0, 30, 240)
    table = pd.DataFrame({"town": [f"t{k}" for k in town], "x": rng.normal(size=240)})
    effect = rng.normal(size=(30, 2))[town]
    model = KernelRegressor("laplace").fit(table, effect + 0.1 * rng.normal(size=(240, 2)))
    assert model.encoder_.kinds_["town"] == "means" and model.predict(table).shape == (240, 2)
    assert model.encoder_.names_ == ["town (mean target 0)", "town (mean target 1)", "x"]
    labels = np.array(["a", "b", "c"])[np.digitize(effect[:, 0], [-0.4, 0.4])]
    classifier = KernelClassifier("laplace").fit(table, labels)
    assert classifier.score(table, labels) > 0.6  # the largest class has 0.4; the town decides the class
    features = RandomFeatures(n_components=8).fit(table)  # without targets the most frequent towns get indicators
    assert features.encoder_.kinds_["town"] == "indicators"


def test_learning_curves_and_intervals_take_frames():
    table, rng = frame(80, 1), np.random.default_rng(0)
    y = np.asarray(table["grade"].astype(int)) + 0.1 * rng.normal(size=80)
    machine = FeatureMachineRegressor("gaussian", metric="diagonal", updates=0)
    assert np.isfinite(machine.learning_curve(table, y).risk).all()
    model = KernelRegressor().fit(table, y)
    low, high = model.predict_interval(table, 0.8).T
    assert (low < high).all() and model.score(table, y) > 0.5


@pytest.mark.skipif(importlib.util.find_spec("polars") is None, reason="polars is not installed")
def test_polars_frames():
    import polars as pl

    model = KernelRegressor().fit(F, Y)
    table = pl.from_pandas(F)
    np.testing.assert_array_equal(KernelRegressor().fit(table, Y).predict(table), model.predict(F))


def test_frames_of_other_libraries_are_converted_by_themselves():
    class Frame:
        """A frame as Polars has it: `columns`, `shape` and `to_pandas`."""

        columns, shape = list(F.columns), F.shape

        def to_pandas(self):
            return F

    class Lazy:
        columns = (*F.columns,)

        def collect(self):
            return Frame()

    model = KernelRegressor().fit(Frame(), Y)
    np.testing.assert_array_equal(model.predict(Frame()), KernelRegressor().fit(F, Y).predict(F))
    with pytest.raises(ValueError, match=r"has no rows yet: pass X.collect\(\)"):
        KernelRegressor().fit(Lazy(), Y)


def test_encoder_of_a_frame_is_the_one_of_a_pipeline():
    table = F[["size", "color", "sold"]]
    A = TableEncoder().fit_transform(table, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = KernelRegressor().fit(table, Y)
    np.testing.assert_array_equal(KernelRegressor().fit(A, Y).predict(A), model.predict(table))
