"""Learning curve of a feature machine: how its risk depends on the rows from which the metric was learned.

The directions of an index model can be estimated to order s^{-1/2} from s rows for any link (Hristache, Juditsky and
Spokoiny 2001, by iteratively improved averaged gradients, as in recursive feature machines [D11]). If the risk of a fit
increases with the square of their error, then

    log risk(m; metric of s rows) = a(m) + c/s^p,    c ≥ 0,

with p = 1. That is the slowest case: a kernel with a metric of full rank compensates small errors, and measured risks
fall faster. Metrics learned from a quarter, a half and three quarters of 500 rows, on those of ten tables and three
index models for which the metric matters, gave risks of typically 1.6 : 1.06 : 1: in logarithms the total decrease is
eight times the last part, compared to 4, 6.4 and 11 for p = 1, 2 and 3.
"""

import numpy as np
from jaxtyping import Float

from unlazy.theory.spectra.eigenvalues import slope

THEORY_EXPONENT, MEASURED_EXPONENT = 1.0, 2.0
"""p by theory, and as measured."""


def metric_slope(
    rows: Float[np.ndarray, " s"], log_risks: Float[np.ndarray, " s"], exponent: float = MEASURED_EXPONENT
) -> tuple[float, float]:
    """c of log risk = a + c/s^exponent by least squares, and its standard error [D11].

    Parameters
    ----------
    rows : array of shape (s,)
        Numbers of rows, at least three.
    log_risks : array of shape (s,)
    exponent : float, default MEASURED_EXPONENT

    Returns
    -------
    slope : float
        Zero if the risk increases with s.
    standard_error : float
        From the residuals of the line.
    """
    x, y = np.asarray(rows, float) ** -exponent, np.asarray(log_risks, float)
    centered = x - x.mean()
    found = float(slope(x, y))
    left = y - y.mean() - found * centered
    return max(found, 0.0), float(np.sqrt(np.sum(left**2) / (len(x) - 2) / np.sum(centered**2)))
