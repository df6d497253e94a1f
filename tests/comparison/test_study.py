"""Sizes of a study, and valid budgets."""

import numpy as np
import pytest
from test_table import table

import unlazy
from unlazy.comparison.argument_parsing import parse_budget
from unlazy.comparison.data.table import make_table, split_rows
from unlazy.comparison.study.candidates import find_candidate
from unlazy.comparison.study.study import subsample, training_sizes


def test_sizes_budgets_and_samples():
    assert training_sizes(table()) == [30, 60, 120]
    assert (
        parse_budget("2m") == 120 and parse_budget("90s") == 90 and parse_budget(5) == 5 and parse_budget("1h") == 3600
    )
    for bad in ("", "two", "-1m", "nan"):
        with pytest.raises(ValueError, match="budget must look like"):
            parse_budget(bad)
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        find_candidate("gausian")
    large = make_table(np.random.default_rng(0).normal(size=(50_000, 1)), np.arange(50_000.0))
    assert len(subsample(large)) == 40_000 and "40,000 of 50,000 rows" in subsample(large).notes[-1]
    assert subsample(large).total_rows == subsample(large).rows(np.arange(9)).total_rows == large.total_rows == 50_000
    train, test = split_rows(subsample(large), 0)
    assert sorted([*train, *test]) == list(range(40_000))
    with pytest.raises(ValueError, match="pass y"):
        unlazy.compare(np.zeros((50, 2)))
