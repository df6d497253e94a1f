"""How a learnt metric's part of the risk falls with the rows it was learnt from.

The directions of an index model are found to order s^{-1/2} from s rows, whatever the link (Hristache, Juditsky &
Spokoiny 2001, by averaged gradients, improved in rounds as recursive feature machines do [D11]), and the risk of a fit
along slightly wrong directions rises with the square of their error:

    log risk(m; metric of s rows) = a(m) + c(m)/s,    c ≥ 0.
"""

import numpy as np
from jaxtyping import Float


def metric_slope(
    rows: Float[np.ndarray, " s"], log_risks: Float[np.ndarray, "*m s"]
) -> tuple[Float[np.ndarray, "*m"], Float[np.ndarray, "*m"]]:
    """c by least squares, zero where the risk rises with s, and its standard error by what the line leaves [D11]."""
    x = 1 / np.asarray(rows, float)
    y = np.asarray(log_risks, float)
    centred = x - x.mean()
    square = float(np.sum(centred**2))
    slope = np.sum(centred * y, -1) / square
    left = y - y.mean(-1)[..., None] - slope[..., None] * centred
    error = np.sqrt(np.sum(left**2, -1) / max(len(x) - 2, 1) / square)
    return np.maximum(slope, 0.0), error
