"""Inputs that move on a line or a closed curve: evenly spaced test points beat random ones."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from unlazy.core.errors import check_positive_integer
from unlazy.tasks.base import Estimate, Predictor, Task, mean_estimate, squared_errors

COPIES = 16
"""Independent copies of the grid of test points: their spread is the standard error."""


class LineTask(Task):
    """x = place(u) with u uniform on [0, 1)."""

    def place(self, u: Float[Array, " n"]) -> Float[Array, "n d"]:
        """The inputs at positions u of [0, 1)."""
        raise NotImplementedError

    def input_row(self, key: PRNGKeyArray) -> Float[Array, " d"]:
        return self.place(jax.random.uniform(key, (1,)))[0]

    def grid(self, n: int) -> Float[Array, "n d"]:
        """n evenly spaced inputs (the middles of n cells)."""
        n = check_positive_integer("n (the number of points)", n)
        return self.place((jnp.arange(n) + 0.5) / n)

    def population_risk(self, predict: Predictor, key: PRNGKeyArray, m: int = 4096) -> Estimate:
        """E |predict(x) - f*(x)|² from at most m points: 16 evenly spaced grids, each of random offset (unbiased)."""
        m = check_positive_integer("m (the number of test points)", m)
        cells = m // COPIES
        if cells < 2:
            return super().population_risk(predict, key, m)
        offset = jax.random.uniform(key, (COPIES, 1))
        X = self.place(((jnp.arange(cells) + offset) / cells).ravel())
        return mean_estimate(squared_errors(predict(X), self.target(X)).reshape(COPIES, cells).mean(1))
