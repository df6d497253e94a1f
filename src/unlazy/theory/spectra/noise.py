"""Variance of the label noise, from the modes that the kernel learns last.

In the eigenvectors of K(X,X) the labels have coefficients c_i, and E c_i² = signal_i + ς². The signal is concentrated
in the leading modes (Braun, Buhmann and Müller 2008, "On relevant dimensions in kernel feature spaces", JMLR 9), so the
mean of c_i² over the trailing ones estimates ς² (Buckley, Eagleson and Silverman 1988, "The estimation of residual
variance in nonparametric regression", Biometrika 75).

Upper limit. Whatever the target, a signal only adds: c_i² is a noncentral χ² variable. Every set of trailing modes
gives an upper limit of ς², and the least of them is one, if the error probability is divided by their number. The only
assumption is that the noise is independent of the points, near normal and of equal variance. The estimate is the mean
over the largest set that the upper limit does not contradict (Lepski's rule): more modes, less chance.

Lower limit. Noise and a signal that the kernel cannot resolve look alike, so an assumption is necessary: without noise
the risk would fall with n at least as fast as n^-FALL. A signal of which a share E(i) ∝ i^-FALL lies beyond mode i has
the mean power n (E(i) - E(j))/(j - i) between the modes i and j, and its part beyond mode n adds E(n) to each c_i², as
noise would. This bounds its mean over the last half of the modes by RATIO times that over (n/8, n/2]. If the
eigenvalues fall by less, the ratio is theirs, as for a draw of the Gaussian process with covariance K.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import gammaincinv

MIN_MODES = 20
"""Least number of trailing modes, unless there are fewer modes."""
TAIL, TAIL_Z = 0.025, 1.96
"""Error probability of each limit, and the normal quantile."""
FALL = 1 / 3
"""Assumed exponent of the noiseless risk."""
RATIO = (1 + 2 * (2**FALL - 1)) / (1 + 8 / 3 * (8**FALL - 2**FALL))
"""Largest assumed ratio of mean signal powers, of the modes (n/2, n] and (n/8, n/2]."""


class NoiseEstimate(NamedTuple):
    """Variance of the noise, with a 95% interval."""

    value: float
    """Mean over the largest set of trailing modes that is not significantly above `high`, and at most `high`: too large
    by what is left of the signal there."""
    low: float
    high: float

    @property
    def cautious(self) -> float:
        """Halfway from `value` to `high`, in logarithms, which the noise exceeds in one draw of ten: for forecasts."""
        return float(np.sqrt(self.value * self.high))


def estimate_noise(
    eigenvalues: Float[np.ndarray, " n"], powers: Float[np.ndarray, " n"], *, absent: int = 0, draws: int = 1
) -> NoiseEstimate:
    """Estimate the variance of the noise from the squared coefficients of the labels.

    Parameters
    ----------
    eigenvalues : array of shape (n,)
        Eigenvalues of K(X,X), ascending.
    powers : array of shape (n,)
        Squared coefficients of the labels in the eigenvectors, summed over outputs.
    absent : int, default 0
        Number of trailing modes without labels: one, if labels and kernel are centered.
    draws : int, default 1
        Number of disjoint samples over which `eigenvalues` and `powers` are means.

    Returns
    -------
    NoiseEstimate

    Raises
    ------
    ValueError
        If no mode has a label, the lengths differ, or a value is negative, NaN or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> from unlazy.theory.spectra.noise import estimate_noise
    >>> i = np.arange(400, 0, -1.0)
    >>> found = estimate_noise(i**-2, 0.1 + 400 / i**3)
    >>> round(found.value, 3), found.low < 0.1 < found.high
    (0.1, True)
    """
    n = len(powers)
    if len(eigenvalues) != n or n <= absent:
        raise ValueError(
            f"eigenvalues and powers must have one length above absent={absent}, got {len(eigenvalues)} and {n}"
        )
    if not (np.isfinite([eigenvalues, powers]).all() and np.min([eigenvalues, powers]) >= 0):
        raise ValueError("eigenvalues and powers must be finite and nonnegative: the labels have NaN or infinity")
    total = np.cumsum(powers)
    counts = np.array([n, *(n >> j for j in range(1, n.bit_length()) if n >> j >= MIN_MODES)])
    means = total[counts - 1] / (counts - absent)
    freedom = draws * (counts - absent)
    few, many = (2 * gammaincinv(freedom / 2, p) for p in (TAIL / len(counts), 1 - TAIL / len(counts)))  # of χ²
    high = float(np.min(means * freedom / few))
    value = min(float(means[np.argmax(means * freedom / many <= high)]), high)
    return NoiseEstimate(value, min(_lower_limit(eigenvalues, powers, absent, draws), value), high)


def _lower_limit(eigenvalues: np.ndarray, powers: np.ndarray, absent: int, draws: int) -> float:
    """Remainder of the last half of the modes, after the largest signal that the modes before them allow."""
    n = len(powers)
    last, middle = slice(absent, n // 2), slice(n // 2, n - n // 8)
    ratio = max(RATIO, float(eigenvalues[last].mean() / max(eigenvalues[middle].mean(), np.finfo(float).tiny)))
    if ratio >= 1:
        return 0.0
    power, more = float(np.sum(powers[: n // 2]) / (n // 2 - absent)), float(powers[middle].mean())
    # the variance of χ² with m degrees of freedom is 2m
    error = np.hypot(power / np.sqrt(n // 2 - absent), ratio * more / np.sqrt(n - n // 8 - n // 2)) * np.sqrt(2 / draws)
    return max(0.0, (power - ratio * more - TAIL_Z * error) / (1 - ratio))
