"""Types of columns, one-line errors for invalid ones, splits without leakage, transfer to workers."""

import numpy as np
import pandas as pd
import pytest

from unlazy.comparison.data.table import load_table, make_table, save_table, split_rows
from unlazy.core.errors import UnlazyError

N = 60


def frame(n=N, **more):
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"size": rng.normal(size=n), "age": rng.integers(1, 90, n), **more, "price": rng.normal(size=n)}
    )


def table(n=160, classes=False):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{j}": rng.normal(size=n) for j in range(4)})
    frame["color"] = rng.choice(["red", "blue"], n)
    y = np.sin(2 * frame["x0"].to_numpy()) + 0.05 * rng.normal(size=n)
    return make_table(frame, np.where(y > 0, "up", "down") if classes else y)


def test_tasks_are_recognized_and_overridable():
    X, rng = np.random.default_rng(0).normal(size=(N, 2)), np.random.default_rng(1)
    few, many, words = rng.integers(0, 4, N), rng.integers(0, 40, N), rng.choice(["yes", "no"], N)
    assert make_table(X, few).task == "classification" and make_table(X, few, task="regression").task == "regression"
    assert make_table(X, many).task == "regression" and make_table(X, words).task == "classification"
    assert make_table(X, few).y.dtype.kind == "i"


def test_notes_report_corrections():
    data = frame(flat=1.0)
    data.loc[:4, "price"] = np.nan
    data.loc[10] = data.loc[11]
    table = make_table(data.drop(columns="price"), data["price"])
    text = " ".join(table.notes)
    assert "dropped 5 rows with a missing target 'price'" in text and "dropped constant columns: flat" in text
    assert "1 rows repeat the inputs" in text and len(table) == N - 5
    rare = make_table(np.random.default_rng(0).normal(size=(N, 2)), ["odd"] * 2 + ["a", "b"] * 29)
    assert len(rare) == 58 and "'odd'" in " ".join(rare.notes)


def test_bad_targets():
    X = np.random.default_rng(0).normal(size=(N, 2))
    for y, words in (
        (np.ones(N), "is 1 in every row"),
        (["a"] * N, "is 'a' in every row"),
        ([f"w{i}" for i in range(N)], "fewer than two classes"),
        ([np.nan] * N, "0 rows with a known target are too few"),
        (["1", "2", "x"] * 20, "--task classification"),
    ):
        with pytest.raises(UnlazyError, match=words):
            make_table(X, y)
    with pytest.raises(UnlazyError, match="120 classes"):
        make_table(np.zeros((240, 1)), [f"c{i % 120}" for i in range(240)])
    with pytest.raises(UnlazyError, match="holds text"):
        make_table(X, ["a", "b"] * 30, task="regression")
    with pytest.raises(ValueError, match="'regression' or 'classification'"):
        make_table(X, np.arange(N), task="ranking")
    with pytest.raises(UnlazyError, match=r"^3 rows with a known target are too few; at least 25 are needed$"):
        make_table(X[:3], np.arange(3.0))
    with pytest.raises(ValueError, match="must have the same number of rows"):
        make_table(X, np.zeros(3))
    with pytest.raises(UnlazyError, match="all input columns are constant"):
        make_table(np.zeros((N, 2)), np.arange(N))


@pytest.mark.parametrize(
    "options, words",
    [({"drop": ("price",)}, "it cannot be dropped"), ({"group": "price"}, "it cannot be the group"),
     ({"time": "price"}, "it cannot be the time"), ({"categorical": ("price",)}, "it cannot be an input")],
)  # fmt: skip
def test_the_target_has_no_other_role(options, words):
    data = frame()
    with pytest.raises(UnlazyError, match=f"^'price' is the target; {words}$"):
        make_table(data.drop(columns="price"), data["price"], **options)
    with pytest.raises(UnlazyError, match="there is no column 'prize'"):
        make_table(data.drop(columns="price"), data["price"], drop=("prize",))


def test_splits_keep_equal_rows_together_and_sizes_nested():
    t = table(classes=True)
    doubled = make_table(pd.concat([t.frame, t.frame[:40]]), np.concatenate([t.y, t.y[:40]]))
    for number in range(3):
        train, test = split_rows(doubled, number)
        assert len(train) + len(test) == len(doubled) and not set(train) & set(test)
        assert not set(doubled.groups[train]) & set(doubled.groups[test])
        share = np.mean(doubled.y[train[:60]] == "up")
        assert abs(share - np.mean(doubled.y == "up")) < 0.08  # stratified: within a few rows of 60
    first, again = split_rows(doubled, 0), split_rows(doubled, 0)
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.array_equal(split_rows(doubled, 1)[0], first[0])


def test_groups_with_the_rarest_class_are_spread_over_both_sides():
    """Eight of 80 patients have positive rows, never in their first one: a quarter of them is in every test set."""
    patient = np.repeat(np.arange(80), 3)
    ill = (patient % 10 == 0) & (np.arange(240) % 3 == 2)
    data = frame(240, patient=patient).drop(columns="price")
    for drop in (np.zeros(240, bool), patient % 3 == 1):  # also with groups of different sizes
        kept = ~(drop & (np.arange(240) % 3 == 0))
        t = make_table(data[kept], np.where(ill, "yes", "no")[kept], group="patient")
        for number in range(10):
            train, test = split_rows(t, number)
            assert 1 <= np.sum(t.y[test] == "yes") <= 3 and not set(t.groups[train]) & set(t.groups[test])


def test_tables_round_trip(tmp_path):
    t = table(classes=True)
    t.frame.loc[3, "color"] = None
    digest = save_table(t, tmp_path)
    again = load_table(str(tmp_path), digest)
    pd.testing.assert_frame_equal(again.frame, t.frame)
    np.testing.assert_array_equal(again.y, t.y)
    assert again.digest == digest and again.task == t.task


def test_a_target_without_a_name_is_y():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    assert make_table(pd.DataFrame(rows), pd.Series(rows[:, 0])).target == "y"
