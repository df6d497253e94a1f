"""How far the sizes of a study go, and what its budget may be."""

import numpy as np
import pytest
from test_table import table

import unlazy
from unlazy.comparison.cli_options import parse_budget
from unlazy.comparison.data.table import make_table, split
from unlazy.comparison.study.contestants import find
from unlazy.comparison.study.study import ladder, sampled


def test_sizes_budgets_and_samples():
    assert ladder(table()) == [30, 60, 120]
    assert (
        parse_budget("2m") == 120 and parse_budget("90s") == 90 and parse_budget(5) == 5 and parse_budget("1h") == 3600
    )
    for bad in ("", "two", "-1m", "nan"):
        with pytest.raises(ValueError, match="a budget looks like"):
            parse_budget(bad)
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        find("gausian")
    large = make_table(np.random.default_rng(0).normal(size=(50_000, 1)), np.arange(50_000.0))
    assert len(sampled(large)) == 40_000 and "40000 of 50000 rows" in sampled(large).notes[-1]
    assert sampled(large).whole == sampled(large).rows(np.arange(9)).whole == large.whole == 50_000
    train, test = split(sampled(large), 0)
    assert sorted([*train, *test]) == list(range(40_000))
    with pytest.raises(ValueError, match="give y"):
        unlazy.compare(np.zeros((50, 2)))
