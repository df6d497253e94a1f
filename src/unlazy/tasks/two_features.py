"""Two kinds of features that both predict the label, on points that have one of them or both [L11].

x = (x_1, x_2), y = ±1. The faint feature x_1 = γ y e_1 + N(0, I/d) is linear but noisy: it is learned from many points
only. The bright feature x_2 = κ (1, 0) if y = -1 and κ (1, ±r) if y = 1 is not linearly separable, but few points
suffice. A point without a feature has zeros there. These are P and Q of Li, Wei and Ma, Toward explaining the
regularization effect of initial large learning rate (2019).
"""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from unlazy.core.dataset import Data
from unlazy.core.errors import check_positive_integer


def two_features(
    key: PRNGKeyArray, n: int, *, d: int, faint: float, bright: float, margin: float, size: float, gap: float
) -> Data:
    """Draw n points with d + 2 inputs.

    The first rows have x_2 alone, the last rows x_1 alone.

    Parameters
    ----------
    key : PRNG key
        Source of randomness.
    n : int
        Number of points.
    d : int
        Dimension of x_1.
    faint : float
        Share of points with x_1 alone.
    bright : float
        Share of points with x_2 alone; the rest has both.
    margin : float
        The margin γ of the faint feature.
    size : float
        The size κ of the bright feature.
    gap : float
        The gap r of the bright feature.

    Returns
    -------
    Data
        Inputs of shape (n, d + 2) and labels ±1.

    Raises
    ------
    ValueError
        If the shares are negative or their sum exceeds 1.
    """
    if not (faint >= 0 and bright >= 0 and faint + bright <= 1):
        raise ValueError(f"shares must be at least 0 and their sum at most 1, got faint={faint} and bright={bright}")
    n, d = check_positive_integer("n", n), check_positive_integer("d", d)
    one, two, three = jax.random.split(key, 3)
    y = jax.random.rademacher(one, (n,), float)
    first = (jax.random.normal(two, (n, d)) / jnp.sqrt(d)).at[:, 0].add(margin * y)
    side = jnp.where(y > 0, jax.random.rademacher(three, (n,), float), 0.0)
    second = size * jnp.stack([jnp.ones(n), gap * side], 1)
    row = jnp.arange(n)
    has_first, has_second = row >= round(bright * n), row < n - round(faint * n)
    return Data(jnp.concatenate([first * has_first[:, None], second * has_second[:, None]], 1), y)
