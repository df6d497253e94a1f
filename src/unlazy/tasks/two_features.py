"""Two kinds of features that both tell the label, on points that have one of them or both [L11].

x = (x_1, x_2), y = ±1. The faint kind: x_1 = γ y e_1 + N(0, I/d), linear, told from its noise by many points only.
The bright kind: x_2 = κ (1, 0) where y = -1 and κ (1, ±r) where y = 1: no linear function tells them, few points do.
A point without a kind has zeros there. After Li, Wei and Ma, Toward explaining the regularization effect of initial
large learning rate (2019), whose P and Q these are.
"""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from unlazy.core.data import Data
from unlazy.core.errors import check_positive_integer


def two_features(
    key: PRNGKeyArray, n: int, *, d: int, faint: float, bright: float, margin: float, size: float, gap: float
) -> Data:
    """n points in d + 2 inputs: a share `faint` with x_1 alone, a share `bright` with x_2 alone, the rest with both.

    `margin` is γ, `size` κ, `gap` r. The first rows are those with x_2 alone, the last those with x_1 alone.
    """
    if not (faint >= 0 and bright >= 0 and faint + bright <= 1):
        raise ValueError(f"shares must be at least 0 and together at most 1, got faint={faint} and bright={bright}")
    n, d = check_positive_integer("n", n), check_positive_integer("d", d)
    one, two, three = jax.random.split(key, 3)
    y = jax.random.rademacher(one, (n,), float)
    first = (jax.random.normal(two, (n, d)) / jnp.sqrt(d)).at[:, 0].add(margin * y)
    side = jnp.where(y > 0, jax.random.rademacher(three, (n,), float), 0.0)
    second = size * jnp.stack([jnp.ones(n), gap * side], 1)
    row = jnp.arange(n)
    has_first, has_second = row >= round(bright * n), row < n - round(faint * n)
    return Data(jnp.concatenate([first * has_first[:, None], second * has_second[:, None]], 1), y)
