"""How a learnt metric's part of the risk falls with the rows it was learnt from.

The directions of an index model are found to order s^{-1/2} from s rows, whatever the link (Hristache, Juditsky &
Spokoiny 2001, by averaged gradients, improved in rounds as recursive feature machines do [D11]), and the risk of a fit
along slightly wrong directions rises with the square of their error:

    log risk(m; metric of s rows) = a(m) + c/s,    c ≥ 0.
"""

import numpy as np
from jaxtyping import Float

from unlazy.theory.spectra import slope


def metric_slope(rows: Float[np.ndarray, " s"], log_risks: Float[np.ndarray, " s"]) -> tuple[float, float]:
    """c by least squares, zero where the risk rises with s, and its standard error by what the line leaves; of three
    or more sizes [D11]."""
    x, y = 1 / np.asarray(rows, float), np.asarray(log_risks, float)
    centred, square = x - x.mean(), float(np.sum((x - x.mean()) ** 2))
    found = float(slope(x, y))
    left = y - y.mean() - found * centred
    return max(found, 0.0), float(np.sqrt(np.sum(left**2) / (len(x) - 2) / square))
