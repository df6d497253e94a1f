"""A partition sends every row to the leaf that was fitted around it."""

import numpy as np
import pytest

from unlazy.training.rfm.partition import leaf_rows, partition


@pytest.mark.parametrize("L", [np.array([1.0, 0.5, 0.1]), np.array([[1.0, 0.2, 0.0], [0.0, 1.0, -1.0]])])
def test_leaves_are_equal_and_hold_their_own(L):
    X = np.random.default_rng(0).normal(size=(1000, 3))
    tree, leaves = partition(X, L, 300)
    assert len(leaves) == 4 and {len(rows) for rows in leaves} == {leaf_rows(1000, 300)} and len(leaves[0]) <= 300
    own = tree.leaf(X)
    for i, rows in enumerate(leaves):
        assert abs(np.sum(own == i) - 250) <= 1  # halves at every split, one row more or less
        assert set(np.flatnonzero(own == i)) <= set(rows)


def test_few_rows_are_one_leaf():
    X = np.random.default_rng(0).normal(size=(50, 3))
    tree, leaves = partition(X, np.ones(3), 50)
    assert len(leaves) == 1 and np.array_equal(leaves[0], np.arange(50))
    assert np.array_equal(tree.leaf(X), np.zeros(50))


def test_the_first_split_is_along_the_widest_direction():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) * [1.0, 5.0, 1.0]
    tree, _ = partition(X, np.array([1.0, 1.0, 50.0]), 300)  # the metric makes the third the widest
    direction = np.abs(tree.directions[0]) / np.linalg.norm(tree.directions[0])
    assert direction[2] > 0.999


def test_ties_at_the_threshold_drop_no_row():
    X = np.repeat(np.arange(4.0), 50)[:, None]
    tree, leaves = partition(X, np.ones(1), 120)
    own = tree.leaf(X)
    assert all(set(np.flatnonzero(own == i)) <= set(rows) for i, rows in enumerate(leaves))
