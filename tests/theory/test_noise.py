"""The variance of the noise from trailing modes: limits that hold as often as they claim, and what they assume."""

import numpy as np
import pytest
from scipy.stats import chi2

from unlazy.theory.spectra.noise import FALL, TAIL, estimate_noise

N, DRAWS = 200, 600
RANK = np.arange(N, 0, -1.0)  # of the eigenvalues, which ascend
STEEP = RANK**-2
FAILURES = TAIL + 4 * np.sqrt(TAIL * (1 - TAIL) / DRAWS)
"""Failures of one limit, four standard errors above the claim."""


def draws(mean, variance, seed=0):
    """Squared coefficients of a fixed target with these coefficients, and noise."""
    rng = np.random.default_rng(seed)
    return (mean + np.sqrt(variance) * rng.normal(size=(DRAWS, N))) ** 2


@pytest.mark.parametrize(
    "mean", [np.zeros(N), 10 / RANK, np.where(RANK % 7 == 0, 3.0, 0.0), np.full(N, 0.5)],
    ids=["no target", "smooth", "sparse", "flat"],
)  # fmt: skip
def test_the_upper_limit_holds_for_every_target(mean):
    high = np.array([estimate_noise(STEEP, powers).high for powers in draws(mean, 1.0)])
    assert np.mean(high < 1) <= FAILURES
    if not mean.any():  # and is not vacuous: the quantile at 2.5%/4 of a mean of 100 squares is 0.68
        assert np.median(high) < 1 / 0.68


def resolved(variance, seed=0):
    """Draws of the slowest signal that the lower limit allows: a share (N/i)^FALL of it lies beyond mode i."""
    left = np.append((RANK / N) ** -FALL, 2 * N**FALL)  # all of it lies beyond mode 0; how much the first has is free
    mean = N * np.diff(left) + left[0] + variance
    return mean * np.random.default_rng(seed).normal(size=(DRAWS, N)) ** 2


def test_the_lower_limit_holds_for_the_slowest_signal():
    for variance in (0.0, 3.0):
        low = np.array([estimate_noise(STEEP, powers).low for powers in resolved(variance)])
        assert np.mean(low > variance) <= FAILURES
    # without a signal: a difference of weights 2.05 and 1.05 over 100 and 75 modes, 1.96 standard errors of 0.34
    low = np.array([estimate_noise(STEEP, powers).low for powers in draws(np.zeros(N), 1.0)])
    assert np.mean(low > 1) <= FAILURES and np.median(low) > 0.25


@pytest.mark.parametrize("variance", [0.0, 3.0])
def test_the_lower_limit_is_exact_without_sampling_error(variance):
    """Expected squares instead of draws: of the slowest signal all but the noise is taken away, and the rest is error.

    Mean powers over (n/2, n] and (n/8, n/2] have variances 2/draws times their squares over their numbers of modes.
    """

    def power(first, last):  # of the signal between two modes, and what is left beyond mode n
        return N * ((first / N) ** -FALL - (last / N) ** -FALL) / (last - first) + 1

    late, early = power(100, 200), power(25, 100)
    signal = np.where(RANK > 100, late, np.where(RANK > 25, early, 50.0))
    # 10^14 draws leave an error of 1e-7 of powers up to 10
    np.testing.assert_allclose(estimate_noise(STEEP, signal + variance, draws=10**14).low, variance, atol=1e-5)
    spread = (late + variance + 10) / np.sqrt(100), late / early * (early + variance + 10) / np.sqrt(75)
    error = 1.96 * np.hypot(*spread) * np.sqrt(2 / 40) / (1 - late / early)
    found = estimate_noise(STEEP, signal + variance + 10, draws=40).low
    np.testing.assert_allclose(found, variance + 10 - error, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_eigenvalues_that_fall_slowly_decide_the_ratio(scale):
    """A draw of the process itself: powers proportional to the eigenvalues, so that all but the noise is taken away."""
    values = scale * RANK**-0.2
    powers = values / scale + 0.7
    low = estimate_noise(values, powers, draws=10**14).low
    np.testing.assert_allclose(low, 0.7, atol=1e-5)  # as above, over one less the ratio of 0.8


def test_the_value_is_the_mean_of_the_largest_set_that_may_be_noise():
    """Trailing 100 of 200 modes alike: their mean, and limits that are quantiles of χ² with 100 degrees of freedom."""
    powers = np.where(RANK > 100, 1.0, 1000.0)
    found = estimate_noise(STEEP, powers)
    assert found.value == 1.0  # of 200 modes the mean is 500, of 50 it is the same
    np.testing.assert_allclose(found.high, 100 / chi2.ppf(TAIL / 4, 100), rtol=1e-12)  # of four sets
    # a little more in the leading ones does not show: 200 modes are taken while their quantile allows it
    for more, taken in ((1.2, True), (2.5, True), (4.0, False)):
        found, mean = estimate_noise(STEEP, np.where(RANK > 100, 1.0, more)), (1 + more) / 2
        assert (mean * 200 / chi2.ppf(1 - TAIL / 4, 200) <= found.high) == taken
        assert found.value == pytest.approx(min(mean, found.high) if taken else 1.0, rel=1e-14)


def test_equal_eigenvalues_tell_nothing():
    powers = draws(np.zeros(N), 1.0)[0]
    assert estimate_noise(np.ones(N), powers).low == 0 < estimate_noise(STEEP, powers).low


def test_modes_without_labels_and_several_samples():
    powers = np.ones(N)
    powers[0] = 0
    one, four = estimate_noise(STEEP, powers, absent=1), estimate_noise(STEEP, powers, absent=1, draws=4)
    assert one.value == four.value == 1 > estimate_noise(STEEP, powers).value
    # four times the squares: half the error, up to the skewness of χ²
    np.testing.assert_allclose(1 - four.low, (1 - one.low) / 2, rtol=1e-12)
    np.testing.assert_allclose(four.high - 1, (one.high - 1) / 2, rtol=0.2)


@pytest.mark.parametrize(
    "values, powers, absent, message",
    [
        ([], [], 0, "above absent=0"),
        ([1.0], [1.0], 1, "above absent=1"),
        ([1.0, 2.0], [1.0, np.nan], 0, "finite"),
        ([1.0, 2.0], [1.0, -1.0], 0, "nonnegative"),
    ],
)
def test_misuse_raises(values, powers, absent, message):
    with pytest.raises(ValueError, match=message):
        estimate_noise(np.array(values), np.array(powers), absent=absent)


def test_few_modes_have_an_interval():
    found = estimate_noise(np.ones(3), np.ones(3))
    assert 0 == found.low < found.value == 1 < found.high < np.inf
