"""The gain from rows that learn a metric: a line in a power of 1/s."""

import numpy as np
import pytest

from unlazy.theory.spectra.metric_law import metric_slope

ROWS = np.array([100.0, 200.0, 300.0])


@pytest.mark.parametrize("exponent", [1.0, 2.0])
def test_a_line_is_recovered(exponent):
    slope, error = metric_slope(ROWS, -2.0 + 30.0 * ROWS**-exponent, exponent)
    # residuals are rounding, 2e-16, over the spread of s^-p: 4e-3 for p = 1, 5e-5 for p = 2
    np.testing.assert_allclose(slope, 30.0, rtol=1e-12)
    assert error < 1e-10


def test_the_error_is_that_of_least_squares():
    y = np.array([-1.9, -2.3, -2.2])
    slope, error = metric_slope(ROWS, y)
    A = np.stack([np.ones(3), ROWS**-2.0], 1)
    # columns 1 and s^-2 have a condition number of 2e4, their normal equations its square: 4e8 roundings
    found, left, *_ = np.linalg.lstsq(A, y, rcond=None)
    np.testing.assert_allclose(slope, found[1], rtol=1e-8)
    np.testing.assert_allclose(error, np.sqrt(left[0] * np.linalg.inv(A.T @ A)[1, 1]), rtol=1e-6)


def test_more_rows_do_not_increase_the_error():
    assert metric_slope(ROWS, np.array([-2.2, -2.1, -2.0]))[0] == 0.0
