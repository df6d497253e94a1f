"""The default bandwidth against its definition, also for duplicate points."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from unlazy.estimators.named_kernels import default_bandwidth
from unlazy.kernels.radial import Laplace
from unlazy.products import metric_gram
from unlazy.theory.numerics.geometry import evenly_spaced_rows, median_distance, root_mean_square_norm, row_pairs

X = np.random.default_rng(0).standard_normal((40, 3))


def test_rows_are_spread_evenly_and_pairs_are_counted_once():
    assert evenly_spaced_rows(5, 100).tolist() == [0, 1, 2, 3, 4] and evenly_spaced_rows(9, 3).tolist() == [0, 4, 8]
    i, j = row_pairs(4)
    assert len(i) == 6 and (i < j).all()


def test_both_entry_points_give_the_median_distance():
    exact = np.median(pdist(X))
    assert default_bandwidth("laplace", X) == pytest.approx(exact, rel=1e-12)
    # there the median is of squares, which for an even number of pairs lies between those of its two middle ones
    middle = np.sort(pdist(X))[[389, 390]]
    assert (
        middle[0] - 1e-12 <= metric_gram.metric_gram(Laplace(1.0), X, np.ones(3)).default_bandwidth <= middle[1] + 1e-12
    )


def test_equal_points_have_a_bandwidth():
    assert median_distance(np.zeros(5), 2.0) == 2.0 and median_distance(np.zeros(0), 1.0) == 1.0
    assert root_mean_square_norm(np.zeros(3)) == 1.0 and root_mean_square_norm(
        np.array([9.0, 16.0, 11.0])
    ) == pytest.approx(12**0.5)
    assert default_bandwidth("gaussian", np.ones((4, 2))) == 1.0
