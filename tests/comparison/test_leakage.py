"""Suspicious columns (leaks, identifiers, groups, time) and splits that keep groups and later rows apart."""

import numpy as np
import pandas as pd
import pytest
from suspect_tables import clean, missed, planted

from unlazy.comparison.data.leakage import _is_identifier_name, find_suspects, leave_out
from unlazy.comparison.data.reading import read_table
from unlazy.comparison.data.table import load_table, make_table, save_table, split_rows
from unlazy.core.errors import UnlazyError

N = 240


def frame(**more):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), **more})


def target(noise=0.3):
    f = frame()
    return f["a"].to_numpy() ** 2 + f["b"].to_numpy() + noise * np.random.default_rng(1).normal(size=N)


@pytest.mark.parametrize("copy", [lambda y: 3 - 2 * y, lambda y: np.exp(y), lambda y: y + 0.05 * np.cos(np.arange(N))])
def test_a_near_copy_of_the_target_is_a_likely_leak(copy):
    y = target()
    (found,) = find_suspects(make_table(frame(copy=copy(y)), y))
    assert found.name == "copy" and found.reason == "leak" and 0.98 <= found.share <= 1


def test_a_column_that_determines_the_class_is_a_likely_leak():
    y = np.where(target() > 1, "high", np.where(target() > 0, "middle", "low"))
    code = pd.Series(y).map({"high": 7.0, "low": 2.0, "middle": 11.0}).to_numpy()
    assert [s.name for s in find_suspects(make_table(frame(code=code), y))] == ["code"]
    assert [s.name for s in find_suspects(make_table(frame(text=[w[0] for w in y]), y))] == ["text"]


def test_ordinary_columns_are_not_suspects():
    """Inputs that explain much, but not nearly everything: R² of b alone is below 0.5, of a monotone curve of a ~0."""
    assert find_suspects(make_table(frame(), target())) == ()
    assert find_suspects(make_table(frame(), np.where(target() > 0.5, "up", "down"))) == ()
    y = target()
    assert find_suspects(make_table(frame(), y)) == ()


def test_row_numbers_and_identifiers_are_reported():
    """Consecutive integers in any order are labels, unless their name is that of an ordering or they matter."""
    number, far = np.random.default_rng(2).permutation(N) + 1000, np.random.default_rng(3).choice(10**6, N, False)
    ranked = np.argsort(np.argsort(target() + 2 * np.random.default_rng(4).normal(size=N)))
    columns = {
        "row": np.arange(N),
        "customer_id": far,
        "plain": number,
        "people": far,
        "day": np.arange(N),
        "r": ranked,
    }
    found = find_suspects(make_table(frame(**columns), target()))
    assert [(s.name, s.reason) for s in found] == [(name, "identifier") for name in ("row", "customer_id", "plain")]


@pytest.mark.parametrize(
    "name, yes",
    [("id", True), ("PassengerId", True), ("customerID", True), ("row_names", True), ("Unnamed: 0", True),
     ("Case Number", True), ("level_0", True), ("level", False), ("acid", False), ("number of rooms", False),
     ("body mass index", False), ("paid", False)],
)  # fmt: skip
def test_names_of_identifiers(name, yes):
    assert _is_identifier_name(name) is yes


FAST = tuple(range(0, 40, 3))
COUNT = pytest.mark.slow


@pytest.mark.parametrize("number", [pytest.param(k, marks=() if k in FAST else COUNT) for k in range(80)])
def test_a_planted_identifier_or_leak_is_found(number):
    name, columns, y = planted(number)
    assert not missed(name, columns, y), name


def test_hardly_any_column_of_a_clean_table_is_a_suspect():
    check_clean(FAST, 0)


@pytest.mark.slow
def test_at_most_two_columns_of_forty_clean_tables_are_suspects():
    for first in (0, 40):
        check_clean(range(first, first + 40), 2)


def check_clean(numbers, most):
    found = [(k, s.name, s.reason) for k in numbers for s in find_suspects(make_table(*clean(k)))]
    assert len(found) <= most, found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast_cancer", "diabetes", "digits", "iris", "wine"])
def test_toy_sets_have_no_suspects(name):
    assert find_suspects(read_table(name)) == ()


def test_rows_that_differ_only_in_an_identifier_are_copies():
    """They share a group once it is left out, so that no split trains on a test row; groups of the user stay."""
    plain = frame()
    twice = pd.concat([plain, plain[:20]], ignore_index=True).assign(id=np.arange(N + 20))
    y = np.r_[target(), target()[:20]]
    table = make_table(twice, y)
    rest = leave_out(table, ["id"])
    assert len(np.unique(table.groups)) == N + 20 and len(np.unique(rest.groups)) == N
    assert "20 rows differ from another row only in columns that are left out" in rest.notes[-1]
    np.testing.assert_array_equal(rest.groups[:20], rest.groups[N:])
    grouped = make_table(twice.assign(day=np.arange(N + 20) // 10), y, group="day")
    np.testing.assert_array_equal(leave_out(grouped, ["id"]).groups, grouped.groups)
    alike = make_table(plain.assign(id=np.arange(N)), target())
    assert leave_out(alike, ["id"]).notes == alike.notes


def test_groups_and_time_are_detected_and_kept_apart(tmp_path):
    subject, day = np.repeat(np.arange(24), 10), np.arange(N) // 2
    plain = make_table(frame(**{"subject#": subject, "day": day}), target())
    text = " ".join(plain.notes)
    assert "--group subject#" in text and "--time day" in text
    table = make_table(frame(**{"subject#": subject, "day": day}), target(), group="subject#", time="day")
    assert list(table.frame.columns) == ["a", "b"] and "--group" not in " ".join(table.notes)
    by_group = make_table(frame(subject=subject), target(), group="subject")
    for number in range(4):
        train, test = split_rows(by_group, number)
        assert not set(subject[train]) & set(subject[test]) and len(test) >= 0.2 * N
        train, test = split_rows(table, number)
        assert day[train].max() < day[test].min() and not set(subject[train]) & set(subject[test])
    again = load_table(str(tmp_path), save_table(table, tmp_path))
    np.testing.assert_array_equal(split_rows(again, 3)[0], split_rows(table, 3)[0])
    assert plain.digest != table.digest != by_group.digest


def test_dates_can_be_the_time():
    dates = pd.date_range("2020-01-30", periods=N).strftime("%Y-%m-%d")
    table = make_table(frame(when=dates), target(), time="when")
    np.testing.assert_allclose(np.diff(table.time), 86400)
    dated = make_table(frame(when=dates), target())
    assert dated.frame["when"].dtype.kind == "M" and find_suspects(dated) == ()
    with pytest.raises(UnlazyError, match="2 groups"):
        make_table(frame(half=np.arange(N) % 2), target(), group="half")
    with pytest.raises(UnlazyError, match="not times"):
        make_table(frame(word=["u", "v"] * (N // 2)), target(), time="word")
