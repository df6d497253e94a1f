"""Rates: their exponents and their corner cases."""

import math

import numpy as np
import pytest

from unlazy.theory.feature_learning import bounds

LINK = [0, 0, 1 / math.sqrt(2), 0, 1 / math.sqrt(2)]


def test_theorem_one_is_sum_of_three_rates():
    one = bounds.one_step_risk(1e4, 10, 512, r=2, degree=3, kappa=0.5)
    size = 2**3 * 0.5**6
    assert one == pytest.approx((math.sqrt(10 * size / 1e4), math.sqrt(size / 512), 0.1))
    assert one.total == pytest.approx(sum(one))
    assert bounds.one_step_samples(10, r=2, kappa=0.5) == 50


def test_transfer_is_free_of_dimension_and_limited_by_the_smaller_sample():
    assert bounds.transfer_risk(1e3, 1e5, 512, r=1, degree=3)[0] == pytest.approx(1e3**-0.5)
    assert bounds.transfer_risk(1e5, 1e3, 512, r=1, degree=3) == pytest.approx((1e3**-0.5, 512**-0.5, 1e3**-0.25))


def test_query_bound():
    assert bounds.query_tolerance(100, degree=4, queries=100) == pytest.approx(math.log(1e4) / 100)
    # τ ≈ 1/√n without logarithms is n = d^{p/2}
    assert bounds.query_samples(100, degree=3) == pytest.approx(1000)


def test_condition_number_of_a_rank_two_hessian_and_of_a_degenerate_one():
    H = np.diag([3.0, -0.5, 0.0, 0.0])
    assert bounds.condition_number(H, 2) == pytest.approx(1 / (math.sqrt(2) * 0.5))
    assert bounds.condition_number(H, 3) == math.inf
    with pytest.raises(ValueError, match="got 5"):
        bounds.condition_number(H, 5)


def test_staircase_counts_polynomials():
    assert bounds.polynomials(10, 4) == 715
    assert [sum(bounds.polynomials(10, j) for j in range(k + 1)) for k in range(5)] == [1, 11, 66, 286, 1001]
    assert [bounds.kernel_degree(n, 10) for n in (0, 1, 10, 11, 66, 285, 1000, 1001)] == [-1, 0, 0, 1, 2, 2, 3, 4]
    assert [bounds.kernel_degree(n, 10, count="power") for n in (1, 99, 100, 9999, 10_000)] == [0, 1, 2, 3, 4]
    risks = [bounds.kernel_staircase(n, 10, LINK) for n in (50, 100, 9999, 10_000)]
    assert risks == pytest.approx([1, 0.5, 0.5, 0])
    with pytest.raises(ValueError, match="'levels'"):
        bounds.kernel_degree(10, 10, count="levels")
    with pytest.raises(ValueError, match="got 1"):
        bounds.kernel_degree(10, 1)


def test_transfer_of_ill_conditioned_targets():
    """κ enters as κ^{2p}, like another factor r^p."""
    plain, stretched = (bounds.transfer_risk(1e4, 1e5, 512, r=2, degree=3, kappa=k) for k in (1.0, 1.5))
    assert stretched[0] / plain[0] == pytest.approx(1.5**3) and stretched[1] / plain[1] == pytest.approx(1.5**3)
