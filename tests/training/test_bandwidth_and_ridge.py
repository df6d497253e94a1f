"""The search goes downhill, and up with the ridge where K is not positive."""

import numpy as np

from unlazy.training.rfm.bandwidth_and_ridge import coordinate_search


def test_search_raises_the_ridge():
    (_, rho), value = coordinate_search(lambda h, r: np.inf if r < 1e-2 else r, (1.0, 1e-6), bandwidth=False)
    assert rho >= 1e-2 and value == rho


def test_descent_finds_a_minimum_and_stays_where_it_may_not_move():
    def bowl(h, rho):
        return 1 + (np.log2(h) - 3) ** 2 + (np.log10(rho) + 5) ** 2

    (h, rho), value = coordinate_search(bowl, (1.0, 1e-3))
    # the last steps are factors √2 and √10: half of one away at most, each way
    assert abs(np.log2(h) - 3) <= 0.25 and abs(np.log10(rho) + 5) <= 0.25 and value <= 1.13
    assert coordinate_search(bowl, (1.0, 1e-3), bandwidth=False)[0][0] == 1.0
    assert coordinate_search(bowl, (1.0, 1e-3), ridge=False)[0][1] == 1e-3
