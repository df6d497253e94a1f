"""Grids, overrides, records and the padding rule."""

import numpy as np
import pytest

from unlazy.lab.experiment import Record, Records, config, padded_size


def test_points_are_the_union_of_products_without_repeats():
    c = config({"n": [1, 2], "m": ["a", "b"]}, {"n": [2, 3], "m": ["a"]}, seeds=2, d=5)
    assert [(p["n"], p["m"]) for p in c.points()] == [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a")]
    assert all(p["d"] == 5 for p in c.points())


def test_overrides_replace_grid_and_fixed_values():
    c = config({"n": [1, 2]}, seeds=2, d=5)
    assert c.with_values({"d": [7], "n": [9]}).points() == [{"d": 7, "n": 9}]
    assert [p["d"] for p in c.with_values({"d": [7, 8]}).points()] == [7, 8, 7, 8]
    with pytest.raises(ValueError, match="did you mean 'n'"):
        c.with_values({"nn": [1]})
    with pytest.raises(ValueError, match="positive"):
        config({"n": [1]}, seeds=0)


def test_padded_size_is_the_next_power_of_two():
    assert [padded_size(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    with pytest.raises(ValueError, match="-3"):
        padded_size(-3)


def test_records_select_stack_and_summarize():
    rows = Records(Record({"n": n}, s, {"risk": n + s, "curve": [s, s]}) for n in (10, 20) for s in range(3))
    assert len(rows.where(n=10)) == 3 and rows.values("n") == [10, 20]
    values, medians = rows.over("n", "risk")
    assert list(values) == [10, 20] and list(medians) == [11, 21]
    assert rows.measure("curve").shape == (6, 2) and isinstance(rows[:2], Records)
    assert "curve" not in rows.frame() and np.isnan(rows.frame()["seconds"]).all()
